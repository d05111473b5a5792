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

// CPUUsage is processor time. Total is by the scheduler's clock. User and System are what the clock's ticks have found,
// and say how the total divides where it is long: their sum differs from it.
type CPUUsage struct{ Total, User, System time.Duration }

// Minus is the usage since an earlier one.
func (u CPUUsage) Minus(earlier CPUUsage) CPUUsage {
	return CPUUsage{Total: u.Total - earlier.Total, User: u.User - earlier.User, System: u.System - earlier.System}
}

// CPUUsed is the processor time that an accounted node has taken so far: its daemon and what that has started, all of
// their children, and pods. Work that the kernel does in threads of its own is nobody's.
func (n *Node) CPUUsed() (CPUUsage, error) {
	if n.accountDir == "" {
		return CPUUsage{}, errors.New("the node is not accounted")
	}
	h, err := cgroup.Host()
	if err != nil {
		return CPUUsage{}, err
	}
	own, err := cpuUsed(h, n.accountDir)
	if err != nil {
		return CPUUsage{}, err
	}
	pods, err := cpuUsed(h, h.Dir("cpuacct", n.CgroupRoot))
	if errors.Is(err, fs.ErrNotExist) { // there has been no pod yet
		err = nil
	}
	return CPUUsage{own.Total + pods.Total, own.User + pods.User, own.System + pods.System}, err
}

// cpuUsed is the usage of a cgroup and all below it.
func cpuUsed(h *cgroup.Hierarchies, dir string) (used CPUUsage, err error) {
	if h.Version == cgroup.V1 {
		for name, value := range map[string]*time.Duration{
			"usage": &used.Total, "usage_user": &used.User, "usage_sys": &used.System,
		} {
			text, err := os.ReadFile(filepath.Join(dir, "cpuacct."+name))
			if err != nil {
				return CPUUsage{}, err
			}
			ns, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
			if err != nil {
				return CPUUsage{}, err
			}
			*value = time.Duration(ns)
		}
		return used, nil
	}
	text, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
	if err != nil {
		return CPUUsage{}, err
	}
	values := map[string]time.Duration{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if us, err := strconv.ParseInt(value, 10, 64); err == nil {
			values[key] = time.Duration(us) * time.Microsecond
		}
	}
	if _, ok := values["usage_usec"]; !ok {
		return CPUUsage{}, fmt.Errorf("%s/cpu.stat has no usage_usec: %q", dir, text)
	}
	return CPUUsage{Total: values["usage_usec"], User: values["user_usec"], System: values["system_usec"]}, nil
}

// endAccount removes the cgroup of the daemon, in which nothing runs any more.
func (n *Node) endAccount() error {
	if n.accountDir == "" {
		return nil
	}
	return removeCgroup(n.accountDir)
}
