package client_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup/nested"
	keeper "berth/internal/keeper/client"
)

// signal32 is kept by glibc for itself, which ignores it in whatever posix_spawn starts; make, for one, starts all so.
// Go gives most others their default action back by itself.
const signal32 = 32

// setAction is rt_sigaction(2), since libraries refuse signal32.
func setAction(t *testing.T, handler uintptr) {
	t.Helper()
	action := struct{ handler, flags, restorer, mask uintptr }{handler: handler}
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal32, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
}

// Not parallel: what a process ignores holds for all of it.
func TestWhatTheKeepersParentIgnoresContainersDoNot(t *testing.T) {
	setAction(t, 1) // SIG_IGN
	defer setAction(t, 0)
	n := start(t)
	n.run(n.request("a", "sleep", "1000"))
	out, _ := n.exec("a", 0, "grep", "SigIgn", "/proc/self/status")
	if f := strings.Fields(out); len(f) != 2 || strings.Trim(f[1], "0") != "" {
		t.Errorf("a container ignores signals: %q", out)
	}
}

// TestAContainerEndsWithWhatItHasFrozen: a container that runs containers itself may have paused one, and on cgroup v1
// a frozen process does not end. The init process of the container waits for it.
//
// Seen to fail where only the container's own cgroup was thawed: neither a signal nor a removal ended the container.
func TestAContainerEndsWithWhatItHasFrozen(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*keeper.RunRequest)
		end  func(*node) error
	}{
		"a signal": {
			edit: func(*keeper.RunRequest) {},
			end: func(n *node) error {
				err := n.client.Signal(n.ctx(), "a", unix.SIGKILL, true)
				n.ended("a")
				return err
			},
		},
		"a removal": {
			edit: func(*keeper.RunRequest) {},
			end:  func(n *node) error { return n.client.Delete(n.ctx(), "a") },
		},
		"a removal in the node's PID namespace": {
			edit: inNodesPIDNamespace,
			end:  func(n *node) error { return n.client.Delete(n.ctx(), "a") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			req := n.request("a", "sh", "-c", "sleep 4000 & sleep 4000 & wait")
			req.Spec.Linux.Namespaces = append(req.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
			c.edit(req)
			pid := n.run(req).PID
			own, state, frozen := "/sys/fs/cgroup/freezer"+n.cgroup+"/a", "freezer.state", "FROZEN"
			if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
				own, state, frozen = "/sys/fs/cgroup"+n.cgroup+"/a", "cgroup.freeze", "1"
			}
			n.until("it has started others", func() bool {
				pids, err := nested.Processes(own)
				return err == nil && len(pids) == 3
			})
			pids, err := nested.Processes(own)
			if err != nil {
				t.Fatal(err)
			}
			// Both cgroups are frozen, and one is in the other.
			dirs := []string{filepath.Join(own, "docker"), filepath.Join(own, "docker/paused")}
			for _, dir := range dirs {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range pids {
				if p == pid {
					continue
				}
				if err := os.WriteFile(filepath.Join(dirs[0], "cgroup.procs"), fmt.Append(nil, p), 0); err != nil {
					t.Fatal(err)
				}
				dirs[0], dirs[1] = dirs[1], dirs[0]
			}
			for _, dir := range dirs {
				if err := os.WriteFile(filepath.Join(dir, state), []byte(frozen), 0); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.end(n); err != nil {
				t.Error(err)
			}
		})
	}
}
