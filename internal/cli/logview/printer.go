// Package logview prints the logs of several containers as one: the lines are in the order in which they were written,
// and each line has the name of its container, in colours on a terminal.
package logview

import (
	"fmt"
	"io"
	"sync"

	"berth/internal/cli/crilog"
)

// colors of containers' names, in turn: those of a terminal's palette.
var colors = []int{36, 33, 32, 35, 34, 31}

// Printer prints lines of containers. Its methods may be called from several goroutines.
type Printer struct {
	Out     io.Writer
	Err     io.Writer // for what containers wrote to standard error; nil: Out
	Colored bool      // Out takes the colours of a terminal
	Stamps  bool      // when each line was written before it

	mu    sync.Mutex
	width int // of the longest name
	names int
}

// Name is a container's name before its lines. The zero value is none.
type Name struct {
	text  string
	color int
}

// Name reserves a colour for a container, and room for its name.
func (p *Printer) Name(text string) Name {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.width = max(p.width, len(text))
	color := colors[p.names%len(colors)]
	p.names++
	return Name{text, color}
}

// Print prints a line.
func (p *Printer) Print(name Name, line *crilog.Line) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.Out
	if line.Stream == crilog.Stderr && p.Err != nil {
		out = p.Err
	}
	var text []byte
	if name.text != "" {
		prefix := fmt.Sprintf("%-*s | ", p.width, name.text)
		if p.Colored {
			prefix = fmt.Sprintf("\x1b[%dm%s\x1b[0m", name.color, prefix)
		}
		text = append(text, prefix...)
	}
	if p.Stamps && !line.Continued {
		text = append(append(text, line.Time...), ' ')
	}
	text = append(text, line.Text...)
	// Where lines of several containers meet, a piece of a long line gets a line of its own.
	if !line.Partial || name.text != "" {
		text = append(text, '\n')
	}
	_, err := out.Write(text)
	return err
}
