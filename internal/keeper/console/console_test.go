package console

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOnlyOneTerminalIsTaken: what is sent beside the terminal is not kept. A container whose processes may trace
// others can send as its stage: of two descriptors, the second stayed open in the keeper, and of three the first was
// taken for the terminal though the kernel had cut the message.
func TestOnlyOneTerminalIsTaken(t *testing.T) {
	for _, test := range []struct {
		sent int
		want string
	}{
		{1, ""},
		{0, "sent no terminal"},
		{2, "2 descriptors"},
		{3, "cut"},
	} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		// The end of this pipe's writing side is seen once no copy of it is left.
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var oob []byte
		if test.sent > 0 {
			oob = unix.UnixRights(slices.Repeat([]int{int(w.Fd())}, test.sent)...)
		}
		if err := unix.Sendmsg(pair[0], []byte("x"), oob, nil, 0); err != nil {
			t.Fatal(err)
		}
		w.Close()
		fd, err := Receive(pair[1])
		if test.want == "" {
			if err != nil || fd < 0 {
				t.Errorf("%d sent: %d, %v", test.sent, fd, err)
			}
			unix.Close(fd)
		} else if err == nil || !strings.Contains(err.Error(), test.want) || fd != -1 {
			t.Errorf("%d sent: %d, %v; want %s", test.sent, fd, err, test.want)
		}
		unix.Close(pair[0])
		unix.Close(pair[1])
		raw, err := r.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var n int
		var rerr error
		if err := raw.Control(func(fd uintptr) {
			if rerr = unix.SetNonblock(int(fd), true); rerr == nil {
				n, rerr = unix.Read(int(fd), make([]byte, 1))
			}
		}); err != nil {
			t.Fatal(err)
		}
		if n != 0 || errors.Is(rerr, unix.EAGAIN) {
			t.Errorf("%d sent: a descriptor stays open: %v", test.sent, rerr)
		}
		r.Close()
	}
}
