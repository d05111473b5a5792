package stats

import (
	"sync"
	"time"

	"berth/internal/model"
)

// entry is what is known of one target. At most one goroutine reads it at a time, so that one which hangs costs one.
type entry struct {
	mu      sync.Mutex
	busy    chan struct{} // closed when the goroutine that reads the entry is done; nil: none reads it
	reading *Cgroup       // the last; immutable
	rate    *uint64       // nanocores; nil: not known
	base    *Cgroup       // the reading that the next rate is taken from
	nets    []model.InterfaceUsage
	crowded bool                 // it was logged that there are more interfaces than nets may have
	detail  *Detail              // the last; immutable; nil: nobody asked
	figures *model.CgroupFigures // the same

	kept      *kept     // belongs to the goroutine that has claimed the entry; nil: no file is kept open
	asked     time.Time // when it was last read
	forgotten bool      // it is dropped: a goroutine that still reads it closes the files that are kept

	layerDir  string
	ended     bool                   // Target.Ended
	final     bool                   // layer was measured since
	layer     *model.FilesystemUsage // the last; immutable
	layerNext time.Time              // when it is due again
	measuring bool                   // it is in the queue or under way
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

// claim makes the caller the reader of an entry. It returns false if another goroutine reads the entry, or hangs in
// reading it: the caller then uses the last reading. If there is none yet, claim waits a moment for that of the other
// goroutine.
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

// minWindow is the shortest time over which a rate is computed: a shorter one says more of the clock than of the
// container.
const minWindow = time.Second

// take stores a reading (nil: the cgroup is gone) and works out the rate.
func (e *entry) take(r *Cgroup) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reading = r
	if r == nil || r.CPU == nil {
		e.base, e.rate = nil, nil
		return
	}
	if e.base == nil || r.CPU.UsageNanoSeconds < e.base.CPU.UsageNanoSeconds { // less than before: another cgroup
		e.base, e.rate = r, nil
		return
	}
	if window := r.At.Sub(e.base.At); window >= minWindow {
		used := r.CPU.UsageNanoSeconds - e.base.CPU.UsageNanoSeconds
		rate := uint64(float64(used) / window.Seconds())
		e.base, e.rate = r, &rate
	}
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
