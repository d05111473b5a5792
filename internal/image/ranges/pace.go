package ranges

import "time"

const (
	// window is how long the reader is watched before there may be more connections.
	window = 50 * time.Millisecond
	// longWindow is the same before there is one fewer: what was loaded ahead hides for a while that it will be missed.
	longWindow = time.Second
	// starving is the part of its time that a reader may wait before more connections are tried, as one of so many.
	starving = 20
	// sated is the part of its time that a reader waits who would do with fewer connections, as one of so many.
	sated = 50
)

// pace decides how many connections a blob has at a time. More are tried only while the reader waits for
// bytes: where unpacking is the limit, one connection is enough.
type pace struct {
	target       int
	short, long  time.Time     // when the windows began
	waitedInIt   time.Duration // in the short one
	waitedInLong time.Duration
}

// note is told that the reader has just waited for bytes. It returns whether there may be more connections.
func (p *pace) note(now time.Time, waited time.Duration, most int) bool {
	if p.short.IsZero() {
		p.short, p.long = now.Add(-waited), now.Add(-waited)
	}
	p.waitedInIt += waited
	p.waitedInLong += waited
	more := false
	if took := now.Sub(p.short); took >= window {
		if p.waitedInIt > took/starving && p.target < most {
			p.target = min(2*p.target, most)
			more = true
		}
		p.short, p.waitedInIt = now, 0
	}
	if took := now.Sub(p.long); took >= longWindow {
		if p.waitedInLong < took/sated && p.target > 1 {
			p.target--
		}
		p.long, p.waitedInLong = now, 0
	}
	return more
}
