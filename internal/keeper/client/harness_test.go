package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/pidfd"
	host "berth/test/node"
)

var (
	binary string // berth-keeper, built for these tests
	race   bool   // with the race detector
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		removeCgroupsOfTheDead()
		dir, err := os.MkdirTemp("", "berth-keeper-test-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "berth-keeper")
		cmd := exec.Command("../../../packaging/build.sh", dir)
		switch built := os.Getenv(host.EnvBinaries); {
		case race:
			cmd = exec.Command("go", "build", "-race", "-tags", "seccomp,netgo,osusergo", "-o", binary, "berth/cmd/berth-keeper")
		case built != "":
			binary = filepath.Join(built, "berth-keeper")
			return m.Run()
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build berth-keeper: %v\n%s", err, out)
			return 1
		}
		return m.Run()
	}())
}

// node is a keeper with a client, and all that a test makes on it.
type node struct {
	testing.TB
	program string
	dir     string
	root    string // a root file system of busybox
	client  *keeper.Client
	cgroup  string
	setup   keeper.SetupChoice // of requests
}

var nodes atomic.Int32

func start(t testing.TB) *node {
	t.Helper()
	return startProgram(t, binary)
}

// startProgram starts a keeper through another program, which executes it.
func startProgram(t testing.TB, program string) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n := &node{
		TB: t, program: program, dir: filepath.Join(t.TempDir(), "state", "keeper"), root: rootfs(t),
		cgroup: fmt.Sprintf("/berth-test-%d-%d", os.Getpid(), nodes.Add(1)),
		setup:  keeper.SetupChoice(os.Getenv(host.EnvSetup)), // as on whole nodes
	}
	n.client = n.connect()
	t.Cleanup(n.stop)
	return n
}

func (n *node) config() keeper.Config {
	return keeper.Config{
		Dir: n.dir, Binary: n.program, Args: func() []string { return []string{"--log-level", "debug"} },
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
}

func (n *node) connect() *keeper.Client {
	n.Helper()
	c, err := keeper.Connect(n.ctx(), n.config())
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(n.dir, "keeper.log"))
		n.Fatalf("connect: %v\n%s", err, log)
	}
	return c
}

// ctx bounds every call of a test.
func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), host.Patience(60*time.Second))
	n.Cleanup(cancel)
	return ctx
}

func (n *node) stop() {
	defer n.removeCgroups() // whatever fails before
	if n.Failed() {
		log, _ := os.ReadFile(filepath.Join(n.dir, "keeper.log"))
		if len(log) > 20000 {
			log = log[len(log)-20000:]
		}
		n.Logf("keeper's log:\n%s", log)
	}
	log, _ := os.ReadFile(filepath.Join(n.dir, "keeper.log"))
	for _, bad := range []string{"DATA RACE", "panic:", "fatal error:"} {
		if i := bytes.Index(log, []byte(bad)); i >= 0 {
			n.Errorf("keeper: %s", log[i:min(len(log), i+3000)])
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), host.Patience(60*time.Second))
	defer cancel()
	list, err := n.client.List(ctx)
	if err != nil {
		n.Errorf("list at the end: %v", err)
	}
	for _, st := range list {
		if err := n.client.Delete(ctx, st.ID); err != nil {
			n.Errorf("delete %s at the end: %v", st.ID, err)
		}
	}
	pid := n.pid()
	n.client.Close()
	n.end(pid, syscall.SIGTERM)
	defer func() {
		if n.Failed() {
			log, _ := os.ReadFile(filepath.Join(n.dir, "keeper.log"))
			for line := range strings.Lines(string(log)) {
				if strings.Contains(line, `"level":"ERROR"`) || strings.Contains(line, `"level":"WARN"`) {
					n.Log(line)
				}
			}
		}
	}()
}

// removeCgroups removes the cgroups of a test, and says which of its containers have left theirs.
func (n *node) removeCgroups() {
	for _, dir := range cgroupDirs(n.cgroup) {
		inside, _ := filepath.Glob(dir + "/*/cgroup.procs")
		if len(inside) > 0 {
			n.Errorf("cgroups are left: %v", inside)
		}
		removeCgroup(dir)
	}
}

// removeCgroupsOfTheDead removes cgroups of earlier runs of these tests that were killed, as far as nothing runs in
// them.
func removeCgroupsOfTheDead() {
	for _, dir := range cgroupDirs("/berth-test-*-*") {
		var pid, node int
		if _, err := fmt.Sscanf(filepath.Base(dir), "berth-test-%d-%d", &pid, &node); err != nil {
			continue // of other tests
		}
		if errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			removeCgroup(dir)
		}
	}
}

// cgroupDirs are the directories of a cgroup, or of those that a pattern matches, in all hierarchies.
func cgroupDirs(cgroup string) []string {
	v1, _ := filepath.Glob("/sys/fs/cgroup/*" + cgroup)
	v2, _ := filepath.Glob("/sys/fs/cgroup" + cgroup)
	return append(v1, v2...)
}

func removeCgroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() {
			removeCgroup(filepath.Join(dir, e.Name()))
		}
	}
	_ = unix.Rmdir(dir)
}

func (n *node) pid() int {
	n.Helper()
	info, err := n.client.Info(n.ctx())
	if err != nil {
		n.Fatalf("info: %v", err)
	}
	return info.PID
}

// end sends a signal to the keeper and waits until it is gone.
func (n *node) end(pid int, sig syscall.Signal) {
	n.Helper()
	start, err := pidfd.StartTime(pid)
	if err != nil {
		return
	}
	if err := unix.Kill(pid, sig); err != nil {
		n.Errorf("kill keeper: %v", err)
	}
	n.until("the keeper is gone", func() bool { return !pidfd.Alive(pid, start) })
}

func (n *node) until(what string, cond func() bool) {
	n.Helper()
	for deadline := time.Now().Add(host.Patience(3 * time.Minute)); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.Fatalf("not in time: %s", what)
		}
	}
}

var applets = []string{"sh", "cat", "echo", "sleep", "true", "false", "kill", "head", "seq", "yes", "ls", "dd", "id",
	"stty", "setsid", "ps", "grep", "printf", "wc", "test", "readlink", "mkdir", "touch", "tail",
	"usleep", "tr", "env", "tty", "sort"}

// rootfs makes a root file system of busybox.
func rootfs(t testing.TB) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	for _, d := range []string{"bin", "proc", "dev", "sys", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skipf("needs busybox-static: %v", err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, a := range applets {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", a)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

var capabilities = []string{"CAP_CHOWN", "CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_NET_BIND_SERVICE"}

// reachable lets others than root come to the root file system. The directories above those of the test are the
// machine's.
func (n *node) reachable() {
	n.Helper()
	for d := n.root; strings.HasPrefix(d, os.TempDir()+"/"); d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			n.Fatal(err)
		}
	}
}

func (n *node) process(args ...string) *specs.Process {
	return &specs.Process{
		Args: args, Cwd: "/", Env: []string{"PATH=/bin", "HOME=/"}, NoNewPrivileges: true,
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
	}
}

func (n *node) spec(id string, args ...string) *specs.Spec {
	return &specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: n.root},
		Process: n.process(args...),
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755",
				"size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
				Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "max=1024"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: n.cgroup + "/" + id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}},
		},
	}
}

// request is a container with a log.
func (n *node) request(id string, args ...string) *keeper.RunRequest {
	return &keeper.RunRequest{ID: id, PodID: "pod-of-" + id, Name: id, Spec: n.spec(id, args...), LogPath: n.logPath(id),
		Setup: n.setup}
}

func (n *node) logPath(id string) string { return filepath.Join(filepath.Dir(n.dir), id+".log") }

func (n *node) run(req *keeper.RunRequest) *keeper.RunResult {
	n.Helper()
	res, err := n.client.Run(n.ctx(), req)
	if err != nil {
		n.Fatalf("run %s: %v", req.ID, err)
	}
	return res
}

// ended waits until a container has exited and its log is complete.
func (n *node) ended(id string) keeper.Status {
	n.Helper()
	var st *keeper.Status
	n.until(id+" has ended", func() bool {
		var err error
		if st, err = n.client.Status(n.ctx(), id); err != nil {
			n.Fatalf("status of %s: %v", id, err)
		}
		return st.LogDone
	})
	return *st
}

// orphanEnd says whether this is how a process ends that ended with want after its keeper had been killed. A kernel
// that keeps no code of it may have shown it to the next keeper, before another process reaped it.
func orphanEnd(want, code int, lost bool) bool {
	return code == want && !lost || !host.OrphansTell() && code == 255 && lost
}

// endedOrphan waits for a container whose keeper was killed.
func (n *node) endedOrphan(id string, code int) {
	n.Helper()
	if st := n.ended(id); !orphanEnd(code, st.ExitCode, st.Lost) {
		n.Errorf("%s: %+v", id, st)
	}
}

func (n *node) delete(id string) {
	n.Helper()
	if err := n.client.Delete(n.ctx(), id); err != nil {
		n.Fatalf("delete %s: %v", id, err)
	}
}

// record is one record of a log.
type record struct {
	time        time.Time
	stream, tag string
	content     string
}

func (n *node) records(path string) []record {
	n.Helper()
	var b []byte
	// A write of several pages can be seen half done.
	n.until("the log "+path+" ends with a whole record", func() bool {
		var err error
		if b, err = os.ReadFile(path); err != nil {
			n.Fatal(err)
		}
		return len(b) == 0 || b[len(b)-1] == '\n'
	})
	var out []record
	for line := range bytes.Lines(b) {
		f := bytes.SplitN(line[:len(line)-1], []byte{' '}, 4)
		if len(f) != 4 {
			n.Fatalf("record %q", line)
		}
		at, err := time.Parse(time.RFC3339Nano, string(f[0]))
		if err != nil {
			n.Fatalf("record %q: %v", line, err)
		}
		if !slices.Contains([]string{"stdout", "stderr"}, string(f[1])) ||
			!slices.Contains([]string{"F", "P"}, string(f[2])) {
			n.Fatalf("record %q", line)
		}
		out = append(out, record{at, string(f[1]), string(f[2]), string(f[3])})
	}
	return out
}

// output is what a stream wrote, put together from its records.
func (n *node) output(stream string, paths ...string) string {
	n.Helper()
	var b strings.Builder
	for _, p := range paths {
		for _, r := range n.records(p) {
			if r.stream != stream {
				continue
			}
			b.WriteString(r.content)
			if r.tag == "F" {
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

// execOutput runs a command in a container and returns its output and end.
func (n *node) exec(id string, timeout time.Duration, args ...string) (string, *keeper.ExecExit) {
	n.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		n.Fatal(err)
	}
	defer r.Close()
	execID := "exec" + strconv.FormatInt(time.Now().UnixNano(), 36)
	_, err = n.client.Exec(n.ctx(), &keeper.ExecRequest{
		ContainerID: id, ExecID: execID, Process: n.process(args...), Stdout: w, Stderr: w, Timeout: timeout,
	})
	w.Close()
	if err != nil {
		n.Fatalf("exec %q: %v", args, err)
	}
	var out bytes.Buffer
	_ = r.SetReadDeadline(time.Now().Add(timeout + 2*time.Minute)) // a process that was not killed has it open for ever
	if _, err := out.ReadFrom(r); err != nil {
		n.Fatalf("output of exec %q: %v", args, err)
	}
	exit, err := n.client.WaitExec(n.ctx(), id, execID)
	if err != nil {
		n.Fatalf("wait for exec %q: %v", args, err)
	}
	return out.String(), exit
}
