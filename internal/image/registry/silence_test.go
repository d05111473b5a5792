package registry

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestAMirrorThatIsOffIsWaitedForOnceInAMinute by all pulls together, also by those that begin at the same time when
// the minute is over. Seen to fail with what is known of the mirror kept for one pull: each waited for the connection.
func TestAMirrorThatIsOffIsWaitedForOnceInAMinute(t *testing.T) {
	w := newWorld(t)
	mirror, registry := w.registry("mirror.test:443"), w.registry("registry.test:443")
	w.push(mirror, registry)
	w.configure("CA\n[host.\"https://mirror.test\"]\nCA\n")
	var off atomic.Bool
	var dialled atomic.Int64
	dial := w.client.dial
	w.client.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "mirror.test:443" && off.Load() {
			dialled.Add(1)
			time.Sleep(longWait + 10*time.Millisecond)
			return nil, &net.OpError{Op: "dial", Net: network, Err: os.ErrDeadlineExceeded}
		}
		return dial(ctx, network, address)
	}
	pulls := func(n int) {
		t.Helper()
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				if err := w.read(nil); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	over := func() {
		s := &w.client.silence
		s.mu.Lock()
		defer s.mu.Unlock()
		for what := range s.until {
			s.until[what] = time.Now().Add(-time.Second)
		}
	}
	off.Store(true)
	pulls(1)
	pulls(2)
	if n := dialled.Load(); n != 1 {
		t.Errorf("three pulls have waited for the mirror %d times", n)
	}
	over()
	pulls(3)
	if n := dialled.Load(); n != 2 {
		t.Errorf("three pulls after a minute have waited for the mirror %d times", n-1)
	}
	off.Store(false)
	mirror.ResetRequests()
	pulls(1)
	if n := len(mirror.Requests()); n > 0 {
		t.Errorf("the mirror was asked %d times within the minute", n)
	}
	over()
	pulls(1)
	pulls(1)
	if n := len(mirror.Requests()); n < 6 {
		t.Errorf("the mirror, which is back, was asked %d times in two pulls", n)
	}
}

// TestAMirrorThatWaitsForARegistryIsAskedForOthers: a cache takes connections, and does not answer for images of one
// registry, which it asks itself. Seen to fail where that was known of the mirror, whatever the image.
func TestAMirrorThatWaitsForARegistryIsAskedForOthers(t *testing.T) {
	w := newWorld(t)
	w.client.cfg.Retry.Stall = longWait + 10*time.Millisecond
	var mu sync.Mutex
	asked := map[string]int{} // by registry
	manifest := func(rw http.ResponseWriter, _ *http.Request) {
		data := []byte(`{"schemaVersion":2}`)
		rw.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		rw.Header().Set("Docker-Content-Digest", digest.FromBytes(data).String())
		_, _ = rw.Write(data)
	}
	w.serve("mirror.test:443", func(rw http.ResponseWriter, req *http.Request) {
		ns := req.URL.Query().Get("ns")
		mu.Lock()
		asked[ns]++
		mu.Unlock()
		if ns == "slow.test" {
			<-req.Context().Done()
			return
		}
		manifest(rw, req)
	})
	for _, name := range []string{"slow.test", "other.test"} {
		w.serve(name+":443", manifest)
	}
	w.configure("skip_verify = true\n[host.\"https://mirror.test\"]\nskip_verify = true\n")
	if err := os.Rename(w.hosts+"/registry.test", w.hosts+"/_default"); err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{"slow.test/a:1", "slow.test/b:1", "other.test/a:1", "slow.test/c:1"} {
		named, err := reference.ParseNormalizedNamed(image)
		if err != nil {
			t.Fatal(err)
		}
		repo, err := w.client.Repository(t.Context(), named, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := repo.Resolve(t.Context()); err != nil {
			t.Error(err)
		}
		repo.Close()
	}
	if asked["slow.test"] != 1 || asked["other.test"] != 1 {
		t.Errorf("the mirror was asked %v", asked)
	}
}
