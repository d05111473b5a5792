package play

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"berth/internal/cli/launch"
	"berth/internal/manifest"
)

// How long a Job waits after a failure before it makes another pod, as its controller does: the delay doubles.
const (
	jobDelay    = 10 * time.Second
	maxJobDelay = 10 * time.Minute
)

// jobState is what is left to do of a Job.
type jobState struct {
	*manifest.Job
	restarts  bool  // failed containers are started again in their pods
	pending   []int // numbers for which a pod has to be made
	running   int
	succeeded int
	failed    int
}

func newJobState(job *manifest.Job) *jobState {
	s := &jobState{Job: job}
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
func (s *jobState) next() (number int, ok bool) {
	if len(s.pending) == 0 || s.running >= s.Parallelism || s.Completions == 0 && s.succeeded > 0 {
		return 0, false
	}
	number, s.pending = s.pending[0], s.pending[1:]
	s.running++
	return number, true
}

// ended notes the end of a pod, and says how long to wait before the next is made.
func (s *jobState) ended(number int, good bool) (wait time.Duration) {
	s.running--
	if good {
		s.succeeded++
		return 0
	}
	s.failed++
	s.pending = append(s.pending, number)
	slices.Sort(s.pending)
	return min(jobDelay<<min(s.failed-1, 10), maxJobDelay)
}

// done says whether the job has ended, and how.
func (s *jobState) done() (ended, good bool) {
	switch {
	case s.failed > 0 && (s.failed > s.BackoffLimit || s.restarts):
		return true, false
	case s.Completions > 0:
		return s.succeeded >= s.Completions, true
	}
	return s.succeeded > 0 && s.running == 0, true
}

// jobEnd is the end of one pod of a job.
type jobEnd struct {
	number int
	code   int32
	err    error // why it could not be started
}

// runJob runs pods of a job until enough have succeeded, or too many have failed.
func (p *Player) runJob(ctx context.Context, group *manifest.Group) (int32, error) {
	state := newJobState(group.Job)
	state.restarts = group.Job.RestartsContainers()
	lives, cancel := context.WithCancel(ctx)
	var deadline <-chan time.Time
	if state.Deadline > 0 {
		deadline = time.After(state.Deadline)
	}
	ends := make(chan jobEnd, state.Parallelism)
	first := slices.Clone(group.Pods)
	var pods sync.WaitGroup
	defer pods.Wait() // whoever starts a pod notes it for the end
	defer cancel()
	var notBefore time.Time // no pod is made until then
	for {
		wait := time.Until(notBefore)
		if wait <= 0 {
			for number, ok := state.next(); ok; number, ok = state.next() {
				var pod *manifest.Pod
				if len(first) > 0 {
					pod, first = first[0], first[1:]
				}
				pods.Go(func() { ends <- p.runJobPod(lives, group.Job, number, pod) })
			}
		}
		var again <-chan time.Time
		if wait > 0 {
			again = time.After(wait)
		}
		select {
		case end := <-ends:
			if end.err != nil {
				return 0, end.err
			}
			if end.code == 0 {
				_ = state.ended(end.number, true)
			} else {
				notBefore = time.Now().Add(state.ended(end.number, false))
				fmt.Fprintf(p.Notes, "job %s: a pod failed, %d of at most %d\n", group.Owner.Name, state.failed,
					state.BackoffLimit+1)
			}
			if ended, good := state.done(); ended && good {
				fmt.Fprintf(p.Notes, "job %s is complete: %d pods succeeded\n", group.Owner.Name, state.succeeded)
				return 0, nil
			} else if ended {
				fmt.Fprintf(p.Notes, "job %s failed\n", group.Owner.Name)
				return end.code, nil
			}
		case <-again:
		case <-deadline:
			fmt.Fprintf(p.Notes, "job %s failed: its activeDeadlineSeconds are over\n", group.Owner.Name)
			return 1, nil
		case <-ctx.Done():
			return 0, nil
		}
	}
}

// runJobPod runs one pod of a job to its end. A pod whose init container fails has failed.
func (p *Player) runJobPod(ctx context.Context, job *manifest.Job, number int, pod *manifest.Pod) jobEnd {
	end := jobEnd{number: number}
	if pod == nil {
		if pod, end.err = job.Pod(number); end.err != nil {
			return end
		}
	}
	running, err := p.start(ctx, pod)
	var failed *launch.InitError
	switch {
	case errors.As(err, &failed):
		fmt.Fprintln(p.Notes, err)
		end.code = failed.Status.GetExitCode()
	case err != nil:
		end.err = err
	default:
		select {
		case <-running.Done():
			end.code = running.Code()
		case <-ctx.Done():
		}
	}
	return end
}
