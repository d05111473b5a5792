package audit

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// patience is how long an operation waits until its line is written. It waits so that a command that runs is in the
	// file. Once a line has taken longer, nobody waits until the file answers again.
	patience = 2 * time.Second
	// maxWaiting is how many lines wait for a file that does not answer. Further ones are lost.
	maxWaiting = 128
)

// file is an open file and the goroutine (run) that writes to it: the file system may not answer.
type file struct {
	path  string
	out   *os.File
	log   *slog.Logger
	lines chan *writing
	quit  chan struct{} // closed: no more lines come
	ended chan struct{} // closed once the goroutine has ended

	mu      sync.Mutex
	hangs   bool // a line has taken longer than patience, and is not written yet
	failing bool // the last line was lost
}

// writing is a line that is to be written; done is closed when it is, or is lost.
type writing struct {
	text []byte
	done chan struct{}
}

func openFile(path string, log *slog.Logger) (*file, error) {
	// O_NONBLOCK: not to wait for the reader of a pipe.
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	info, err := out.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", path)
	}
	if err != nil {
		out.Close()
		return nil, err
	}
	return &file{path: path, out: out, log: log, lines: make(chan *writing, maxWaiting), quit: make(chan struct{}),
		ended: make(chan struct{})}, nil
}

// close writes what waits, for as long as a line may take, and closes the file. Nothing is put after it.
func (f *file) close() {
	close(f.quit)
	select {
	case <-f.ended:
	case <-time.After(patience):
	}
}

// put hands over a line; nil: it is lost, since too many wait. It does not wait.
func (f *file) put(text []byte) *writing {
	w := &writing{text: text, done: make(chan struct{})}
	select {
	case f.lines <- w:
		return w
	default:
		f.lost(fmt.Errorf("%d lines wait for the disk", maxWaiting))
		return nil
	}
}

// wait waits until a line is written, or lost. Nobody is kept from what he does by a disk that is full or does not
// answer: probes would fail, and pods be killed. The log of berthd says that lines are missing.
func (f *file) wait(w *writing) {
	f.mu.Lock()
	hangs := f.hangs
	f.mu.Unlock()
	if hangs {
		return
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.done:
	case <-timer.C:
		f.mu.Lock()
		defer f.mu.Unlock()
		select {
		case <-w.done:
			return
		default:
		}
		if !f.hangs {
			f.hangs = true
			f.log.Error("the file of the audit does not answer: operations go on without waiting for it", "file", f.path)
		}
	}
}

func (f *file) run() {
	defer close(f.ended)
	defer f.out.Close()
	torn := false // the last line is not whole
	for {
		var w *writing
		select {
		case w = <-f.lines:
		case <-f.quit:
			select {
			case w = <-f.lines:
			default:
				return
			}
		}
		text := append(w.text, '\n')
		if torn {
			text = append([]byte{'\n'}, text...)
		}
		n, err := f.out.Write(text)
		torn = n > 0 && n < len(text) && !bytes.Equal(text[:n], []byte{'\n'}) || n == 0 && torn
		if err != nil {
			f.lost(err)
		} else {
			f.written()
		}
		close(w.done)
	}
}

func (f *file) lost(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.failing {
		f.log.Error("lines of the audit are lost from now on", "file", f.path, "error", err)
	}
	f.failing = true
}

func (f *file) written() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing || f.hangs {
		f.log.Info("the audit is written again", "file", f.path)
	}
	f.failing, f.hangs = false, false
}
