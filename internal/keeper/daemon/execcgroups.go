package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"berth/internal/keeper/cgroupdir"
)

// execCgroup is the beginning of the name of an exec's cgroup in its container's; the exec's ID follows.
const execCgroup = "berth-exec-"

// maxSweep is how many cgroups of ended execs one sweep tries to remove at most. An exec leaves one, so that a
// container whose execs each leave a process for a while has no more and more of them.
const maxSweep = 16

// leftCgroups are the cgroups of a container's execs that have ended and had left processes in them.
type leftCgroups struct {
	mu     sync.Mutex
	listed bool     // dirs has those that were there when this program of the keeper first looked
	dirs   []string // the one that was tried the longest time ago is the first
}

// sweepExecCgroups removes cgroups of ended execs in which no process is left. left is that of one that has just ended
// and could not be removed yet; empty: there is none. Nobody waits for it.
func (c *container) sweepExecCgroups(left string) {
	l := &c.left
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.listed {
		l.listed = true
		l.dirs = c.listExecCgroups()
	}
	if left != "" && !slices.Contains(l.dirs, left) {
		l.dirs = append(l.dirs, left)
	}
	n := min(len(l.dirs), maxSweep)
	tried := l.dirs[:n:n]
	l.dirs = slices.Clone(l.dirs[n:])
	for _, dir := range tried {
		if !cgroupdir.RemoveEmpty(dir) {
			l.dirs = append(l.dirs, dir)
		}
	}
}

// listExecCgroups returns the cgroups of execs that have ended, also of those that an earlier keeper has known.
func (c *container) listExecCgroups() (dirs []string) {
	c.mu.Lock()
	base := cgroupdir.OfExecs(c.record.Cgroups)
	c.mu.Unlock()
	if base == "" {
		return nil
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		return nil // the container has ended
	}
	// An exec is in the table before its cgroup is made.
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		id, ok := strings.CutPrefix(e.Name(), execCgroup)
		if p := c.execs[id]; ok && e.IsDir() && (p == nil || p.record.Exited) {
			dirs = append(dirs, filepath.Join(base, e.Name()))
		}
	}
	return dirs
}
