package pod

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
	"berth/internal/pod/record"
)

// oomScore changes how readily the kernel kills the processes of a container when memory is short: of those that run
// and of execs to come, which an OCI runtime's binary gives the score of the start; or of a container that is to start.
func (u *update) oomScore() error {
	wanted := u.limits.OOMScoreAdj
	if wanted == 0 {
		return nil
	}
	score := max(int(wanted), u.host.MinOOMScoreAdj)
	if score != int(wanted) {
		u.m.log.Warn("oom_score_adj is below what this node's runtime may give", "container_id", u.container.ID(),
			"wanted", wanted, "given", score)
	}
	r := u.container.Record()
	if r.Phase == record.ContainerRunning {
		for range 2 { // a process that was forked meanwhile has the old one
			pids, err := u.host.Cgroups.Processes(r.Cgroup)
			if err != nil {
				return err
			}
			for _, pid := range pids {
				if err := setOOMScore(pid, score); err != nil {
					return err
				}
			}
		}
	}
	err := u.changeSpec(func(spec *specs.Spec) { spec.Process = withOOMScore(spec.Process, score) })
	if err != nil {
		return err
	}
	if r.Process == nil {
		return nil
	}
	return u.container.Update(record.Save, func(r *record.Container) { r.Process = withOOMScore(r.Process, score) })
}

func withOOMScore(p *specs.Process, score int) *specs.Process {
	next := *p
	next.OOMScoreAdj = &score
	return &next
}

func setOOMScore(pid, score int) error {
	err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte(strconv.Itoa(score)), 0)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH): // it has ended
		return nil
	case errors.Is(err, fs.ErrPermission):
		err = fmt.Errorf("%d: this node's runtime may not lower it that far: %w", score, errdefs.ErrFailedPrecondition)
		return model.FieldUpdate.Within(model.LimitOOMScoreAdj.Wrong(err))
	}
	return err
}
