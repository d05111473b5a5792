package cni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/procfs"
)

// killPause is how long killed processes may take before they are looked for again, the first time.
const killPause = 10 * time.Millisecond

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
	for pause, said := killPause, false; ; pause, said = min(2*pause, time.Second), true {
		killed, err := killAdding(pods)
		if err != nil {
			return err
		}
		if killed == 0 {
			n.earlier = nil
			return nil
		}
		if !said {
			n.log.Warn("CNI plugins that an earlier berthd has left at work are ended", "processes", killed)
		}
		select {
		case <-ctx.Done(): // a process of the node may start others like it for ever
			return fmt.Errorf("end the CNI plugins of an earlier berthd: %w", context.Cause(ctx))
		case <-time.After(pause):
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

// killAdding kills the processes that add one of the pods to a network: plugins, the plugins that these call, and other
// programs that either of them has started. All of them have the environment of the first one. killed is how many were
// found: one of them may have started another before its end, and the end takes a moment.
func killAdding(pods map[string]bool) (killed int, err error) {
	pids, err := procfs.All()
	if err != nil {
		return 0, err
	}
	self := procfs.Cgroups(os.Getpid())
	for _, pid := range pids {
		if !adds(pid, pods) || !ofNode(procfs.Cgroups(pid), self) {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if adds(pid, pods) { // else another process had the number before
			err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			killed++
		}
		_ = unix.Close(fd)
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return killed, fmt.Errorf("kill a CNI plugin of an earlier berthd: %w", err)
		}
	}
	return killed, nil
}

// containerID is the ID of a pod or a container in the path of a cgroup.
var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// ofNode tells whether a process with these cgroups is none of a pod's. Programs of containers may have any
// environment. self are the cgroups of berthd, which may be in a container itself.
func ofNode(cgroups, self string) bool { return cgroups == self || !containerID.MatchString(cgroups) }

// adds tells whether a process has the environment of an ADD for one of the pods. One that has ended has none.
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
