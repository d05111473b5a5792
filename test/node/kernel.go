package node

import (
	"os/exec"
	"sync"
	"syscall"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper/pidfd"
	"berth/internal/model"
)

// OrphansTell says whether this kernel keeps the exit code of a process that another has reaped (Linux 6.15).
var OrphansTell = sync.OnceValue(func() bool {
	fd := -1
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &fd}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	if err := cmd.Wait(); err != nil { // before New, which makes waiting through a copy of the descriptor not wait
		panic(err)
	}
	p, err := pidfd.New(fd, cmd.Process.Pid, false)
	if err != nil {
		panic(err)
	}
	defer p.Close()
	exit, err := p.Wait()
	if err != nil {
		panic(err)
	}
	return exit.Known
})

// OrphanEnded says whether this is the status of a container that ended with a code after its keeper had been killed.
// A kernel that keeps no code of it may have shown it to the next keeper, before another process reaped it.
func OrphanEnded(s *cri.ContainerStatus, code int32) bool {
	return s.ExitCode == code && s.Reason != model.ReasonKeeperLost ||
		!OrphansTell() && s.ExitCode == 255 && s.Reason == model.ReasonKeeperLost
}
