package stdio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
)

// sharedBuffer may be written and read at once.
type sharedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *sharedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *sharedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// dup is a second descriptor of a pipe, as the keeper gets one.
func dup(t *testing.T, f *os.File) *os.File {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fd), f.Name())
}

// TestAnExecIsReadToItsEnd: what its process has written before it ended is copied, each stream to its own.
func TestAnExecIsReadToItsEnd(t *testing.T) {
	var out, errOut sharedBuffer
	client := &Client{Stdin: strings.NewReader("input"), Stdout: &out, Stderr: &errOut}
	var req keeper.ExecRequest
	var e Exec
	defer e.Close()
	if err := e.Open(client, &req); err != nil {
		t.Fatal(err)
	}
	stdin, stdout, stderr := dup(t, req.Stdin), dup(t, req.Stdout), dup(t, req.Stderr)
	e.CloseTheirs()
	done := make(chan struct{})
	e.Start(client, nil, done)
	if got, err := io.ReadAll(stdin); err != nil || string(got) != "input" {
		t.Errorf("the process has read %q (%v)", got, err)
	}
	for f, text := range map[*os.File]string{stdout: "out", stderr: "err"} {
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	if err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out.String() != "out" || errOut.String() != "err" {
		t.Errorf("the client has read %q and %q", out.String(), errOut.String())
	}
}

// TestADaemonThatHoldsAPipeOpenDoesNotHoldItsExec: what is in the pipe when the command ends is the client's, and
// nobody waits for more. Seen to fail, by its deadline, without Drain.
func TestADaemonThatHoldsAPipeOpenDoesNotHoldItsExec(t *testing.T) {
	var out sharedBuffer
	client := &Client{Stdout: &out}
	var req keeper.ExecRequest
	var e Exec
	defer e.Close()
	if err := e.Open(client, &req); err != nil {
		t.Fatal(err)
	}
	daemon := dup(t, req.Stdout)
	defer daemon.Close()
	e.CloseTheirs()
	done := make(chan struct{})
	e.Start(client, nil, done)
	if _, err := daemon.WriteString("before the end"); err != nil {
		t.Fatal(err)
	}
	close(done)
	e.Drain()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := e.Wait(ctx); err != nil || out.String() != "before the end" {
		t.Errorf("the client has read %q (%v)", out.String(), err)
	}
}

// outrun is a client that is slower than what a daemon writes: whenever it has taken something, the stream is full
// again.
type outrun struct {
	refill func()
	taken  atomic.Int64
}

func (o *outrun) Write(p []byte) (int, error) {
	o.refill()
	o.taken.Add(int64(len(p)))
	return len(p), nil
}

// TestADaemonThatWritesFasterThanTheClientReadsDoesNotHoldItsExec: what the stream has when the command ends is the
// client's, and not what the daemon writes later.
func TestADaemonThatWritesFasterThanTheClientReadsDoesNotHoldItsExec(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		t.Run(fmt.Sprintf("terminal=%v", terminal), func(t *testing.T) {
			slow := &outrun{}
			client := &Client{TTY: terminal, Stdout: slow}
			var req keeper.ExecRequest
			var e Exec
			defer e.Close()
			if err := e.Open(client, &req); err != nil {
				t.Fatal(err)
			}
			var daemon, console *os.File
			if terminal {
				console, daemon = openTerminal(t)
			} else {
				daemon = dup(t, req.Stdout)
			}
			defer daemon.Close()
			e.CloseTheirs()
			fd := int(daemon.Fd())
			if err := unix.SetNonblock(fd, true); err != nil {
				t.Fatal(err)
			}
			block := make([]byte, 4096)
			slow.refill = func() {
				for {
					if n, err := unix.Write(fd, block); n <= 0 || err != nil {
						return
					}
				}
			}
			slow.refill()
			done := make(chan struct{})
			e.Start(client, console, done)
			close(done)
			e.Drain()
			before := slow.taken.Load()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if err := e.Wait(ctx); err != nil {
				t.Fatalf("the exec has not ended after %d bytes (%v)", slow.taken.Load(), err)
			}
			if got := slow.taken.Load() - before; got > terminalMost+2*32<<10 {
				t.Errorf("the client has got %d bytes after the command's end", got)
			}
		})
	}
}

// openTerminal returns both sides of a new terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	err = errors.Join(raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}), err)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// deaf takes nothing.
type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, errors.New("gone") }

// TestAClientThatIsGoneDoesNotStopACommand: its output is read all the same.
func TestAClientThatIsGoneDoesNotStopACommand(t *testing.T) {
	client := &Client{Stdout: deaf{}}
	var req keeper.ExecRequest
	var e Exec
	defer e.Close()
	if err := e.Open(client, &req); err != nil {
		t.Fatal(err)
	}
	stdout := dup(t, req.Stdout)
	e.CloseTheirs()
	e.Start(client, nil, make(chan struct{}))
	if _, err := stdout.Write(make([]byte, 1<<20)); err != nil { // more than a pipe holds
		t.Fatal(err)
	}
	stdout.Close()
	if err := e.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestATerminalBeginsWithTheSizeThatItsClientHas, and has no pipes.
func TestATerminalBeginsWithTheSizeThatItsClientHas(t *testing.T) {
	sizes := make(chan Size, 1)
	sizes <- Size{Width: 120, Height: 40}
	var req keeper.ExecRequest
	var e Exec
	defer e.Close()
	if err := e.Open(&Client{TTY: true, Stdout: io.Discard, Resize: sizes}, &req); err != nil {
		t.Fatal(err)
	}
	if req.Width != 120 || req.Height != 40 || req.Stdout != nil {
		t.Errorf("asked for is %+v", req)
	}
}

func TestABufferKeepsTheBeginning(t *testing.T) {
	b := Buffer{Of: &Shared{}}
	for range 3 {
		if n, err := b.Write(make([]byte, maxSyncOutput/2+1)); n != maxSyncOutput/2+1 || err != nil {
			t.Errorf("written are %d bytes (%v)", n, err)
		}
	}
	if n := len(b.Bytes()); n != maxSyncOutput {
		t.Errorf("kept are %d bytes", n)
	}
}

// TestBuffersKeepABoundTogether, whatever else each may always keep.
func TestBuffersKeepABoundTogether(t *testing.T) {
	of := &Shared{}
	const each = maxSyncOutput / 4
	all := make([]Buffer, 2*allSyncOutput/each)
	kept, cut := 0, 0
	for i := range all {
		all[i].Of = of
		for range each / 4096 {
			_, _ = all[i].Write(make([]byte, 4096))
		}
		n := len(all[i].Bytes())
		if kept += n; n > each || n < leastSyncOutput {
			t.Errorf("buffer %d keeps %d bytes", i, n)
		}
		if all[i].Cut() != (n < each) {
			t.Errorf("buffer %d keeps %d of %d bytes, and says that it was cut off: %v", i, n, each, all[i].Cut())
		}
		if all[i].Cut() {
			cut++
		}
	}
	if cut == 0 || cut == len(all) {
		t.Errorf("%d of %d were cut off", cut, len(all))
	}
	if most := allSyncOutput + len(all)*leastSyncOutput; kept > most || kept < most-2*each {
		t.Errorf("%d bytes are kept, want about %d", kept, most)
	}
	for i := range all {
		all[i].Release()
		_, _ = all[i].Write(make([]byte, each))
	}
	b := Buffer{Of: of}
	if _, _ = b.Write(make([]byte, maxSyncOutput)); len(b.Bytes()) != maxSyncOutput {
		t.Errorf("then one keeps %d bytes", len(b.Bytes()))
	}
}

// TestRoomIsTakenForAsLongAsAnOutputIsInMemory: its Buffer may be released long before. Seen to fail where the room was
// free with the Buffer's release.
func TestRoomIsTakenForAsLongAsAnOutputIsInMemory(t *testing.T) {
	of := &Shared{}
	answer := func() []byte {
		b := Buffer{Of: of}
		defer b.Release()
		for range maxSyncOutput / 4096 {
			_, _ = b.Write(make([]byte, 4096))
		}
		return b.Bytes()
	}
	var unread [][]byte
	total := 0
	for range 2 * allSyncOutput / maxSyncOutput {
		unread = append(unread, answer())
		total += cap(unread[len(unread)-1])
	}
	if most := allSyncOutput + len(unread)*2*leastSyncOutput; total > most || total < most/2 {
		t.Errorf("%d bytes are in memory, want at most %d", total, most)
	}
	runtime.KeepAlive(unread)
	unread = nil
	for i := range 3 { // together they are nearly all that there is room for
		if unread = append(unread, answer()); len(unread[i]) != maxSyncOutput {
			t.Errorf("then output %d has %d bytes", i, len(unread[i]))
		}
	}
	runtime.KeepAlive(unread)
}

// TestAnOutputTakesNoMoreThanItHas, once it is whole. Seen to fail where an array is left as large as it has grown.
func TestAnOutputTakesNoMoreThanItHas(t *testing.T) {
	of := &Shared{}
	for _, size := range []int{0, 1, leastSyncOutput, leastSyncOutput + 1, 1<<20 + 1, 9 << 20, maxSyncOutput + 1} {
		b := Buffer{Of: of}
		for left := size; left > 0; left -= 4096 {
			_, _ = b.Write(make([]byte, min(left, 4096)))
		}
		got := b.Bytes()
		if len(got) != min(size, maxSyncOutput) || cap(got) > len(got)/3*4+4096 {
			t.Errorf("an output of %d bytes has %d and takes %d", size, len(got), cap(got))
		}
		if _, _ = b.Write([]byte("more")); size < maxSyncOutput && string(b.Bytes()[len(got):]) != "more" {
			t.Errorf("%d bytes: what comes later is lost", size)
		}
	}
}

// TestAnAttachedClientGetsTheStreamsThatItWants: those of a terminal are one.
func TestAnAttachedClientGetsTheStreamsThatItWants(t *testing.T) {
	for _, terminal := range []bool{false, true} {
		var out, errOut sharedBuffer
		var req keeper.AttachRequest
		var o Outputs
		if err := o.Request(&req, &Client{Stdout: &out, Stderr: &errOut}, terminal); err != nil {
			t.Fatal(err)
		}
		if (req.Stderr == nil) != terminal || !o.Any() {
			t.Errorf("with a terminal %v: asked for is %+v", terminal, req)
		}
		stdout := dup(t, req.Stdout)
		o.CloseTheirs()
		o.Start()
		if _, err := stdout.WriteString("text"); err != nil {
			t.Fatal(err)
		}
		stdout.Close()
		<-o.Ended()
		if out.String() != "text" {
			t.Errorf("the client has read %q", out.String())
		}
		o.Close()
	}
	var none Outputs
	if err := none.Request(&keeper.AttachRequest{}, &Client{}, false); err != nil || none.Any() {
		t.Errorf("a client that wants nothing has %+v (%v)", none.ours, err)
	}
}
