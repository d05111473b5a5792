package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/procfs"
)

// maxEnvironment is how much of a process's environment is read. A plugin has berthd's, and some hundred bytes of CNI.
const maxEnvironment = 256 << 10

// endOrphans ends the plugins that an earlier berthd, which was killed, has left at work on an ADD. The pod's DEL has
// to come after them: a plugin that goes on after the DEL takes an address that nobody gives back. The processes of the
// node are looked through once, and only for a pod of whose ADD libcni has kept no result. The caller holds the pod's
// lock.
func (n *Networks) endOrphans(ctx context.Context, network, id string) error {
	if _, err := os.Stat(n.cachePath(network, id)); err == nil {
		return nil
	}
	n.orphansMu.Lock()
	defer n.orphansMu.Unlock()
	if !n.earlier[id] {
		return nil
	}
	pods, err := n.unfinished()
	if err != nil {
		return err
	}
	for {
		orphans, err := adding(pods)
		if err != nil {
			return err
		}
		if len(orphans) == 0 {
			n.earlier = nil
			return nil
		}
		n.log.Warn("CNI plugins that an earlier berthd has left at work are ended", "processes", len(orphans))
		if err := kill(ctx, orphans); err != nil {
			return fmt.Errorf("end the CNI plugins of an earlier berthd: %w", err)
		}
	}
}

// unfinished are the pods that an earlier berthd has recorded and of whose ADD libcni has kept no result. What a plugin
// has left running for a pod that was joined, such as a name server, belongs to that pod. orphansMu is held.
func (n *Networks) unfinished() (map[string]bool, error) {
	pods := map[string]bool{}
	n.mu.Lock()
	defer n.mu.Unlock()
	for id := range n.earlier {
		r := n.records[id]
		if r == nil {
			continue
		}
		list, _, err := r.runtime()
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(n.cachePath(list.Name, id)); err != nil {
			pods[id] = true
		}
	}
	return pods, nil
}

// adding returns pidfds of the processes that add one of the pods to a network: plugins, the plugins that these call,
// and other programs that either of them has started. All of them have the environment of the first one.
func adding(pods map[string]bool) (pidfds []int, err error) {
	pids, err := procfs.All()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		if !adds(pid, pods) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if !adds(pid, pods) { // another process may have had the number before
			_ = unix.Close(fd)
			continue
		}
		pidfds = append(pidfds, fd)
	}
	return pidfds, nil
}

func adds(pid int, pods map[string]bool) bool {
	var add, ours bool
	for v := range strings.SplitSeq(procfs.Environment(pid, maxEnvironment), "\x00") {
		if id, ok := strings.CutPrefix(v, "CNI_CONTAINERID="); ok {
			ours = pods[id]
		}
		add = add || v == "CNI_COMMAND=ADD"
	}
	return add && ours
}

// kill kills processes, waits until all have ended, and closes the pidfds.
func kill(ctx context.Context, pidfds []int) error {
	var errs []error
	for _, fd := range pidfds {
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, err)
		}
	}
	for _, fd := range pidfds {
		if len(errs) == 0 {
			if err := awaitEnd(ctx, fd); err != nil {
				errs = append(errs, err)
			}
		}
		_ = unix.Close(fd)
	}
	return errors.Join(errs...)
}

func awaitEnd(ctx context.Context, pidfd int) error {
	for {
		poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int((100 * time.Millisecond).Milliseconds()))
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}
