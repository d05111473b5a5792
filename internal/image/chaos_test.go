package image

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	rt "berth/internal/registrytest"
)

// TestPullsRemovalsAndReferencesAtOnce: whatever comes in whatever order, what is held is there, and in the end nothing
// is.
func TestPullsRemovalsAndReferencesAtOnce(t *testing.T) {
	f := newFixture(t)
	ctx := context.Background()
	common := files("common", "c")
	names := make([]string, 6)
	for i := range names {
		names[i] = fmt.Sprintf("app%d:1", i)
		f.push(names[i], common, files(fmt.Sprintf("own%d", i%3), "x"), rt.Layer(rt.File("deep/er/f", 0o644, fmt.Sprint(i))),
			rt.Label("n", fmt.Sprint(i)))
	}
	end := time.Now().Add(1500 * time.Millisecond)
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewSource(int64(w)))
			for n := 0; time.Now().Before(end); n++ {
				name := host + names[rnd.Intn(len(names))]
				switch rnd.Intn(4) {
				case 0:
					if err := f.Remove(ctx, name); err != nil {
						t.Error("remove:", err)
					}
				case 1:
					c, cancel := context.WithTimeout(ctx, time.Duration(rnd.Intn(10))*time.Millisecond)
					_, _ = f.Pull(c, PullRequest{Ref: name})
					cancel()
				default:
					img, err := f.Pull(ctx, PullRequest{Ref: name})
					// Another one may have removed it the moment it was there.
					if err != nil {
						if !errors.Is(err, errdefs.ErrNotFound) {
							t.Error("pull:", err)
						}
						continue
					}
					holder := fmt.Sprintf("%d-%d", w, n)
					l, err := f.AddReference(img.ID, holder)
					if err != nil {
						if !errdefs.IsNotFound(err) {
							t.Error("add a reference:", err)
						}
						continue
					}
					for range 3 {
						for _, d := range l.Dirs {
							if entries, err := os.ReadDir(d); err != nil || len(entries) == 0 {
								t.Errorf("a held layer is gone: %v", err)
							}
						}
					}
					f.Release(holder)
				}
			}
		})
	}
	wg.Wait()
	for _, name := range names {
		if err := f.Remove(ctx, host+name); err != nil {
			t.Error(err)
		}
	}
	f.dropLeftovers() // of pulls that were cancelled
	f.eventually("everything is gone", func() bool { return len(f.layerDirs()) == 0 })
	f.wantNothing()
	f.index.mu.Lock()
	defer f.index.mu.Unlock()
	if len(f.index.layers)+len(f.index.images)+len(f.index.names)+len(f.index.jobs)+len(f.index.references)+
		len(f.index.busy) != 0 {
		t.Errorf("tables: %v %v %v %v %v %v", f.index.layers, f.index.images, f.index.names, f.index.jobs,
			f.index.references, f.index.busy)
	}
}
