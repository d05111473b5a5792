package streaming

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
	"k8s.io/client-go/tools/remotecommand"
)

// Terminal is this command's terminal in raw mode.
type Terminal struct {
	fd    int
	state *term.State
	sizes chan remotecommand.TerminalSize
	winch chan os.Signal
	done  chan struct{}
}

// IsTerminal says whether a file is a terminal.
func IsTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Size is the size of the terminal of f in characters; zero if it has none.
func Size(f *os.File) (width, height uint16) {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return size.Col, size.Row
}

// OpenTerminal puts the terminal of f into raw mode. Restore puts it back.
func OpenTerminal(f *os.File) (*Terminal, error) {
	state, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	t := &Terminal{
		fd: int(f.Fd()), state: state,
		sizes: make(chan remotecommand.TerminalSize, 1), winch: make(chan os.Signal, 1), done: make(chan struct{}),
	}
	signal.Notify(t.winch, syscall.SIGWINCH)
	go t.watch()
	return t, nil
}

// watch passes sizes on. The latest one replaces one that nobody has taken.
func (t *Terminal) watch() {
	for {
		if size, err := unix.IoctlGetWinsize(t.fd, unix.TIOCGWINSZ); err == nil && size.Col > 0 && size.Row > 0 {
			select {
			case <-t.sizes:
			default:
			}
			t.sizes <- remotecommand.TerminalSize{Width: size.Col, Height: size.Row}
		}
		select {
		case <-t.winch:
		case <-t.done:
			return
		}
	}
}

// Next waits for a new size; nil once the terminal is restored.
func (t *Terminal) Next() *remotecommand.TerminalSize {
	select {
	case size := <-t.sizes:
		return &size
	case <-t.done:
		return nil
	}
}

// Restore puts the terminal back as it was.
func (t *Terminal) Restore() {
	signal.Stop(t.winch)
	close(t.done)
	_ = term.Restore(t.fd, t.state)
}

// Keys that leave a session without ending what runs in it, as docker has them.
const (
	ctrlP = 16
	ctrlQ = 17
)

// DetachReader reads a terminal and calls Detach when Ctrl-P Ctrl-Q is typed. It ends then.
type DetachReader struct {
	io.Reader
	Detach context.CancelFunc
	held   bool // a Ctrl-P has been read and not passed on
}

func (d *DetachReader) Read(p []byte) (int, error) {
	if len(p) < 2 {
		return d.Reader.Read(p)
	}
	for {
		n, err := d.Reader.Read(p[1:]) // room for a held Ctrl-P before it
		out := p[:0]
		for _, key := range p[1 : 1+n] {
			switch {
			case d.held && key == ctrlQ:
				d.Detach()
				return len(out), io.EOF
			case d.held && key == ctrlP:
				out = append(out, ctrlP)
				continue
			case d.held:
				d.held = false
				out = append(out, ctrlP, key)
				continue
			case key == ctrlP:
				d.held = true
				continue
			}
			out = append(out, key)
		}
		if err != nil && d.held {
			d.held = false
			out = append(out, ctrlP)
		}
		if len(out) > 0 || err != nil {
			return len(out), err
		}
	}
}
