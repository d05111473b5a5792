package usage

import (
	"context"

	"berth/internal/model"
	"berth/internal/stats"
)

// Figures reads the files of the cgroups of containers that run, and of sandboxes, in the order of their IDs. nil: it
// does not run, or is gone. Of a sandbox it is the cgroup of the pod's init process, or the empty one that stands for
// such a process (cgroups.Driver.RenewSandbox), not the pod's, which has that of all containers in it.
func (rd *Reader) Figures(ctx context.Context, ids []string) []*model.CgroupFigures {
	targets := make([]stats.Target, 0, len(ids))
	place := make([]int, 0, len(ids))
	for i, id := range ids {
		t := stats.Target{ID: id}
		if c, err := rd.Index.Container(id); err == nil && c.ID() == id {
			t.Cgroup = rd.containerTarget(c).Cgroup
		} else if s, err := rd.Index.Sandbox(id); err == nil && s.ID() == id {
			// The sampler keeps the figures of the pod's own cgroup under the pod's ID. Those under this ID are dropped at once.
			t.ID, t.Cgroup = "sandbox "+id, rd.Cgroups.SandboxDir(s.Record().CgroupParent, id)
		}
		if t.Cgroup != "" {
			targets, place = append(targets, t), append(place, i)
		}
	}
	out := make([]*model.CgroupFigures, len(ids))
	for i, figures := range rd.Sampler.Figures(ctx, targets) {
		out[place[i]] = figures
	}
	rd.forgetGone(targets)
	return out
}
