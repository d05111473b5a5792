package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// get asks a server as a client outside of the cluster would, over a connection of its own.
func (c *cluster) get(ctx context.Context, address, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return c.control.Dial(ctx, network, address)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return string(body), err
}

// load is clients that ask a server again and again.
type load struct {
	stop   context.CancelFunc
	wait   sync.WaitGroup
	served atomic.Int64
	mu     sync.Mutex // guards failed
	failed []string
}

// startLoad has clients ask each of the addresses, in turns, 20 times a second each.
func (c *cluster) startLoad(clients int, path string, addresses ...string) *load {
	ctx, stop := context.WithCancel(context.Background())
	l := &load{stop: stop}
	for i := range clients {
		l.wait.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				address := addresses[n%len(addresses)]
				began := time.Now()
				if _, err := c.get(context.Background(), address, path); err != nil {
					l.mu.Lock()
					l.failed = append(l.failed, fmt.Sprintf("%s, to %s, after %v: %v", began.Format(time.StampMilli),
						address, time.Since(began), err))
					l.mu.Unlock()
				} else {
					l.served.Add(1)
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	return l
}

// end stops the clients. A request that failed fails the test.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop()
	l.wait.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%d requests were served, %d failed", l.served.Load(), len(l.failed))
	for i, failure := range l.failed {
		if i == 5 {
			break
		}
		t.Errorf("a request failed: %s", failure)
	}
	if l.served.Load() == 0 {
		t.Error("no request was served")
	}
}
