package usage

import (
	"context"
	"log/slog"
	"testing"

	"berth/internal/model"
	"berth/internal/pod/background"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
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
	table := record.NewContainers(dirs.Containers(), log)
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
