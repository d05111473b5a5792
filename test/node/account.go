package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth/internal/cgroup"
)

// An accounted node has a cgroup in which its daemon begins, and stays with all that it starts. Only what runs in pods
// is not there: that is in the node's cgroup for pods. The kernel adds up the processor time of both, of processes that
// have ended too.

// accountCgroup is the cgroup of the daemon.
func (n *Node) accountCgroup() string { return "/" + n.Name + "-daemon" }

// account makes the cgroup of the daemon.
func (n *Node) account() error {
	h, err := cgroup.Host()
	if err != nil {
		return err
	}
	n.accountDir = h.Dir("cpuacct", n.accountCgroup())
	if n.accountDir == "" {
		return errors.New("processor time cannot be accounted: there is no cpuacct hierarchy")
	}
	return os.Mkdir(n.accountDir, 0o755)
}

// inAccount has a command begin in the cgroup of the daemon.
func (n *Node) inAccount(cmd *exec.Cmd) *exec.Cmd {
	if n.accountDir == "" {
		return cmd
	}
	within := exec.Command("/bin/sh", append([]string{
		"-c", `echo $$ >"$0" && exec "$@"`, filepath.Join(n.accountDir, "cgroup.procs"), cmd.Path,
	}, cmd.Args[1:]...)...)
	within.Env = cmd.Env
	return within
}

// CPUUsed is the processor time that an accounted node has taken so far: its daemon and what that has started, all of
// their children, and pods. Work that the kernel does in threads of its own is nobody's.
func (n *Node) CPUUsed() (time.Duration, error) {
	if n.accountDir == "" {
		return 0, errors.New("the node is not accounted")
	}
	h, err := cgroup.Host()
	if err != nil {
		return 0, err
	}
	own, err := cpuUsed(h, n.accountDir)
	if err != nil {
		return 0, err
	}
	pods, err := cpuUsed(h, h.Dir("cpuacct", n.CgroupRoot))
	if errors.Is(err, fs.ErrNotExist) { // there has been no pod yet
		err = nil
	}
	return own + pods, err
}

func cpuUsed(h *cgroup.Hierarchies, dir string) (time.Duration, error) {
	if h.Version == cgroup.V1 {
		text, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage"))
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
		return time.Duration(ns), err
	}
	text, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			us, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return time.Duration(us) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("%s/cpu.stat has no usage_usec: %q", dir, text)
}

// endAccount removes the cgroup of the daemon, in which nothing runs any more.
func (n *Node) endAccount() error {
	if n.accountDir == "" {
		return nil
	}
	return removeCgroup(n.accountDir)
}
