package apply

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/supervisor"
	"berth/internal/manifest"
)

// awayDelay is how long a keeper waits before it tries again while berthd is away.
const awayDelay = 500 * time.Millisecond

// keeper keeps one pod: it starts or adopts the pod, and starts it again where its sandbox is lost.
type keeper struct {
	a      *Applier
	pod    *manifest.Pod
	after  []<-chan struct{} // closed once what has to come before the start has come
	cancel context.CancelFunc
	done   chan struct{} // closed when run has ended
	// ready is closed when the pod is ready for the first time, or has ended: the next pod of a StatefulSet waits for it.
	ready     chan struct{}
	readyOnce sync.Once
	nudge     chan struct{} // the sandbox may be lost

	// before is the pod of a StatefulSet that this one came after; nil: there is none. It belongs to the goroutine of Run.
	before *keeper

	mu      sync.Mutex // guards the rest
	file    string
	running *supervisor.Pod
	phase   phase
	since   time.Time // when phase changed
	failure error     // of --once
}

// phase is what a keeper does.
type phase int

const (
	starting phase = iota // nothing can be lost
	running               // the sandbox has to be ready
	resting               // the pod has ended, and its sandbox has to be there
)

func (a *Applier) newKeeper(ctx context.Context, w *wanted, sandbox *cri.PodSandbox, after []<-chan struct{}) *keeper {
	name, uid := w.pod.Name, string(w.pod.UID)
	if sandbox != nil {
		name, uid = sandbox.GetMetadata().GetName(), sandbox.GetMetadata().GetUid()
	}
	k := &keeper{a: a, pod: w.pod.As(name, uid), file: w.pod.File, after: after, done: make(chan struct{}),
		ready: make(chan struct{}), nudge: make(chan struct{}, 1)}
	k.pod.Applied = &manifest.Applied{Directory: a.Directory, File: w.pod.File, Hash: w.hash}
	if ctx, k.cancel = context.WithCancel(ctx); sandbox == nil {
		a.tell(k.pod)
	}
	go k.run(ctx)
	return k
}

func (k *keeper) run(ctx context.Context) {
	defer close(k.done)
	defer k.setReady()
	for _, come := range k.after {
		select {
		case <-come:
		case <-ctx.Done():
			return
		}
	}
	var delays supervisor.Backoff
	for {
		err := k.attend(ctx)
		if ctx.Err() != nil {
			return
		}
		if k.a.Once {
			k.mu.Lock()
			k.failure = err
			k.mu.Unlock()
			return
		}
		if !k.a.pause(ctx, k.pod, &delays, err) {
			return
		}
	}
}

// pause waits before a pod is tried again, and notes why. It returns false once ctx has ended.
func (a *Applier) pause(ctx context.Context, pod *manifest.Pod, delays *supervisor.Backoff, err error) bool {
	wait := awayDelay
	if !connection.Away(err) { // the applier notes that berthd is away
		wait = delays.Next(time.Now())
		if err != nil {
			a.note("%s; tried again in %v", about(pod, err), wait)
		}
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return ctx.Err() == nil
	}
}

// about is an error that says which pod it is about.
func about(pod *manifest.Pod, err error) string {
	text := connection.Message(err)
	if strings.Contains(text, pod.FullName()) {
		return text
	}
	return "pod " + pod.FullName() + ": " + text
}

// attend brings the pod to run, and stays with it until it is lost. When ctx ends, the pod is left as it is.
func (k *keeper) attend(ctx context.Context) error {
	begin := time.Now()
	sandbox, over, code, err := k.a.found(ctx, k.pod)
	switch {
	case err != nil:
		return err
	case over:
		return k.rest(ctx, sandbox, code)
	}
	pod, err := k.a.bring(ctx, k.pod, sandbox)
	if err != nil {
		return err
	}
	k.a.noteRunning(pod, sandbox, time.Since(begin))
	if k.a.Once {
		return nil
	}
	k.set(running, pod)
	go func() {
		if pod.WaitReady(ctx) == nil {
			k.setReady()
		}
	}()
	select {
	case <-ctx.Done():
		return nil // stop and leave take the pod from here
	case <-k.nudge:
	case <-pod.Done():
		if sandbox, err = k.a.find(ctx, k.pod); err != nil || sandbox == nil {
			break
		}
		var state *supervisor.State
		if state, err = k.a.state(ctx, sandbox); err != nil {
			break
		}
		if over, code = state.Over(k.pod); !over {
			break
		}
		k.set(starting, pod) // its sandbox is stopped on purpose
		if err = pod.Halt(ctx); err == nil {
			return k.rest(ctx, sandbox, code)
		}
	}
	k.set(starting, nil)
	pod.Leave()
	return err
}

// rest stays with a pod that has ended for good, until somebody removes the pod: then it runs again.
func (k *keeper) rest(ctx context.Context, sandbox *cri.PodSandbox, code int32) error {
	if k.a.Once {
		if code != 0 {
			return fmt.Errorf("pod %s has ended with exit code %d", k.pod.FullName(), code)
		}
		return nil
	}
	if sandbox.GetState() == cri.PodSandboxState_SANDBOX_READY { // sidecars may run
		if err := launch.StopPod(ctx, k.a.Conn.Runtime, sandbox, -1); err != nil {
			return err
		}
	}
	k.a.note("pod %s has ended with exit code %d", k.pod.FullName(), code)
	k.set(resting, nil)
	k.setReady()
	select {
	case <-ctx.Done():
	case <-k.nudge:
		k.a.note("pod %s was removed, and is started again", k.pod.FullName())
	}
	k.set(starting, nil)
	return nil
}

func (k *keeper) setReady() { k.readyOnce.Do(func() { close(k.ready) }) }

func (k *keeper) set(p phase, pod *supervisor.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.phase, k.running, k.since = p, pod, time.Now()
	select { // what was seen before is no reason any more
	case <-k.nudge:
	default:
	}
}

// check compares the pod with a list of sandboxes that was asked for at a time.
func (k *keeper) check(asked time.Time, sandbox *cri.PodSandbox) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.since.After(asked) {
		return
	}
	gone := sandbox == nil
	switch k.phase {
	case starting:
		return
	case running:
		gone = gone || sandbox.GetState() != cri.PodSandboxState_SANDBOX_READY
	}
	if gone {
		select {
		case k.nudge <- struct{}{}:
		default:
		}
	}
}

// leave ends the keeper and leaves the pod running.
func (k *keeper) leave() {
	k.cancel()
	<-k.done
	k.mu.Lock()
	pod := k.running
	k.running = nil
	k.mu.Unlock()
	if pod != nil {
		pod.Leave()
	}
}

// stop ends the keeper, and stops and removes the pod, with its preStop hooks.
func (k *keeper) stop(ctx context.Context) error {
	k.cancel()
	<-k.done
	k.mu.Lock()
	pod := k.running
	k.mu.Unlock()
	if pod != nil {
		return pod.Stop(ctx, k.a.Store)
	}
	own, err := k.a.own(ctx)
	if err != nil {
		return err
	}
	for _, sandbox := range own {
		if sandbox.GetMetadata().GetUid() == string(k.pod.UID) {
			return k.a.remove(ctx, sandbox)
		}
	}
	return nil
}

// present describes the pod of the keeper.
func (k *keeper) present(sandbox *cri.PodSandbox) *present {
	k.mu.Lock()
	defer k.mu.Unlock()
	return &present{name: k.pod.FullName(), owner: k.pod.Owner.String(), hash: k.pod.Applied.Hash, file: k.file,
		ready: sandbox.GetState() == cri.PodSandboxState_SANDBOX_READY, sandbox: sandbox, keeper: k}
}

// moved notes the file in which the document of the pod is now.
func (k *keeper) moved(file string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.file = file
}

// failed is why the pod does not run, after --once.
func (k *keeper) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failure
}

// errExists means that a pod of another owner has the name of one of the directory.
var errExists = errors.New("a pod of this name exists already, and is not of this directory")
