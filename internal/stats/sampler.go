package stats

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/cgroup"
	"berth/internal/model"
)

// Config of a Sampler.
type Config struct {
	Cgroups *cgroup.Hierarchies // nil: the host's
	// Measure is what a writable layer takes, as rootfs.Usage.
	Measure func(ctx context.Context, dir string) (bytes, inodes uint64, err error)
	// Mountpoint is what FilesystemUsage.Mountpoint says: a directory on the layers' file system that stays. Empty:
	// the one that a layer is in.
	Mountpoint string
	// Timeout bounds a call, of whatever many targets; 0: 2 s.
	Timeout time.Duration
	// LayerAge is how old a figure of a writable layer may become while somebody asks for it; 0: 15 s. One that is
	// expensive to have becomes older: at most a hundredth of the time is spent on it.
	LayerAge time.Duration
	Logger   *slog.Logger
}

// Target is a container or a pod to read.
type Target struct {
	ID     string // unique among containers and pods
	Cgroup string // below the hierarchies' roots; empty: none
	Layer  string // the writable layer's directory; empty: none (a pod)
	NetNS  string // where the network namespace is pinned; for pods
	// Network is whether to read the interfaces in NetNS.
	Network bool
	// PID is a container's init process, for its limits and what its processes have open; 0: none. Details alone.
	PID int
}

// Sampler reads containers and pods and remembers what rates need. It does nothing while nobody asks. Safe for
// concurrent use.
type Sampler struct {
	config Config
	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	entries map[string]*entry
	queue   []*entry // layers to measure in the background
	runners int
	wait    sync.WaitGroup
}

// entry is what is known of one target. At most one goroutine reads it at a time, so that one which hangs costs one.
type entry struct {
	mu      sync.Mutex
	busy    chan struct{} // closed when who reads it is done; nil: nobody does
	reading *Cgroup       // the last; immutable
	rate    uint64        // nanocores
	base    *Cgroup       // the reading that the next rate is taken from
	nets    []model.InterfaceUsage
	detail  *Detail              // the last; immutable; nil: nobody asked
	figures *model.CgroupFigures // the same

	layerDir  string
	layer     *model.FilesystemUsage // the last; immutable
	layerNext time.Time              // when it is due again
	measuring bool                   // it is in the queue or under way
}

// depth is how much of a cgroup is read.
type depth int

const (
	usage   depth = iota // what the CRI's statistics have
	details              // what its metrics have, too
	figures              // usage, and the files as they are
)

const (
	// minWindow is the least time that a rate is taken over: a shorter one says more of the clock than of the container.
	minWindow = time.Second
	// firstMeasure is how long a reading may wait for the first figure of a layer; a container just made has an empty one.
	firstMeasure = 5 * time.Millisecond
	// maxMeasure is how long a measurement in the background may take.
	maxMeasure = 30 * time.Second
	// share is the part of time that may go into one layer's measurement: 1/share.
	share = 100
	// readers is how many targets are read at once, and measurers how many layers in the background.
	readers   = 4
	measurers = 2
	// patience is how long readers may make no progress before others take over the rest from them.
	patience = 25 * time.Millisecond
	// hopeless is how many times patience the last targets may take without one of them answering.
	hopeless = 8
)

// New makes a Sampler. Close it.
func New(c Config) (*Sampler, error) {
	if c.Cgroups == nil {
		var err error
		if c.Cgroups, err = cgroup.Host(); err != nil {
			return nil, err
		}
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Second
	}
	if c.LayerAge == 0 {
		c.LayerAge = 15 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &Sampler{config: c, entries: map[string]*entry{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Close ends what runs in the background. A measurement that hangs in its file system is left behind.
func (s *Sampler) Close() {
	s.cancel()
	s.wait.Wait()
}

// Forget drops what is remembered of a container or pod.
func (s *Sampler) Forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.entries, id)
}

func (s *Sampler) entry(t Target) *entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[t.ID]
	if e == nil {
		e = &entry{}
		s.entries[t.ID] = e
	}
	e.mu.Lock()
	e.layerDir = t.Layer
	e.mu.Unlock()
	return e
}

// Containers reads containers, in the order given; Container is left nil for the caller. A container
// that does not answer in time has its last reading, with the time of that; one without any has nil parts.
// It returns by the end of ctx or Config.Timeout.
func (s *Sampler) Containers(ctx context.Context, targets []Target) []*model.ContainerUsage {
	entries := s.read(ctx, targets, usage)
	out := make([]*model.ContainerUsage, len(targets))
	all := make([]model.ContainerUsage, len(targets))
	for i, e := range entries {
		out[i] = &all[i]
		e.container(out[i])
	}
	return out
}

// Container reads one container, as Containers does.
func (s *Sampler) Container(ctx context.Context, t Target) *model.ContainerUsage {
	return s.Containers(ctx, []Target{t})[0]
}

// Sandboxes reads pods, in the order given; Sandbox and Containers are left nil for the caller.
// Otherwise as Containers.
func (s *Sampler) Sandboxes(ctx context.Context, targets []Target) []*model.SandboxUsage {
	entries := s.read(ctx, targets, usage)
	out := make([]*model.SandboxUsage, len(targets))
	for i, e := range entries {
		var c model.ContainerUsage
		e.container(&c)
		e.mu.Lock()
		out[i] = &model.SandboxUsage{At: c.At, CPU: c.CPU, Memory: c.Memory, IO: c.IO, Processes: c.Processes,
			Network: e.nets}
		e.mu.Unlock()
	}
	return out
}

// Sandbox reads one pod, as Sandboxes does.
func (s *Sampler) Sandbox(ctx context.Context, t Target) *model.SandboxUsage {
	return s.Sandboxes(ctx, []Target{t})[0]
}

// Oldest tells when the oldest readings of a cgroup and of a writable layer were made, of the targets that wanted
// selects; zero: there is none.
func (s *Sampler) Oldest(wanted func(id string) bool) (cgroup, layer time.Time) {
	s.mu.Lock()
	entries := maps.Clone(s.entries)
	s.mu.Unlock()
	for id, e := range entries {
		if !wanted(id) {
			continue
		}
		e.mu.Lock()
		if e.reading != nil && (cgroup.IsZero() || e.reading.At.Before(cgroup)) {
			cgroup = e.reading.At
		}
		if e.layer != nil && (layer.IsZero() || e.layer.At.Before(layer)) {
			layer = e.layer.At
		}
		e.mu.Unlock()
	}
	return cgroup, layer
}

// container copies what is known of an entry.
func (e *entry) container(to *model.ContainerUsage) {
	e.mu.Lock()
	defer e.mu.Unlock()
	to.At = time.Now()
	to.WritableLayer = e.layer
	r := e.reading
	if r == nil {
		return
	}
	to.At, to.Memory, to.Swap, to.IO, to.Processes = r.At, r.Memory, r.Swap, r.IO, r.Processes
	if r.CPU != nil {
		cpu := *r.CPU
		cpu.UsageNanoCores = e.rate
		to.CPU = &cpu
	}
}

// read brings the entries of targets up to date, as far as they answer in time.
func (s *Sampler) read(ctx context.Context, targets []Target, how depth) []*entry {
	entries := make([]*entry, len(targets))
	for i, t := range targets {
		entries[i] = s.entry(t)
	}
	s.each(ctx, len(targets), func(i int) { s.readOne(entries[i], targets[i], how) })
	return entries
}

// each calls f for 0 to n-1 on a few goroutines, and on more while those make no progress. It waits for calls that hang
// only a moment after all others are done, and never beyond ctx and the timeout.
func (s *Sampler) each(ctx context.Context, n int, f func(int)) {
	if n == 0 {
		return
	}
	var next, done atomic.Int64
	finished := make(chan struct{})
	worker := func() {
		for {
			i := int(next.Add(1) - 1)
			if i >= n {
				return
			}
			f(i)
			if int(done.Add(1)) == n {
				close(finished)
			}
		}
	}
	workers := min(n, readers)
	for range workers {
		go worker()
	}
	tick := time.NewTicker(patience)
	defer tick.Stop()
	end := time.NewTimer(s.config.Timeout)
	defer end.Stop()
	var before int64
	idle := 0
	for {
		select {
		case <-finished:
			return
		case <-ctx.Done():
			next.Store(int64(n))
			return
		case <-end.C:
			next.Store(int64(n))
			return
		case <-tick.C:
			now := done.Load()
			switch {
			case now != before:
				idle = 0
			case int(next.Load()) < n:
				for range workers {
					go worker()
				}
				workers *= 2
			default:
				if idle++; idle >= hopeless {
					return
				}
			}
			before = now
		}
	}
}

func (s *Sampler) readOne(e *entry, t Target, how depth) {
	if !e.claim() {
		return
	}
	defer e.release()
	if t.Cgroup != "" {
		reading, err := Read(s.config.Cgroups, t.Cgroup)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.config.Logger.Warn("a cgroup cannot be read", "id", t.ID, "error", err)
		}
		e.take(reading)
		switch {
		case reading == nil:
		case how == details:
			detail := readDetail(s.config.Cgroups, t, reading)
			e.mu.Lock()
			e.detail = detail
			e.mu.Unlock()
		case how == figures:
			all := readFigures(s.config.Cgroups, t.Cgroup)
			e.mu.Lock()
			e.figures = all
			e.mu.Unlock()
		}
	}
	if t.Network {
		nets, err := Interfaces(t.NetNS)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.config.Logger.Warn("network counters cannot be read", "id", t.ID, "error", err)
		}
		e.mu.Lock()
		e.nets = nets
		e.mu.Unlock()
	}
	s.layer(e)
}

// claim makes the caller the reader of an entry. Where there is one already, under way or stuck, it says false:
// the last reading has to do, and where there is none, what the other finds within a moment.
func (e *entry) claim() bool {
	e.mu.Lock()
	busy, known := e.busy, e.reading != nil
	if busy == nil {
		e.busy = make(chan struct{})
		e.mu.Unlock()
		return true
	}
	e.mu.Unlock()
	if !known {
		select {
		case <-busy:
		case <-time.After(firstMeasure):
		}
	}
	return false
}

func (e *entry) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.busy)
	e.busy = nil
}

// take stores a reading (nil: the cgroup is gone) and works out the rate.
func (e *entry) take(r *Cgroup) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reading = r
	if r == nil || r.CPU == nil {
		e.base, e.rate = nil, 0
		return
	}
	if e.base == nil || r.CPU.UsageNanoSeconds < e.base.CPU.UsageNanoSeconds { // less than before: another cgroup
		e.base, e.rate = r, 0
		return
	}
	if window := r.At.Sub(e.base.At); window >= minWindow {
		used := r.CPU.UsageNanoSeconds - e.base.CPU.UsageNanoSeconds
		e.rate = uint64(float64(used) / window.Seconds())
		e.base = r
	}
}

// layer sees to the figure of a writable layer: the first one at once if that is cheap, later ones in the background.
func (s *Sampler) layer(e *entry) {
	e.mu.Lock()
	dir, first := e.layerDir, e.layer == nil
	due := dir != "" && !e.measuring && s.config.Measure != nil && !time.Now().Before(e.layerNext)
	if due {
		e.measuring = true
	}
	e.mu.Unlock()
	if !due {
		return
	}
	if first {
		ctx, cancel := context.WithTimeout(s.ctx, firstMeasure)
		err := s.measure(ctx, e, dir)
		cancel()
		if err == nil || !errors.Is(err, context.DeadlineExceeded) {
			return
		}
		e.mu.Lock()
		e.measuring = true
		e.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, e)
	if s.runners < measurers && s.ctx.Err() == nil {
		s.runners++
		s.wait.Add(1)
		go s.run()
	}
}

// run measures what is in the queue and ends when that is empty.
func (s *Sampler) run() {
	defer s.wait.Done()
	for {
		s.mu.Lock()
		if len(s.queue) == 0 || s.ctx.Err() != nil {
			s.queue = nil
			s.runners--
			s.mu.Unlock()
			return
		}
		e := s.queue[0]
		s.queue = s.queue[1:]
		s.mu.Unlock()

		e.mu.Lock()
		dir := e.layerDir
		e.mu.Unlock()
		ctx, cancel := context.WithTimeout(s.ctx, maxMeasure)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = s.measure(ctx, e, dir) // measure says when to try again
		}()
		select {
		case <-done:
		case <-ctx.Done():
			// A measurement sees the end of ctx within some files. One that does not hangs in its file system; its
			// entry stays marked as being measured, and is not tried again until it comes back.
			select {
			case <-done:
			case <-time.After(time.Second):
				s.config.Logger.Warn("a writable layer does not answer", "directory", dir)
			}
		}
		cancel()
	}
}

func (s *Sampler) measure(ctx context.Context, e *entry, dir string) error {
	start := time.Now()
	bytes, inodes, err := s.config.Measure(ctx, dir)
	cost := time.Since(start)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.measuring = false
	e.layerNext = time.Now().Add(max(s.config.LayerAge, share*cost))
	if err != nil {
		return err
	}
	mountpoint := s.config.Mountpoint
	if mountpoint == "" {
		mountpoint = filepath.Dir(dir)
	}
	e.layer = &model.FilesystemUsage{At: start, Mountpoint: mountpoint, UsedBytes: bytes, InodesUsed: inodes}
	return nil
}
