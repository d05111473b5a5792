package play

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/internal/cli/job"
	"berth/internal/cli/supervisor"
	"berth/internal/manifest"
)

// runGroups starts the pods of all documents, those of each document beside those of the others. With Detach it returns
// once all run, and otherwise when all have ended, with the exit code of the first document whose pods failed.
func (p *Player) runGroups(ctx context.Context, groups []*manifest.Group) (int32, error) {
	codes := make([]int32, len(groups))
	p.reports = make([]StartedPod, 0, len(groups))
	places := map[*manifest.Pod]int{}
	for _, group := range groups {
		for _, pod := range group.Pods {
			places[pod] = len(p.reports)
			p.reports = append(p.reports, StartedPod{})
		}
	}
	var waits errgroup.Group
	all, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	for i, group := range groups {
		waits.Go(func() (err error) {
			if group.Job != nil && !p.Detach {
				codes[i], err = p.runJob(all, group)
			} else {
				codes[i], err = p.runGroup(all, group, places)
			}
			if err != nil {
				fail(err) // the first error is the one to tell: others follow from it
			}
			return err
		})
	}
	if err := waits.Wait(); err != nil {
		if ctx.Err() == nil {
			err = context.Cause(all)
		}
		return 0, err
	}
	for _, code := range codes {
		if code != 0 {
			return code, nil
		}
	}
	return 0, nil
}

// runGroup starts the pods of a document, and without Detach waits for their end.
func (p *Player) runGroup(ctx context.Context, group *manifest.Group, places map[*manifest.Pod]int) (int32, error) {
	if job := group.Job; job != nil && len(group.Pods) < job.Completions {
		return 0, fmt.Errorf("job %s: spec.parallelism: with -d all pods are started at once, and %d are fewer than the %d "+
			"completions: run it without -d", group.Owner.Name, len(group.Pods), job.Completions)
	}
	ctx, end := context.WithCancel(ctx)
	var ends sync.WaitGroup
	defer ends.Wait()
	defer end()
	var pods []*supervisor.Pod
	for i, pod := range group.Pods {
		begin := time.Now()
		started, err := p.start(ctx, pod)
		if err != nil {
			return 0, err
		}
		pods = append(pods, started)
		p.mu.Lock()
		p.reports[places[pod]] = newStartedPod(started, time.Since(begin))
		p.mu.Unlock()
		if p.Detach {
			continue
		}
		ends.Go(func() { p.finish(ctx, started) })
		if group.Ordered && i+1 < len(group.Pods) {
			if err := started.WaitReady(ctx); err != nil {
				return 0, err
			}
		}
	}
	ends.Wait()
	if p.Detach || ctx.Err() != nil {
		return 0, nil
	}
	for _, pod := range pods {
		if code := pod.Code(); code != 0 {
			return code, nil
		}
	}
	return 0, nil
}

// finish waits until a pod has ended, and stops what runs on of it: its sidecars.
func (p *Player) finish(ctx context.Context, pod *supervisor.Pod) {
	select {
	case <-pod.Done():
	case <-ctx.Done():
		return
	}
	if p.Join == nil { // it has no sidecars, and its output may not have come yet
		p.halt(ctx, pod)
	}
}

// halt stops a pod while others run on. What is left of it when ctx ends is seen to by end.
func (p *Player) halt(ctx context.Context, pod *supervisor.Pod) {
	if err := pod.Halt(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintf(p.Err, "warning: %v\n", err)
	}
}

// runJob runs the pods of a Job, and stops those that run when it has ended: other documents may run on.
func (p *Player) runJob(ctx context.Context, group *manifest.Group) (int32, error) {
	var mu sync.Mutex
	run := map[*supervisor.Pod]bool{} // mu guards it
	runner := &job.Runner{
		Notes: p.Notes,
		Start: func(ctx context.Context, pod *manifest.Pod) (*supervisor.Pod, error) {
			started, err := p.start(ctx, pod)
			if err == nil {
				mu.Lock()
				run[started] = true
				mu.Unlock()
			}
			return started, err
		},
		Ended: func(pod *supervisor.Pod) {
			p.halt(ctx, pod)
			mu.Lock()
			delete(run, pod)
			mu.Unlock()
		},
	}
	code, err := runner.Run(ctx, group, nil)
	if err != nil || ctx.Err() != nil {
		return code, err
	}
	var halts sync.WaitGroup
	for pod := range run {
		halts.Go(func() { p.halt(ctx, pod) })
	}
	halts.Wait()
	return code, nil
}

// start starts one pod.
func (p *Player) start(ctx context.Context, pod *manifest.Pod) (*supervisor.Pod, error) {
	begin := time.Now()
	running, err := p.supervisor.Run(ctx, pod)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.running = append(p.running, running)
	p.mu.Unlock()
	if !p.Plain {
		fmt.Fprintf(p.Notes, "pod %s runs%s, started in %v\n", running.FullName(), at(running.IPs),
			time.Since(begin).Round(time.Millisecond))
	}
	return running, nil
}

// end stops and removes the pods, or only stops them. A Ctrl-C that is over does not count any more.
func (p *Player) end(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var stops sync.WaitGroup
	errs := make([]error, len(p.running))
	for i, pod := range p.running {
		stops.Go(func() {
			if p.Keep {
				errs[i] = pod.Halt(ctx)
			} else {
				errs[i] = pod.Stop(ctx, p.Store)
			}
		})
	}
	stops.Wait()
	return errors.Join(errs...)
}
