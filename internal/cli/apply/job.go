package apply

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/job"
	"berth/internal/cli/launch"
	"berth/internal/cli/supervisor"
	"berth/internal/manifest"
)

// jobKeeper runs the pods of a Job. Those of a Job that has ended stay, as in a cluster: they say that it is not to run
// again.
type jobKeeper struct {
	a      *Applier
	group  *manifest.Group
	hash   string
	after  []<-chan struct{}
	cancel context.CancelFunc
	done   chan struct{}

	mu   sync.Mutex // guards the rest
	file string
	pods []*supervisor.Pod
}

func (a *Applier) newJobKeeper(ctx context.Context, group *manifest.Group, hash string,
	after []<-chan struct{}) *jobKeeper {
	k := &jobKeeper{a: a, group: group, hash: hash, file: group.File, after: after, done: make(chan struct{})}
	ctx, k.cancel = context.WithCancel(ctx)
	go k.run(ctx)
	return k
}

func (k *jobKeeper) run(ctx context.Context) {
	defer close(k.done)
	for _, gone := range k.after {
		select {
		case <-gone:
		case <-ctx.Done():
			return
		}
	}
	var delays supervisor.Backoff
	for {
		err := k.runJob(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !k.a.pause(ctx, k.group.Pods[0], &delays, err) {
			return
		}
	}
}

// runJob runs the pods until the Job has ended, and stops what runs of them then.
func (k *jobKeeper) runJob(ctx context.Context) error {
	found, began, err := k.found(ctx)
	if err != nil {
		return err
	}
	runner := &job.Runner{Notes: k.a.Notes, Start: k.start, Began: began, Ended: func(pod *supervisor.Pod) {
		k.a.note("pod %s has ended with exit code %d", pod.FullName(), pod.Code())
		if err := pod.Halt(ctx); err != nil && ctx.Err() == nil {
			k.a.note("%v", err)
		}
		k.forget(pod)
	}}
	if _, err = runner.Run(ctx, k.group, found); err != nil || ctx.Err() != nil {
		return err
	}
	for _, pod := range k.running() {
		if err := pod.Halt(ctx); err != nil {
			return err
		}
		k.forget(pod)
	}
	return nil
}

// found lists the pods of the Job that are there, and when it began. Those whose template was changed are removed.
func (k *jobKeeper) found(ctx context.Context) (found []*job.Found, began time.Time, err error) {
	pods, err := k.a.own(ctx)
	if err != nil {
		return nil, began, err
	}
	for _, sandbox := range pods {
		if sandbox.GetAnnotations()[manifest.AnnotationOwner] != k.group.Owner.String() {
			continue
		}
		f, err := k.recognize(ctx, sandbox)
		if err != nil {
			return nil, began, err
		}
		if f == nil {
			k.a.note("pod %s/%s is removed: its Job has changed", sandbox.GetMetadata().GetNamespace(),
				sandbox.GetMetadata().GetName())
			if err := k.a.remove(ctx, sandbox); err != nil {
				return nil, began, err
			}
			continue
		}
		found = append(found, f)
		if created := launch.Created(sandbox); began.IsZero() || created.Before(began) {
			began = created
		}
	}
	return found, began, nil
}

// recognize returns what the Job knows a pod by that was there before; nil if its template was changed.
func (k *jobKeeper) recognize(ctx context.Context, sandbox *cri.PodSandbox) (*job.Found, error) {
	number, _ := strconv.Atoi(sandbox.GetLabels()[batchv1.JobCompletionIndexAnnotation])
	pod, err := k.group.Job.Pod(number)
	if err != nil {
		return nil, err
	}
	hash, err := pod.Hash()
	if err != nil || hash != sandbox.GetAnnotations()[manifest.AnnotationHash] {
		return nil, err
	}
	f := &job.Found{Pod: pod.As(sandbox.GetMetadata().GetName(), sandbox.GetMetadata().GetUid()), Number: number}
	state, err := k.a.state(ctx, sandbox)
	if err == nil {
		f.Ended, f.Code = state.Over(f.Pod)
	}
	return f, err
}

// errEnded means that a pod has ended before it could be adopted.
var errEnded = errors.New("it has ended meanwhile")

// start starts or adopts a pod, and tries again until it runs, its init container has failed for good or ctx ends.
func (k *jobKeeper) start(ctx context.Context, pod *manifest.Pod) (*supervisor.Pod, error) {
	hash, err := pod.Hash()
	if err != nil {
		return nil, err
	}
	pod.Applied = &manifest.Applied{Directory: k.a.Directory, File: k.inFile(), Hash: hash}
	var delays supervisor.Backoff
	for {
		begin := time.Now()
		sandbox, over, _, err := k.a.found(ctx, pod)
		if err == nil && over {
			return nil, errEnded // the Job is looked at anew
		}
		var running *supervisor.Pod
		if err == nil {
			running, err = k.a.bring(ctx, pod, sandbox)
		}
		var failed *launch.InitError
		var late *supervisor.DeadlineError
		switch {
		case err == nil:
			k.a.noteRunning(running, sandbox, time.Since(begin))
			k.mu.Lock()
			k.pods = append(k.pods, running)
			k.mu.Unlock()
			return running, nil
		case errors.As(err, &failed), errors.As(err, &late):
			return nil, err
		case !k.a.pause(ctx, pod, &delays, err):
			return nil, ctx.Err()
		}
	}
}

// moved notes the file in which the document is now.
func (k *jobKeeper) moved(file string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.file = file
}

func (k *jobKeeper) inFile() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.file
}

func (k *jobKeeper) forget(pod *supervisor.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = slices.DeleteFunc(k.pods, func(p *supervisor.Pod) bool { return p == pod })
}

func (k *jobKeeper) running() []*supervisor.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.pods)
}

// leave ends the keeper and leaves the pods as they are.
func (k *jobKeeper) leave() {
	k.cancel()
	<-k.done
	for _, pod := range k.running() {
		pod.Leave()
		k.forget(pod)
	}
}

// stop ends the keeper, and stops and removes all pods of the Job.
func (k *jobKeeper) stop(ctx context.Context) error {
	k.cancel()
	<-k.done
	var errs []error
	for _, pod := range k.running() {
		if err := pod.Stop(ctx, k.a.Store); err != nil {
			errs = append(errs, err)
			continue
		}
		k.forget(pod)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	pods, err := k.a.own(ctx)
	if err != nil {
		return err
	}
	for _, sandbox := range pods {
		if sandbox.GetAnnotations()[manifest.AnnotationOwner] == k.group.Owner.String() {
			errs = append(errs, k.a.remove(ctx, sandbox))
		}
	}
	return errors.Join(errs...)
}
