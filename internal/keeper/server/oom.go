package server

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// oomLedger tells how many processes of a container the kernel has killed for want of memory, at the container's end.
//
// On v2 systemd removes a container's cgroup as soon as its last process is gone, which may be before anybody has read
// what it had counted. The cgroup above it outlives it and counts for all below: what it has that the other containers
// there do not account for is the container's.
type oomLedger struct {
	mu      sync.Mutex
	parents map[string]*oomParent // by directory; those with a running container
}

type oomParent struct {
	running map[string]bool // directories of containers
	others  int             // what is in the parent's count and not of a running container
}

// begin has to come before the container's program does anything. It may be called again.
func (l *oomLedger) begin(paths map[string]string) {
	dir, ok := paths[""]
	if !ok || dir == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.parents[filepath.Dir(dir)]
	if p == nil {
		total, _ := oomKills(filepath.Join(filepath.Dir(dir), "memory.events"))
		p = &oomParent{running: map[string]bool{}, others: total}
		if l.parents == nil {
			l.parents = map[string]*oomParent{}
		}
		l.parents[filepath.Dir(dir)] = p
	}
	if !p.running[dir] {
		p.running[dir] = true
		own, _ := oomKills(filepath.Join(dir, "memory.events"))
		p.others -= own
	}
}

// end is how many processes were killed. The container's first process has ended.
func (l *oomLedger) end(paths map[string]string) int {
	dir, ok := paths[""]
	if !ok {
		if paths["memory"] == "" {
			return 0
		}
		own, _ := oomKills(filepath.Join(paths["memory"], "memory.oom_control"))
		return own
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	own, counted := oomKills(filepath.Join(dir, "memory.events"))
	p := l.parents[filepath.Dir(dir)]
	if p == nil || !p.running[dir] {
		return own
	}
	delete(p.running, dir)
	if len(p.running) == 0 {
		delete(l.parents, filepath.Dir(dir))
	}
	if !counted {
		total, _ := oomKills(filepath.Join(filepath.Dir(dir), "memory.events"))
		own = total - p.others
		for other := range p.running {
			kills, _ := oomKills(filepath.Join(other, "memory.events"))
			own -= kills
		}
		own = max(0, own)
	}
	p.others += own
	return own
}

// oomKills reads oom_kill of memory.events (v2) or memory.oom_control (v1, Linux 4.13). ok is false where there is
// none.
func oomKills(file string) (kills int, ok bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if v, found := strings.CutPrefix(line, "oom_kill "); found {
			kills, err = strconv.Atoi(strings.TrimSpace(v))
			return kills, err == nil
		}
	}
	return 0, false
}
