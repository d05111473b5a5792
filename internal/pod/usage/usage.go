// Package usage reads the resource usage of pods and containers, and makes statistics and metrics of it.
package usage

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"

	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/rootfs"
	"berth/internal/stats"
)

// Reader reads what pods and containers use. Its methods may be called concurrently.
type Reader struct {
	Sampler *stats.Sampler
	Index   *index.Index
	Dirs    *layout.Dirs
	Cgroups *cgroups.Driver
	Log     *slog.Logger
}

// Written measures what a container has written, as stats.Config.Measure: its writable layer, and the volumes that its
// image declares. A client knows nothing of these, and limits what a container may write by the one figure. The two are
// measured side by side: a container with so many files in one that ctx ends before all are counted could otherwise
// write to the other unseen.
func Written(dirs *layout.Dirs) func(ctx context.Context, layer string) (bytes, inodes uint64, err error) {
	return func(ctx context.Context, layer string) (uint64, uint64, error) {
		var inVolumes struct {
			bytes, inodes uint64
			err           error
		}
		var volumes sync.WaitGroup
		volumes.Go(func() {
			v := &inVolumes
			v.bytes, v.inodes, v.err = rootfs.Usage(ctx, dirs.ImageVolumes(filepath.Base(filepath.Dir(layer))))
			if errors.Is(v.err, fs.ErrNotExist) {
				v.err = nil // the image declares none
			}
		})
		bytes, inodes, err := rootfs.Usage(ctx, layer)
		volumes.Wait()
		return bytes + inVolumes.bytes, inodes + inVolumes.inodes, errors.Join(err, inVolumes.err)
	}
}

// containerTarget is what is read of a container: its writable layer, and its cgroup while it runs.
func (rd *Reader) containerTarget(c *index.Container) stats.Target {
	r := c.Record()
	t := stats.Target{ID: c.ID(), Layer: rootfs.Upper(rd.Dirs.Container(c.ID()))}
	switch r.Phase {
	case record.ContainerRunning:
		t.Cgroup = r.Cgroup
	case record.ContainerExited:
		t.Ended = true
	}
	return t
}

// Containers reads what containers use, in their order.
func (rd *Reader) Containers(ctx context.Context, list []*index.Container) []*model.ContainerUsage {
	targets := make([]stats.Target, len(list))
	for i, c := range list {
		targets[i] = rd.containerTarget(c)
	}
	usage := rd.Sampler.Containers(ctx, targets)
	rd.forgetGone(targets)
	for i, c := range list {
		usage[i].Container = c.Status()
	}
	return usage
}

// forgetGone drops what the sampler remembers of pods and containers that were removed while they were read.
func (rd *Reader) forgetGone(targets []stats.Target) {
	for _, t := range targets {
		if !rd.Index.Has(t.ID) {
			rd.Sampler.Forget(t.ID)
		}
	}
}

// sandboxTarget is what is read of a pod: its cgroup, and its network where that is not the node's.
func (rd *Reader) sandboxTarget(s *index.Sandbox) stats.Target {
	r := s.Record()
	t := stats.Target{ID: s.ID(), Cgroup: rd.Cgroups.PodDir(r.CgroupParent)}
	if !r.NodeNetwork() {
		t.NetNS = rd.Dirs.Namespaces(s.ID()).Path(namespace.Network)
		t.Network = true
	}
	return t
}

// Sandboxes reads what pods and their running containers use, in their order.
func (rd *Reader) Sandboxes(ctx context.Context, list []*index.Sandbox) []*model.SandboxUsage {
	targets := make([]stats.Target, len(list))
	place := make(map[string]int, len(list))
	for i, s := range list {
		targets[i] = rd.sandboxTarget(s)
		place[s.ID()] = i
	}
	usage := rd.Sampler.Sandboxes(ctx, targets)
	rd.forgetGone(targets)
	for i, s := range list {
		usage[i].Sandbox = s.Status()
	}
	var running []*index.Container
	for _, c := range rd.Index.Containers() {
		if _, wanted := place[c.Sandbox.ID()]; wanted && c.Record().Phase == record.ContainerRunning {
			running = append(running, c)
		}
	}
	for i, u := range rd.Containers(ctx, running) {
		pod := usage[place[running[i].Sandbox.ID()]]
		pod.Containers = append(pod.Containers, u)
	}
	return usage
}
