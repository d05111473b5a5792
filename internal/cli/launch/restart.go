package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// Restart stops containers of a pod and starts the next attempt of each, with the request of the last one. Without
// a name these are all but init containers. A pod of an image that was stopped gets a new sandbox first. A negative
// grace stands for the pod's own.
func (l *Launcher) Restart(ctx context.Context, sandbox *cri.PodSandbox, name string, grace time.Duration) error {
	meta := sandbox.GetMetadata()
	pod := &Pod{SandboxID: sandbox.GetId(), dir: l.Store.Dir(meta.GetNamespace(), meta.GetName(), meta.GetUid())}
	requests, err := restartable(pod.dir, name)
	if err != nil {
		return err
	}
	release, err := pod.dir.Hold()
	if errors.Is(err, poddir.ErrHeld) {
		if sandbox.GetAnnotations()[manifest.AnnotationApplied] != "" {
			return errors.New("a `berth apply` keeps it running: `berth kill` ends a container, and apply starts it again")
		}
		return errors.New("a `berth run` without -d runs it, and stops it when it ends: stop that command and run it anew")
	}
	if err != nil {
		return err
	}
	defer release()
	attempts, err := l.attempts(ctx, sandbox)
	if err != nil {
		return err
	}
	attempt := meta.GetAttempt()
	if sandbox.GetState() != cri.PodSandboxState_SANDBOX_READY {
		attempt++
		if err := l.revive(ctx, sandbox, pod, requests[0], name); err != nil {
			return err
		}
	} else if err := l.stopAttempts(ctx, requests, attempts, grace); err != nil {
		return err
	}
	for _, request := range requests {
		request.SandboxConfig.Metadata.Attempt = attempt
		container := request.GetConfig().GetMetadata().GetName()
		if err := l.next(ctx, pod, request, attempts[container]); err != nil {
			return fmt.Errorf("container %s: %w", container, err)
		}
	}
	return l.removeOlder(ctx, sandbox, pod)
}

// restartable are the requests of the containers that a restart of a pod, or of one of its containers, makes again.
func restartable(dir *poddir.Dir, name string) ([]*cri.CreateContainerRequest, error) {
	all, err := dir.Requests()
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("`berth run -d` has not made it, or with another --data-dir: " +
			"only what has made it, such as a kubelet, can start it again")
	}
	requests := slices.DeleteFunc(all, func(r *cri.CreateContainerRequest) bool {
		if name != "" {
			return r.GetConfig().GetMetadata().GetName() != name
		}
		return r.GetConfig().GetAnnotations()[manifest.AnnotationKind] == manifest.KindInit
	})
	if len(requests) == 0 {
		return nil, fmt.Errorf("`berth run -d` has made no container %s", name)
	}
	return requests, nil
}

// attempts are the containers of a pod that were made last, by name.
func (l *Launcher) attempts(ctx context.Context, sandbox *cri.PodSandbox) (map[string]*lookup.Container, error) {
	containers, err := lookup.Containers(ctx, l.Runtime, &cri.ContainerFilter{PodSandboxId: sandbox.GetId()})
	last := map[string]*lookup.Container{}
	for _, c := range containers {
		name := c.GetMetadata().GetName()
		if last[name] == nil || c.GetMetadata().GetAttempt() > last[name].GetMetadata().GetAttempt() {
			last[name] = c
		}
	}
	return last, err
}

func (l *Launcher) stopAttempts(ctx context.Context, requests []*cri.CreateContainerRequest,
	attempts map[string]*lookup.Container, grace time.Duration) error {
	var stops errgroup.Group
	for _, request := range requests {
		name := request.GetConfig().GetMetadata().GetName()
		c := attempts[name]
		if c == nil {
			continue
		}
		patience := grace
		if patience < 0 {
			patience = GracePeriod(c.Annotations)
		}
		stops.Go(func() error {
			if err := StopContainer(ctx, l.Runtime, c.Id, patience); err != nil {
				return fmt.Errorf("stop container %s: %w", name, err)
			}
			return nil
		})
	}
	return stops.Wait()
}

// revive makes a new sandbox in place of one that was stopped. The new one is there before the old one goes, so that
// nobody takes the pod's directory for one that was left behind.
func (l *Launcher) revive(ctx context.Context, old *cri.PodSandbox, pod *Pod, last *cri.CreateContainerRequest,
	name string) error {
	if kind, _, _ := strings.Cut(old.GetAnnotations()[manifest.AnnotationOwner], "/"); kind != manifest.KindImage {
		// Variables and files may have its address, which another sandbox would not have.
		return errors.New("the pod is stopped: `berth run -d --replace` with its manifest runs it anew")
	}
	if name != "" {
		return errors.New("its pod is stopped: restart the pod")
	}
	config := last.GetSandboxConfig()
	config.Metadata.Attempt = old.GetMetadata().GetAttempt() + 1
	response, err := l.Runtime.RunPodSandbox(ctx,
		&cri.RunPodSandboxRequest{Config: config, RuntimeHandler: old.GetRuntimeHandler()})
	if err != nil {
		return connection.Plain(err)
	}
	pod.SandboxID = response.GetPodSandboxId()
	return nil
}

// removeOlder removes the stopped sandboxes in whose place another one of the pod runs.
func (l *Launcher) removeOlder(ctx context.Context, sandbox *cri.PodSandbox, pod *Pod) error {
	pods, err := lookup.Pods(ctx, l.Runtime)
	if err != nil {
		return err
	}
	for _, other := range pods {
		if other.GetMetadata().GetUid() == sandbox.GetMetadata().GetUid() && other.GetId() != pod.SandboxID &&
			other.GetState() != cri.PodSandboxState_SANDBOX_READY {
			if err := removeSandbox(ctx, l.Runtime, other.GetId()); err != nil {
				return err
			}
		}
	}
	return nil
}

// next makes and starts the attempt of a container that follows one.
func (l *Launcher) next(ctx context.Context, pod *Pod, request *cri.CreateContainerRequest,
	last *lookup.Container) error {
	config := request.GetConfig()
	name, before := config.GetMetadata().GetName(), int(config.GetMetadata().GetAttempt())
	attempt := before + 1
	if last != nil { // it may be younger than the request, if this was interrupted
		attempt = max(attempt, int(last.GetMetadata().GetAttempt())+1)
	}
	logPath, err := pod.dir.MakeLog(name, attempt)
	if err != nil {
		return err
	}
	message, err := pod.dir.MakeMessage(name, attempt)
	if err != nil {
		return err
	}
	if _, err := pod.dir.Hosts(); err != nil { // a reboot has removed it
		return err
	}
	if err := pod.dir.Repin(name, before, attempt, config.GetMounts()); err != nil {
		return l.forgetRefused(ctx, pod, name, attempt, err)
	}
	for _, m := range config.GetMounts() {
		if pod.dir.IsMessage(m.GetHostPath(), name, before) {
			m.HostPath = message
		}
	}
	config.Metadata.Attempt, config.LogPath = uint32(attempt), logPath
	config.Annotations[manifest.AnnotationRestartCount] = strconv.Itoa(attempt)
	request.PodSandboxId = pod.SandboxID
	created, err := l.create(ctx, request)
	if err != nil {
		return l.forgetRefused(ctx, pod, name, attempt, connection.Plain(err))
	}
	if err := pod.dir.SaveRequest(name, request); err != nil {
		return err
	}
	started := &Container{Name: name, ID: created.GetContainerId()}
	if err := l.begin(ctx, started); err != nil {
		return connection.Plain(err)
	}
	if last != nil && last.PodSandboxId != pod.SandboxID { // its sandbox is removed, and so nobody can ask for its log
		if err := pod.dir.Forget(name, before); err != nil {
			return err
		}
	}
	return l.Forget(ctx, pod, name, attempt)
}
