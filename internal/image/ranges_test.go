package image

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/image/ranges"
	rt "berth/internal/registrytest"
)

// smallRanges make layers of some MiB large ones.
var smallRanges = ranges.Settings{Connections: 4, PerHost: 8, Size: 128 << 10, Memory: 2 << 20}

func newRangesFixture(t *testing.T) *fixture {
	f := newFixture(t)
	other := f.cfg.Settings
	other.Ranges = smallRanges
	other.Retry.Attempts = 8 // a connection that breaks at random breaks at once a few times in a row now and then
	adopt, err := f.Prepare(other)
	if err != nil {
		t.Fatal(err)
	}
	adopt()
	return f
}

// wantNoRanges makes sure that nothing is left of what was loaded ahead.
func (f *fixture) wantNoRanges() {
	f.t.Helper()
	if n := f.pool.Mapped(); n != 0 {
		f.t.Errorf("%d bytes of ranges are left", n)
	}
	f.eventually("no request is left", func() bool { return f.reg.Blobs() == 0 })
}

// Layers come whole over several connections that break at random, and the bounds hold for all pulls together. The
// digests of what was unpacked are checked as ever.
func TestLayersComeWholeOverSeveralConnections(t *testing.T) {
	long(t)
	f := newRangesFixture(t)
	var names []string
	for i := range 3 {
		name := string(rune('a'+i)) + ":1"
		f.push(name, rt.Layer(rt.Random(int64(i), "one", 4, 8<<20)...), rt.Layer(rt.Random(int64(10+i), "two", 4, 8<<20)...))
		names = append(names, name)
	}
	f.reg.SetFaults(rt.Faults{BytesPerSecond: 4 << 20, CutWithin: 2 << 20, Path: "/blobs/"})
	var wg sync.WaitGroup
	for _, name := range names {
		wg.Go(func() {
			if _, err := f.Pull(t.Context(), PullRequest{Ref: host + name}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if _, blobs := f.reg.Peaks(); blobs <= 6 || blobs > smallRanges.PerHost {
		t.Errorf("%d requests for blobs at a time, of 6 layers", blobs)
	}
	f.wantNoRanges()
}

// What cannot be pulled leaves nothing: a corrupt layer, one that is given up, and one whose registry goes away.
func TestALargeLayerThatFailsLeavesNothing(t *testing.T) {
	long(t)
	for name, c := range map[string]struct {
		faults func(digest string) rt.Faults
		cancel bool
		want   error
	}{
		"corrupt":   {func(d string) rt.Faults { return rt.Faults{Corrupt: d} }, false, errdefs.ErrFailedPrecondition},
		"cancelled": {func(string) rt.Faults { return rt.Faults{BytesPerSecond: 1 << 20} }, true, context.Canceled},
		"cancelled while it stalls": {func(d string) rt.Faults { return rt.Faults{StallAfter: 70 << 10, Path: d} }, true,
			context.Canceled},
		"never more than a little": {func(d string) rt.Faults { return rt.Faults{CutAfter: 1000, Path: d} }, false,
			errdefs.ErrUnavailable},
		"other bytes": {func(string) rt.Faults { return rt.Faults{Range: rt.WrongBytes} }, false,
			errdefs.ErrFailedPrecondition},
		"refused": {func(d string) rt.Faults { return rt.Faults{Status: 403, Path: d} }, false, errdefs.ErrPermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newRangesFixture(t)
			img := f.push("a:1", rt.Layer(rt.Random(1, "d", 4, 9<<20)...))
			layers, _ := img.Layers()
			f.reg.SetFaults(c.faults(digestOf(t, layers[0])))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancel {
				time.AfterFunc(400*time.Millisecond, cancel)
			}
			_, err := f.Pull(ctx, PullRequest{Ref: host + "a:1"})
			if !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
			f.wantNothing()
			f.wantNoRanges()
			f.reg.SetFaults(rt.Faults{})
			f.pull("a:1")
			if name == "corrupt" && !strings.Contains(f.logs.String(), "corrupt blob") {
				t.Error("the log does not say that the blob is corrupt")
			}
		})
	}
}
