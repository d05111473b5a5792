package registry

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	rt "berth/internal/registrytest"
)

// TestAMirrorThatRefusesDoesNotEndTheAttemptsAtTheRegistry: of two hosts, one has refused for good, and the other is
// overloaded for a moment. Seen to fail for blobs where the worse of the two failures decided whether to try again, and
// for the pause of manifests, which then was not as long as the registry had asked for.
func TestAMirrorThatRefusesDoesNotEndTheAttemptsAtTheRegistry(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) }
	}
	for _, c := range []struct {
		name   string
		mirror http.HandlerFunc
		trust  string // a line for the mirror in hosts.toml
		kind   error  // of the error where the registry never recovers
		words  string
	}{
		{"401", status(401), "skip_verify = true", errdefs.ErrUnauthenticated, "401"},
		{"403", status(403), "skip_verify = true", errdefs.ErrPermissionDenied, "403"},
		{"404", status(404), "skip_verify = true", errdefs.ErrUnavailable, "503"},
		{"a page", func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "<html>") }, "skip_verify = true",
			errdefs.ErrFailedPrecondition, "it sends 6 bytes"},
		{"a bad certificate", status(200), "", errdefs.ErrFailedPrecondition, "certificate"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.client.cfg.Retry.Attempts, w.client.cfg.Retry.MaxBackoff = 3, 2*time.Second
			registry := w.registry("registry.test:443")
			w.push(registry)
			data := noise(1000)
			registry.PutBlob(data)
			var asked atomic.Int64
			w.serve("mirror.test:443", func(rw http.ResponseWriter, req *http.Request) {
				asked.Add(1)
				c.mirror(rw, req)
			})
			w.configure("CA\n[host.\"https://mirror.test\"]\n" + c.trust + "\n")

			registry.SetFaults(rt.Faults{Status: 503, StatusTimes: 2})
			if err := w.blob(w.repository(nil), data); err != nil {
				t.Error(err)
			}
			if n := asked.Load(); n > 1 {
				t.Errorf("the mirror was asked %d times for the blob", n)
			}
			registry.SetFaults(rt.Faults{Status: 503})
			err := w.blob(w.repository(nil), data)
			if !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.words) {
				t.Errorf("error %v, want %v with %q", err, c.kind, c.words)
			}

			if c.name == "a page" { // which has no digest, and is read as a manifest
				return
			}
			registry.SetFaults(rt.Faults{Status: 503, StatusTimes: 1, RetryAfter: "1"})
			began := time.Now()
			if _, err := w.repository(nil).Resolve(t.Context()); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took < time.Second {
				t.Errorf("the registry, which had asked for a second, was asked again after %v", took)
			}
			registry.SetFaults(rt.Faults{Status: 503})
			_, err = w.repository(nil).Resolve(t.Context())
			if !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.words) {
				t.Errorf("manifest: error %v, want %v with %q", err, c.kind, c.words)
			}
			// A failure that has passed is not what is told.
			registry.SetFaults(rt.Faults{Status: 503, StatusTimes: 1})
			if err := w.blob(w.repository(nil), noise(10)); errdefs.IsUnavailable(err) || err == nil {
				t.Errorf("a blob that nobody has: %v", err)
			}
		})
	}
}

// TestTwoPathsOfOneHostAreAskedEachOnItsOwn: hosts.toml has two tables for one mirror, as for two projects of a Harbor.
// The first one's project answers for a layer that is large enough for ranges with an error, or with none of the
// ranges, and only the second one has it. Seen to fail with what is known of a host kept by the host's name: the second
// project was not asked, and the first one twice.
func TestTwoPathsOfOneHostAreAskedEachOnItsOwn(t *testing.T) {
	data := noise(1 << 20)
	refusesRanges := func(rw http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Range") != "" {
			rw.WriteHeader(http.StatusInternalServerError)
			return
		}
		rw.WriteHeader(http.StatusNotFound)
	}
	for name, first := range map[string]http.HandlerFunc{
		"not found": http.NotFound, "no ranges": refusesRanges,
	} {
		t.Run(name, func(t *testing.T) {
			w := ranged(t, small)
			var ranges atomic.Int64
			w.serve("mirror.test:443", func(rw http.ResponseWriter, req *http.Request) {
				if !strings.HasPrefix(req.URL.Path, "/v2/second/a/") {
					first(rw, req)
					return
				}
				if req.Header.Get("Range") != "" {
					ranges.Add(1)
				}
				http.ServeContent(rw, req, "", time.Time{}, bytes.NewReader(data))
			})
			w.serve("registry.test:443", http.NotFound)
			table := "[host.\"https://mirror.test/v2/%s\"]\noverride_path = true\nskip_verify = true\n"
			w.configure("skip_verify = true\n" + fmt.Sprintf(table, "first") + fmt.Sprintf(table, "second"))
			repo := w.repository(nil)
			b, err := repo.Blob(w.Context(), describe(data), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if got, err := io.ReadAll(b); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			if ranges.Load() < 2 {
				t.Errorf("%d ranges came from the second path", ranges.Load())
			}
			hosts := b.Hosts()
			if !slices.Equal(hosts, []string{"https://mirror.test/v2/second"}) {
				t.Errorf("bytes came from %q", hosts)
			}
			// What the second has sent was wrong: the first is still asked, and the second is not.
			ranges.Store(0)
			err = nil
			if b, openErr := repo.Blob(w.Context(), describe(data), map[string]bool{hosts[0]: true}); openErr != nil {
				err = openErr
			} else {
				_, err = io.ReadAll(b)
				b.Close()
			}
			if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "mirror.test") || ranges.Load() > 0 {
				t.Errorf("error %v, and the second path was asked %d times", err, ranges.Load())
			}
		})
	}
}
