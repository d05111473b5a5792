package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// crowds are numbers of pods beside which a runtime is measured, the smallest first.
type crowds []int

func (c *crowds) String() string {
	var texts []string
	for _, n := range *c {
		texts = append(texts, strconv.Itoa(n))
	}
	return strings.Join(texts, ",")
}

func (c *crowds) Set(value string) error {
	*c = nil
	if value == "" {
		return nil
	}
	for text := range strings.SplitSeq(value, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return fmt.Errorf("%q is no number of pods: want numbers such as 0,500,1000", text)
		}
		if len(*c) > 0 && n <= (*c)[len(*c)-1] {
			return fmt.Errorf("%d comes after %d: want each number larger than the one before", n, (*c)[len(*c)-1])
		}
		*c = append(*c, n)
	}
	return nil
}

// most is the largest.
func (c *crowds) most() int {
	if len(*c) == 0 {
		return 0
	}
	return (*c)[len(*c)-1]
}

// rowGrowth is rowSum, where RunPodSandbox, CreateContainer and StartContainer have no rows above it.
var rowGrowth = row{Key: rowSum.Key, Title: "pod to running", Unit: rowSum.Unit, spread: true}

// rowGrowthKept is rowGrowth of pods none of which follows the removal of another.
var rowGrowthKept = row{Key: "pod_to_running_kept", Title: "pod to running, none removed", Unit: rowSum.Unit,
	spread: true}

// growthRows are measured beside each number of pods.
var growthRows = []row{
	rowGrowth, rowGrowthKept, rowCPULife, rowExec, rowCPUExec, rowList, rowStats, rowPSSN, rowPSSPod, rowReady,
}

// level is what was measured beside a number of pods.
type level struct {
	Wanted  int     `json:"wanted"`
	Pods    int     `json:"pods"`
	Limit   string  `json:"limit,omitempty"` // why there are fewer than wanted
	Loading float64 `json:"loadingSeconds"`
	Figures figures `json:"figures"`
}

// growth measures what changes with the number of pods that are there: how long one more takes and what it costs,
// lists, memory, and how long a daemon that was killed takes to be ready again.
func (p *peer) growth(ctx context.Context, o *options, traces string, r *result) (err error) {
	var all []*pod
	defer func() { err = errors.Join(err, p.removeMany(ctx, all)) }()
	if err := sleep(ctx, o.settle); err != nil {
		return err
	}
	empty, err := p.own.memory()
	if err != nil {
		return err
	}
	for _, wanted := range o.crowds {
		progress("%s: %d pods", p.name, wanted)
		l := &level{Wanted: wanted, Figures: figures{}}
		began := time.Now()
		more, err := p.load(ctx, o, wanted-len(all), l)
		all = append(all, more...)
		if err != nil {
			return err
		}
		l.Pods, l.Loading = len(all), time.Since(began).Seconds()
		if n := len(r.Levels); n > 0 && r.Levels[n-1].Pods == l.Pods {
			progress("%s: no more pods than %d: %s", p.name, l.Pods, l.Limit)
			r.Levels[n-1].Limit = l.Limit
			break
		}
		r.Levels = append(r.Levels, l)
		if err := p.amongMany(ctx, o, traces, empty, l); err != nil {
			return fmt.Errorf("with %d pods: %w", l.Pods, err)
		}
	}
	return nil
}

// load starts further pods until there are enough, or a limit is reached, which it notes.
func (p *peer) load(ctx context.Context, o *options, further int, l *level) ([]*pod, error) {
	began := time.Now()
	var mu sync.Mutex // guards l.Limit and failed
	var failed error
	left := upTo(further)
	all, _, err := p.many(ctx, 4, func() bool {
		mu.Lock()
		defer mu.Unlock()
		short, err := node.MemoryIsShort()
		switch {
		case err != nil:
			failed = err
		case short:
			l.Limit = "the machine's memory is nearly full"
		case time.Since(began) > o.loading:
			l.Limit = fmt.Sprintf("the time for starting them (%v) was over", o.loading)
		}
		return failed == nil && l.Limit == "" && left()
	})
	err = errors.Join(err, failed)
	if err == nil || p.kill != nil || ctx.Err() != nil {
		return all, err
	}
	// A runtime that is not ours may have a limit of its own, such as the range of its pods' addresses.
	l.Limit = fmt.Sprintf("it refused another one: %v", err)
	var running []*pod
	for _, made := range all {
		if made.running {
			running = append(running, made)
		} else if err := p.remove(ctx, made); err != nil {
			return running, err
		}
	}
	return running, nil
}

// startKept starts further pods one after another and removes them only when all have been started.
func (p *peer) startKept(ctx context.Context, o *options, f figures) (err error) {
	if err := sleep(ctx, o.settle); err != nil {
		return err
	}
	var all []*pod
	defer func() { err = errors.Join(err, p.removeMany(ctx, all), sleep(ctx, o.settle)) }()
	for range o.among {
		made, t, err := p.start(ctx, nil)
		all = append(all, made)
		if err != nil {
			return err
		}
		f.add(rowGrowthKept, t.run+t.create+t.start)
	}
	return nil
}

func (p *peer) amongMany(ctx context.Context, o *options, traces string, empty uint64, l *level) error {
	if err := p.startKept(ctx, o, l.Figures); err != nil {
		return err
	}
	for range o.among {
		made, t, err := p.start(ctx, nil)
		if err == nil {
			l.Figures.add(rowGrowth, t.run+t.create+t.start)
			err = p.execs(ctx, made, o.execs, l.Figures)
		}
		if err := errors.Join(err, p.remove(ctx, made)); err != nil {
			return err
		}
	}
	if err := p.memoryOf(ctx, o, empty, l); err != nil {
		return err
	}
	if err := p.costAmongMany(ctx, o, traces, l.Figures); err != nil {
		return err
	}
	if err := p.lists(ctx, l.Pods, l.Figures); err != nil {
		return err
	}
	if p.kill == nil {
		return nil // it is not ours to kill
	}
	for range 3 {
		if err := p.kill(); err != nil {
			return err
		}
		began := time.Now()
		if err := p.restart(ctx); err != nil {
			return err
		}
		l.Figures.add(rowReady, time.Since(began))
		list, err := p.runtime.ListContainers(ctx, &cri.ListContainersRequest{
			Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}},
		})
		if err != nil {
			return err
		}
		if len(list.Containers) < l.Pods {
			return fmt.Errorf("%d of %d containers run after the daemon was killed", len(list.Containers), l.Pods)
		}
	}
	return nil
}

// memoryOf is the memory with all pods, and what one of them takes.
func (p *peer) memoryOf(ctx context.Context, o *options, empty uint64, l *level) error {
	if l.Pods > 0 {
		if err := p.own.find(p.socket); err != nil {
			return err
		}
	}
	if err := sleep(ctx, o.settle); err != nil {
		return err
	}
	full, err := p.own.memory()
	if err != nil {
		return err
	}
	l.Figures.value(rowPSSN, float64(full)/mib)
	if l.Pods > 0 {
		l.Figures.value(rowPSSPod, (float64(full)-float64(empty))/mib/float64(l.Pods))
	}
	return nil
}

// costAmongMany is the processor time of a further pod's life, and of an exec in it.
func (p *peer) costAmongMany(ctx context.Context, o *options, traces string, f figures) error {
	if o.costs == 0 {
		return nil
	}
	total := func(row row, call func() error, further ...int) error {
		roles, err := p.roles(further...)
		if err != nil {
			return err
		}
		if p.cpu != nil {
			u, err := p.spent(ctx, o, roles, call)
			if err == nil {
				f.add(row, u.all.Total)
			}
			return err
		}
		if traces == "" {
			return nil
		}
		counted, err := p.counted(ctx, o, traces, roles, call)
		if err == nil {
			f.value(row, counted.total(eventIndex(quantityCPU.key))*1e-6)
		}
		return err
	}
	if err := total(rowCPULife, p.live(ctx)); err != nil {
		return err
	}
	made, further, err := p.startKnown(ctx)
	if err == nil {
		err = total(rowCPUExec, func() error { return p.exec(ctx, made.container) }, further...)
	}
	return errors.Join(err, p.remove(ctx, made))
}

// listing is how long lists are asked for again, at most 20 times: with a thousand pods one may take seconds.
const listing = 10 * time.Second

// lists times both lists of containers.
func (p *peer) lists(ctx context.Context, atLeast int, f figures) error {
	for first := time.Now(); len(f.samples(rowStats)) < 20 && time.Since(first) < listing; {
		began := time.Now()
		list, err := p.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
		if err != nil {
			return err
		}
		if len(list.Containers) < atLeast {
			return fmt.Errorf("%d of %d containers are listed", len(list.Containers), atLeast)
		}
		f.add(rowList, time.Since(began))
		began = time.Now()
		if _, err := p.runtime.ListContainerStats(ctx, &cri.ListContainerStatsRequest{}); err != nil {
			return err
		}
		f.add(rowStats, time.Since(began))
	}
	return nil
}

// tracesDirectory is the directory of tracefs; empty where the kernel does not count for this process, and then nothing
// is counted.
func tracesDirectory(at string) (dir string, unmount func() error) {
	dir, unmount, err := node.Tracefs(at)
	if err == nil {
		var c *counters
		if c, err = openCounters(dir, map[int]part{os.Getpid(): partDaemon}); err == nil {
			c.close()
			return dir, unmount
		}
		err = errors.Join(err, unmount())
	}
	progress("system calls, context switches and wake-ups are left out: %v", err)
	return "", func() error { return nil }
}
