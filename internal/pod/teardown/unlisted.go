package teardown

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// FinishLost records that a container has ended, whose exit code is lost.
func (td *Teardown) FinishLost(c *index.Container) {
	reason, message := model.ReasonKeeperLost, "the container is not running, and no keeper knows how it ended"
	if td.Dirs.LostNamespace(new(c.Sandbox.Record())) != "" {
		reason, message = model.ReasonRebooted, "the node went down while the container ran"
	}
	td.Finish(c, func(r *record.Container) {
		r.ExitCode = 255
		r.Reason, r.Message = reason, message
		r.FinishedAt = time.Now()
	})
}

// unlistedPatience limits how long EndUnlisted waits for killed processes to end.
const unlistedPatience = 2 * time.Second

// EndUnlisted kills the processes of a container that the keeper does not know. The keeper has lost its state, so
// nobody would learn of the container's end or read its output. A container is not reported as ended while a process of
// it is alive. lived says that there were processes, and ended that there are none any more.
func (td *Teardown) EndUnlisted(ctx context.Context, c *index.Container) (lived, ended bool) {
	r := c.Record()
	if r.Cgroup == "" {
		return false, true
	}
	log := td.Log.With("container_id", c.ID())
	ctx, cancel := context.WithTimeout(ctx, unlistedPatience)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := td.Cgroups.Processes(r.Cgroup)
		if err != nil {
			log.Error("look for processes of a container", "error", err)
			return lived, false
		}
		if len(pids) == 0 {
			return lived, true
		}
		if !lived {
			log.Error("end what runs of a container that the keeper does not know: nobody could be told of it", "pids", pids)
			if err := td.Keeper.Delete(ctx, c.ID()); err != nil {
				log.Error("end a container that the keeper does not know", "error", err)
			}
		}
		lived = true
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return lived, false
		case <-time.After(wait):
		}
	}
}
