package record

import (
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic is what the clock of Go's timers says (CLOCK_MONOTONIC): the time since the boot, without that in which the
// machine was suspended. It is the same for all processes of a boot, and nobody sets it, so that a keeper may write it
// down for the next one.
func Monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // no kernel is without
	}
	return time.Duration(ts.Nano())
}
