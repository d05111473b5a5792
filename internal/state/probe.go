package state

import (
	"context"
	"sync"
	"time"

	"berth/internal/disk"
)

// Probe finds out whether records can be written, by writing one.
type Probe struct {
	records Records

	mu    sync.Mutex
	under chan struct{} // closed when the write that is under way has ended; nil: none is
	ended time.Time     // of the last write
	err   error         // of the last write
}

// probeAgain is how long a write that has succeeded counts. Each write makes the disk work.
const probeAgain = 30 * time.Second

// NewProbe makes a Probe for the file system of a directory, below which it keeps its record.
func NewProbe(dir string) *Probe { return &Probe{records: Records{Dir: dir, File: "check.json"}} }

// Write writes a record, and returns the error of that. If the disk does not answer, it returns when ctx ends; a later
// call waits for the same write then.
func (p *Probe) Write(ctx context.Context) error {
	p.mu.Lock()
	under := p.under
	if under == nil {
		under = make(chan struct{})
		p.under = under
		go p.write(under)
	}
	p.mu.Unlock()
	select {
	case <-under:
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Probe) write(under chan struct{}) {
	err := p.records.Save("health", struct {
		At time.Time `json:"at"`
	}{time.Now()})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err, p.ended, p.under = err, time.Now(), nil
	close(under)
}

// Suspect takes the error of something else. If it is one of those of disk.Unwritable, the next question is answered by
// another write.
func (p *Probe) Suspect(err error) {
	if disk.Unwritable(err) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ended = time.Time{}
	}
}

// Unwritable is the error of the last write, if it was one of those of disk.Unwritable. After a write that failed, 30
// seconds after one that did not, and after Suspect, it writes again first, until ctx ends. A disk that does not answer
// is no such error.
func (p *Probe) Unwritable(ctx context.Context) error {
	p.mu.Lock()
	err, current := p.err, p.err == nil && !p.ended.IsZero() && time.Since(p.ended) < probeAgain
	p.mu.Unlock()
	if !current {
		err = p.Write(ctx)
	}
	if disk.Unwritable(err) {
		return err
	}
	return nil
}
