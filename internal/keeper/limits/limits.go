// Package limits reduces the resource limits of processes to those that the keeper is allowed to set.
package limits

import (
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/stage"
)

// Limits are the highest limits that this process may set for other processes. Without CAP_SYS_RESOURCE the kernel
// refuses hard limits above those of this process, and an oom_score_adj below its own. A container that asks for more
// gets the highest value that is allowed.
type Limits struct {
	all bool // CAP_SYS_RESOURCE: anything goes
	oom int  // own oom_score_adj
	// memlock is the limit of locked memory that this process began with. libcontainer lifts its own when it loads the
	// program that guards a container's devices (cgroup v2), which no later container may inherit.
	memlock unix.Rlimit
	log     *slog.Logger
	// oomOnce and rlimitOnce keep a node without the capability from saying so at every start.
	oomOnce, rlimitOnce *sync.Once
}

// Own returns those of this process.
func Own(log *slog.Logger) Limits {
	l := Limits{log: log, oomOnce: &sync.Once{}, rlimitOnce: &sync.Once{}}
	_ = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l.memlock) // fails for numbers that are no limit's
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
				caps, _ := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
				l.all = caps&(1<<unix.CAP_SYS_RESOURCE) != 0
			}
		}
	}
	if b, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		l.oom, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	return l
}

// Fit changes a container's process to what may be given. A container without a score of its own gets 0 and not the
// keeper's, which is protected.
func (l *Limits) Fit(p *specs.Process) {
	if p == nil {
		return
	}
	if p.OOMScoreAdj == nil && l.oom != 0 {
		p.OOMScoreAdj = new(int)
	}
	if p.OOMScoreAdj != nil && !l.all && *p.OOMScoreAdj < l.oom {
		l.oomOnce.Do(func() {
			l.log.Warn("no CAP_SYS_RESOURCE: oom_score_adj is not lowered below the keeper's", "keeper", l.oom)
		})
		p.OOMScoreAdj = &l.oom
	}
	l.lockedMemory(p)
	l.rlimits(p)
}

// FitExec does the same to the process of an exec. A process without limits of its own has the container's.
func (l *Limits) FitExec(p *specs.Process) {
	if len(p.Rlimits) > 0 {
		l.lockedMemory(p)
	}
	l.rlimits(p)
}

// HandOn is for the process that takes this one's place: it begins as this one did.
func (l *Limits) HandOn() error {
	return os.NewSyscallError("setrlimit", unix.Setrlimit(unix.RLIMIT_MEMLOCK, &l.memlock))
}

func (l *Limits) lockedMemory(p *specs.Process) {
	if !slices.ContainsFunc(p.Rlimits, func(r specs.POSIXRlimit) bool { return r.Type == "RLIMIT_MEMLOCK" }) {
		p.Rlimits = append(p.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_MEMLOCK", Hard: l.memlock.Max, Soft: l.memlock.Cur})
	}
}

func (l *Limits) rlimits(p *specs.Process) {
	if l.all {
		return
	}
	for i := range p.Rlimits {
		r := &p.Rlimits[i]
		n, ok := stage.LimitNumbers[r.Type]
		var own unix.Rlimit
		if !ok || unix.Getrlimit(n, &own) != nil || r.Hard <= own.Max {
			continue
		}
		l.rlimitOnce.Do(func() {
			l.log.Warn("no CAP_SYS_RESOURCE: hard limits are not raised above the keeper's", "limit", r.Type, "keeper", own.Max)
		})
		r.Hard = own.Max
		r.Soft = min(r.Soft, r.Hard)
	}
}
