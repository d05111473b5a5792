package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/node"
)

const (
	insideArgument = "inside"
	settingsFile   = "settings.json"
	reportFile     = "report.json"
	programsDir    = "bin"
)

// enterScript moves itself into the cgroups whose cgroup.procs are its arguments up to "--", which become the roots of
// a cgroup namespace, and then into those up to the next "--". It runs what follows in further namespaces of its own.
// The first process there reaps what the others leave, and ends with the one that it runs.
const enterScript = `
while [ "$1" != -- ]; do echo $$ >"$1"; shift; done
shift
exec unshare --cgroup sh -ec '
	while [ "$1" != -- ]; do echo $$ >"$1"; shift; done
	shift
	exec unshare --mount --propagation private --net --pid --ipc --uts --fork --kill-child \
		sh -c "\"\$@\" <&3 & wait \$!" sh "$@"
' sh "$@"
`

// leaf is a cgroup of version 2 below the root of the namespace. All processes begin there: a cgroup whose children
// have controllers has no processes, and the process that has made the namespaces is not seen inside.
const leaf = "init"

// enter runs the suite in namespaces and cgroups of its own, and removes what is left of both.
func enter(ctx context.Context, s settings, programs map[string]string) (err error) {
	dir, err := os.MkdirTemp("", "nc-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, programsDir), 0o755); err != nil {
		return err
	}
	for name, from := range programs {
		if err := copyProgram(from, filepath.Join(dir, programsDir, name)); err != nil {
			return err
		}
	}
	for _, name := range standIns {
		if err := os.Symlink("nodeconformance", filepath.Join(dir, programsDir, name)); err != nil {
			return err
		}
	}
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, settingsFile), data, 0o600); err != nil {
		return err
	}
	cgroups, err := makeCgroups(filepath.Base(dir))
	defer func() { err = errors.Join(err, removeCgroups(cgroups)) }()
	if err != nil {
		return err
	}
	if err := countDisk(cgroups, dir); err != nil {
		return err
	}
	args := []string{"-ec", enterScript, "sh"}
	for _, cgroup := range cgroups {
		args = append(args, filepath.Join(cgroup, "cgroup.procs"))
	}
	args = append(args, "--")
	for _, cgroup := range cgroups {
		if isCgroup2(cgroup) {
			if err := makeCgroup(cgroup, leaf); err != nil {
				return err
			}
			args = append(args, filepath.Join(cgroup, leaf, "cgroup.procs"))
		}
	}
	args = append(args, "--", filepath.Join(dir, programsDir, "nodeconformance"), insideArgument, dir)
	// What is inside ends when this pipe does. A shell gives what it runs in the background no standard input.
	alive, hold, err := os.Pipe()
	if err != nil {
		return err
	}
	defer hold.Close()
	defer alive.Close()
	cmd := exec.CommandContext(ctx, "sh", args...)
	cmd.ExtraFiles = []*os.File{alive}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = hold.Close
	cmd.WaitDelay = 2 * time.Minute
	// It ends with this process, however that ends; a terminal's signals are for this one alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the signal comes when the thread ends that began it
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the suite's namespaces: %w", err)
	}
	return nil
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// makeCgroups makes a cgroup in every hierarchy and returns those that it made.
func makeCgroups(name string) ([]string, error) {
	roots, err := node.CgroupMounts()
	if err != nil {
		return nil, err
	}
	var made []string
	for _, root := range roots {
		dir := filepath.Join(root, name)
		if err := makeCgroup(root, name); err != nil {
			return made, err
		}
		made = append(made, dir)
	}
	return made, nil
}

func isCgroup2(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// makeCgroup makes a cgroup below root that processes may be put into.
func makeCgroup(root, name string) error {
	dir := filepath.Join(root, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if filepath.Base(root) != "cpuset" {
		return nil
	}
	// In a cpuset of v1 nothing may run before it has processors and memory nodes.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		inherited, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), inherited, 0); err != nil {
			return err
		}
	}
	return nil
}

// removeCgroups removes trees of cgroups. Their processes have been killed, and may take a moment to end.
func removeCgroups(tops []string) error {
	var errs []error
	for _, top := range tops {
		var err error
		for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
			if err = removeTree(top); err == nil {
				break
			}
		}
		if err != nil {
			procs, _ := os.ReadFile(filepath.Join(top, "cgroup.procs"))
			err = fmt.Errorf("%w (processes: %q)", err, strings.Fields(string(procs)))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := syscall.Rmdir(dir); err != nil && err != syscall.ENOENT {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}
