package usage

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/model"
	"berth/internal/pod/background"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
	"berth/internal/stats"
)

// TestAPodsUsageHasItsRunningContainers and no others, each with the status that clients are told.
func TestAPodsUsageHasItsRunningContainers(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dirs := &layout.Dirs{Root: t.TempDir(), State: t.TempDir()}
	sampler, err := stats.New(stats.Config{
		Measure:    func(context.Context, string) (bytes, inodes uint64, err error) { return 0, 0, nil },
		Mountpoint: dirs.Root, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sampler.Close)
	rd := &Reader{
		Sampler: sampler, Index: index.New(), Dirs: dirs, Log: log,
		Cgroups: cgroups.New(t.Context(), cgroups.Config{
			Root: "/none", Records: t.TempDir(), Background: new(background.Group), Log: log,
		}),
	}
	pods := record.NewSandboxes(dirs.Pods(), dirs.NetNS, log)
	table := record.NewContainers(dirs.Containers(), nil, log)
	node := model.SandboxSecurity{Namespaces: model.NamespaceOptions{Network: model.NamespaceNode}}
	var list []*index.Sandbox
	for _, id := range []string{"a", "b"} {
		s := index.NewSandbox(pods.New(id, record.Sandbox{
			ID: id, Phase: record.SandboxReady, CgroupParent: "/none/" + id, Config: &model.SandboxConfig{Security: node},
		}))
		rd.Index.AdoptSandbox(s)
		for name, phase := range map[string]record.ContainerPhase{
			"runs": record.ContainerRunning, "ended": record.ContainerExited,
		} {
			config := &model.ContainerConfig{Metadata: model.ContainerMetadata{Name: name}}
			c := record.Container{ID: id + "-" + name, SandboxID: id, Phase: phase, Config: config}
			rd.Index.AdoptContainer(index.NewContainer(table.New(c.ID, c), s))
		}
		list = append(list, s)
	}
	for i, u := range rd.Sandboxes(t.Context(), list) {
		id := list[i].ID()
		if u.Sandbox.ID != id || len(u.Containers) != 1 || u.Containers[0].Container.ID != id+"-runs" {
			t.Errorf("the usage of pod %s is that of %s, with %d containers", id, u.Sandbox.ID, len(u.Containers))
		}
	}
	metrics := rd.Metrics(t.Context())
	if len(metrics) != 2 {
		t.Fatalf("there are metrics of %d pods", len(metrics))
	}
	for _, m := range metrics {
		if len(m.Containers) != 1 || m.Containers[0].ContainerID != m.SandboxID+"-runs" {
			t.Errorf("pod %s has metrics of %+v", m.SandboxID, m.Containers)
		}
	}
}

// ending is a context that ends after some looks at it, each of which takes a moment.
type ending struct {
	context.Context
	left atomic.Int64
}

func (e *ending) Err() error {
	if e.left.Add(-1) < 0 {
		return context.DeadlineExceeded
	}
	time.Sleep(time.Millisecond)
	return nil
}

// TestVolumesOfAnImageCountBesideALayerThatIsTooLarge to be measured in time, and the other way round. Seen to fail
// where the one was measured after the other.
func TestVolumesOfAnImageCountBesideALayerThatIsTooLarge(t *testing.T) {
	const written = 5 << 20 // bytes, beside as many directories as are not looked at in time
	dirs := &layout.Dirs{Root: t.TempDir(), State: t.TempDir()}
	layer, volumes := rootfs.Upper(dirs.Container("c")), dirs.ImageVolumes("c")
	measure := Written(dirs)
	for name, v := range map[string]struct{ many, large string }{
		"directories in the layer": {layer, volumes}, "directories in the volumes": {volumes, layer},
	} {
		t.Run(name, func(t *testing.T) {
			for _, dir := range []string{layer, volumes} {
				if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
					t.Fatal(err)
				}
			}
			for i := range 400 {
				if err := os.Mkdir(filepath.Join(v.many, strconv.Itoa(i)), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(v.large, "large"), make([]byte, written), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx := &ending{Context: t.Context()}
			ctx.left.Store(200)
			bytes, _, err := measure(ctx, layer)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("all was counted in time, %v: this tests nothing", err)
			}
			if bytes < written {
				t.Errorf("%d bytes were counted of %d", bytes, written)
			}
			whole, _, err := measure(t.Context(), layer)
			if err != nil || whole < written {
				t.Errorf("%d bytes in time, and %v", whole, err)
			}
		})
	}
	if err := os.RemoveAll(volumes); err != nil {
		t.Fatal(err)
	}
	if _, _, err := measure(t.Context(), layer); err != nil {
		t.Errorf("without volumes: %v", err)
	}
}
