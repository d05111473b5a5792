package stream

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"k8s.io/client-go/tools/remotecommand"
)

// awaitEmpty waits until no place is taken.
func (p *places) awaitEmpty(t *testing.T) {
	t.Helper()
	for end := deadline(t); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		n := p.n
		p.mu.Unlock()
		if n == 0 {
			return
		}
		if end.Err() != nil {
			t.Fatalf("%d places stay taken", n)
		}
	}
}

// TestAClientHasItsPlaceAsLongAsItsConnection: one that keeps its connection open after the end of its command takes a
// descriptor, and memory of the kernel, for as long as the server has patience.
func TestAClientHasItsPlaceAsLongAsItsConnection(t *testing.T) {
	s := start(t, Config{IdleTimeout: time.Hour})
	c := dialSPDY(t, execURL(t, s, Wanted{Stdout: true}, "true"), "v4.channel.k8s.io")
	c.openExec("error", "stdout")
	for {
		if _, err := c.ReadFrame(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the handler has returned", func() bool {
		s.open.mu.Lock()
		defer s.open.mu.Unlock()
		return s.open.n == 1 // the connection
	})
	s.places.mu.Lock()
	n := s.places.n
	s.places.mu.Unlock()
	if n != 1 {
		t.Errorf("%d places are taken while the client has its connection, want 1", n)
	}
	c.Close()
	s.places.awaitEmpty(t)
}

// TestClientsWithTokensHaveABound, all together and those of one container: each has memory and descriptors of the
// node, and who may exec gets a token for each call.
func TestClientsWithTokensHaveABound(t *testing.T) {
	s := start(t, Config{})
	fill := func(n int, of func(i int) string) (empty func()) {
		var leave []func()
		for i := range n {
			l, err := s.places.take(of(i))
			if err != nil {
				t.Fatal(err)
			}
			leave = append(leave, l)
		}
		return func() {
			for _, l := range leave {
				l()
			}
		}
	}
	ask := func(container string) error {
		_, err := s.GetAttach(t.Context(), AttachRequest{ContainerID: container})
		return err
	}
	for _, c := range []struct {
		name  string
		n     int
		of    func(i int) string
		other bool // has a place
		told  string
	}{
		{"of one container", maxStreamsOfOne, func(int) string { return "container c1" }, true,
			"container c1 has 512 clients"},
		{"of all", maxStreams, func(i int) string { return fmt.Sprint("pod ", i/4) }, false, "this node has 2048 clients"},
	} {
		t.Run(c.name, func(t *testing.T) {
			earlier := execURL(t, s, Wanted{Stdout: true}, "true")
			s.places.awaitEmpty(t) // a client that was served before may be leaving yet
			empty := fill(c.n, c.of)
			if err := ask("c1"); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), c.told) {
				t.Errorf("a token more: %v", err)
			}
			if err := ask("c2"); (err == nil) != c.other {
				t.Errorf("a token for another container: %v", err)
			}
			resp, err := http.Get(earlier)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable ||
				!strings.Contains(string(body), c.told) {
				t.Errorf("with a token that it had before: %d, %s", resp.StatusCode, body)
			}
			empty()
			for range 3 {
				var out bytes.Buffer
				err := connect(t, "SPDY", execURL(t, s, Wanted{Stdout: true}, "echo", "served")).StreamWithContext(deadline(t),
					remotecommand.StreamOptions{Stdout: &out})
				if err != nil || out.String() != "served\n" {
					t.Errorf("with places again: %q, %v", out.String(), err)
				}
			}
		})
	}
	if err := s.Close(deadline(t)); err != nil {
		t.Error(err)
	}
	if s.places.n != 0 || len(s.places.of) != 0 {
		t.Errorf("%d places are taken when nobody is there: %v", s.places.n, s.places.of)
	}
}
