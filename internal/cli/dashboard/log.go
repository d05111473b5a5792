package dashboard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strconv"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/crilog"
	"berth/internal/cli/logview"
	"berth/internal/cli/lookup"
)

const (
	// maxTail is how many lines from the end of a log a page may ask for.
	maxTail = 5000
	// maxLine is how much of a line is sent, in bytes.
	maxLine = 16 << 10
	// burst is how many lines are sent at once. Of a container that writes faster, or for a browser that reads slower,
	// lines are skipped: the page shows what the container writes now.
	burst = 1000
	// maxPending bounds the lines that wait to be sent, in bytes.
	maxPending = 4 << 20
	// pace is the time between two messages with lines.
	pace = 200 * time.Millisecond
)

// logLine is a line of a log as it is sent.
type logLine struct {
	Time   string `json:"time"`
	Stderr bool   `json:"stderr,omitempty"`
	Text   string `json:"text"`
	Cut    bool   `json:"cut,omitempty"` // Text is the beginning
}

// logBatch is one message of the stream of a log. It may be empty.
type logBatch struct {
	Lines   []logLine `json:"lines,omitempty"`
	Skipped int       `json:"skipped,omitempty"` // lines before these that are not sent
	Ended   bool      `json:"ended,omitempty"`   // the container has ended, and these are its last lines
}

// backlog is the lines of a log that wait to be sent: the newest, if there are too many.
type backlog struct {
	mu      sync.Mutex // guards what follows
	limit   int        // of lines
	lines   []logLine
	bytes   int
	skipped int
}

func (b *backlog) add(line *crilog.Line) {
	text := line.Text
	one := logLine{Time: line.Time, Stderr: line.Stream == crilog.Stderr}
	if len(text) > maxLine {
		text, one.Cut = text[:maxLine], true
	}
	one.Text = string(text)
	b.mu.Lock()
	defer b.mu.Unlock()
	if line.Continued && len(b.lines) > 0 {
		b.lines[len(b.lines)-1].Cut = true
		return
	}
	b.lines = append(b.lines, one)
	b.bytes += len(one.Text)
	for len(b.lines) > b.limit || b.bytes > maxPending && len(b.lines) > 1 {
		b.bytes -= len(b.lines[0].Text)
		b.lines[0] = logLine{}
		b.lines = b.lines[1:]
		b.skipped++
	}
}

// take empties the backlog. The lines of the beginning may be more than those that come later.
func (b *backlog) take() logBatch {
	b.mu.Lock()
	defer b.mu.Unlock()
	batch := logBatch{Lines: b.lines, Skipped: b.skipped}
	b.lines, b.bytes, b.skipped = nil, 0, 0
	if len(batch.Lines) > 0 {
		b.limit = burst
	}
	return batch
}

// followLog sends the last lines of a container's log, and then what it writes, until it has ended.
func (s *Server) followLog(ctx context.Context, r *http.Request) (func(*sink) error, error) {
	tail, err := strconv.Atoi(r.FormValue("tail"))
	if err != nil || tail < 0 || tail > maxTail {
		return nil, badRequest("tail: %q is no number from 0 to %d", r.FormValue("tail"), maxTail)
	}
	c, err := s.container(ctx, r.PathValue("id"))
	if err != nil {
		return nil, err
	}
	log, err := logview.Of(ctx, s.conn.Runtime, c, crilog.Options{Tail: tail, Follow: true}, s.watch)
	if err != nil {
		return nil, err
	}
	reader, err := crilog.Open(log.Path, log.Options)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: the logs of containers belong to root: run `berth dashboard` as root", err)
	case errors.Is(err, fs.ErrNotExist):
		return nil, &lookup.NotFoundError{Kind: "log of container", Name: c.ShortName(), Try: "It was removed."}
	case err != nil:
		return nil, err
	}
	return func(out *sink) error {
		defer reader.Close()
		return sendLog(ctx, out, reader, &backlog{limit: max(tail, burst)})
	}, nil
}

// container is the container of a whole ID.
func (s *Server) container(ctx context.Context, id string) (*lookup.Container, error) {
	all, err := lookup.Containers(ctx, s.conn.Runtime, &cri.ContainerFilter{Id: id})
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		if c.Id == id {
			return c, nil
		}
	}
	return nil, &lookup.NotFoundError{Kind: "container", Name: id, Try: "It was removed."}
}

// sendLog sends what a reader gives, a few times a second.
func sendLog(ctx context.Context, out *sink, reader *crilog.Reader, pending *backlog) error {
	ctx, cancel := context.WithCancel(ctx)
	read := make(chan error, 1)
	go func() {
		read <- reader.Run(ctx, func(line *crilog.Line) error { pending.add(line); return nil })
	}()
	var readErr error
	ended := false
	defer func() {
		cancel()
		if !ended {
			<-read // it uses the reader
		}
	}()
	last := time.Now()
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case readErr = <-read:
			ended = true
		case <-ticker.C:
		}
		batch := pending.take()
		batch.Ended = ended && readErr == nil
		if len(batch.Lines) > 0 || batch.Ended || time.Since(last) > beat {
			if err := out.send(batch); err != nil {
				return err
			}
			last = time.Now()
		}
		if ended {
			return readErr
		}
	}
}
