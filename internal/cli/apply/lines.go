package apply

import (
	"bytes"
	"io"
	"strings"
	"sync"
)

// Lines makes one line of each text that is written to it: an event is a line in a log, however many its error has.
type Lines struct {
	Out io.Writer
	mu  sync.Mutex
}

func (l *Lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var parts []string
	for line := range bytes.Lines(text) {
		if part := strings.TrimSpace(string(line)); part != "" {
			parts = append(parts, part)
		}
	}
	if len(parts) > 0 {
		if _, err := io.WriteString(l.Out, strings.Join(parts, "; ")+"\n"); err != nil {
			return 0, err
		}
	}
	return len(text), nil
}
