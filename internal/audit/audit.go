// Package audit writes down who ran what in which container, and when: commands, joined streams and forwarded ports.
// Each is a line of JSON when it begins and another when it ends.
package audit

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"berth/internal/liblog"
)

// Kinds of operations.
const (
	ExecSync    = "exec_sync" // a probe, mostly
	Exec        = "exec"
	Attach      = "attach"
	PortForward = "port_forward"
)

const (
	// maxCommand is how many bytes of a command's arguments are written down, with the zero that ends each.
	maxCommand = 32 << 10
	// maxText is how many bytes are of a user's name, and of an error.
	maxText = 4 << 10
)

// Operation is what somebody does to a container or a pod.
type Operation struct {
	Kind      string   `json:"operation"`
	Namespace string   `json:"namespace"`
	Pod       string   `json:"pod"`
	PodID     string   `json:"pod_id"`
	Container string   `json:"container,omitempty"`
	ID        string   `json:"container_id,omitempty"`
	Command   []string `json:"command,omitempty"`
	// Cut says that arguments beyond the first 32 KiB, or the rest of the user's name, are not written down.
	Cut   bool   `json:"command_cut,omitempty"`
	User  string `json:"user,omitempty"` // whom the command runs as; empty: the container's
	Stdin bool   `json:"stdin,omitempty"`
	TTY   bool   `json:"tty,omitempty"`
	Port  int32  `json:"port,omitempty"`
}

// line is one of the file.
type line struct {
	Time  time.Time `json:"time"`
	Event string    `json:"event"` // daemon, begin or end
	// OperationID is the same in the line of an operation's begin and in that of its end.
	OperationID string `json:"operation_id,omitempty"`
	*Operation
	Peer     *Peer    `json:"peer,omitempty"` // of the begin
	ExitCode *int     `json:"exit_code,omitempty"`
	Error    string   `json:"error,omitempty"`
	Took     *float64 `json:"took_ms,omitempty"`
}

// Log is a file of lines. A nil Log, and one without a file, writes nothing.
type Log struct {
	log *slog.Logger

	mu   sync.Mutex // guards the rest
	file *file      // nil: none

	subscribers map[*subscriber]bool
	ended       bool // there are no subscribers any more
}

// Open opens a log. An empty path is none, until Reopen gives it one. Its first line says that a daemon has begun:
// operations before it that have no end were cut off.
func Open(path string, log *slog.Logger) (*Log, error) {
	l := &Log{log: log}
	change, err := l.Reopen(path)
	if err != nil {
		return nil, err
	}
	change()
	l.write(&line{Event: "daemon"})
	return l, nil
}

// Reopen opens the file of a path, which may be another than before, or the same after the file was renamed. Until
// change is called, the old file is written to; a change that is not made is given up by not calling it.
func (l *Log) Reopen(path string) (change func(), err error) {
	var next *file
	if path != "" {
		if next, err = openFile(path, l.log); err != nil {
			return nil, err
		}
	}
	return func() {
		if next != nil {
			go next.run()
		}
		l.mu.Lock()
		last := l.file
		l.file = next
		if next == nil {
			for s := range l.subscribers {
				l.cutOff(s, errOff)
			}
		}
		l.mu.Unlock()
		if last != nil {
			last.close()
		}
	}, nil
}

// Close ends the log.
func (l *Log) Close() error {
	if change, err := l.Reopen(""); err == nil {
		change()
	}
	return nil
}

// On says whether acts are written down.
func (l *Log) On() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file != nil
}

// Begin writes down that an operation begins, and by whom, as the context says. The caller calls what it returns when
// the operation ends, with its exit code, -1 where there is none.
func (l *Log) Begin(ctx context.Context, op Operation) (end func(exitCode int, err error)) {
	if !l.On() {
		return func(int, error) {}
	}
	op.Command, op.Cut = cut(op.Command)
	if len(op.User) > maxText {
		op.User, op.Cut = op.User[:maxText], true
	}
	begin, id := time.Now(), rand.Text()[:16]
	l.write(&line{Event: "begin", OperationID: id, Operation: &op, Peer: PeerOf(ctx)})
	op.Command, op.Cut = nil, false // the begin has it
	return func(exitCode int, err error) {
		took := liblog.Milliseconds(time.Since(begin))
		last := &line{Event: "end", OperationID: id, Operation: &op, Took: &took}
		if exitCode >= 0 && err == nil {
			last.ExitCode = &exitCode
		}
		if err != nil {
			text := err.Error()
			last.Error = text[:min(len(text), maxText)]
		}
		l.write(last)
	}
}

// cut bounds a command.
func cut(command []string) ([]string, bool) {
	left := maxCommand
	for i, arg := range command {
		if len(arg)+1 > left {
			return append(command[:i:i], arg[:min(len(arg), left)]), true
		}
		left -= len(arg) + 1
	}
	return command, false
}

// write passes a line to the file and to the subscribers, and waits until it is written.
func (l *Log) write(one *line) {
	one.Time = time.Now().UTC()
	text, err := json.Marshal(one)
	if to, w := l.put(text, err); w != nil {
		to.wait(w)
	}
}

func (l *Log) put(text []byte, err error) (*file, *writing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.file == nil:
		return nil, nil
	case err != nil:
		l.file.lost(err)
		return nil, nil
	}
	l.tell(text)
	return l.file, l.file.put(text)
}
