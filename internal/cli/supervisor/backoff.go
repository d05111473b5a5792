package supervisor

import "time"

// How long a kubelet waits before it starts a container again.
const (
	initialDelay = 10 * time.Second
	maxDelay     = 5 * time.Minute
)

// Backoff is how long a container waits for its next start. The first restart is at once, and the delays after it
// double. What has run for twice the longest delay begins anew.
type Backoff struct {
	delay time.Duration // before the restart after the next one
	last  time.Time     // the last restart
}

// Next returns how long after its end a container is started again.
func (b *Backoff) Next(finished time.Time) time.Duration {
	wait := b.delay
	if wait == 0 || finished.Sub(b.last) > 2*maxDelay {
		wait, b.delay = 0, initialDelay
	} else {
		b.delay = min(2*wait, maxDelay)
	}
	b.last = finished.Add(wait)
	return wait
}
