package apply

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/launch"
	"berth/internal/cli/lookup"
	"berth/internal/cli/poddir"
	"berth/internal/cli/supervisor"
	"berth/internal/manifest"
)

// own lists the sandboxes of the directory.
func (a *Applier) own(ctx context.Context) ([]*cri.PodSandbox, error) {
	all, err := lookup.Pods(ctx, a.Conn.Runtime)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(sandbox *cri.PodSandbox) bool {
		return launch.Applied(a.Store, sandbox) != a.Directory
	}), nil
}

// find returns the sandbox of a pod, nil where there is none. A pod of another owner that has its name is an error.
func (a *Applier) find(ctx context.Context, pod *manifest.Pod) (found *cri.PodSandbox, err error) {
	pods, err := lookup.Pods(ctx, a.Conn.Runtime)
	if err != nil {
		return nil, err
	}
	for _, sandbox := range pods {
		if sandbox.GetMetadata().GetUid() != string(pod.UID) && lookup.PodName(sandbox) != pod.FullName() {
			continue
		}
		switch {
		case launch.Applied(a.Store, sandbox) != a.Directory || sandbox.GetMetadata().GetUid() != string(pod.UID):
			return nil, fmt.Errorf("pod %s: %w: remove it with `berth rm -f %s`, or rename the pod of %s", pod.FullName(),
				errExists, lookup.ShortPodName(sandbox), pod.Applied.File)
		case found == nil || found.GetState() != cri.PodSandboxState_SANDBOX_READY:
			found = sandbox
		}
	}
	return found, nil
}

// found returns the sandbox of a pod, and whether the pod has ended for good. One that has lost its sandbox before its
// end is removed, and nil is returned. So is the directory of one whose sandbox is gone: whoever has removed it, crictl
// for example, may not know of the directory.
func (a *Applier) found(ctx context.Context, pod *manifest.Pod) (sandbox *cri.PodSandbox, over bool, code int32,
	err error) {
	if sandbox, err = a.find(ctx, pod); err != nil {
		return nil, false, 0, err
	}
	if sandbox == nil {
		return nil, false, 0, a.Store.RemoveLost(poddir.Record{Namespace: pod.Namespace, Name: pod.Name,
			UID: string(pod.UID), Applied: a.Directory})
	}
	state, err := a.state(ctx, sandbox)
	if err != nil {
		return nil, false, 0, err
	}
	if over, code = state.Over(pod); over || state.Ready {
		return sandbox, over, code, nil
	}
	a.note("pod %s does not run any more, and is started again", pod.FullName())
	return nil, false, 0, a.remove(ctx, sandbox)
}

// state is what a pod looks like.
func (a *Applier) state(ctx context.Context, sandbox *cri.PodSandbox) (*supervisor.State, error) {
	containers, err := a.launcher.Find(ctx, sandbox)
	return &supervisor.State{Created: launch.Created(sandbox), Found: containers,
		Ready:       sandbox.GetState() == cri.PodSandboxState_SANDBOX_READY,
		Interrupted: a.dir(sandbox).Interrupted()}, err
}

// dir is the directory of a pod in the store.
func (a *Applier) dir(sandbox *cri.PodSandbox) *poddir.Dir {
	meta := sandbox.GetMetadata()
	return a.Store.Dir(meta.GetNamespace(), meta.GetName(), meta.GetUid())
}

// bring starts a pod, or adopts it where its sandbox is there.
func (a *Applier) bring(ctx context.Context, pod *manifest.Pod, sandbox *cri.PodSandbox) (*supervisor.Pod, error) {
	if sandbox == nil {
		return a.supervisor.Run(ctx, pod)
	}
	if err := a.dir(sandbox).GoOn(); err != nil {
		return nil, err
	}
	return a.supervisor.Adopt(ctx, pod, sandbox)
}

func (a *Applier) noteRunning(pod *supervisor.Pod, sandbox *cri.PodSandbox, took time.Duration) {
	at := ""
	if len(pod.IPs) > 0 {
		at = " at " + strings.Join(pod.IPs, ", ")
	}
	if sandbox != nil {
		a.note("pod %s was there%s, and is kept", pod.FullName(), at)
		return
	}
	a.note("pod %s runs%s, started in %v", pod.FullName(), at, took.Round(time.Millisecond))
}

// remove stops a pod that nothing here keeps, with its grace period, and removes it.
func (a *Applier) remove(ctx context.Context, sandbox *cri.PodSandbox) error {
	err := launch.StopPod(ctx, a.Conn.Runtime, sandbox, -1)
	if err == nil {
		err = launch.RemovePod(ctx, a.Conn.Runtime, a.Store, sandbox)
	}
	if err != nil {
		return fmt.Errorf("remove pod %s: %w", lookup.PodName(sandbox), err)
	}
	return nil
}

// tell notes what of a pod's manifest is left out.
func (a *Applier) tell(pod *manifest.Pod) {
	for _, note := range pod.Notes {
		a.note("note: pod %s: %s", pod.Name, note)
	}
	for _, warning := range pod.Warnings {
		a.note("warning: pod %s: %s", pod.Name, warning)
	}
}
