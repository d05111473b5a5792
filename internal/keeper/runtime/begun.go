package runtime

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/procfs"
	"berth/internal/keeper/proxy"
	"berth/internal/keeper/record"
	"berth/internal/keeper/stage"
)

// StageWait is how long a stage may take to notice that its keeper has ended.
const StageWait = 2 * time.Second

// WaitingBegan says whether the waiting process of a prepared container has executed the container's program. A process
// that has ended may have been the program, so it counts as begun, and the program is not started a second time. A
// process that still waits is stopped first (SIGSTOP), so that it does not continue during the check: the process that
// releases it may be alive although its keeper is dead.
func WaitingBegan(r *record.Container) bool {
	waits := func() bool {
		line := procfs.CommandLine(r.PID)
		if r.Waits == "" { // an earlier version wrote none down
			return strings.HasSuffix(line, "\x00init\x00") || stage.Is(r.PID) || proxy.Waits(r.PID)
		}
		return line == r.Waits
	}
	if !pidfd.Alive(r.PID, r.Start) || !waits() {
		return true
	}
	if err := unix.Kill(r.PID, unix.SIGSTOP); err != nil {
		return true
	}
	lives := func() bool { return pidfd.Alive(r.PID, r.Start) }
	for deadline := time.Now().Add(StageWait); lives() && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if f := procfs.Status(r.PID); len(f) > 0 && f[0] == "T" {
			break
		}
	}
	if lives() && waits() {
		return false
	}
	_ = unix.Kill(r.PID, unix.SIGCONT)
	return true
}
