package client_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	containerdseccomp "github.com/containerd/containerd/v2/contrib/seccomp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/pidfd"

	keeper "berth/internal/keeper/client"
)

func TestPodInitReaps(t *testing.T) {
	if race {
		t.Skip("the pod's init is a static program")
	}
	n := start(t)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	req := n.request("init", "ignored")
	req.Reaper, req.LogPath = true, ""
	req.Spec.Root = &specs.Root{Path: empty}
	req.Spec.Mounts = nil
	req.Spec.Process.User = specs.User{UID: 65534, GID: 65534}
	req.Spec.Process.Capabilities = &specs.LinuxCapabilities{}
	res := n.run(req)
	// Its program's pages are the keeper's too; what it costs is what it has written to.
	var anon int
	n.until("the program has taken the place of the one that started it", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", res.PID))
		anon = rollupKiB(t, res.PID, "Anonymous:")
		return err == nil && strings.HasPrefix(string(b), "/berth-init") && anon > 0
	})
	t.Logf("pod init: %d KiB of its own, PSS %d KiB", anon, rollupKiB(t, res.PID, "Pss:"))
	if anon > 128 {
		t.Errorf("the pod's init takes %d KiB", anon)
	}

	// A container in the pod's PID namespace whose daemon outlives its parent.
	c := n.request("c", "sh", "-c", "(sleep 0.05 &); sleep 1000")
	c.PodID = "pod-of-init"
	for i := range c.Spec.Linux.Namespaces {
		if c.Spec.Linux.Namespaces[i].Type == specs.PIDNamespace {
			c.Spec.Linux.Namespaces[i].Path = fmt.Sprintf("/proc/%d/ns/pid", res.PID)
		}
	}
	n.run(c)
	if ps, _ := n.exec("c", 0, "ps", "-o", "pid,args"); !strings.Contains(ps, "1 /berth-init") &&
		!strings.Contains(ps, "1 berth-init") {
		t.Errorf("PID 1 is not the pod's init:\n%s", ps)
	}
	n.until("the orphan is reaped", func() bool {
		ps, _ := n.exec("c", 0, "ps", "-o", "args")
		return !strings.Contains(ps, "0.05") && !strings.Contains(ps, "[sleep]")
	})
	// The container's end takes the rest of it along, not the pod's init.
	if err := n.client.Signal(n.ctx(), "c", unix.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
	if st := n.ended("c"); st.ExitCode != 137 {
		t.Errorf("container: %+v", st)
	}
	if err := n.client.Signal(n.ctx(), "init", unix.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	if st := n.ended("init"); st.ExitCode != 0 {
		t.Errorf("pod init: %+v", st)
	}
	n.delete("c")
	n.delete("init")
	if left, _ := os.ReadDir(empty); len(left) > 0 {
		for _, l := range left {
			if l.Name() == "berth-init" {
				t.Errorf("%s is left in the root", l.Name())
			}
		}
	}
	n.nothingLeft()
}

func TestSharedPIDNamespaceIsCleanedUp(t *testing.T) {
	n := start(t)
	req := n.request("a", "sh", "-c", "(setsid sleep 4321 &); (setsid sh -c 'sleep 0.05' &); sleep 0.3; exit 3")
	inNodesPIDNamespace(req)
	n.run(req)
	if st := n.ended("a"); st.ExitCode != 3 {
		t.Errorf("status %+v", st)
	}
	pid := n.pid()
	n.until("orphans are reaped", func() bool { return len(children(pid)) == 0 })
	n.delete("a")
}

// children are the processes whose parent is pid.
func children(pid int) []int {
	var out []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, s := range stats {
		b, err := os.ReadFile(s)
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 1 && f[1] == strconv.Itoa(pid) {
			p, _ := strconv.Atoi(filepath.Base(filepath.Dir(s)))
			out = append(out, p)
		}
	}
	return out
}

func TestNoDescriptorLeaksIntoContainers(t *testing.T) {
	n := start(t)
	for i := range 3 {
		other := n.request(fmt.Sprint("other", i), "cat")
		other.Stdin = true
		n.run(other)
	}
	check := func(what, out string) {
		t.Helper()
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if len(f) == 0 || f[0] == "0" || f[0] == "1" || f[0] == "2" {
				continue
			}
			// What is left is the directory that ls itself reads.
			if link := strings.TrimSpace(line); link != "3" {
				t.Errorf("%s has descriptor %s", what, link)
			}
		}
	}
	n.run(n.request("a", "sh", "-c", "ls /proc/self/fd; sleep 1000"))
	n.until("the container has listed", func() bool {
		return strings.Count(n.output("stdout", n.logPath("a")), "\n") >= 4
	})
	check("container", n.output("stdout", n.logPath("a")))
	out, _ := n.exec("a", 0, "ls", "/proc/self/fd")
	check("exec", out)
	if err := n.client.Upgrade(n.ctx()); err != nil {
		t.Fatal(err)
	}
	out, _ = n.exec("a", 0, "ls", "/proc/self/fd")
	check("exec after an upgrade", out)
	n.run(n.request("b", "ls", "/proc/self/fd"))
	n.ended("b")
	check("container after an upgrade", n.output("stdout", n.logPath("b")))
	// SIGPIPE and the like have their defaults, and nothing is blocked.
	out, _ = n.exec("a", 0, "grep", "-E", "Sig(Ign|Blk)", "/proc/self/status")
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) != 2 || strings.Trim(f[1], "0") != "" {
			t.Errorf("signals: %s", line)
		}
	}
}

func TestDescriptorsOfTheKeeperAreBounded(t *testing.T) {
	n := start(t)
	n.run(n.request("stays", "sleep", "1000"))
	n.exec("stays", time.Minute, "true")
	pid := n.pid()
	count := func() int {
		l, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(l)
	}
	before := count()
	for i := range 10 {
		id := fmt.Sprint("c", i)
		req := n.request(id, "cat")
		req.Stdin = true
		n.run(req)
		n.exec(id, time.Minute, "true")
		n.exec("stays", time.Minute, "true")
		n.delete(id)
		_, _ = n.client.Run(n.ctx(), n.request("bad", "no-such-program"))
	}
	// libcontainer's own handles go with the garbage collection.
	n.until("descriptors are closed", func() bool {
		n.exec("stays", 0, "true")
		return count() <= before+12
	})
	own := func() int {
		l, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(l)
	}
	mine := own()
	for range 20 {
		n.exec("stays", 0, "true")
	}
	if now := own(); now > mine+2 {
		t.Errorf("the client had %d descriptors and has %d", mine, now)
	}
}

func TestOOMKillIsReported(t *testing.T) {
	n := start(t)
	limit := int64(40 << 20)
	req := n.request("a", "sh", "-c", "echo eating; exec dd if=/dev/zero of=/dev/null bs=200M count=1")
	req.Spec.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &limit}
	req.Spec.Linux.Resources.Devices = append(req.Spec.Linux.Resources.Devices,
		specs.LinuxDeviceCgroup{Allow: true, Access: "rwm"})
	n.run(req)
	if st := n.ended("a"); st.ExitCode != 137 || !st.OOMKilled {
		t.Errorf("status %+v", st)
	}
	n.run(n.request("b", "sh", "-c", "kill -9 $$; exit 1"))
	if st := n.ended("b"); st.OOMKilled {
		t.Errorf("killed without want of memory: %+v", st)
	}
}

func TestHooksRun(t *testing.T) {
	n := start(t)
	dir := t.TempDir()
	hook := func(name string) []specs.Hook {
		return []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "cat > " + dir + "/" + name}}}
	}
	req := n.request("a", "sleep", "1000")
	req.Spec.Hooks = &specs.Hooks{
		CreateRuntime: hook("createRuntime"), Poststart: hook("poststart"), Poststop: hook("poststop"),
	}
	res := n.run(req)
	var st specs.State
	b, err := os.ReadFile(dir + "/createRuntime")
	if err == nil {
		err = json.Unmarshal(b, &st)
	}
	if err != nil || st.ID != "a" || st.Pid != res.PID {
		t.Errorf("createRuntime was given %q, %v", b, err)
	}
	var spec specs.Spec
	if b, err := os.ReadFile(st.Bundle + "/config.json"); err != nil || json.Unmarshal(b, &spec) != nil ||
		spec.Root.Path != n.root {
		t.Errorf("the bundle of the state has no spec: %v", err)
	}
	n.delete("a")
	for _, h := range []string{"poststart", "poststop"} {
		if _, err := os.Stat(dir + "/" + h); err != nil {
			t.Errorf("%s did not run: %v", h, err)
		}
	}
	req = n.request("b", "sleep", "1000")
	req.Spec.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/bin/false", Args: []string{"false"}}}}
	if _, err := n.client.Run(n.ctx(), req); err == nil {
		t.Error("a hook that fails does not stop the start")
	}
	n.nothingLeft()
}

func TestLimitsThatTheKernelRefusesAreFitted(t *testing.T) {
	n := start(t)
	req := n.request("a", "sh", "-c", "cat /proc/self/oom_score_adj; ulimit -n; ulimit -Hn")
	score := -999
	req.Spec.Process.OOMScoreAdj = &score
	req.Spec.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 30, Soft: 1024}}
	if os.Geteuid() == 0 {
		var own unix.Rlimit
		_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &own)
		if own.Max >= 1<<20 {
			req.Spec.Process.Rlimits[0].Hard = min(own.Max, 1<<20)
		}
	}
	n.run(req)
	if st := n.ended("a"); st.ExitCode != 0 {
		t.Errorf("status %+v", st)
	}
	if f := strings.Fields(n.output("stdout", n.logPath("a"))); len(f) != 3 || f[1] != "1024" {
		t.Errorf("limits are %v", f)
	}
}

func TestUserNamespace(t *testing.T) {
	n := start(t)
	n.reachable()
	req := n.request("a", "sh", "-c", "id -u; cat /proc/self/uid_map; echo again > /proc/self/fd/1; sleep 1000")
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	req.Spec.Linux.Namespaces = append(req.Spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace})
	req.Spec.Linux.UIDMappings, req.Spec.Linux.GIDMappings = ids, ids
	n.run(req)
	n.until("it has written", func() bool { return strings.Contains(n.output("stdout", n.logPath("a")), "again") })
	if out := strings.Fields(n.output("stdout", n.logPath("a"))); out[0] != "0" || out[2] != "100000" {
		t.Errorf("output %q", out)
	}
	if out, _ := n.exec("a", 0, "id", "-u"); out != "0\n" {
		t.Errorf("exec says %q", out)
	}
}

func TestHundredContainers(t *testing.T) {
	n := start(t)
	const count = 100
	n.run(n.request("first", "sleep", "1000"))
	n.delete("first")
	pid := n.pid()
	base := pssKiB(t, pid)
	var group sync.WaitGroup
	work := make(chan int)
	for range 4 {
		group.Go(func() {
			for i := range work {
				req := n.request(fmt.Sprint("c", i), "sleep", "1000")
				req.Spec.Linux.Seccomp = profile()
				if _, err := n.client.Run(n.ctx(), req); err != nil {
					t.Error(err)
				}
			}
		})
	}
	began := time.Now()
	for i := range count {
		work <- i
	}
	close(work)
	group.Wait()
	took := time.Since(began)
	list, err := n.client.List(n.ctx())
	if err != nil || len(list) != count {
		t.Fatalf("%d containers, %v", len(list), err)
	}
	time.Sleep(300 * time.Millisecond)
	after := pssKiB(t, pid)
	threads, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	t.Logf("%d containers in %v; PSS %d KiB before, %d KiB after: %d KiB a container; %d threads",
		count, took, base, after, (after-base)/count, len(threads))
	if len(threads) > 40 && !race {
		t.Errorf("%d threads", len(threads))
	}
	if per := (after - base) / count; per > 300 && !race {
		t.Errorf("%d KiB a container", per)
	}
	if err := n.client.Upgrade(n.ctx()); err != nil {
		t.Fatal(err)
	}
	threads, _ = os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	t.Logf("upgraded: PSS %d KiB, %d threads", pssKiB(t, pid), len(threads))
	began = time.Now()
	ids := make(chan string)
	for range 4 {
		group.Go(func() {
			for id := range ids {
				if err := n.client.Delete(n.ctx(), id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, st := range list {
		ids <- st.ID
	}
	close(ids)
	group.Wait()
	t.Logf("removed in %v", time.Since(began))
	n.nothingLeft()
}

// profile is a seccomp profile of the size that nodes use.
// profile is what a container gets by default.
func profile() *specs.LinuxSeccomp {
	return containerdseccomp.DefaultProfile(&specs.Spec{Process: &specs.Process{
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities},
	}})
}

func pssKiB(t testing.TB, pid int) int { return rollupKiB(t, pid, "Pss:") }

func rollupKiB(t testing.TB, pid int, field string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Skipf("memory of process %d: %v", pid, err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == field {
			k, _ := strconv.Atoi(f[1])
			return k
		}
	}
	t.Fatalf("no %s in smaps_rollup", field)
	return 0
}

func TestProcessThatIsGoneIsToldByItsPidfd(t *testing.T) {
	if pidfd.Alive(os.Getpid(), 1) {
		t.Error("another start time is another process")
	}
	start, err := pidfd.StartTime(os.Getpid())
	if err != nil || !pidfd.Alive(os.Getpid(), start) {
		t.Errorf("this process: %v", err)
	}
}

// TestCgroupsOfAnyDepthGoWithTheirContainer: a container that may make cgroups in its own makes them deeper than a path
// can be. They go with it also if its record is lost. Seen to fail where their paths are walked, for all containers and
// for those without a record: the container could not be removed.
func TestCgroupsOfAnyDepthGoWithTheirContainer(t *testing.T) {
	n := start(t)
	deep := func(id string, setup keeper.SetupChoice) {
		t.Helper()
		req := n.request(id, "sleep", "1000")
		req.Setup = setup
		n.run(req)
		// The hierarchy in which the keeper looks for processes: thousands of cgroups in all of them take long.
		dirs, _ := filepath.Glob("/sys/fs/cgroup/freezer" + n.cgroup + "/" + id)
		if len(dirs) == 0 {
			dirs = cgroupDirs(n.cgroup + "/" + id)
		}
		for _, dir := range dirs {
			makeDeep(t, dir)
		}
	}
	gone := func(id string) bool { return len(cgroupDirs(n.cgroup+"/"+id)) == 0 }
	for _, setup := range []keeper.SetupChoice{keeper.SetupStage, keeper.SetupLibcontainer} {
		id := "deep-" + string(setup)
		deep(id, setup)
		n.delete(id)
		if !gone(id) {
			t.Errorf("%s: cgroups are left: %v", setup, cgroupDirs(n.cgroup+"/"+id))
		}
	}
	const lost = "deep-lost"
	deep(lost, keeper.SetupStage)
	pid := n.pid()
	n.client.Close() // it holds the container in escrow
	n.end(pid, unix.SIGKILL)
	for _, suffix := range []string{".json", ".json.spare"} {
		if err := os.Truncate(filepath.Join(n.dir, "rows", lost+suffix), 30); err != nil {
			t.Fatal(err)
		}
	}
	n.client = n.connect()
	n.until("the cgroups of a container without a record are removed", func() bool { return gone(lost) })
}

// makeDeep makes cgroups in a cgroup, each in the last one, and removes after the test what is left of them.
func makeDeep(t *testing.T, dir string) {
	t.Helper()
	open := func(at int, name string) int {
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1
		}
		unix.Close(at)
		return fd
	}
	t.Cleanup(func() {
		at, depth := open(-1, dir), 0
		for below := at; below >= 0; depth++ {
			at = below
			below = open(at, "d")
		}
		for ; depth > 1 && at >= 0; depth-- {
			at = open(at, "..")
			_ = unix.Unlinkat(at, "d", unix.AT_REMOVEDIR)
		}
		unix.Close(at)
	})
	at := open(-1, dir)
	for range unix.PathMax / 2 {
		if err := unix.Mkdirat(at, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		if at = open(at, "d"); at < 0 {
			t.Fatal("a cgroup is not there")
		}
	}
	unix.Close(at)
}
