package pod

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/pod/record"
)

// chooseScore finds the oom_score_adj that the update gives. A kubelet sends the score with each change of the limits.
// If it is the one that the client has sent before, nothing is changed: an NRI plugin may have given the container
// another.
func (u *update) chooseScore() {
	wanted := u.limits.OOMScoreAdj
	if wanted == 0 || u.rec.Resources != nil && u.rec.Resources.OOMScoreAdj == wanted {
		return
	}
	score := max(int(wanted), u.host.MinOOMScoreAdj)
	if score != int(wanted) {
		u.m.log.Warn("oom_score_adj is below what this node's runtime may give", "container_id", u.container.ID(),
			"wanted", wanted, "given", score)
	}
	u.score = &score
}

// scoreProcesses changes how readily the kernel kills the processes of a running container when memory is short. A
// process that has given itself another score than the container's keeps it. Execs to come get the score of the record,
// but for those of an OCI runtime's binary, which gives them the score of the start.
func (u *update) scoreProcesses(context.Context) error {
	if u.score == nil || u.rec.Phase != record.ContainerRunning {
		return nil
	}
	u.scores = map[int]int{}
	return u.eachProcess(func(pid int) error {
		now, err := oomScore(pid)
		if err != nil {
			return err
		}
		before, seen := u.scores[pid]
		if !seen {
			before, u.scores[pid] = now, now
		}
		if !u.rescores(before) {
			return nil
		}
		return setOOMScore(pid, *u.score)
	})
}

// rescores tells whether the update changes the score of a process that had this one. A record of an earlier version
// does not say which score is the container's: then all are changed.
func (u *update) rescores(before int) bool {
	p := u.rec.Process
	return p == nil || p.OOMScoreAdj == nil || before == *p.OOMScoreAdj
}

// scoreBack gives the processes the scores that they had. A process that came meanwhile gets the container's.
func (u *update) scoreBack(context.Context) error {
	if len(u.scores) == 0 {
		return nil
	}
	return u.eachProcess(func(pid int) error {
		before, seen := u.scores[pid]
		if !seen {
			now, err := oomScore(pid)
			if err != nil || now != *u.score || u.rec.Process == nil || u.rec.Process.OOMScoreAdj == nil {
				return err
			}
			before = *u.rec.Process.OOMScoreAdj
		}
		if !u.rescores(before) {
			return nil
		}
		return setOOMScore(pid, before)
	})
}

// eachProcess calls do for the processes of the container, and again for those that were forked meanwhile. A process
// that has ended is no error.
func (u *update) eachProcess(do func(pid int) error) error {
	for range 2 {
		pids, err := u.m.cgroups.Processes(u.rec.Cgroup)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if err := do(pid); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
	}
	return nil
}

func oomScoreFile(pid int) string { return fmt.Sprintf("/proc/%d/oom_score_adj", pid) }

func oomScore(pid int) (int, error) {
	text, err := os.ReadFile(oomScoreFile(pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(text)))
}

func setOOMScore(pid, score int) error {
	err := os.WriteFile(oomScoreFile(pid), []byte(strconv.Itoa(score)), 0)
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%d: without CAP_SYS_RESOURCE, berthd may not lower it that far: %w", score,
			errdefs.ErrFailedPrecondition)
		return model.FieldUpdate.Within(model.LimitOOMScoreAdj.Wrong(err))
	}
	return err
}
