package firstbytes

import (
	"os/exec"
	"syscall"
	"time"
)

// Group has a command's program end with all that it has started when the command's context ends. What has left the
// program's process group stays, and holds the pipes of a program that has ended for a second at most. It is called
// before the command is started.
func Group(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
}
