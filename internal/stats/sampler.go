package stats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

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
	Cgroup string // below the hierarchies' roots; empty: none, and earlier readings are dropped
	Layer  string // the writable layer's directory; empty: none (a pod)
	// Ended says that nothing writes to the layer any more: a figure that is measured from now on stays.
	Ended bool
	NetNS string // where the network namespace is pinned; for pods
	// Network is whether to read the interfaces in NetNS.
	Network bool
	// PID is a container's init process, for its limits and what its processes have open; 0: none. Details alone.
	PID int
}

// Sampler reads containers and pods and remembers what rates need. It keeps files of cgroups open that are read again
// and again, and closes those that nobody has asked for in the last minutes. Otherwise it does nothing while nobody
// asks. Safe for concurrent use.
type Sampler struct {
	config      Config
	ctx         context.Context
	cancel      context.CancelFunc
	descriptors *descriptors

	mu      sync.Mutex
	entries map[string]*entry
	sweeps  bool     // the files that nobody reads are being watched
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

	kept      *kept     // for whoever has made busy; nil: no file is kept open
	asked     time.Time // when it was last read
	forgotten bool      // it is dropped: who reads it yet closes what is kept

	layerDir  string
	ended     bool                   // Target.Ended
	final     bool                   // layer was measured since
	layer     *model.FilesystemUsage // the last; immutable
	layerNext time.Time              // when it is due again
	measuring bool                   // it is in the queue or under way
}

// depth is how much of a cgroup is read.
type depth int

const (
	usage    depth = iota // what the CRI's statistics of containers have
	podUsage              // what those of pods have
	details               // what its metrics have, too
	figures               // usage, and the files as they are
)

// parts are those that usage and podUsage need.
var neededParts = map[depth]parts{usage: swap, podUsage: processes}

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
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("limit of open files: %w", err)
	}
	s := &Sampler{config: c, descriptors: newDescriptors(limit.Cur), entries: map[string]*entry{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Close ends what runs in the background, and closes all files. A measurement that hangs in its file system is left
// behind.
func (s *Sampler) Close() {
	s.cancel()
	s.wait.Wait()
	s.mu.Lock()
	entries := s.entries
	s.entries = map[string]*entry{}
	s.mu.Unlock()
	for _, e := range entries {
		e.forget()
	}
}

// Forget drops what is remembered of a container or pod.
func (s *Sampler) Forget(id string) {
	s.mu.Lock()
	e := s.entries[id]
	delete(s.entries, id)
	s.mu.Unlock()
	if e != nil {
		e.forget()
	}
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
	e.layerDir, e.ended = t.Layer, t.Ended
	if t.Cgroup == "" {
		e.reading, e.base, e.rate = nil, nil, 0
	}
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
	entries := s.read(ctx, targets, podUsage)
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
		s.readCgroup(e, t, how)
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

// readCgroup reads the cgroup of an entry.
func (s *Sampler) readCgroup(e *entry, t Target, how depth) {
	var (
		reading *Cgroup
		detail  *Detail
		err     error
	)
	switch how {
	case details:
		if detail, err = readDetails(s.config.Cgroups, t); err == nil {
			reading = &detail.Cgroup
		}
	case figures:
		reading, err = Read(s.config.Cgroups, t.Cgroup)
	default:
		reading, err = s.readUsage(e, t.Cgroup, neededParts[how])
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.config.Logger.Warn("a cgroup cannot be read", "id", t.ID, "error", err)
	}
	e.take(reading)
	if reading == nil {
		return
	}
	var all *model.CgroupFigures
	if how == figures {
		all = readFigures(s.config.Cgroups, t.Cgroup)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if detail != nil {
		e.detail = detail
	}
	if all != nil {
		e.figures = all
	}
}

// readUsage reads parts of the cgroup of an entry. Files stay open where an earlier reading was not long ago, for then
// there will be another one.
func (s *Sampler) readUsage(e *entry, path string, wanted parts) (*Cgroup, error) {
	now := time.Now()
	again := now.Sub(e.asked) < keepFor
	e.asked = now
	if e.kept != nil && e.kept.path != path {
		e.kept.close()
		e.kept = nil
	}
	if e.kept == nil {
		if !again || !s.descriptors.room() {
			return readParts(s.config.Cgroups, path, wanted)
		}
		e.kept = &kept{limit: s.descriptors, hierarchies: s.config.Cgroups, path: path}
		s.watch()
	}
	return readKept(e.kept, wanted)
}

// watch has files closed that nobody reads any more.
func (s *Sampler) watch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sweeps || s.ctx.Err() != nil {
		return
	}
	s.sweeps = true
	s.wait.Go(func() {
		tick := time.NewTicker(keepFor / 2)
		defer tick.Stop()
		for {
			select {
			case <-s.ctx.Done():
				return
			case <-tick.C:
				if !s.sweep(time.Now()) {
					return
				}
			}
		}
	})
}

// sweep closes the files that nobody has read for a while. It says false once none is open.
func (s *Sampler) sweep(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeps = false
	for _, e := range s.entries {
		s.sweeps = e.sweep(now) || s.sweeps
	}
	return s.sweeps
}

// sweep tells whether an entry still keeps files.
func (e *entry) sweep(now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy != nil {
		return true
	}
	if e.kept != nil && now.Sub(e.asked) > keepFor {
		e.kept.close()
		e.kept = nil
	}
	return e.kept != nil
}

// forget closes what an entry keeps, as soon as nobody reads it.
func (e *entry) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgotten = true
	e.dropForgotten()
}

// dropForgotten closes the files of an entry that is forgotten, where nobody reads it. The caller holds e.mu.
func (e *entry) dropForgotten() {
	if e.forgotten && e.busy == nil && e.kept != nil {
		e.kept.close()
		e.kept = nil
	}
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
	e.dropForgotten()
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
	due := dir != "" && !e.measuring && !e.final && s.config.Measure != nil && !time.Now().Before(e.layerNext)
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
	e.mu.Lock()
	ended := e.ended
	e.mu.Unlock()
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
	e.final = ended
	e.layer = &model.FilesystemUsage{At: start, Mountpoint: mountpoint, UsedBytes: bytes, InodesUsed: inodes}
	return nil
}
