package registry

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/image/ranges"
	rt "berth/internal/registrytest"
)

// trickling is a registry that sends as little as does not stall: at this rate, a connection that may be left after two
// seconds has brought a quarter of what it must.
var trickling = rt.Faults{BytesPerSecond: leastBytes / slowWindow / 4}

// behindAMirror is a world with registry.test and a mirror before it, whose client waits a second for bytes.
func behindAMirror(t *testing.T, s ranges.Settings) (w *world, mirror, registry *rt.Registry) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	t.Parallel()
	w = rangedWith(t, s, stalls)
	mirror, registry = w.registry("mirror.test:443"), w.registry("registry.test:443")
	w.configure(withCA + "[host.\"https://mirror.test\"]\nCA\n")
	return w, mirror, registry
}

// TestAMirrorThatTricklesIsLeftForTheRegistry, with a stream and with ranges that are loaded ahead, and is asked last
// from then on. Seen to fail without rate: the mirror takes minutes.
func TestAMirrorThatTricklesIsLeftForTheRegistry(t *testing.T) {
	for name, s := range map[string]ranges.Settings{"a stream": {Connections: 1}, "ranges": small} {
		t.Run(name, func(t *testing.T) {
			w, mirror, registry := behindAMirror(t, s)
			data, other := noise(2<<20), noise(2<<20+1)
			for _, r := range []*rt.Registry{mirror, registry} {
				r.PutBlob(data)
				r.PutBlob(other)
			}
			mirror.SetFaults(trickling)
			repo := w.repository(nil)
			began := time.Now()
			if err := w.blob(repo, data); err != nil {
				t.Fatal(err)
			}
			// The reader's connection, and before it one that loads ahead.
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("it took %v", took)
			}
			w.wantWaste(registry, data, 0)
			if !strings.Contains(w.logs.text.String(), "sends too slowly") {
				t.Errorf("log:\n%s", w.logs.text.String())
			}
			mirror.ResetRequests()
			for _, repo := range []*Repository{repo, w.repository(nil)} {
				if err := w.blob(repo, other); err != nil {
					t.Error(err)
				}
			}
			if n := len(mirror.Requests()); n > 0 {
				t.Errorf("the mirror was asked %d times for other blobs", n)
			}
		})
	}
}

// TestAHostThatTricklesIsLeftInTheMiddle: it has sent the beginning as fast as it should, and ranges are loaded ahead
// from it when it becomes slow. Seen to fail with a clock for each connection of the reader: each ended before its
// time.
func TestAHostThatTricklesIsLeftInTheMiddle(t *testing.T) {
	w, mirror, registry := behindAMirror(t, small)
	data := noise(8 << 20)
	mirror.PutBlob(data)
	registry.PutBlob(data)
	mirror.SetFaults(rt.Faults{BytesPerSecond: 2 << 20})
	b, err := w.repository(nil).Blob(w.Context(), describe(data), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	got := make([]byte, 3<<20)
	if _, err := io.ReadFull(b, got); err != nil {
		t.Fatal(err)
	}
	mirror.SetFaults(trickling)
	began := time.Now()
	rest, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(append(got, rest...), data) {
		t.Errorf("%d bytes, %v", len(got)+len(rest), err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	if len(b.Hosts()) != 2 {
		t.Errorf("bytes came from %v", b.Hosts())
	}
}

// TestASlowHostStaysWhereNoOtherIsLeft: there is none, the other one refuses the blob, or is as slow. Seen to fail with
// connections that are cut whatever other hosts there are, and where one that had refused the blob counted.
func TestASlowHostStaysWhereNoOtherIsLeft(t *testing.T) {
	data := noise(5 * trickling.BytesPerSecond) // takes five seconds, of which two are enough to leave a host
	for name, c := range map[string]struct {
		mirror, registry rt.Faults
		alone            bool // there is no mirror
		// Most requests to each of the two. A host that was left is asked once more where the other one fails.
		mirrors, registrys int
	}{
		"alone":                     {registry: trickling, alone: true, registrys: 1},
		"the registry refuses":      {mirror: trickling, registry: rt.Faults{Status: 404}, mirrors: 2, registrys: 1},
		"the mirror has refused":    {mirror: rt.Faults{Status: 404}, registry: trickling, mirrors: 1, registrys: 1},
		"both are slow":             {mirror: trickling, registry: trickling, mirrors: 1, registrys: 1},
		"the registry is too busy":  {mirror: trickling, registry: rt.Faults{Status: 503}, mirrors: 2, registrys: 1},
		"the registry is no better": {mirror: trickling, registry: rt.Faults{StallAfter: 1}, mirrors: 2, registrys: 1},
	} {
		t.Run(name, func(t *testing.T) {
			w, mirror, registry := behindAMirror(t, ranges.Settings{Connections: 1})
			mirror.PutBlob(data)
			registry.PutBlob(data)
			mirror.SetFaults(c.mirror)
			registry.SetFaults(c.registry)
			if c.alone {
				w.configure(withCA)
			}
			w.client.cfg.Retry.Attempts = 2 // that a host is left is no attempt that has failed
			if err := w.blob(w.repository(nil), data); err != nil {
				t.Error(err)
			}
			if m, r := len(mirror.Requests()), len(registry.Requests()); m > c.mirrors || r > c.registrys {
				t.Errorf("the mirror was asked %d times, the registry %d times", m, r)
			}
		})
	}
}

// TestASlowReaderIsNotTakenForASlowHost: unpacking may take long for a few bytes. Seen to fail with a window of the
// clock on the wall.
func TestASlowReaderIsNotTakenForASlowHost(t *testing.T) {
	w, mirror, registry := behindAMirror(t, ranges.Settings{Connections: 1})
	data := noise(leastBytes)
	mirror.PutBlob(data)
	registry.PutBlob(data)
	mirror.SetFaults(rt.Faults{BytesPerSecond: 8 * leastBytes})
	b, err := w.repository(nil).Blob(w.Context(), describe(data), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	buf := make([]byte, len(data)/8)
	for range 8 {
		if _, err := io.ReadFull(b, buf); err != nil {
			t.Fatal(err)
		}
		time.Sleep(400 * time.Millisecond)
	}
	if hosts := b.Hosts(); !slices.Equal(hosts, []string{"https://mirror.test/v2"}) || len(mirror.Requests()) != 1 {
		t.Errorf("bytes came from %q", hosts)
	}
}
