package node

import (
	"os"
	"strconv"
	"time"
)

// EnvPatience is how many times longer than usual anything may take: a whole number, for machines that are slow
// by nature.
const EnvPatience = "BERTH_TEST_PATIENCE"

// busy is how many times longer than usual anything may take on every machine. One of two processors that runs all
// packages at once, and other builds beside them, is many times slower than the same machine at rest, and stands still
// for seconds. A long limit costs time only where something is broken.
const busy = 5

// Patience is how long something that usually takes at most d may take here: a limit that is not reached when all is
// well. What a test waits out has Lapse.
func Patience(d time.Duration) time.Duration { return busy * Lapse(d) }

// Lapse is d, or as many times d as EnvPatience says: for times that pass in a test that succeeds, such as the time
// that a plugin has which hangs.
func Lapse(d time.Duration) time.Duration {
	if times, err := strconv.Atoi(os.Getenv(EnvPatience)); err == nil && times > 1 {
		return d * time.Duration(times)
	}
	return d
}
