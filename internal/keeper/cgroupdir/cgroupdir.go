// Package cgroupdir works on the directories of a container's cgroups: it finds, signals, freezes and kills the
// processes in them. The paths are a map from controller to directory on cgroup v1, and a map with the one key "" on
// cgroup v2.
package cgroupdir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	_ "github.com/opencontainers/cgroups/devices" // device rules
	"github.com/opencontainers/runc/libcontainer/specconv"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup/nested"
	"berth/internal/keeper/procfs"
)

const cgroupRoot = "/sys/fs/cgroup"

// recordedControllers are the v1 hierarchies that the keeper itself looks into.
var recordedControllers = []string{"freezer", "memory", "pids", "devices", "systemd"}

// Recorded returns those of a container's cgroup paths, by controller, that go into its record.
func Recorded(paths map[string]string) map[string]string {
	m := map[string]string{}
	// With v1 hierarchies there may be an empty v2 one beside them, which libcontainer also calls "".
	if cgroups.IsCgroup2UnifiedMode() {
		m[""] = paths[""]
		return m
	}
	for _, k := range recordedControllers {
		if p := paths[k]; p != "" {
			m[k] = p
		}
	}
	return m
}

// OfProcess are the directories of the cgroups that a process is in.
func OfProcess(pid int) (map[string]string, error) {
	rel, err := cgroups.ParseCgroupFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	if cgroups.IsCgroup2UnifiedMode() {
		paths[""] = filepath.Join(cgroupRoot, rel[""])
		return paths, nil
	}
	for _, k := range recordedControllers {
		name := k
		if k == "systemd" {
			name = "name=systemd"
		}
		p, ok := rel[name]
		if !ok {
			continue
		}
		mnt, root, err := cgroups.FindCgroupMountpointAndRoot("", name)
		if err != nil {
			continue
		}
		if dir, ok := below(mnt, root, p); ok {
			paths[k] = dir
		}
	}
	return paths, nil
}

// below is the directory of a cgroup in a hierarchy, of which the mount shows what is below root. In a container
// without a cgroup namespace, as the privileged ones of cgroup v1 are, root is the container's own cgroup, while the
// files in /proc have the paths from the hierarchy's root.
func below(mount, root, cgroup string) (dir string, ok bool) {
	rel, err := filepath.Rel(root, cgroup)
	if err != nil || !filepath.IsLocal(rel) {
		return "", false
	}
	return filepath.Join(mount, rel), true
}

// Members is the directory whose processes are the container's: the freezer's, else any. It is empty where the
// container has none of its own.
func Members(paths map[string]string) string {
	for _, k := range append([]string{""}, recordedControllers...) {
		if isOwn(k, paths[k]) {
			return paths[k]
		}
	}
	return ""
}

// isOwn says whether a directory can be a container's own, which a root of a hierarchy never is.
func isOwn(controller, dir string) bool {
	rel, ok := strings.CutPrefix(dir, cgroupRoot+"/")
	return ok && rel != "" && (controller == "" || strings.Contains(rel, "/"))
}

// processes lists the processes in the directory of a cgroup and below it. A test replaces it.
var processes = nested.Processes

// signalEach sends a signal to the processes of a list that are still in the directory of a cgroup or below it, but not
// to this one.
func signalEach(dir string, pids []int, sig unix.Signal) {
	for _, pid := range pids {
		if pid != os.Getpid() {
			Signal(dir, pid, sig)
		}
	}
}

// Signal sends a signal to a process if it is in the directory of a cgroup or below it. It may have ended since
// somebody has seen its number there, and a process of another container or of the node may have the number now.
func Signal(dir string, pid int, sig unix.Signal) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.EINVAL { // the number of a thread, from a threaded cgroup
		if pid = procfs.Process(pid); pid > 0 && pid != os.Getpid() {
			fd, err = unix.PidfdOpen(pid, 0)
		}
	}
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if inside(dir, pid) { // as long as the process is there, the number is its own
		_ = unix.PidfdSendSignal(fd, sig, nil, 0)
	}
}

// inside says whether a process is in the directory of a cgroup or below it.
func inside(dir string, pid int) bool {
	paths, err := OfProcess(pid)
	if err != nil {
		return false
	}
	for _, path := range paths {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// Has says whether a process is in the cgroups of a container.
func Has(paths map[string]string, pid int) bool {
	dir := Members(paths)
	return dir != "" && inside(dir, pid)
}

// killRounds bounds killing in a cgroup that forks meanwhile.
const killRounds = 100

// KillAll ends every process in the container's cgroup and below it.
func KillAll(paths map[string]string) error {
	dir := Members(paths)
	if dir == "" {
		return nil
	}
	return Kill(dir)
}

// Kill ends every process in the directory of a cgroup and below it.
func Kill(dir string) error {
	if pids, err := nested.Processes(dir); err == nil {
		if len(pids) == 0 {
			return nil
		}
		if slices.Contains(pids, os.Getpid()) {
			return fmt.Errorf("cgroup %s is the keeper's own", dir)
		}
	}
	// cgroup.kill (Linux 5.14, v2 only) takes all at once, forks included.
	if err := WriteFile(filepath.Join(dir, "cgroup.kill"), "1"); err == nil || errors.Is(err, unix.ENODEV) {
		return nil
	}
	for round := range killRounds {
		if round > 2 {
			Freeze(dir, true) // it forks faster than it is killed: what is frozen does not fork after the look
		}
		pids, err := processes(dir)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || err == nil && len(pids) == 0 {
			return nil
		}
		if err == nil {
			signalEach(dir, pids, unix.SIGKILL)
		}
		thawAll(dir)
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(min(round, 20)) * time.Millisecond)
	}
	return fmt.Errorf("processes in %s do not end", dir)
}

// Freeze freezes or thaws the cgroup of a directory, if its hierarchy has a freezer. Thawing a cgroup that is not
// frozen has no effect.
func Freeze(dir string, on bool) {
	v1, v2 := "THAWED", "0"
	if on {
		v1, v2 = "FROZEN", "1"
	} else if b, err := os.ReadFile(filepath.Join(dir, "freezer.state")); err == nil &&
		strings.TrimSpace(string(b)) == v1 {
		return
	}
	if err := WriteFile(filepath.Join(dir, "freezer.state"), v1); err != nil {
		_ = WriteFile(filepath.Join(dir, "cgroup.freeze"), v2)
	}
}

// ThawKilled lets a killed container die: on v1 a frozen process does not, and the init process waits for all others in
// its PID namespace. The container may have frozen a cgroup that it has made in its own, as a privileged one does that
// runs containers itself and has paused one.
func ThawKilled(paths map[string]string) {
	if p := paths["freezer"]; isOwn("freezer", p) {
		thawAll(p)
	}
}

// thawAll thaws the cgroup of a directory. On v1 it also thaws those in it. On v2 a process in a frozen cgroup can be
// killed.
func thawAll(dir string) {
	Freeze(dir, false)
	if unix.Access(filepath.Join(dir, "freezer.state"), unix.F_OK) == nil {
		_ = nested.Thaw(dir) // it is tried again for as long as processes are left
	}
}

// Frozen says whether the container is paused.
func Frozen(paths map[string]string) bool {
	if p, ok := paths[""]; ok {
		b, err := os.ReadFile(filepath.Join(p, "cgroup.freeze"))
		return err == nil && strings.TrimSpace(string(b)) == "1"
	}
	b, err := os.ReadFile(filepath.Join(paths["freezer"], "freezer.state"))
	return paths["freezer"] != "" && err == nil && strings.TrimSpace(string(b)) != "THAWED"
}

// WriteFile writes to a file of a cgroup and does not make one.
func WriteFile(path, data string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(data))
	return err
}

// Unified says whether a container's cgroups are of version 2.
func Unified(paths map[string]string) bool {
	_, ok := paths[""]
	return ok
}

// Sub makes a cgroup of version 1 for one exec in the container's, in the one hierarchy that is needed to find its
// processes: the freezer, of which no program reads a limit. On version 2 there is only one hierarchy, and the exec
// would not find the container's limits in its own cgroup. Sub returns the directory and what libcontainer is to be
// told; an empty directory where none can be made.
func Sub(paths map[string]string, name string) (dir string, sub map[string]string) {
	const controller = "freezer"
	base := paths[controller]
	if base == "" {
		return "", nil
	}
	dir = filepath.Join(base, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", nil
	}
	return dir, map[string]string{controller: name}
}

// OfExecs is the directory that the cgroups of execs are in; empty: there is none. On version 2 earlier versions of the
// keeper have made some.
func OfExecs(paths map[string]string) string { return cmp.Or(paths["freezer"], paths[""]) }

// Remove removes an exec's cgroup. It returns false for one that still has processes.
func Remove(dir string) bool {
	for i := range 5 {
		if RemoveEmpty(dir) {
			return true
		}
		if pids, err := nested.Processes(dir); err != nil || len(pids) > 0 {
			return false
		}
		time.Sleep(time.Duration(i) * time.Millisecond) // the kernel is still busy with the last one
	}
	return false
}

// RemoveEmpty removes a cgroup if no process and no cgroup is in it, and else returns false.
func RemoveEmpty(dir string) bool { return unix.Rmdir(dir) != unix.EBUSY }

// SignalAll sends a signal to every process of the container.
func SignalAll(paths map[string]string, sig unix.Signal) error {
	dir := Members(paths)
	if dir == "" {
		return nil
	}
	if sig == unix.SIGKILL {
		return Kill(dir)
	}
	pids, err := processes(dir)
	if err != nil {
		return err
	}
	signalEach(dir, pids, sig)
	return nil
}

// RemoveNested removes the cgroups that a container whose processes are dead has made in its own. They may be deeper
// than what libcontainer and OCI runtimes can remove.
func RemoveNested(ctx context.Context, paths map[string]string) error {
	var errs []error
	for k, p := range paths {
		if isOwn(k, p) {
			errs = append(errs, nested.Remove(ctx, p))
		}
	}
	return errors.Join(errs...)
}

// RemoveMembers removes the cgroups of a container whose processes are dead, where a runtime has left some.
func RemoveMembers(paths map[string]string, log *slog.Logger) {
	for k, p := range paths {
		if Members(map[string]string{k: p}) == "" {
			continue
		}
		if err := cgroups.RemovePath(p); err != nil {
			log.Warn("remove cgroup", "cgroup", p, "error", err)
		}
	}
}

// Thaw lets all processes of a frozen container run again, but for those in cgroups that the container itself has
// frozen.
func Thaw(paths map[string]string) {
	if p := cmp.Or(paths[""], paths["freezer"]); p != "" {
		Freeze(p, false)
	}
}

// Family lists the processes of a container that an exec has started and that can still be told to be its own: its
// session, and its descendants.
func Family(pid int, paths map[string]string) []int {
	dir := Members(paths)
	if dir == "" {
		return nil
	}
	pids, err := nested.Processes(dir)
	if err != nil {
		return nil
	}
	parent, session := map[int]int{}, map[int]int{}
	for _, q := range pids {
		f := procfs.Status(q)
		if len(f) < 4 || f[0] == "Z" {
			continue
		}
		parent[q], _ = strconv.Atoi(f[1])
		session[q], _ = strconv.Atoi(f[3])
	}
	var out []int
	for q := range parent {
		ours := session[q] == pid
		for a, n := q, 0; !ours && a > 1 && n < 1000; a, n = parent[a], n+1 {
			ours = a == pid
		}
		if ours {
			out = append(out, q)
		}
	}
	return out
}

// OfSpec returns the manager of the cgroup that a container's specification names by linux.cgroupsPath; nil if it names
// none. systemd says whether the path is slice:prefix:name.
func OfSpec(id, cgroupsPath string, systemd bool) (cgroups.Manager, error) {
	if cgroupsPath == "" {
		return nil, nil
	}
	spec := &specs.Spec{Linux: &specs.Linux{CgroupsPath: cgroupsPath}}
	cg, err := specconv.CreateCgroupConfig(&specconv.CreateOpts{
		CgroupName: id, UseSystemdCgroup: systemd, Spec: spec,
	}, nil)
	if err != nil {
		return nil, err
	}
	return NewManager(cg)
}

// KillSpec kills all processes in the cgroup that a specification names.
func KillSpec(id, cgroupsPath string, systemd bool) error {
	m, err := OfSpec(id, cgroupsPath, systemd)
	if err != nil || m == nil {
		return err
	}
	return KillAll(Recorded(m.GetPaths()))
}

// DestroySpec kills all processes in the cgroup that a specification names, and removes the cgroup.
func DestroySpec(ctx context.Context, id, cgroupsPath string, systemd bool) error {
	m, err := OfSpec(id, cgroupsPath, systemd)
	if err != nil || m == nil {
		return err
	}
	if err := KillAll(Recorded(m.GetPaths())); err != nil {
		return err
	}
	left := RemoveNested(ctx, m.GetPaths())
	if err := m.Destroy(); err != nil {
		return errors.Join(err, left)
	}
	return nil
}
