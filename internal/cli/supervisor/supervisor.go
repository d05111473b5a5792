package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/logrotation"
	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// Supervisor runs pods.
type Supervisor struct {
	Launcher *launch.Launcher
	Notes    io.Writer // restarts, and results of probes
	// Once starts each container once, and leaves the pod to itself.
	Once bool
	// Lasting: the pods outlive this command. If ctx ends while a pod is started, the pod stays as it is, and a later
	// command adopts it. A pod whose init container fails for good is stopped and kept, and a container that cannot be
	// started is tried again.
	Lasting bool
}

// Pod is a pod that runs.
type Pod struct {
	*launch.Pod
	s        *Supervisor
	end      context.CancelFunc
	loops    sync.WaitGroup // of all containers
	ordinary sync.WaitGroup // of the containers that are neither init containers nor sidecars
	done     chan struct{}  // closed when all ordinary containers have ended for good
	// toldStopped: it is said once that somebody has stopped the pod.
	toldStopped sync.Once

	mu      sync.Mutex // guards the rest
	ends    []containerEnd
	ready   map[string]bool
	changed chan struct{} // closed and replaced when ready changes
	// preStops are the preStop hooks by the ID of their container.
	preStops map[string]*preStop
}

// preStop is the hook of one container, which runs once, whoever stops the container.
type preStop struct {
	mu   sync.Mutex // held while the hook runs; guards done
	done bool
}

type containerEnd struct {
	at   int64
	code int32
}

// Run makes a pod and starts its containers. It returns once all are started; what it does for them after that goes on
// until Stop or Leave. A pod that cannot be started is removed again.
func (s *Supervisor) Run(ctx context.Context, pod *manifest.Pod) (*Pod, error) {
	prepared, err := s.Launcher.Prepare(ctx, pod)
	if err != nil {
		return nil, err
	}
	return s.begin(ctx, prepared)
}

// Adopt goes on with a pod that an earlier command has made of the same document, from where it is.
func (s *Supervisor) Adopt(ctx context.Context, document *manifest.Pod, sandbox *cri.PodSandbox) (*Pod, error) {
	adopted, err := s.Launcher.Adopt(ctx, document, sandbox)
	if err != nil {
		return nil, err
	}
	return s.begin(ctx, adopted)
}

// begin starts the containers of a pod that are not there yet.
func (s *Supervisor) begin(ctx context.Context, prepared *launch.Pod) (*Pod, error) {
	pod := prepared.Pod
	// Ctrl-C does not end the supervision: Stop does.
	lives, end := context.WithCancel(context.WithoutCancel(ctx))
	p := &Pod{Pod: prepared, s: s, end: end, done: make(chan struct{}), ready: map[string]bool{},
		changed: make(chan struct{})}
	for i := range pod.Spec.Containers {
		p.ready[pod.Spec.Containers[i].Name] = false
	}
	if pod.Restarts != nil {
		restarts := 0
		for _, found := range p.Found {
			restarts += found.Attempt
		}
		pod.Restarts.Begin(pod.UID, restarts)
	}
	// A pod has its time from when it is made, and its init containers count.
	within, until := ctx, time.Time{}
	if seconds := pod.Spec.ActiveDeadlineSeconds; seconds != nil {
		until = time.Now()
		if !p.Created.IsZero() {
			until = p.Created
		}
		until = until.Add(manifest.Seconds(*seconds))
		limited, cancel := context.WithDeadline(ctx, until)
		defer cancel()
		within = limited
	}
	if err := p.start(within, lives); err != nil {
		// berthd has the same deadline, and may answer first that it is over.
		if ctx.Err() == nil && !until.IsZero() && !time.Now().Before(until) {
			err = &DeadlineError{Pod: p.FullName()}
		}
		return nil, p.abandon(ctx, err)
	}
	if s.Once {
		p.Leave()
		return p, nil
	}
	go func() {
		p.ordinary.Wait()
		if pod.Restarts != nil {
			pod.Restarts.End(pod.UID)
		}
		close(p.done)
	}()
	p.loops.Go(func() {
		rotation := logrotation.Rotation{Runtime: s.Launcher.Runtime}
		for sleep(lives, logrotation.Period) {
			for _, c := range p.Last() {
				if err := rotation.Rotate(lives, c.ID, c.LogPath); err != nil && lives.Err() == nil {
					p.note("container %s: rotate its log: %v", c.Name, err)
				}
			}
		}
	})
	if !until.IsZero() {
		p.loops.Go(func() { p.deadline(lives, time.Until(until)) })
	}
	return p, nil
}

// DeadlineError is a pod whose activeDeadlineSeconds were over before all of its containers were started.
type DeadlineError struct{ Pod string }

func (e *DeadlineError) Error() string { return "pod " + e.Pod + ": " + overdue }

// overdue is what is said of a pod that its deadline has ended.
const overdue = "stopped after its activeDeadlineSeconds"

// abandon ends a pod that cannot be started, and returns why. One that is late has its grace period.
func (p *Pod) abandon(ctx context.Context, reason error) error {
	var failed *launch.InitError
	var late *DeadlineError
	isLate := errors.As(reason, &late)
	switch {
	case p.s.Lasting && ctx.Err() != nil:
		p.Leave()
	case p.s.Lasting && (isLate || errors.As(reason, &failed)):
		reason = errors.Join(reason, p.Halt(context.WithoutCancel(ctx)))
	case isLate:
		reason = p.s.Launcher.Discard(ctx, p.Pod, errors.Join(reason, p.Halt(context.WithoutCancel(ctx))))
	default:
		p.end()
		reason = p.s.Launcher.Discard(ctx, p.Pod, reason)
		p.loops.Wait()
		p.Release()
	}
	return reason
}

// start starts the containers in order.
func (p *Pod) start(ctx, lives context.Context) error {
	initialized := p.Restored() // in an adopted pod: an ordinary container has been started
	for _, found := range p.Found {
		initialized = initialized || found.Kind == ""
	}
	for c := range p.Pod.Pod.Containers() {
		switch p.Kind(c) {
		case manifest.KindInit:
			if initialized {
				continue
			}
			if err := p.initialize(ctx, c); err != nil {
				return err
			}
			continue
		case manifest.KindSidecar:
			started, err := p.launch(ctx, lives, c)
			if err != nil {
				return err
			}
			select {
			case <-started:
			case <-ctx.Done():
				return ctx.Err()
			}
		default:
			if _, err := p.launch(ctx, lives, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// launch starts a container for the first time and keeps it from then on. started is closed when its startup probe has
// succeeded, at once if there is none.
func (p *Pod) launch(ctx, lives context.Context, c *corev1.Container) (started chan struct{}, err error) {
	started = make(chan struct{})
	r := &restarter{pod: p, container: c, started: sync.OnceFunc(func() { close(started) })}
	first, over, err := r.first(ctx)
	switch {
	case err != nil && (!p.s.Lasting || ctx.Err() != nil):
		return nil, err
	case err != nil:
		fmt.Fprintln(p.s.Notes, err)
	}
	ordinary := p.Kind(c) == ""
	if ordinary {
		p.ordinary.Add(1)
	}
	p.loops.Go(func() {
		defer r.started()
		if ordinary {
			defer p.ordinary.Done()
		}
		r.keep(lives, first, over)
	})
	return started, nil
}

// first starts a container, or finds it in a pod that was adopted. over is the end of one that has ended.
func (r *restarter) first(ctx context.Context) (first *launch.Container, over *cri.ContainerStatus, err error) {
	attempt := 0
	if found := r.pod.Found[r.container.Name]; found != nil {
		if found.Status.GetState() != cri.ContainerState_CONTAINER_EXITED {
			return found.Container, nil, nil
		}
		if !r.pod.s.Once || !restarts(r.pod.Pod.Pod, r.container, found.Status.GetExitCode()) {
			return found.Container, found.Status, nil
		}
		attempt = found.Attempt + 1
	}
	if first, over, err = r.startFirst(ctx, attempt); first != nil && err != nil {
		fmt.Fprintln(r.pod.s.Notes, err)
		err = nil
	}
	return first, over, err
}

// initialize runs an init container until it succeeds, or fails for good. In a pod that lasts, a start that fails is
// tried again as long as it can succeed: what other init containers have done stays.
func (p *Pod) initialize(ctx context.Context, c *corev1.Container) error {
	r := &restarter{pod: p, container: c}
	var running *launch.Container
	var over *cri.ContainerStatus
	attempt := 0
	if found := p.Found[c.Name]; found != nil {
		running, attempt = found.Container, found.Attempt
	}
	for ; ; attempt, running, over = attempt+1, nil, nil {
		if running == nil {
			var err error
			running, over, err = r.startFirst(ctx, attempt)
			switch {
			case err != nil && running != nil: // it has ended
				fmt.Fprintln(p.s.Notes, err)
			case err != nil && (!p.s.Lasting || ctx.Err() != nil || p.hopeless(ctx, err)):
				return err
			case err != nil:
				wait := r.delays.Next(time.Now())
				fmt.Fprintf(p.s.Notes, "%v; tried again in %v\n", err, wait)
				if !sleep(ctx, wait) {
					return ctx.Err()
				}
				continue
			}
			if err := p.s.Launcher.Forget(ctx, p.Pod, c.Name, attempt); err != nil && ctx.Err() == nil {
				p.note("container %s: remove earlier attempts: %v", c.Name, err)
			}
		}
		status := over
		if status == nil {
			var err error
			if status, err = p.exited(ctx, running); err != nil {
				return fmt.Errorf("pod %s: wait for container %s: %w", p.FullName(), c.Name, err)
			}
		}
		if status.GetExitCode() == 0 {
			return nil
		}
		if p.s.Once || !restarts(p.Pod.Pod, c, status.GetExitCode()) || !p.mayRestart() {
			return &launch.InitError{Pod: p.FullName(), Container: running, Status: status}
		}
		finished := time.Unix(0, status.GetFinishedAt())
		if !sleep(ctx, time.Until(finished.Add(sandboxGoes))) {
			return ctx.Err()
		}
		if p.lost(ctx) {
			return fmt.Errorf("pod %s was stopped or removed while its init containers ran", p.FullName())
		}
		wait := r.delays.Next(finished)
		p.note("init container %s ended with exit code %d, and is started again in %v (restart %d)", c.Name,
			status.GetExitCode(), wait, attempt+1)
		if !sleep(ctx, time.Until(finished.Add(wait))) {
			return ctx.Err()
		}
	}
}

// exited waits until a container has ended. In a pod that lasts, a container that somebody has removed has ended with
// exit code 1, unless the pod is lost, and errors do not end the wait.
func (p *Pod) exited(ctx context.Context, c *launch.Container) (*cri.ContainerStatus, error) {
	var delays Backoff
	for {
		status, err := p.s.Launcher.Watch.Exited(ctx, c.ID)
		if err == nil || !p.s.Lasting || ctx.Err() != nil {
			return status, err
		}
		if connection.Code(err) == codes.NotFound {
			if p.lost(ctx) {
				return nil, err
			}
			p.note("container %s was removed", c.Name)
			return &cri.ContainerStatus{Id: c.ID, State: cri.ContainerState_CONTAINER_EXITED, ExitCode: 1,
				FinishedAt: time.Now().UnixNano(), Reason: "Removed"}, nil
		}
		wait := delays.Next(time.Now())
		p.note("container %s: its state cannot be read: %v; tried again in %v", c.Name, err, wait)
		if !sleep(ctx, wait) {
			return nil, ctx.Err()
		}
	}
}

// hopeless says whether a start that failed with an error would fail again and again in this pod, and not in a new one:
// the sandbox does not run any more, or an image is gone, which a new pod pulls.
func (p *Pod) hopeless(ctx context.Context, err error) bool {
	return connection.Code(err) == codes.NotFound || p.lost(ctx)
}

// lost says whether the pod's sandbox does not run any more.
func (p *Pod) lost(ctx context.Context) bool {
	response, err := p.s.Launcher.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.SandboxID})
	if err != nil {
		return connection.Code(err) == codes.NotFound
	}
	return response.GetStatus().GetState() != cri.PodSandboxState_SANDBOX_READY
}

// sandboxGoes is how long after its containers the sandbox of a pod runs that somebody stops: the two are stopped by
// one command, one after the other.
const sandboxGoes = 200 * time.Millisecond

// isStopped says whether the end of a container, at the time finished, is a part of the end of its pod, which somebody
// has stopped or removed: no container of it can be started again then. It is also true once ctx has ended.
func (p *Pod) isStopped(ctx context.Context, finished time.Time) bool {
	return !sleep(ctx, time.Until(finished.Add(sandboxGoes))) || p.stoppedElsewhere(ctx)
}

// stoppedElsewhere is lost, and says so once, unless the pod lasts: whoever keeps such a pod makes it anew.
func (p *Pod) stoppedElsewhere(ctx context.Context) bool {
	if !p.lost(ctx) {
		return false
	}
	p.toldStopped.Do(func() {
		if !p.s.Lasting {
			fmt.Fprintf(p.s.Notes, "pod %s was stopped or removed: it is not started again\n", p.FullName())
		}
	})
	return true
}

func sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (p *Pod) note(format string, args ...any) {
	fmt.Fprintf(p.s.Notes, "pod %s: %s\n", p.FullName(), fmt.Sprintf(format, args...))
}

// Done is closed when all containers except sidecars have ended for good.
func (p *Pod) Done() <-chan struct{} { return p.done }

// Code is the exit code of the first container that failed for good, 0 if none did.
func (p *Pod) Code() int32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	sort.Slice(p.ends, func(i, j int) bool { return p.ends[i].at < p.ends[j].at })
	for _, end := range p.ends {
		if end.code != 0 {
			return end.code
		}
	}
	return 0
}

// mayRestart counts one more restart, unless there have been as many as there may be.
func (p *Pod) mayRestart() bool { return p.Restarts == nil || p.Restarts.Take(p.UID) }

// setReady notes whether a container is ready.
func (p *Pod) setReady(name string, ready bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was, counts := p.ready[name]; counts && was != ready {
		p.ready[name] = ready
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

// WaitReady waits until all containers except sidecars are ready, or have ended for good.
func (p *Pod) WaitReady(ctx context.Context) error {
	for {
		p.mu.Lock()
		all, changed := true, p.changed
		for _, ready := range p.ready {
			all = all && ready
		}
		p.mu.Unlock()
		if all {
			return nil
		}
		select {
		case <-changed:
		case <-p.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// deadline kills a pod whose activeDeadlineSeconds are over. Its containers are not started again.
func (p *Pod) deadline(ctx context.Context, after time.Duration) {
	if !sleep(ctx, after) {
		return
	}
	p.note(overdue)
	p.mu.Lock()
	p.ends = append(p.ends, containerEnd{time.Now().UnixNano(), 1})
	p.mu.Unlock()
	p.end()
	if err := p.stop(context.WithoutCancel(ctx)); err != nil {
		p.note("stop: %v", err)
	}
}

// Leave ends the supervision, and leaves the pod as it is.
func (p *Pod) Leave() {
	p.end()
	p.loops.Wait()
	p.Release()
}

// Halt ends the supervision, and stops the pod.
func (p *Pod) Halt(ctx context.Context) error {
	p.end()
	err := p.stop(ctx)
	p.loops.Wait()
	p.Release()
	if err != nil {
		return fmt.Errorf("stop pod %s: %w", p.FullName(), err)
	}
	return nil
}

// Stop ends the supervision, and stops and removes the pod.
func (p *Pod) Stop(ctx context.Context, store *poddir.Store) error {
	if err := p.Halt(ctx); err != nil {
		return err
	}
	if err := launch.RemovePod(ctx, p.s.Launcher.Runtime, store, p.sandbox()); err != nil {
		return fmt.Errorf("remove pod %s: %w", p.FullName(), err)
	}
	return nil
}

func (p *Pod) sandbox() *cri.PodSandbox {
	return &cri.PodSandbox{Id: p.SandboxID,
		Metadata: &cri.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: string(p.UID)}}
}

// preStop is the preStop hook of a container.
func (p *Pod) preStop(id string) *preStop {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.preStops == nil {
		p.preStops = map[string]*preStop{}
	}
	if p.preStops[id] == nil {
		p.preStops[id] = &preStop{}
	}
	return p.preStops[id]
}

func (p *Pod) grace() time.Duration {
	return manifest.Seconds(*p.Spec.TerminationGracePeriodSeconds)
}

// stop stops the containers, each after its preStop hook, and the sandbox.
func (p *Pod) stop(ctx context.Context) error {
	byName := map[string]*corev1.Container{}
	for c := range p.Pod.Pod.Containers() {
		byName[c.Name] = c
	}
	return launch.StopPodAfter(ctx, p.s.Launcher.Runtime, p.sandbox(), p.grace(),
		func(ctx context.Context, c *cri.Container, grace time.Duration) time.Duration {
			r := &restarter{pod: p, container: byName[c.GetMetadata().GetName()]}
			if r.container == nil {
				return grace
			}
			return r.preStop(ctx, c.GetId(), grace)
		})
}
