// Package oom counts processes of containers that the kernel's OOM killer has ended.
package oom

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Ledger tells how many processes of a container the kernel has killed for want of memory, at the container's end.
//
// On v2 systemd removes a container's cgroup as soon as its last process is gone, which may be before anybody has read
// what it had counted. The cgroup above it outlives it and counts for all below: what it has that the other containers
// there do not account for is the container's.
type Ledger struct {
	mu      sync.Mutex
	parents map[string]*parent // by directory; those with a running container
}

type parent struct {
	running map[string]bool // directories of containers
	others  int             // what is in the parent's count and not of a running container
}

// Begin has to come before the container's program does anything. It may be called again.
func (l *Ledger) Begin(paths map[string]string) {
	dir, ok := paths[""]
	if !ok || dir == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.parents[filepath.Dir(dir)]
	if p == nil {
		total, _ := kills(filepath.Join(filepath.Dir(dir), "memory.events"))
		p = &parent{running: map[string]bool{}, others: total}
		if l.parents == nil {
			l.parents = map[string]*parent{}
		}
		l.parents[filepath.Dir(dir)] = p
	}
	if !p.running[dir] {
		p.running[dir] = true
		own, _ := kills(filepath.Join(dir, "memory.events"))
		p.others -= own
	}
}

// End returns how many processes were killed. It is called when the container's init process has ended.
func (l *Ledger) End(paths map[string]string) int {
	dir, ok := paths[""]
	if !ok {
		if paths["memory"] == "" {
			return 0
		}
		own, _ := kills(filepath.Join(paths["memory"], "memory.oom_control"))
		return own
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	own, counted := kills(filepath.Join(dir, "memory.events"))
	p := l.parents[filepath.Dir(dir)]
	if p == nil || !p.running[dir] {
		return own
	}
	delete(p.running, dir)
	if len(p.running) == 0 {
		delete(l.parents, filepath.Dir(dir))
	}
	if !counted {
		total, _ := kills(filepath.Join(filepath.Dir(dir), "memory.events"))
		own = total - p.others
		for other := range p.running {
			n, _ := kills(filepath.Join(other, "memory.events"))
			own -= n
		}
		own = max(0, own)
	}
	p.others += own
	return own
}

// kills reads oom_kill of memory.events (v2) or memory.oom_control (v1, Linux 4.13). ok is false where there is
// none.
func kills(file string) (n int, ok bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if v, found := strings.CutPrefix(line, "oom_kill "); found {
			n, err = strconv.Atoi(strings.TrimSpace(v))
			return n, err == nil
		}
	}
	return 0, false
}
