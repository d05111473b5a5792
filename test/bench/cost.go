package main

import (
	"context"
	"errors"
	"time"

	"berth/test/node"
)

// quantity is something that an operation takes: processor time, and proxies of energy.
type quantity struct{ key, title, unit string }

// The quantities have the keys of events.
var (
	quantityCPU = quantity{"cpu", "processor time", "ms"}
	quantities  = []quantity{
		quantityCPU, {"calls", "system calls", "calls"}, {"switches", "context switches", "switches"},
		{"wakeups", "wake-ups", "wakeups"},
	}
)

// operation is what is measured of a runtime.
type operation struct{ key, title string }

var (
	operationLife = operation{"life", "a pod's life"}
	operationExec = operation{"exec", "an exec"}
	operations    = []operation{operationLife, operationExec}
)

// of is the row of an operation with all parts of a runtime.
func (m quantity) of(op operation) row {
	return row{Key: m.key + "_" + op.key, Title: m.title + " of " + op.title, Unit: m.unit}
}

// in is the row of a part.
func (m quantity) in(op operation, part part) row {
	return row{Key: m.key + "_" + op.key + "." + string(part), Title: string(part), Unit: m.unit}
}

// Two more of processor time: what of the whole the kernel has taken in system calls, and what threads of the kernel
// have taken meanwhile, which belong to nobody and so are not in the whole.
const (
	partSystem        part = "system"
	partKernelThreads part = "kernel threads"
)

// costRows are the rows of all parts together.
func costRows() (list []row) {
	for _, op := range operations {
		for _, m := range quantities {
			list = append(list, m.of(op))
		}
	}
	return list
}

// partRows are all rows of parts.
func partRows() (list []row) {
	for _, op := range operations {
		for _, m := range quantities {
			for _, part := range parts {
				list = append(list, m.in(op, part))
			}
		}
		list = append(list, quantityCPU.in(op, partSystem), quantityCPU.in(op, partKernelThreads))
	}
	return list
}

// usage is the processor time of a runtime.
type usage struct {
	all            node.CPUUsage
	daemon, keeper time.Duration
	kernelThreads  time.Duration
}

// cost measures what pods take, from RunPodSandbox to RemovePodSandbox, and execs. One takes less than the clock of
// some kernels tells, so several are measured together.
func (p *peer) cost(ctx context.Context, o *options, traces string, r *result) error {
	if o.costs == 0 {
		return nil
	}
	if err := p.costOf(ctx, o, operationLife, traces, p.live(ctx), nil, r.Figures); err != nil {
		return err
	}
	made, further, err := p.startKnown(ctx)
	if err == nil {
		err = p.costOf(ctx, o, operationExec, traces, func() error { return p.exec(ctx, made.container) }, further,
			r.Figures)
	}
	return errors.Join(err, p.remove(ctx, made))
}

// live is the life of one pod.
func (p *peer) live(ctx context.Context) func() error {
	return func() error {
		made, _, err := p.start(ctx, nil)
		return errors.Join(err, p.remove(ctx, made))
	}
}

// startKnown starts a pod, and returns the processes that the runtime has for it.
func (p *peer) startKnown(ctx context.Context) (made *pod, further []int, err error) {
	known := p.own.pids()
	if made, _, err = p.start(ctx, nil); err != nil {
		return made, nil, err
	}
	if err := p.own.find(p.socket); err != nil {
		return made, nil, err
	}
	for pid := range p.own.pids() {
		if !known[pid] {
			further = append(further, pid)
		}
	}
	return made, further, nil
}

// costOf measures an operation twice: its processor time, while nothing else is counted, and then its events.
func (p *peer) costOf(ctx context.Context, o *options, op operation, traces string, call func() error, further []int,
	f figures) error {
	roles, err := p.roles(further...)
	if err != nil {
		return err
	}
	if p.cpu != nil {
		u, err := p.spent(ctx, o, roles, call)
		if err != nil {
			return err
		}
		f.add(quantityCPU.of(op), u.all.Total)
		f.add(quantityCPU.in(op, partDaemon), u.daemon)
		f.add(quantityCPU.in(op, partKeeper), u.keeper)
		f.add(quantityCPU.in(op, partChildren), u.all.Total-u.daemon-u.keeper)
		system := 0.0 // of little work, on which no tick of the clock has fallen
		if ticks := u.all.User + u.all.System; ticks > 0 {
			system = float64(u.all.Total) * float64(u.all.System) / float64(ticks)
		}
		f.add(quantityCPU.in(op, partSystem), time.Duration(system))
		f.add(quantityCPU.in(op, partKernelThreads), u.kernelThreads)
	}
	if traces == "" {
		return nil
	}
	counted, err := p.counted(ctx, o, traces, roles, call)
	if err != nil {
		return err
	}
	for _, m := range quantities {
		event := eventIndex(m.key)
		if m == quantityCPU && p.cpu != nil {
			continue // that of the accounts is exact, and nothing was counted meanwhile
		}
		scale := 1.0
		if m == quantityCPU { // ns
			scale = 1e-6
		}
		f.value(m.of(op), counted.total(event)*scale)
		for _, part := range parts {
			f.value(m.in(op, part), counted[part][event]*scale)
		}
	}
	return nil
}

// spent is the processor time that one of some calls takes, with what comes after it.
func (p *peer) spent(ctx context.Context, o *options, roles map[int]part, call func() error) (u usage, err error) {
	idle, err := kernelThreads()
	if err != nil {
		return u, err
	}
	if err := sleep(ctx, o.afterwards); err != nil { // what was before is not this one's
		return u, err
	}
	threads, err := kernelThreads()
	if err != nil {
		return u, err
	}
	began, background := time.Now(), threads.since(idle)
	before, beforeOwn, err := p.used(roles)
	if err != nil {
		return u, err
	}
	for range o.costs {
		if err := call(); err != nil {
			return u, err
		}
	}
	if err := sleep(ctx, o.afterwards); err != nil {
		return u, err
	}
	after, afterOwn, err := p.used(roles)
	if err != nil {
		return u, err
	}
	end, err := kernelThreads()
	if err != nil {
		return u, err
	}
	// What they take without any pod is not the pods'.
	meanwhile := end.since(threads) - time.Duration(float64(background)*time.Since(began).Seconds()/o.afterwards.Seconds())
	n := time.Duration(o.costs)
	u.all = after.Minus(before)
	u.all.Total, u.all.User, u.all.System = u.all.Total/n, u.all.User/n, u.all.System/n
	u.daemon = (afterOwn[partDaemon] - beforeOwn[partDaemon]) / n
	u.keeper = (afterOwn[partKeeper] - beforeOwn[partKeeper]) / n
	u.kernelThreads = max(meanwhile, 0) / n
	return u, nil
}

// used is the processor time so far of all, and of the daemon and the keeper alone.
func (p *peer) used(roles map[int]part) (all node.CPUUsage, own map[part]time.Duration, err error) {
	own = map[part]time.Duration{}
	for pid, part := range roles {
		used, err := node.CPUTime(pid)
		if err != nil {
			return all, nil, err
		}
		own[part] += used
	}
	all, err = p.cpu()
	return all, own, err
}

// counted is how many events one of some calls takes.
func (p *peer) counted(ctx context.Context, o *options, traces string, roles map[int]part,
	call func() error) (tally, error) {
	if err := sleep(ctx, o.afterwards); err != nil {
		return nil, err
	}
	c, err := openCounters(traces, roles)
	if err != nil {
		return nil, err
	}
	defer c.close()
	for range o.costs {
		if err := call(); err != nil {
			return nil, err
		}
	}
	if err := sleep(ctx, o.afterwards); err != nil {
		return nil, err
	}
	t, err := c.read()
	for _, values := range t {
		for i := range values {
			values[i] /= float64(o.costs)
		}
	}
	return t, err
}

func eventIndex(key string) int {
	for i, e := range events {
		if e.key == key {
			return i
		}
	}
	panic("no event " + key)
}
