package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"berth/internal/cli/launch"
	"berth/internal/cli/supervisor"
	"berth/internal/manifest"
)

// How long a Job waits after a failure before it makes another pod, as its controller does: the delay doubles.
const (
	firstDelay = 10 * time.Second
	maxDelay   = 10 * time.Minute
)

// state is what is left to do of a Job.
type state struct {
	*manifest.Job
	restarts  bool  // failed containers are started again in their pods
	pending   []int // numbers for which a pod has to be made
	running   int
	succeeded int
	failed    int
}

func newState(job *manifest.Job) *state {
	s := &state{Job: job}
	for i := range job.Completions {
		s.pending = append(s.pending, i)
	}
	if job.Completions == 0 {
		for i := range job.Parallelism {
			s.pending = append(s.pending, i)
		}
	}
	return s
}

// next takes a number for which a pod is to be made now; ok is false where there is none.
func (s *state) next() (number int, ok bool) {
	if len(s.pending) == 0 || s.running >= s.Parallelism || s.Completions == 0 && s.succeeded > 0 {
		return 0, false
	}
	number, s.pending = s.pending[0], s.pending[1:]
	s.running++
	return number, true
}

// resume takes the number of a pod that was there before; ok is false where the Job has none for it.
func (s *state) resume(number int) (taken int, ok bool) {
	at := 0
	if s.Indexed {
		at = slices.Index(s.pending, number)
	}
	if at < 0 || len(s.pending) == 0 {
		return 0, false
	}
	taken = s.pending[at]
	s.pending = slices.Delete(s.pending, at, at+1)
	s.running++
	return taken, true
}

// ended notes the end of a pod, and says how long to wait before the next is made.
func (s *state) ended(number int, good bool) (wait time.Duration) {
	s.running--
	if good {
		s.succeeded++
		return 0
	}
	s.failed++
	s.pending = append(s.pending, number)
	slices.Sort(s.pending)
	return min(firstDelay<<min(s.failed-1, 10), maxDelay)
}

// done says whether the job has ended, and how.
func (s *state) done() (ended, good bool) {
	switch {
	case s.failed > 0 && (s.failed > s.BackoffLimit || s.restarts):
		return true, false
	case s.Completions > 0:
		return s.succeeded >= s.Completions, true
	}
	return s.succeeded > 0 && s.running == 0, true
}

// Runner runs the pods of a Job.
type Runner struct {
	Notes io.Writer
	// Start starts a pod, or goes on with one that was there before.
	Start func(context.Context, *manifest.Pod) (*supervisor.Pod, error)
	// Ended is told of each pod whose containers have ended; nil: nobody is.
	Ended func(*supervisor.Pod)
	// Began is when the Job began, if that was before this command.
	Began time.Time
}

// Found is a pod of the Job that was there before this command.
type Found struct {
	Pod    *manifest.Pod
	Number int // of the pod of an indexed Job
	Ended  bool
	Code   int32 // of one that has ended
}

// end is the end of one pod of a Job.
type end struct {
	number int
	code   int32
	err    error // why it could not be started
}

// run is one run of a Job.
type run struct {
	*Runner
	*state
	name  string
	first []*manifest.Pod // that the documents have made already
	ends  chan end
	pods  sync.WaitGroup
	// notBefore is until when no pod is made.
	notBefore time.Time
	code      int32 // of the last pod that failed
}

// Run runs pods of a Job until enough have succeeded, or too many have failed. Its error is that of a pod which could
// not be started.
func (r *Runner) Run(ctx context.Context, group *manifest.Group, found []*Found) (int32, error) {
	j := &run{Runner: r, state: newState(group.Job), name: group.Owner.Name, first: slices.Clone(group.Pods)}
	j.restarts = group.Job.RestartsContainers()
	j.ends = make(chan end, j.Parallelism+len(found))
	lives, cancel := context.WithCancel(ctx)
	defer j.pods.Wait() // whoever starts a pod notes it for the end
	defer cancel()
	var deadline <-chan time.Time
	if j.Deadline > 0 {
		left := j.Deadline
		if !r.Began.IsZero() {
			left -= time.Since(r.Began)
		}
		deadline = time.After(left)
	}
	j.resume(lives, found)
	for {
		if ended, good := j.done(); ended && good {
			fmt.Fprintf(r.Notes, "job %s is complete: %d pods succeeded\n", j.name, j.succeeded)
			return 0, nil
		} else if ended {
			fmt.Fprintf(r.Notes, "job %s failed\n", j.name)
			return j.code, nil
		}
		select {
		case end := <-j.ends:
			if end.err != nil {
				return 0, end.err
			}
			j.note(end)
		case <-j.makePods(lives):
		case <-deadline:
			fmt.Fprintf(r.Notes, "job %s failed: its activeDeadlineSeconds are over\n", j.name)
			return 1, nil
		case <-ctx.Done():
			return 0, nil
		}
	}
}

// resume counts the pods that were there before, and goes on with those that run.
func (j *run) resume(ctx context.Context, found []*Found) {
	slices.SortStableFunc(found, func(a, b *Found) int { // what runs needs its number most
		switch {
		case a.Ended == b.Ended:
			return 0
		case b.Ended:
			return -1
		}
		return 1
	})
	for _, f := range found {
		number, ok := j.state.resume(f.Number)
		switch {
		case !ok:
		case !f.Ended:
			j.pods.Go(func() { j.ends <- j.runPod(ctx, number, f.Pod) })
		case f.Code == 0:
			_ = j.ended(number, true)
		default:
			_ = j.ended(number, false)
			j.code = f.Code
		}
	}
}

// note notes the end of a pod.
func (j *run) note(end end) {
	if end.code == 0 {
		_ = j.ended(end.number, true)
		return
	}
	j.code = end.code
	j.notBefore = time.Now().Add(j.ended(end.number, false))
	fmt.Fprintf(j.Notes, "job %s: a pod failed, %d of at most %d\n", j.name, j.failed, j.BackoffLimit+1)
}

// makePods makes the pods that there is room for, or returns what tells when they may be made.
func (j *run) makePods(ctx context.Context) (again <-chan time.Time) {
	if wait := time.Until(j.notBefore); wait > 0 {
		return time.After(wait)
	}
	for number, ok := j.next(); ok; number, ok = j.next() {
		var pod *manifest.Pod
		if len(j.first) > 0 && !j.Indexed {
			pod, j.first = j.first[0], j.first[1:]
		}
		j.pods.Go(func() { j.ends <- j.runPod(ctx, number, pod) })
	}
	return nil
}

// runPod runs one pod of a Job to its end. A pod whose init container fails, or that is late before it has started, has
// failed.
func (j *run) runPod(ctx context.Context, number int, pod *manifest.Pod) end {
	end := end{number: number}
	if pod == nil {
		if pod, end.err = j.Pod(number); end.err != nil {
			return end
		}
	}
	running, err := j.Start(ctx, pod)
	var failed *launch.InitError
	var late *supervisor.DeadlineError
	switch {
	case errors.As(err, &failed):
		fmt.Fprintln(j.Notes, err)
		end.code = failed.Status.GetExitCode()
	case errors.As(err, &late):
		fmt.Fprintln(j.Notes, err)
		end.code = 1
	case err != nil:
		end.err = err
	default:
		select {
		case <-running.Done():
			end.code = running.Code()
			if j.Ended != nil && ctx.Err() == nil {
				j.Ended(running)
			}
		case <-ctx.Done():
		}
	}
	return end
}
