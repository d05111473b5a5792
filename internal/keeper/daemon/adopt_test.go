package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	"berth/internal/keeper/events"
	"berth/internal/keeper/gate"
	"berth/internal/keeper/logpump"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	"berth/internal/keeper/session"
	"berth/internal/keeper/stage"
	"berth/internal/quota/quotatest"
)

// holder is a client that holds an escrow, and has taken all that was put there.
type holder struct {
	t    *testing.T
	conn *protocol.Conn
	raw  syscall.RawConn // of conn
	got  []*protocol.Packet
}

// packets are all that the holder was sent so far.
func (h *holder) packets() []*protocol.Packet {
	h.t.Helper()
	for {
		var none bool // what was sent is there already
		err := h.raw.Control(func(fd uintptr) {
			_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
			none = err == unix.EAGAIN
		})
		if err != nil {
			h.t.Fatal(err)
		}
		if none {
			return h.got
		}
		p, err := h.conn.Receive()
		if err != nil {
			h.t.Fatal(err)
		}
		p.CloseFiles()
		h.got = append(h.got, p)
	}
}

// released says whether the holder was told to drop something.
func (h *holder) released() bool {
	return slices.ContainsFunc(h.packets(), func(p *protocol.Packet) bool { return p.Kind == protocol.Release })
}

// exec is the last record of an exec that the holder has been given, as it hands it back to the next keeper.
func (h *holder) exec() record.Exec {
	h.t.Helper()
	for _, p := range slices.Backward(h.packets()) {
		if p.Kind == protocol.Keep {
			var e record.Escrowed
			if err := json.Unmarshal(p.Record, &e); err != nil || e.Exec == nil {
				h.t.Fatalf("%s: %v", p.Record, err)
			}
			return *e.Exec
		}
	}
	h.t.Fatal("nothing was put into escrow")
	return record.Exec{}
}

// successor is a keeper that has just come, with one running container "c", and a client that holds an escrow for it.
func successor(t *testing.T) (*Server, *holder) {
	t.Helper()
	s := &Server{
		log: slog.New(slog.DiscardHandler), gate: gate.New(),
		containers: &containers{byID: map[string]*container{}}, sessions: session.NewTable(),
	}
	s.escrow, s.adoption = &escrow{sessions: s.sessions}, &adoption{s: s}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*protocol.Conn
	var raw syscall.RawConn // of the holder
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "socket")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		ends[i] = protocol.NewConn(c.(*net.UnixConn))
		if raw, err = c.(*net.UnixConn).SyscallConn(); err != nil {
			t.Fatal(err)
		}
	}
	ses := session.New(&protocol.Packet{Session: "berthd", Escrow: true}, ends[0])
	s.sessions.Add(ses)
	ses.Begin()
	c := s.newContainer(record.Container{ID: "c", State: protocol.StateRunning})
	close(c.started)
	s.containers.add(c)
	t.Cleanup(func() {
		s.watching.Wait()
		ses.Close()
	})
	return s, &holder{t: t, conn: ends[1], raw: raw}
}

// TestTwoKeepersKilledAsACommandBegins: what an exec ends with whose keeper was killed before it let the command begin
// is no exit code of the command, whichever keeper tells it. The second to take it back told it as one, since the first
// had put the exec into escrow again as one that had begun.
func TestTwoKeepersKilledAsACommandBegins(t *testing.T) {
	for _, test := range []struct {
		name      string
		script    string
		uncertain bool
		code      int32
	}{
		{"it had not begun", fmt.Sprint("exit ", stage.Abandoned), true, 0},
		{"it had begun", "exit 7", false, 7},
		{"it runs", "sleep 0.5; exit 8", false, 8},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", test.script)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Wait() }()
			start, err := pidfd.StartTime(cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			r := record.Exec{ContainerID: "c", ExecID: "e", Prepared: true, PID: cmd.Process.Pid, Start: start}
			if test.name != "it runs" { // a process that has ended and that its parent has not reaped
				for pidfd.Alive(r.PID, r.Start) {
					time.Sleep(time.Millisecond)
				}
			}
			for range 3 { // keepers, each killed as soon as it has taken the exec back, but for the last
				fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
				if err != nil {
					t.Fatal(err)
				}
				s, holder := successor(t)
				if err := s.adoption.adoptExec(&r, map[protocol.Role]int{protocol.RolePidfd: fd}); err != nil {
					t.Fatal(err)
				}
				r = holder.exec()
				exit, err := s.waitExec(t.Context(), &api.ExecID{ContainerId: "c", ExecId: "e"})
				switch {
				case test.uncertain && !errors.Is(err, errUncertain):
					t.Errorf("%v, %v; want %v", exit, err, errUncertain)
				case !test.uncertain && (err != nil || exit.ExitCode != test.code):
					t.Errorf("%v, %v; want code %d", exit, err, test.code)
				}
			}
		})
	}
}

// TestAStartMadeAgainStaysInEscrow: an escrow that hands back what an earlier start of a container has left is told to
// drop it, and nothing that a start of the same container has put there since. Such an end was lost with the next
// keeper, and told as 255.
func TestAStartMadeAgainStaysInEscrow(t *testing.T) {
	s, holder := successor(t)
	old := &record.Container{ID: "again", State: protocol.StateRunning, PID: 1 << 22, Start: 1}
	c := s.newContainer(record.Container{ID: "again", State: protocol.StateRunning, PID: 1, Start: 1})
	s.escrow.putting.RLock() // the new start is about to put it into escrow
	dropped := make(chan struct{})
	go func() {
		defer close(dropped)
		if got := s.adoption.adoptRecord(old); got != nil {
			t.Errorf("it took %v back", got)
		}
	}()
	time.Sleep(20 * time.Millisecond) // by then it has looked for the container
	s.containers.add(c)
	s.escrow.putting.RUnlock()
	<-dropped
	if holder.released() {
		t.Error("it is dropped")
	}
}

// TestTheEscrowIsKeptUntilTheEndIsSaved: the handback may be over while a container's end is known and about to be
// saved. A keeper that was killed then had given up the pidfd that tells the end: the next one told it as 255.
func TestTheEscrowIsKeptUntilTheEndIsSaved(t *testing.T) {
	s, holder := successor(t)
	s.table = record.NewTable(t.TempDir(), s.log)
	s.events = events.New()
	released := func() bool {
		s.watching.Wait()
		return holder.released()
	}
	c, err := s.containers.get("c")
	if err != nil {
		t.Fatal(err)
	}
	c.record.Orphan, c.ending, c.record.State = true, true, protocol.StateExited // and ended has yet to save it
	s.adoption.endHandback()
	if released() {
		t.Error("the escrow was given up")
	}
	close(c.exited)
	c.drain() // as ended does then
	if !released() {
		t.Error("the escrow was not given up")
	}
}

// TestNothingIsGuessedWhileThingsAreHandedBack: a keeper that was restarted does not know yet which execs run, nor the
// containers whose records are spoilt. It says so, and the client asks again. It said before that there is no such
// exec, and started the same exec a second time for a client that was faster than who held the first.
func TestNothingIsGuessedWhileThingsAreHandedBack(t *testing.T) {
	s, _ := successor(t)
	s.table = record.NewTable(t.TempDir(), s.log)
	s.events = events.New()
	c, err := s.containers.get("c")
	if err != nil {
		t.Fatal(err)
	}
	c.record.Orphan = true
	s.adoption.lost = []string{"spoilt"}
	ask := map[string]func() error{
		"exec": func() error {
			_, fresh, err := s.reserveExec(&api.ExecRequest{ContainerId: "c", ExecId: "e", Nonce: "n"})
			if err == nil && !fresh {
				t.Error("an exec that is not there is known")
			}
			delete(c.execs, "e")
			return err
		},
		"wait for an exec": func() error {
			_, err := s.getExec(&api.ExecID{ContainerId: "c", ExecId: "e"})
			return err
		},
		"find": func() error { _, err := s.find("spoilt"); return err },
		"start": func() error {
			_, err := s.reserve(&api.RunRequest{Id: "spoilt",
				Spec: []byte(`{"process":{},"root":{"path":"/"},"linux":{}}`)})
			return err
		},
	}
	for what, do := range ask {
		if err := do(); !errdefs.IsUnavailable(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.adoption.over, s.adoption.lost = true, nil
	delete(ask, "start")
	for what, do := range ask {
		if err := do(); what == "exec" && err != nil || what != "exec" && !errdefs.IsNotFound(err) {
			t.Errorf("%s, when all was handed back: %v", what, err)
		}
	}
}

// TestAnAdoptionDoesNotWaitForTheLog: nothing that asks for the container waits for a disk that does not answer. Seen
// to fail with the log opened in adoptFiles.
func TestAnAdoptionDoesNotWaitForTheLog(t *testing.T) {
	mount := quotatest.Mount(t, "ext4", "defaults")
	s, _ := successor(t)
	c, err := s.containers.get("c")
	if err != nil {
		t.Fatal(err)
	}
	c.record.LogPath = filepath.Join(mount, "log")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Dup(int(r.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	if _, err := fmt.Fprintln(w, "line"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	thaw := quotatest.Freeze(t, mount)
	adopted := make(chan struct{})
	go func() {
		defer close(adopted)
		s.adoption.adoptFiles(c, map[protocol.Role]int{protocol.RoleStdout: fd})
		c.status()
	}()
	select {
	case <-adopted:
	case <-time.After(10 * time.Second):
		t.Error("the adoption waits for the log")
	}
	thaw()
	<-adopted
	<-c.pumps[logpump.Stdout].Done()
	if b, err := os.ReadFile(c.record.LogPath); err != nil || !strings.HasSuffix(string(b), " stdout F line\n") {
		t.Errorf("the log has %q, %v", b, err)
	}
	c.out.Close()
}
