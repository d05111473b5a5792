package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"berth/internal/keeper/null"
)

// lateShim is a shim that opens a container's input some time after it has answered Start, as those of containerd's
// make do when a goroutine of theirs comes late.
type lateShim struct {
	t     *testing.T
	late  time.Duration
	path  string        // of the input; it is known when Start is called
	ended chan struct{} // CloseIO was called
	read  chan int      // how many bytes the input had
}

func (s *lateShim) serve(l net.Listener) {
	server, err := ttrpc.NewServer()
	if err != nil {
		s.t.Error(err)
		return
	}
	s.t.Cleanup(func() { _ = server.Close() })
	answers := func(f func()) ttrpc.Method {
		return func(context.Context, func(any) error) (any, error) {
			f()
			return &emptypb.Empty{}, nil
		}
	}
	server.RegisterService("test.Task", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"Start": answers(func() {
			// It holds the pipe by a descriptor that is neither of its ends.
			handle, err := os.OpenFile(s.path, unix.O_PATH, 0)
			if err != nil {
				s.t.Error(err)
				return
			}
			go s.copy(handle)
		}),
		"CloseIO": answers(func() { close(s.ended) }),
		"Delete":  answers(func() {}),
		"Wait": func(context.Context, func(any) error) (any, error) {
			return wrapperspb.UInt32(uint32(<-s.read % 251)), nil // its first field is that of a WaitResponse
		},
	}})
	_ = server.Serve(context.Background(), l)
}

func (s *lateShim) copy(handle *os.File) {
	defer handle.Close()
	time.Sleep(s.late)
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()))
	if err != nil {
		s.t.Error(err)
		return
	}
	defer f.Close()
	n, err := io.Copy(io.Discard, f)
	if err != nil {
		s.t.Error(err)
	}
	<-s.ended
	s.read <- int(n)
}

// TestInputWaitsForTheShimThatOpensIt: where the shim was late, the proxy took it for a program that has closed its
// input. Seen to fail so, with all lengths but 0.
func TestInputWaitsForTheShimThatOpensIt(t *testing.T) {
	for _, length := range []int{0, 3, 5000, 300_000} {
		// One after the other: the child of another Start has this one's pipes too until it executes the proxy, and the
		// proxy of this one would take that for the shim.
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			dir := t.TempDir()
			l, err := net.Listen("unix", filepath.Join(dir, "shim"))
			if err != nil {
				t.Fatal(err)
			}
			s := &lateShim{t: t, late: 300 * time.Millisecond, ended: make(chan struct{}), read: make(chan int, 1)}
			go s.serve(l)
			nothing, err := null.Open()
			if err != nil {
				t.Fatal(err)
			}
			defer nothing.Close()
			var ends [4]*os.File // the keeper's pipe, and that of the container
			for i := range 2 {
				if ends[2*i], ends[2*i+1], err = os.Pipe(); err != nil {
					t.Fatal(err)
				}
				defer ends[2*i].Close()
				defer ends[2*i+1].Close()
			}
			p, err := Start(dir, &Request{
				ID: "c", Sandbox: os.Getpid(), Streams: [3]*os.File{ends[2], nothing, nothing},
				Shim: &Shim{Socket: l.Addr().String(), Service: "test.Task", ExecID: "e", Input: ends[0], ToInput: ends[3]},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			s.path = p.Path(0)
			for _, f := range []*os.File{ends[0], ends[2], ends[3]} {
				f.Close()
			}
			if err := p.Go(t.Context(), 10*time.Second); err != nil {
				t.Fatal(err)
			}
			go func() {
				_, _ = ends[1].Write(make([]byte, length))
				ends[1].Close()
			}()
			var status unix.WaitStatus
			if _, err := unix.Wait4(p.PID, &status, 0, nil); err != nil {
				t.Fatal(err)
			}
			if got, want := status.ExitStatus(), length%251; got != want {
				t.Errorf("%d bytes modulo 251 have come through, want %d", got, want)
			}
		})
	}
}
