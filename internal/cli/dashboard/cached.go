package dashboard

import (
	"context"
	"encoding/json"
	"sync"
	"time"
)

// rest is the least share of the time in which a list is not being read, as a multiple of the time that a reading
// takes: on a node with many pods, an open page takes no more than a tenth of a processor.
const rest = 10

// maxAge is how old a list may become before it is read again, however long that takes.
const maxAge = time.Minute

// cached is a list that all open pages share. It is read when a page asks for it, by one request at a time.
type cached struct {
	read  func(context.Context) (any, error)
	least time.Duration // as long a reading is used, or longer where readings take long

	reading once // held by who reads

	mu    sync.Mutex // guards what follows
	value any
	body  []byte // value and the time of the reading, as JSON
	until time.Time
}

// once is a lock that can be waited for with a context. Its zero value is ready.
type once struct {
	make sync.Once
	slot chan struct{}
}

func (o *once) lock(ctx context.Context) error {
	o.make.Do(func() { o.slot = make(chan struct{}, 1) })
	select {
	case o.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (o *once) unlock() { <-o.slot }

// document is how a list is sent.
type document struct {
	At   time.Time `json:"at"` // by the clock of the server, which may not be the browser's
	Data any       `json:"data"`
}

// get returns a value that is fresh enough, and its document.
func (c *cached) get(ctx context.Context) (any, []byte, error) {
	if value, body, ok := c.fresh(); ok {
		return value, body, nil
	}
	if err := c.reading.lock(ctx); err != nil {
		return nil, nil, err
	}
	defer c.reading.unlock()
	if value, body, ok := c.fresh(); ok { // another request has read it meanwhile
		return value, body, nil
	}
	began := time.Now()
	value, err := c.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	body, err := json.Marshal(document{time.Now(), value})
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.value, c.body, c.until = value, body, now.Add(min(max(c.least, rest*now.Sub(began)), maxAge))
	return value, body, nil
}

func (c *cached) fresh() (any, []byte, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.body, c.body != nil && time.Now().Before(c.until)
}
