package logpump

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/loglimit"
)

// rate is how much a log gets in a second. What a log may get is counted in bytes of records. It is less than nothing
// after a write that was larger than what was left, so the rate is kept in the long run, whatever the size of a write.
type rate struct {
	drop   bool // else the pumps wait
	second int64
	burst  int64

	mu   sync.Mutex
	left float64
	at   time.Time // when left was right
}

// newRate is that of a log that gets nothing at first, or a whole burst.
func newRate(limits loglimit.Limits, full bool) *rate {
	r := &rate{drop: limits.Over == loglimit.Drop, second: limits.Rate, burst: limits.Burst, at: time.Now()}
	if full {
		r.left = float64(limits.Burst)
	}
	return r
}

// take takes n bytes, and returns how many were left before.
func (r *rate) take(n int, now time.Time) float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d := now.Sub(r.at); d > 0 {
		r.left = min(r.left+d.Seconds()*float64(r.second), float64(r.burst))
		r.at = now
	}
	left := r.left
	r.left -= float64(n)
	return left
}

// wait is how long the pumps have to wait before they read more.
func (r *rate) wait(now time.Time) time.Duration {
	if r.drop {
		return 0
	}
	if left := r.take(0, now); left < 0 {
		return time.Duration(-left / float64(r.second) * float64(time.Second))
	}
	return 0
}

// resumes is how much has to be left before lines come again after some were dropped: what a second brings. So a log
// does not say several times a second that lines were dropped.
func (r *rate) resumes() float64 { return float64(min(r.second, r.burst)) }

// first is how much a pump reads at once to begin with. One that is held back finds out how much it is that takes a
// step's time, so that the log grows steadily.
func (r *rate) first() int {
	if r.drop {
		return readSize
	}
	return leastStep
}

const (
	// steps is how often in a second a pump reads that is held back.
	steps     = 16
	leastStep = 256
)

// next is how much a pump reads after it has read step bytes and waits for d. Records of short lines are much longer
// than the lines.
func (r *rate) next(step int, d time.Duration) int {
	switch {
	case r.drop:
		return step
	case d > 2*time.Second/steps:
		return max(step/2, leastStep)
	case d < time.Second/steps:
		return int(min(int64(step)*2, max(r.second/steps, leastStep), readSize))
	}
	return step
}

// Limit sets the limits of a log, before its pumps are made. A log that begins may get a whole burst at once.
func (l *Log) Limit(limits loglimit.Limits, begins bool) {
	if l.path == "" {
		return
	}
	if limits.MaxSize > 0 {
		l.rotation = newRotation(limits.MaxSize, limits.MaxFiles)
	}
	if limits.Rate > 0 {
		l.rate = newRate(limits, begins)
	}
}

// hold waits until the log may get more. Stop, End and Hasten end it.
func (p *Pump) hold() {
	r := p.log.rate
	d := r.wait(time.Now())
	p.step = r.next(p.step, d)
	if d <= 0 || p.hasty.Load() {
		return
	}
	begin := time.Now()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.wake:
	}
	// A container that has nothing to write was not held back.
	var waits int
	_ = p.raw.Control(func(fd uintptr) { waits, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if waits > 0 || p.buf.waits > 0 {
		totals.held.Add(int64(time.Since(begin)))
	}
}

// Hasten is called when the container has ended: what it has left in its pipe is read without waiting for the rate.
func (p *Pump) Hasten() {
	p.hasty.Store(true)
	token(p.wake)
}

// dropper leaves lines of a stream out that are over the log's rate.
type dropper struct {
	rate *rate
	// lost is what was left out since the log last said so. While there is something, lines are left out.
	lost
}

// begin returns the record that says how much was left out, where it is time for it: lines come again, or never.
func (d *dropper) begin(head []byte, now time.Time, never bool) []byte {
	if d.lines == 0 || !never && (d.inside != 0 || d.rate.take(0, now) < d.rate.resumes()) {
		return nil
	}
	lines := "lines"
	if d.lines == 1 {
		lines = "line"
	}
	b := fmt.Appendf(append([]byte(nil), head...), "F berth: %d %s (%d bytes) dropped: the container writes more than "+
		"%d bytes a second to its log\n", d.lines, lines, d.lost.bytes, d.rate.second)
	d.rate.take(len(b), now)
	d.lost = lost{inside: d.inside}
	return b
}

// admit says whether a record gets into the log: the first of a line, unless a line is open, and the last one of it, or
// not. Either all records of a line do or none.
func (d *dropper) admit(size int, open, last bool, now time.Time) bool {
	out := d.inside != 0
	if !open {
		out = d.lines > 0 || d.rate.take(0, now) <= 0
	}
	if !out {
		d.rate.take(size, now)
		return true
	}
	d.inside = 1
	if last {
		d.endLine()
	}
	d.lost.bytes += uint64(size)
	totals.limitedBytes.Add(uint64(size))
	return false
}

// endLine counts a line that was left out.
func (d *dropper) endLine() {
	d.inside = 0
	d.lines++
	totals.limitedLines.Add(1)
}

// owes says whether the log has yet to say that lines were dropped.
func (d *dropper) owes() bool { return d != nil && d.lines > 0 && d.inside == 0 }

// wakes is what ends a pump's wait for the rate.
type wakes struct {
	wake  chan struct{} // one token
	hasty atomic.Bool   // the rate does not matter any more
}
