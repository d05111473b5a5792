package containerd

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// sandboxCgroups gives pods what monitors read a pod's network from. cAdvisor finds containers by their cgroups, reads
// the labels of each that it finds, and takes network figures of those that are sandboxes, from /proc of the sandbox's
// process. Most pods of Berth have no process of their own. Such a pod gets an empty cgroup, and the process of one of
// its containers, which has the same network, stands for it. CRI-O without infra containers does the same.
//
// A monitor asks for the process when it finds the cgroup, and never again. So the cgroup is there only while a
// container runs, and is made again when that container has ended and another one stands for it.
//
// Nobody waits for any of this: it follows events, from the first call of a monitor on.
type sandboxCgroups struct {
	runtime Runtime
	log     *slog.Logger
	delay   time.Duration

	mu    sync.Mutex     // guards shown
	shown map[string]int // the PID that a pod's cgroup was made for
}

// settleTime is how long after a change a pod's cgroup is made: in a pod that starts, or whose init containers run, one
// change follows another, and monitors look every ten seconds or so.
const settleTime = time.Second

func newSandboxCgroups(r Runtime, log *slog.Logger) *sandboxCgroups {
	return &sandboxCgroups{runtime: r, log: log, delay: settleTime, shown: map[string]int{}}
}

// followSandboxes begins to follow pods, once.
func (a *API) followSandboxes() {
	a.follow.Do(func() { a.work.Go(func() { a.sandboxes.follow(a.ctx) }) })
}

// follow looks at each pod after it has changed, until ctx ends.
func (g *sandboxCgroups) follow(ctx context.Context) {
	changed := map[string]bool{}
	for ctx.Err() == nil {
		g.followOnce(ctx, changed)
		select { // when berthd ends, its events have ended before ctx does, and end again at once
		case <-ctx.Done():
		case <-time.After(g.delay):
		}
	}
}

// followOnce is follow until it is cut off, or there are no more events. In changed are pods that have not been looked
// at since they have changed.
func (g *sandboxCgroups) followOnce(ctx context.Context, changed map[string]bool) {
	ctx, stop := context.WithCancel(ctx)
	defer stop() // ends the subscription
	events := g.runtime.Subscribe(ctx)
	// What has happened before, or was missed by a reader that was too far behind.
	list, err := g.runtime.ListSandboxes(ctx, model.SandboxFilter{})
	if err != nil {
		g.log.ErrorContext(ctx, "list pods for the cgroups that monitors find them by", "error", err)
	}
	for _, s := range list {
		changed[s.ID] = true
	}
	due := time.After(g.delay)
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if !ok {
				return
			}
			changed[e.SandboxID] = true
			if due == nil {
				due = time.After(g.delay)
			}
		case <-due:
			due = nil
			for id := range changed {
				g.look(ctx, id)
			}
			clear(changed)
		}
	}
}

// look makes a pod's cgroup what the pod's containers ask for.
func (g *sandboxCgroups) look(ctx context.Context, id string) {
	pid := 0
	s, err := g.runtime.SandboxStatus(ctx, id)
	ready := err == nil && s.State == model.SandboxReady
	if ready {
		pid = g.choose(ctx, s)
	}
	g.mu.Lock()
	before, known := g.shown[id]
	if ready {
		g.shown[id] = pid // the monitor asks as soon as the cgroup is there
	} else {
		delete(g.shown, id)
	}
	g.mu.Unlock()
	switch {
	case !ready || s.PID != 0 || known && before == pid: // the end of a pod takes its cgroup with it
		return
	case pid == 0:
		err = g.runtime.RemoveSandboxCgroup(ctx, id)
	default:
		err = g.runtime.RenewSandboxCgroup(ctx, id)
	}
	if err == nil || errdefs.IsNotFound(err) || ctx.Err() != nil {
		return
	}
	g.log.WarnContext(ctx, "make the cgroup that monitors find a pod by", "pod_id", id, "error", err)
	g.mu.Lock()
	delete(g.shown, id) // with the next change it is tried again
	g.mu.Unlock()
}

// pid is the process that stands for a pod; 0 where no container runs.
func (g *sandboxCgroups) pid(ctx context.Context, s *model.SandboxStatus) int {
	g.mu.Lock()
	pid, known := g.shown[s.ID]
	g.mu.Unlock()
	if known {
		return pid
	}
	return g.choose(ctx, s)
}

// choose is the PID of the pod's init process, where it has one; else of the container that stands for the pod already,
// if that still runs; else of the one that has run the longest.
func (g *sandboxCgroups) choose(ctx context.Context, s *model.SandboxStatus) int {
	if s.PID != 0 {
		return s.PID
	}
	list, err := g.runtime.ListContainers(ctx, model.ContainerFilter{
		SandboxID: s.ID, States: []model.ContainerState{model.ContainerRunning, model.ContainerPaused},
	})
	if err != nil {
		g.log.WarnContext(ctx, "list a pod's containers", "pod_id", s.ID, "error", err)
	}
	g.mu.Lock()
	before := g.shown[s.ID]
	g.mu.Unlock()
	var oldest *model.ContainerStatus
	for _, c := range list {
		if c.PID == before && c.PID != 0 {
			return c.PID
		}
		if oldest == nil || c.StartedAt.Before(oldest.StartedAt) {
			oldest = c
		}
	}
	if oldest == nil {
		return 0
	}
	return oldest.PID
}
