package node

import (
	"os"
	"strconv"
	"time"
)

// EnvPatience is how many times longer than usual anything may take: a whole number, for machines that are slow
// by nature.
const EnvPatience = "BERTH_TEST_PATIENCE"

// Patience is how long something that usually takes at most d may take here.
func Patience(d time.Duration) time.Duration {
	if times, err := strconv.Atoi(os.Getenv(EnvPatience)); err == nil && times > 1 {
		return d * time.Duration(times)
	}
	return d
}
