package runtime

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/procfs"
)

// killPause is how long KillMatching waits before it looks for processes again.
const killPause = 10 * time.Millisecond

// KillMatching kills the processes of the node that match, but never this one, until none is found. One that is found
// may have started another one before it is killed, and a killed one takes a moment to end. It returns false if some
// are still found after limit.
func KillMatching(limit time.Duration, match func(pid int) bool) (ended bool, err error) {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(killPause) {
		pids, err := procfs.All()
		if err != nil {
			return false, err
		}
		killed := false
		for _, pid := range pids {
			if pid != os.Getpid() && match(pid) {
				killed = unix.Kill(pid, unix.SIGKILL) == nil || killed
			}
		}
		if !killed {
			return true, nil
		}
	}
	return false, nil
}
