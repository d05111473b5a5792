package fdstore

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
)

// TestTheServiceManagerHears plays systemd's end of NOTIFY_SOCKET, by a path and by an abstract name.
func TestTheServiceManagerHears(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), "@" + t.Name() + filepath.Base(t.TempDir())} {
		manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		defer manager.Close()
		t.Setenv("NOTIFY_SOCKET", name)
		f := Open(slog.Default())
		hear := func(want string, descriptors int) (fds []int) {
			t.Helper()
			if err := manager.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			text, oob := make([]byte, 4096), make([]byte, 4096)
			n, oobn, _, _, err := manager.ReadMsgUnix(text, oob)
			if err != nil {
				t.Fatalf("nothing heard on %s: %v", name, err)
			}
			if got := string(text[:n]); got != want {
				t.Errorf("heard %q, want %q", got, want)
			}
			messages, err := unix.ParseSocketControlMessage(oob[:oobn])
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				got, err := unix.ParseUnixRights(&m)
				if err != nil {
					t.Fatal(err)
				}
				fds = append(fds, got...)
			}
			if len(fds) != descriptors {
				t.Errorf("got %d descriptors, want %d", len(fds), descriptors)
			}
			return fds
		}
		f.Notify("READY=1")
		hear("READY=1", 0)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		f.Keep(&protocol.Packet{ID: "c1", Roles: []protocol.Role{protocol.RoleStdout}, FDs: []int{int(r.Fd())}})
		for _, fd := range hear("FDSTORE=1\nFDPOLL=0\nFDNAME="+nameOf(keyOf("c1"), protocol.RoleStdout), 1) {
			if _, err := w.WriteString("x"); err != nil {
				t.Fatal(err)
			}
			if n, err := unix.Read(fd, make([]byte, 8)); n != 1 || err != nil {
				t.Errorf("the descriptor is not the pipe: %d, %v", n, err)
			}
			unix.Close(fd)
		}
		f.Release("c1")
		hear("FDSTOREREMOVE=1\nFDNAME="+nameOf(keyOf("c1"), protocol.RoleStdout), 0)
		r.Close()
		w.Close()
	}
}

// TestAServiceManagerThatHangs: the keeper goes on, and stores what the service manager has not taken when it is asked
// to again. It hung with the service manager, and so did all starts, and upgrades. It was seen to fail, too, where each
// descriptor waited for the service manager anew.
func TestAServiceManagerThatHangs(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	f := Open(slog.New(slog.DiscardHandler))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for err == nil { // until it has no room
		err = unix.Sendto(fd, []byte("X=1"), 0, &unix.SockaddrUnix{Name: name})
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	keep := func() {
		f.Keep(&protocol.Packet{ID: "c1", Roles: []protocol.Role{protocol.RoleStdout}, FDs: []int{int(r.Fd())}})
	}
	over := make(chan struct{})
	go func() {
		keep()
		close(over)
	}()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
	}
	if stored := f.List()[keyOf("c1")]; len(stored) > 0 {
		t.Errorf("what was not taken counts as stored: %v", stored)
	}
	// It took seven timeouts for the descriptors of one container.
	all := &protocol.Packet{ID: "c2"}
	for _, role := range []protocol.Role{"1", "2", "3", "4", "5", "6", "7"} {
		all.Roles, all.FDs = append(all.Roles, role), append(all.FDs, int(r.Fd()))
	}
	began := time.Now()
	f.Keep(all)
	if took := time.Since(began); took > 2*protocol.SendTimeout {
		t.Errorf("the next container waits %v for it", took)
	}
	if _, err := manager.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	keep()
	if stored := f.List()[keyOf("c1")]; len(stored) != 1 {
		t.Errorf("what was taken does not count as stored: %v", stored)
	}
}
