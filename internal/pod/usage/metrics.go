package usage

import (
	"context"
	"time"

	"berth/internal/model"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
	"berth/internal/stats"
	"berth/internal/stats/cadvisor"
)

// Metrics reads the metrics of the ready pods and their running containers. One that does not answer in time has
// its last figures, with the time of those.
func (rd *Reader) Metrics(ctx context.Context) []model.SandboxMetrics {
	began := time.Now()
	var sandboxes []*index.Sandbox
	var containers []*index.Container
	place := map[string]int{}
	for _, s := range rd.Index.Sandboxes() {
		if s.Status().State == model.SandboxReady {
			place[s.ID()] = len(sandboxes)
			sandboxes = append(sandboxes, s)
		}
	}
	for _, c := range rd.Index.Containers() {
		if _, ready := place[c.Sandbox.ID()]; ready && c.Record().Phase == record.ContainerRunning {
			containers = append(containers, c)
		}
	}

	targets := make([]stats.Target, 0, len(sandboxes)+len(containers))
	for _, s := range sandboxes {
		targets = append(targets, rd.sandboxTarget(s))
	}
	for _, c := range containers {
		t := rd.containerTarget(c)
		t.PID = c.Status().PID
		targets = append(targets, t)
	}
	readings := rd.Sampler.Details(ctx, targets)
	rd.forgetGone(targets)

	out := make([]model.SandboxMetrics, len(sandboxes))
	for i, s := range sandboxes {
		r := s.Record()
		out[i] = model.SandboxMetrics{SandboxID: s.ID(), Metrics: cadvisor.Metrics(&cadvisor.Subject{
			Cgroup:    targets[i].Cgroup,
			Pod:       r.Config.Metadata.Name,
			Namespace: r.Config.Metadata.Namespace,
			Started:   r.CreatedAt,
			Resources: cgroups.Limits(r.Config),
			Detail:    readings[i].Detail,
			Network:   readings[i].Network,
			Began:     began,
		})}
	}
	// All writable layers are on one file system. Without it, its figures are missing and all others are there.
	disk, err := stats.StatFilesystem(rd.Dirs.Containers())
	if err != nil {
		rd.Log.Warn("metrics of the writable layers", "error", err)
	}
	for i, c := range containers {
		st, reading := c.Status(), readings[len(sandboxes)+i]
		pod := c.Sandbox.Status().Config.Metadata
		to := &out[place[c.Sandbox.ID()]]
		metrics := cadvisor.Metrics(&cadvisor.Subject{
			Cgroup:     targets[len(sandboxes)+i].Cgroup,
			Name:       c.ID(),
			Image:      st.ImageName(),
			Pod:        pod.Name,
			Namespace:  pod.Namespace,
			Container:  st.Config.Metadata.Name,
			Started:    st.StartedAt,
			Resources:  st.Resources,
			Detail:     reading.Detail,
			Layer:      reading.Layer,
			Filesystem: disk,
			Began:      began,
		})
		to.Containers = append(to.Containers, model.ContainerMetrics{ContainerID: c.ID(), Metrics: metrics})
	}
	return out
}
