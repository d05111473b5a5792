package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/probe"
	"berth/internal/manifest"
)

// minGrace is what a container has at least to end after its preStop hook, as for a kubelet.
const minGrace = 2 * time.Second

// restarter keeps one container: it probes each attempt, and starts the next.
type restarter struct {
	pod       *Pod
	container *corev1.Container
	started   func() // tells that the startup probe has succeeded
	delays    Backoff
}

// keep stays with a container until it has ended for good or ctx has. running is nil where it could not be started, and
// over is the end of one that has ended already.
func (r *restarter) keep(ctx context.Context, running *launch.Container, over *cri.ContainerStatus) {
	p, name, attempt := r.pod, r.container.Name, 0
	if running != nil {
		attempt = running.Attempt
	}
	for attempt++; ; attempt++ {
		finished, code := time.Now(), int32(1)
		switch {
		case over != nil:
			finished, code, over = time.Unix(0, over.GetFinishedAt()), over.GetExitCode(), nil
		case running != nil:
			status, err := r.attend(ctx, running)
			if err != nil {
				if ctx.Err() == nil {
					if connection.Code(err) != codes.NotFound || !p.stoppedElsewhere(ctx) {
						p.note("container %s: %v", name, err)
					}
					r.ended(finished, code)
				}
				return
			}
			finished, code = time.Unix(0, status.GetFinishedAt()), status.GetExitCode()
		}
		p.setReady(name, false)
		if ctx.Err() != nil || !restarts(p.Pod.Pod, r.container, code) || p.isStopped(ctx, finished) || !p.mayRestart() {
			r.ended(finished, code)
			return
		}
		wait := r.delays.Next(finished)
		p.note("container %s is started again in %v (restart %d)", name, wait, attempt)
		if !sleep(ctx, time.Until(finished.Add(wait))) {
			r.ended(finished, code)
			return
		}
		var err error
		if running, over, err = r.start(ctx, attempt); err != nil && ctx.Err() == nil {
			fmt.Fprintln(p.s.Notes, err)
		}
		if errors.Is(err, errUnsettled) {
			r.ended(time.Now(), 1)
			return
		}
		if running == nil && p.stoppedElsewhere(ctx) {
			r.ended(finished, code)
			return
		}
		if running == nil {
			continue
		}
		if err := p.s.Launcher.Forget(ctx, p.Pod, name, attempt); err != nil && ctx.Err() == nil {
			p.note("container %s: remove earlier attempts: %v", name, err)
		}
	}
}

func (r *restarter) ended(at time.Time, code int32) {
	r.pod.mu.Lock()
	defer r.pod.mu.Unlock()
	if r.pod.Kind(r.container) == "" {
		r.pod.ends = append(r.pod.ends, containerEnd{at.UnixNano(), code})
	}
}

func (r *restarter) target(id string) *probe.Target {
	t := &probe.Target{Runtime: r.pod.s.Launcher.Runtime, ID: id, Container: r.container}
	if found := r.pod.Found[r.container.Name]; found != nil && found.ID == id {
		t.Since = time.Unix(0, found.Status.GetStartedAt())
	}
	ips := r.pod.IPs
	if r.pod.Spec.HostNetwork {
		ips = r.pod.Host.IPs
	}
	if len(ips) > 0 {
		t.IP = ips[0]
	}
	return t
}

// attend probes a container until it has ended, and kills it where a probe says so.
func (r *restarter) attend(ctx context.Context, running *launch.Container) (*cri.ContainerStatus, error) {
	probing, end := context.WithCancel(ctx)
	var workers sync.WaitGroup
	defer workers.Wait()
	defer end()
	workers.Go(func() { r.probe(ctx, probing, running, &workers) })
	return r.pod.exited(ctx, running)
}

// probe runs the startup probe, and once that has succeeded the others. ctx ends with the container, and kills outlives
// it.
func (r *restarter) probe(kills, ctx context.Context, running *launch.Container, workers *sync.WaitGroup) {
	target := r.target(running.ID)
	if p := r.container.StartupProbe; p != nil {
		good := false
		target.Watch(ctx, p, func(err error) bool {
			if good = err == nil; !good {
				r.pod.note("container %s: its startup probe fails: %v", r.container.Name, err)
				r.killFailing(kills, ctx, running.ID, p)
			}
			return false
		})
		if !good {
			return
		}
	}
	if r.started != nil {
		r.started()
	}
	if p := r.container.LivenessProbe; p != nil {
		workers.Go(func() {
			target.Watch(ctx, p, func(err error) bool {
				if err == nil {
					return true
				}
				r.pod.note("container %s: its liveness probe fails: %v", r.container.Name, err)
				r.killFailing(kills, ctx, running.ID, p)
				return false
			})
		})
	}
	p := r.container.ReadinessProbe
	if p == nil {
		r.pod.setReady(r.container.Name, true)
		return
	}
	target.Watch(ctx, p, func(err error) bool {
		if err != nil {
			r.pod.note("container %s is not ready: %v", r.container.Name, err)
		} else {
			r.pod.note("container %s is ready", r.container.Name)
		}
		r.pod.setReady(r.container.Name, err == nil)
		return true
	})
}

// probeGrace is how long a container has to end that a probe has killed.
func (r *restarter) probeGrace(p *corev1.Probe) time.Duration {
	if p.TerminationGracePeriodSeconds != nil {
		return manifest.Seconds(*p.TerminationGracePeriodSeconds)
	}
	return r.pod.grace()
}

// killFailing kills a container whose probe fails. It tries again until the container is stopped, or alive has ended,
// which ends with the container: the probe has told its result, and does not tell it again.
func (r *restarter) killFailing(ctx, alive context.Context, id string, p *corev1.Probe) {
	grace := r.preStop(ctx, id, r.probeGrace(p))
	var delays Backoff
	for {
		err := launch.StopContainer(ctx, r.pod.s.Launcher.Runtime, id, grace)
		if err == nil || alive.Err() != nil {
			return
		}
		wait := delays.Next(time.Now())
		r.pod.note("stop container %s: %v; tried again in %v", r.container.Name, err, wait)
		if !sleep(alive, wait) {
			return
		}
	}
}

func (r *restarter) kill(ctx context.Context, id string, grace time.Duration) {
	grace = r.preStop(ctx, id, grace)
	if err := launch.StopContainer(ctx, r.pod.s.Launcher.Runtime, id, grace); err != nil && ctx.Err() == nil {
		r.pod.note("stop container %s: %v", r.container.Name, err)
	}
}

// postStart runs the hook of a container that has just been started, and kills the container if the hook fails.
func (r *restarter) postStart(ctx context.Context, running *launch.Container) {
	l := r.container.Lifecycle
	if l == nil || l.PostStart == nil {
		return
	}
	if err := r.target(running.ID).Hook(ctx, l.PostStart); err != nil && ctx.Err() == nil {
		r.pod.note("container %s is killed: its postStart hook fails: %v", r.container.Name, err)
		r.kill(ctx, running.ID, r.pod.grace())
	}
}

// preStop runs the hook of a container that is about to be stopped, within its grace period, and returns what is left
// of that. Where somebody else stops the container too, as after a deadline or a probe that fails while the command
// ends, it waits for the end of the hook.
func (r *restarter) preStop(ctx context.Context, id string, grace time.Duration) time.Duration {
	l := r.container.Lifecycle
	if l == nil || l.PreStop == nil || grace <= 0 {
		return grace
	}
	begin := time.Now()
	hook := r.pod.preStop(id)
	hook.mu.Lock()
	defer hook.mu.Unlock()
	if !hook.done {
		r.runPreStop(ctx, id, grace, l.PreStop)
		hook.done = ctx.Err() == nil // one that was cut off is run again
	}
	return max(grace-time.Since(begin), minGrace)
}

func (r *restarter) runPreStop(ctx context.Context, id string, grace time.Duration, hook *corev1.LifecycleHandler) {
	limited, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	err := r.target(id).Hook(limited, hook)
	switch {
	case ctx.Err() != nil:
	case errors.Is(limited.Err(), context.DeadlineExceeded):
		r.pod.note("container %s: its preStop hook did not end within %v", r.container.Name, grace)
	case err != nil:
		r.pod.note("container %s: its preStop hook fails: %v", r.container.Name, err)
	}
}
