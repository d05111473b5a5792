package stdio

import (
	"io"
	"os"
	"sync"

	keeper "berth/internal/keeper/client"
)

// Outputs has the pipes by which an attached client gets a container's output.
type Outputs struct {
	ours, theirs []*os.File // the ends that are read here, and those that the keeper gets
	to           []io.Writer
	copies       sync.WaitGroup
}

// Request opens the pipes that a client wants. A terminal has one output for both streams.
func (o *Outputs) Request(req *keeper.AttachRequest, opts *Client, terminal bool) (err error) {
	if req.Stdout, err = o.open(opts.Stdout); err != nil || terminal {
		return err
	}
	req.Stderr, err = o.open(opts.Stderr)
	return err
}

// open makes a pipe whose content goes to dst once start is called, and returns the keeper's end. Nobody wants what
// goes to nil: it gets no pipe.
func (o *Outputs) open(dst io.Writer) (*os.File, error) {
	if dst == nil {
		return nil, nil
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o.ours, o.theirs, o.to = append(o.ours, pr), append(o.theirs, pw), append(o.to, dst)
	return pw, nil
}

// Start copies in the background, until the keeper or close closes the pipes.
func (o *Outputs) Start() {
	for i, pr := range o.ours {
		o.copies.Go(func() { _, _ = io.Copy(o.to[i], pr) })
	}
}

// Any tells whether the client wants output.
func (o *Outputs) Any() bool { return len(o.ours) > 0 }

// Ended is closed once all that the keeper has written is copied.
func (o *Outputs) Ended() <-chan struct{} {
	all := make(chan struct{})
	go func() { o.copies.Wait(); close(all) }()
	return all
}

// CloseTheirs closes the keeper's ends, which it has by then.
func (o *Outputs) CloseTheirs() {
	for _, f := range o.theirs {
		f.Close()
	}
	o.theirs = nil
}

// Close closes all that is open.
func (o *Outputs) Close() {
	o.CloseTheirs()
	for _, f := range o.ours {
		f.Close()
	}
}
