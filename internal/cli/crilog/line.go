package crilog

import (
	"bytes"
	"fmt"
	"time"
)

// Stream is the stream to which a container wrote a line: stdout or stderr.
type Stream string

const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// record is one line of a log file. text is without newline and shares the memory it was parsed from.
type record struct {
	stamp   []byte // RFC 3339 with nanoseconds
	stream  Stream
	partial bool // the line goes on in the stream's next record
	text    []byte
}

// parse takes a line of a log file, without its newline, apart.
func parse(line []byte) (record, error) {
	var r record
	stamp, rest, ok1 := bytes.Cut(line, []byte{' '})
	stream, rest, ok2 := bytes.Cut(rest, []byte{' '})
	tags, text, ok3 := bytes.Cut(rest, []byte{' '})
	if !ok1 || !ok2 {
		return r, fmt.Errorf("not a line of a CRI log: %.80q", line)
	}
	if !ok3 { // an empty line may lack the blank after its tag
		tags = rest
	}
	r.stamp, r.stream, r.text = stamp, Stream(stream), text
	if r.stream != Stdout && r.stream != Stderr {
		return r, fmt.Errorf("not a line of a CRI log: %.80q", line)
	}
	tag, _, _ := bytes.Cut(tags, []byte{':'}) // further tags may follow, separated by colons
	switch string(tag) {
	case "P":
		r.partial = true
	case "F":
	default:
		return r, fmt.Errorf("not a line of a CRI log: %.80q", line)
	}
	return r, nil
}

func (r record) time() (time.Time, error) { return time.Parse(time.RFC3339Nano, string(r.stamp)) }

// Line is what a container wrote up to a newline, or as much of it as there is room for: a line longer than maxLine
// comes in pieces, all but the last with Partial set. Text holds no newline.
type Line struct {
	Time    string // RFC 3339 with nanoseconds, when its first part was written
	Stream  Stream
	Text    []byte
	Partial bool
	// Continued: this is not the first piece of its line.
	Continued bool
}

// maxLine bounds the memory that a line takes, in bytes.
const maxLine = 1 << 20

// joiner makes lines of records.
type joiner struct {
	open map[Stream]*Line
}

// add returns a line when r ends one. Its text is valid until the next call.
func (j *joiner) add(r record) *Line {
	line := j.open[r.stream]
	if line == nil {
		if j.open == nil {
			j.open = map[Stream]*Line{}
		}
		line = &Line{Time: string(r.stamp), Stream: r.stream}
		j.open[r.stream] = line
	}
	line.Text = append(line.Text, r.text...)
	if r.partial && len(line.Text) < maxLine {
		return nil
	}
	line.Partial = r.partial
	if r.partial {
		j.open[r.stream] = &Line{Time: line.Time, Stream: r.stream, Continued: true}
	} else {
		delete(j.open, r.stream)
	}
	return line
}

// rest returns the lines that have begun and will not end.
func (j *joiner) rest() []*Line {
	var lines []*Line
	for _, stream := range []Stream{Stdout, Stderr} {
		if line := j.open[stream]; line != nil {
			line.Partial = true
			lines = append(lines, line)
		}
	}
	j.open = nil
	return lines
}
