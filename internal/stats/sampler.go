package stats

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
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
	// Measure is what a writable layer takes, as rootfs.Usage; with an error it is what was counted before.
	Measure func(ctx context.Context, dir string) (bytes, inodes uint64, err error)
	// Mountpoint is what FilesystemUsage.Mountpoint says: a directory on the layers' file system that stays. Empty:
	// the one that a layer is in.
	Mountpoint string
	// Timeout bounds a call, of whatever many targets; 0: 2 s.
	Timeout time.Duration
	// LayerAge is how old a figure of a writable layer may become while somebody asks for it; 0: 15 s. One that is
	// expensive to have becomes older, since a hundredth of the time is spent on it, but the next measurement begins after
	// two minutes, or as soon as one of those that are under way has ended.
	LayerAge time.Duration
	// MaxMeasure is how long a measurement in the background may take; 0: 30 s. What it has counted by then is a figure
	// too, if it is more than the last one.
	MaxMeasure time.Duration
	Logger     *slog.Logger
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

// depth is how much of a cgroup is read.
type depth int

const (
	usage    depth = iota // what the CRI's statistics of containers have
	podUsage              // what those of pods have
	details               // what its metrics have, too
	figures               // usage, and the files as they are
)

// neededParts are the parts of a cgroup that usage and podUsage need.
var neededParts = map[depth]parts{usage: swap, podUsage: processes}

const (
	// readers is how many targets are read at once.
	readers = 4
	// patience is how long readers may make no progress before as many others start to read the remaining targets.
	patience = 25 * time.Millisecond
	// maxIdle is for how many periods of patience a call waits for targets that are being read while none of them
	// answers.
	maxIdle = 8
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
	if c.MaxMeasure == 0 {
		c.MaxMeasure = 30 * time.Second
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
		e.reading, e.base, e.rate = nil, nil, nil
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
				if idle++; idle >= maxIdle {
					return
				}
			}
			before = now
		}
	}
}

// readOne reads one target, unless another goroutine reads it already.
func (s *Sampler) readOne(e *entry, t Target, how depth) {
	if !e.claim() {
		return
	}
	defer e.release()
	if t.Cgroup != "" {
		s.readCgroup(e, t, how)
	}
	if t.Network {
		nets, omitted, err := Interfaces(t.NetNS)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.config.Logger.Warn("network counters cannot be read", "id", t.ID, "error", err)
		}
		e.mu.Lock()
		first := omitted > 0 && !e.crowded
		e.nets, e.crowded = nets, e.crowded || omitted > 0
		e.mu.Unlock()
		if first {
			s.config.Logger.Warn("a pod has more interfaces than statistics tell of", "pod_id", t.ID, "interfaces", len(nets),
				"omitted", omitted)
		}
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
