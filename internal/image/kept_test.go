package image

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	rt "berth/internal/registrytest"
)

// twoLayers pushes kept:1, whose second layer is larger. It returns their digests.
func (f *fixture) twoLayers() (first, second string) {
	f.t.Helper()
	layers, err := f.push("kept:1", files("first", "1"), rt.Layer(rt.Random(5, "second", 3, 200<<10)...)).Layers()
	if err != nil {
		f.t.Fatal(err)
	}
	return digestOf(f.t, layers[0]), digestOf(f.t, layers[1])
}

// begin pulls kept:1 until its first layer is complete and the second one is on its way. It returns what ends the pull,
// and tells its error.
func (f *fixture) begin(second string) (cancel func(), ended chan error) {
	f.t.Helper()
	f.reg.SetFaults(rt.Faults{BytesPerSecond: 6 << 10, CutAfter: 40 << 10, Path: "/blobs/" + second})
	ctx, cancel := context.WithCancel(context.Background())
	f.t.Cleanup(cancel)
	ended = make(chan error, 1)
	go func() {
		_, err := f.Pull(ctx, PullRequest{Ref: host + "kept:1"})
		ended <- err
	}()
	f.eventually("the first layer is complete, and the second is not", func() bool {
		f.index.mu.Lock()
		defer f.index.mu.Unlock()
		for _, l := range f.index.layers {
			if l.refs > 0 && !l.recorded && f.reg.Sent(second) > 0 {
				return true
			}
		}
		return false
	})
	return cancel, ended
}

// giveUp leaves the first layer of a pull whose client goes away.
func (f *fixture) giveUp() (first string) {
	f.t.Helper()
	first, second := f.twoLayers()
	before := len(f.layerDirs())
	cancel, ended := f.begin(second)
	cancel()
	wantErr(f.t, <-ended, context.Canceled)
	f.reg.SetFaults(rt.Faults{})
	if n := len(f.layerDirs()) - before; n != 1 {
		f.t.Errorf("the pull has left %d directories of layers, and should leave 1", n)
	}
	return first
}

// wantKept pulls kept:1, whose first layer is here, and makes sure that it belongs to the image from then on.
func (f *fixture) wantKept(first string) {
	f.t.Helper()
	f.reg.ResetRequests()
	f.reg.SetFaults(rt.Faults{})
	id := f.pull("kept:1")
	if n := f.reg.Sent(first); n > 0 {
		f.t.Errorf("%d bytes of the layer that was here were sent again", n)
	}
	f.dropLeftovers()
	layers, err := f.AddReference(id, "container")
	if err != nil || len(layers.Dirs) != 2 {
		f.t.Errorf("layers %v, %v", layers.Dirs, err)
	}
	f.Release("container")
	if err := f.Remove(context.Background(), id); err != nil {
		f.t.Error(err)
	}
	f.wantNothing()
}

// TestACompleteLayerOfAPullThatEndsEarlyIsKeptForTheNext: the client goes away, the registry does, or berthd is
// stopped. Seen to fail where release gave everything up: the layer was removed, and sent again.
func TestACompleteLayerOfAPullThatEndsEarlyIsKeptForTheNext(t *testing.T) {
	t.Run("cancelled", func(t *testing.T) {
		f := newFixture(t)
		first := f.giveUp()
		_, second := f.twoLayers()
		cancel, ended := f.begin(second) // once more, with the layer that is here
		cancel()
		wantErr(t, <-ended, context.Canceled)
		if !strings.Contains(f.logs.String(), "are kept for the next one") {
			t.Error("the log does not say so")
		}
		f.wantKept(first)
	})
	t.Run("the registry is away", func(t *testing.T) {
		f := newFixture(t)
		first, second := f.twoLayers()
		_, ended := f.begin(second)
		f.reg.SetFaults(rt.Faults{Down: true})
		wantErr(t, <-ended, errdefs.ErrUnavailable)
		f.wantKept(first)
	})
	t.Run("berthd is stopped", func(t *testing.T) {
		f := newFixture(t)
		first, second := f.twoLayers()
		_, ended := f.begin(second)
		f.reopen()
		wantErr(t, <-ended, errdefs.ErrUnavailable)
		if err := f.Collect(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.wantKept(first)
	})
}

// TestALayerIsNotKeptForAPullThatFailsForGood, also if it was kept for this pull before.
func TestALayerIsNotKeptForAPullThatFailsForGood(t *testing.T) {
	f := newFixture(t)
	for _, before := range []bool{false, true} {
		_, second := f.twoLayers()
		if before {
			f.giveUp()
		}
		f.reg.SetFaults(rt.Faults{Corrupt: second})
		_, err := f.Pull(t.Context(), PullRequest{Ref: host + "kept:1"})
		wantErr(t, err, errdefs.ErrFailedPrecondition, second)
		f.wantNothing()
	}
}

// TestALayerThatNobodyComesForIsRemovedInTime. Seen to fail without expireLater in release.
func TestALayerThatNobodyComesForIsRemovedInTime(t *testing.T) {
	f := newFixture(t)
	f.Close()
	f.cfg.LeftoverAge = 2 * time.Second
	f.open()
	for range 2 { // the second time, another goroutine waits
		f.giveUp()
		f.eventually("it is gone", func() bool { return len(f.layerDirs()) == 0 })
		f.wantNothing()
	}
}
