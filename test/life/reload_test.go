package life

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// logLine is a line of the daemon's log.
type logLine struct {
	Level, Msg, Error, File, Check string
	Changed, Restart               []string
}

// daemonLog reads the daemon's log from an offset on.
func daemonLog(t *testing.T, n *node.Node, from int64) (lines []logLine, end int64) {
	t.Helper()
	f, err := os.Open(n.DaemonLog)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(f)
	for end = from; ; {
		text, err := r.ReadString('\n')
		if err != nil {
			return lines, end
		}
		end += int64(len(text))
		var l logLine
		if json.Unmarshal([]byte(text), &l) == nil {
			lines = append(lines, l)
		}
	}
}

// signalled sends the daemon a signal, and returns what it logs from then on until there is a line whose message has
// a text.
func signalled(t *testing.T, n *node.Node, s syscall.Signal, text string) []logLine {
	t.Helper()
	_, end := daemonLog(t, n, 0)
	if err := syscall.Kill(n.PID(), s); err != nil {
		t.Fatal(err)
	}
	var lines []logLine
	nodetest.Eventually(t, 30*time.Second, "the log says "+text, func() error {
		lines, _ = daemonLog(t, n, end)
		if !slices.ContainsFunc(lines, func(l logLine) bool { return strings.Contains(l.Msg, text) }) {
			return fmt.Errorf("it has %+v", lines)
		}
		return nil
	})
	return lines
}

// configure writes a drop-in of the node's configuration.
func configure(t *testing.T, n *node.Node, text string) string {
	t.Helper()
	path := filepath.Join(n.Dir, "config.d", "50-test.toml")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const reloaded = "the configuration is reloaded"

// TestAReloadHoldsForWhatIsMadeFromThenOn, and touches nothing that runs. Seen to fail without the signal being caught:
// it ended the daemon.
func TestAReloadHoldsForWhatIsMadeFromThenOn(t *testing.T) {
	nodetest.BerthOnly(t, "it is Berth's configuration")
	n := nodetest.Start(t, node.Options{})
	daemon := n.PID()
	p := nodetest.RunPod(t, n)
	old := p.Run()
	inside := hostPID(t, old)
	dir := t.TempDir()
	configure(t, n, `default_env = ["GIVEN=secret"]
default_sysctls = ["net.ipv4.ip_unprivileged_port_start=81"]
default_runtime = "added"
pids_limit = 77
shm_size = "2m"
create_host_paths = []
cgroup_root = "/elsewhere"
log_level = "debug"
[image]
pinned = ["*"]
[network]
mtu = 1280
[runtimes.added]
type = "builtin"
default_env = ["HANDLER=added"]
shm_size = "3m"
`)
	lines := signalled(t, n, syscall.SIGHUP, "take effect at the next start")
	var changed, restart []string
	for _, l := range lines {
		if l.Msg == reloaded {
			changed = l.Changed
		}
		if len(l.Restart) > 0 {
			restart = l.Restart
		}
	}
	for _, want := range []string{"default_env", "pids_limit = 77", `image.pinned = ["*"]`, `log_level = "debug"`,
		`runtimes.added.type = "builtin"`, `default_runtime = "added"`} {
		if !slices.Contains(changed, want) {
			t.Errorf("the log does not say that %s has changed: %q", want, changed)
		}
	}
	if want := []string{`cgroup_root = "/elsewhere"`, "network.mtu = 1280"}; !slices.Equal(restart, want) {
		t.Errorf("the log says that these need a restart: %q", restart)
	}
	// A pod that was there keeps its handler; what is made of the node's defaults is new.
	const env = "echo $GIVEN $HANDLER; df -k /dev/shm | tail -1 | awk '{print $2}'"
	if got := p.Run().Sh(env); got != "secret\n65536" {
		t.Errorf("a new container of the old pod has %q", got)
	}
	if pid := hostPID(t, old); pid != inside {
		t.Errorf("the process that ran is %d, and was %d", pid, inside)
	}
	const sysctl = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start"
	fresh := nodetest.RunPod(t, n)
	c := fresh.Run()
	if got := c.Sh(env + "; " + sysctl); got != "secret added\n3072\n81" {
		t.Errorf("a container of a new pod has %q", got)
	}
	if limit, err := os.ReadFile(pidsLimit(t, c)); err != nil || strings.TrimSpace(string(limit)) != "77" {
		t.Errorf("it may have %q processes: %v", limit, err)
	}
	named := nodetest.RunPodHandler(t, n, "added")
	if got := named.Run().Sh(env); got != "secret added\n3072" {
		t.Errorf("a pod that names the new handler has %q", got)
	}
	_, err := fresh.TryCreate(nodetest.Mounts(&cri.Mount{HostPath: dir + "/none", ContainerPath: "/x"}))
	if err == nil {
		t.Error("a host path is still made")
	}
	images, err := n.Images.ListImages(nodetest.Context(t), &cri.ListImagesRequest{})
	if err != nil || len(images.Images) == 0 || !images.Images[0].Pinned {
		t.Errorf("images are not pinned: %v %v", images, err)
	}
	if n.PID() != daemon {
		t.Errorf("the daemon is another: %s", n.LogTail())
	}
	for _, l := range lines {
		if strings.Contains(fmt.Sprint(l), "secret") {
			t.Errorf("a variable's value is in the log: %+v", l)
		}
	}
}

func pidsLimit(t *testing.T, c *nodetest.Container) string {
	t.Helper()
	for _, path := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%v/cgroup", hostPID(t, c)))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
			file := filepath.Join(path, parts[2], "pids.max")
			if _, err := os.Stat(file); err == nil && (parts[1] == "" || strings.Contains(parts[1], "pids")) {
				return file
			}
		}
	}
	t.Fatal("the container has no limit of processes")
	return ""
}

// TestAWrongFileChangesNothing, whatever is wrong with it, and is told with file and line.
func TestAWrongFileChangesNothing(t *testing.T) {
	nodetest.BerthOnly(t, "it is Berth's configuration")
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	for text, want := range map[string]string{
		"default_env = [\"A=1\"]\nno_such_key = 1\n":                          "50-test.toml:2: no_such_key",
		"default_env = [\"A=1\"]\nlog_level = \"loud\"\n":                     "50-test.toml:2: log_level",
		"pids_limit = 1\n[runtimes.x]\ntype = \"oci\"\npath = \"/no/such\"\n": "50-test.toml:4: runtimes.x.path",
		"default_env = [": "50-test.toml:1",
	} {
		configure(t, n, text)
		lines := signalled(t, n, syscall.SIGHUP, "is not reloaded")
		if !slices.ContainsFunc(lines, func(l logLine) bool {
			return l.Level == "ERROR" && strings.Contains(l.Error, want)
		}) {
			t.Errorf("for %q the log has %+v, without %q", text, lines, want)
		}
		if got := p.Run().Sh("echo $A"); got != "" {
			t.Errorf("after %q a container has A=%s", text, got)
		}
	}
	configure(t, n, "default_env = [\"A=2\"]\n")
	signalled(t, n, syscall.SIGHUP, reloaded)
	if got := p.Run().Sh("echo $A"); got != "2" {
		t.Errorf("after a good file a container has A=%s", got)
	}
}

// TestReloadsWhilePodsComeAndGoCostNone of them: each pod is made by one configuration or the other.
func TestReloadsWhilePodsComeAndGoCostNone(t *testing.T) {
	nodetest.BerthOnly(t, "it is Berth's configuration")
	n := nodetest.Start(t, node.Options{})
	nodetest.Pull(t, n, "registry.test/busybox:1")
	ctx, cancel := context.WithCancel(nodetest.Context(t))
	var wait sync.WaitGroup
	defer wait.Wait()
	defer cancel()
	wait.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			text := "default_env = [\"A=1\"]\ndefault_sysctls = [\"net.ipv4.ip_unprivileged_port_start=81\"]\n"
			if i%2 == 1 {
				text = "log_format = \"text\"\nlog_level = \"debug\"\n" +
					"[runtimes.berth]\nsetup = \"libcontainer\"\n[image]\nretries = 7\n"
			}
			configure(t, n, text)
			if err := syscall.Kill(n.PID(), syscall.SIGHUP); err != nil {
				t.Error(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	var made [3]atomic.Int32
	for i := range made {
		wait.Go(func() {
			for ctx.Err() == nil {
				p := nodetest.RunPod(t, n)
				c := p.Run()
				c.Sh("true")
				nodetest.Pull(t, n, "registry.test/busybox:1")
				c.Stop(0)
				p.Stop()
				p.Remove()
				made[i].Add(1)
			}
		})
	}
	nodetest.Eventually(t, 2*time.Minute, "pods are made and removed while the configuration is reloaded", func() error {
		time.Sleep(100 * time.Millisecond)
		log, err := os.ReadFile(n.DaemonLog)
		if err != nil {
			return err
		}
		reloads, pods := strings.Count(string(log), reloaded), []int32{}
		for i := range made {
			pods = append(pods, made[i].Load())
		}
		if reloads < 10 || slices.Min(pods) < 2 {
			return fmt.Errorf("%d reloads, %v pods", reloads, pods)
		}
		return nil
	})
}

// debugClient speaks HTTP on the node's debug socket.
func debugClient(t *testing.T, n *node.Node) func(path string) (int, string) {
	t.Helper()
	socket := filepath.Join(n.State, "debug.sock")
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the socket is %v: %v", info, err)
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	t.Cleanup(client.CloseIdleConnections)
	return func(path string) (int, string) {
		t.Helper()
		response, err := client.Get("http://berthd" + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		data, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(data)
	}
}

func keeperPID(t *testing.T, n *node.Node) int {
	t.Helper()
	pid, ok := n.KeeperPID()
	if !ok {
		t.Fatal("no keeper answers")
	}
	return pid
}

// hold stops a process until the function is called that it returns, or the test ends.
func hold(t *testing.T, pid int) (resume func()) {
	t.Helper()
	if err := node.Halt(pid, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	resume = sync.OnceFunc(func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(resume)
	return resume
}

// TestTheDebugSocketTellsOfADaemonThatIsNotWell, and SIGUSR1 writes goroutines and state, also while the keeper hangs.
func TestTheDebugSocketTellsOfADaemonThatIsNotWell(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "it is Berth's")
	n := nodetest.Start(t, node.Options{})
	get := debugClient(t, n)
	const well = "ok list\nok keeper\nok record\n"
	if code, text := get("/healthz"); code != http.StatusOK || text != well {
		t.Errorf("health: %d %q", code, text)
	}
	for path, want := range map[string]string{
		"/debug/goroutines": "goroutine ", "/debug/pprof/heap?debug=1": "heap profile", "/debug/pprof/": "profiles",
		"/state": `"keeper": {`, "/debug/pprof/cmdline": "berthd",
	} {
		if code, text := get(path); code != http.StatusOK || !strings.Contains(text, want) {
			t.Errorf("%s: %d %.200q, without %q", path, code, text, want)
		}
	}
	dump := func() string {
		t.Helper()
		lines := signalled(t, n, syscall.SIGUSR1, "goroutines and state are written")
		i := slices.IndexFunc(lines, func(l logLine) bool { return l.File != "" })
		file := lines[i].File
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 ||
			!strings.HasPrefix(file, n.State+"/") {
			t.Fatalf("the file %s is %v: %v", file, info, err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if text := dump(); !strings.Contains(text, "goroutine ") || !strings.Contains(text, `"SANDBOX_READY": 0`) &&
		!strings.Contains(text, `"pods": {`) {
		t.Errorf("the file has\n%.1000s", text)
	}
	resume := hold(t, keeperPID(t, n))
	if code, text := get("/healthz"); code != http.StatusServiceUnavailable ||
		!strings.Contains(text, "ok list\nfailed keeper: ") || !strings.Contains(text, "ok record\n") {
		t.Errorf("health while the keeper hangs: %d %q", code, text)
	}
	if text := dump(); !strings.Contains(text, "goroutine ") || !strings.Contains(text, `"keeper": "`) {
		t.Errorf("the file has while the keeper hangs\n%.1000s", text)
	}
	resume()
	nodetest.Eventually(t, 30*time.Second, "all is well again", func() error {
		if code, text := get("/healthz"); code != http.StatusOK || text != well {
			return fmt.Errorf("health: %d %q", code, text)
		}
		return nil
	})
	for range 12 {
		dump()
	}
	if files, err := filepath.Glob(filepath.Join(n.State, "dumps", "*")); err != nil || len(files) != 10 {
		t.Errorf("%d files are kept: %v", len(files), err)
	}
}

// TestTheHealthChecksPassHoweverLargeTheLabelsOfPodsAre: systemd would end berthd again and again for pods that
// somebody gave large labels. No server sends a list of all of these pods in one message. Seen to fail with a check
// that lists all pods.
func TestTheHealthChecksPassHoweverLargeTheLabelsOfPodsAre(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "it is Berth's")
	n := nodetest.Start(t, node.Options{})
	large := strings.Repeat("x", 1<<20)
	for range 34 {
		nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Network: cri.NamespaceMode_NODE}),
			func(c *cri.PodSandboxConfig) { c.Labels = map[string]string{"large": large} })
	}
	_, err := n.Runtime.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{})
	nodetest.WantCode(t, err, codes.ResourceExhausted)
	if code, text := debugClient(t, n)("/healthz"); code != http.StatusOK {
		t.Errorf("health: %d %q", code, text)
	}
}

// notified is a socket in place of systemd's, and when it was told that the daemon is well.
type notified struct {
	mu    sync.Mutex
	times []time.Time
}

func (r *notified) since(from time.Time) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, at := range r.times {
		if at.After(from) {
			n++
		}
	}
	return n
}

// TestTheWatchdogIsToldNothingWhileTheKeeperHangs, and again when it answers. Seen to fail with the keeper's check left
// out.
func TestTheWatchdogIsToldNothingWhileTheKeeperHangs(t *testing.T) {
	nodetest.BerthOnly(t, "it is Berth's")
	nodetest.Root(t)
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var heard notified
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			if string(buffer[:n]) == "WATCHDOG=1" {
				heard.mu.Lock()
				heard.times = append(heard.times, time.Now())
				heard.mu.Unlock()
			}
		}
	}()
	const limit = 8 * time.Second
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", fmt.Sprint(limit.Microseconds()))
	n := nodetest.Start(t, node.Options{})
	told := func(claim string) {
		t.Helper()
		begin := time.Now()
		nodetest.Eventually(t, 4*limit, claim, func() error {
			if heard.since(begin) < 2 {
				return fmt.Errorf("it was told %d times", heard.since(begin))
			}
			return nil
		})
	}
	told("the watchdog is told while all is well")
	_, end := daemonLog(t, n, 0)
	resume := hold(t, keeperPID(t, n))
	time.Sleep(limit / 4) // a check may be just past
	begin := time.Now()
	time.Sleep(limit)
	if n := heard.since(begin); n > 0 {
		t.Errorf("the watchdog was told %d times while the keeper hung", n)
	}
	lines, _ := daemonLog(t, n, end)
	if !slices.ContainsFunc(lines, func(l logLine) bool { return l.Check == "keeper" && l.Level == "ERROR" }) {
		t.Errorf("the log does not name the check: %+v", lines)
	}
	resume()
	told("the watchdog is told again")
}

// TestAReloadIsNotHinderedByWhatWasWrongBefore: what is wrong on the node with a key that has not changed is a warning,
// and the audit log is opened anew also where the configuration cannot be used. Seen to fail where a reload made the
// same check as `berthd config check`.
func TestAReloadIsNotHinderedByWhatWasWrongBefore(t *testing.T) {
	nodetest.BerthOnly(t, "it is Berth's configuration")
	dir := t.TempDir()
	log := filepath.Join(dir, "audit")
	before := fmt.Sprintf("[audit]\nfile = %q\n[runtimes.gone]\ntype = \"oci\"\npath = %q\n", log,
		filepath.Join(dir, "gone"))
	n := nodetest.Start(t, node.Options{Tables: before})
	rotate := func() {
		t.Helper()
		if err := os.Rename(log, log+".1"); err != nil {
			t.Fatal(err)
		}
	}
	rotate()
	configure(t, n, "[runtimes.berth]\nsetup = \"libcontainer\"\n")
	warned := false
	for _, l := range signalled(t, n, syscall.SIGHUP, "the configuration is") {
		if strings.Contains(l.Msg, "not reloaded") {
			t.Errorf("the reload is refused: %s", l.Error)
		}
		warned = warned || l.Level == "WARN" && strings.Contains(l.Error, "runtimes.gone.path")
	}
	if !warned {
		t.Error("nothing warns of the runtime that is not there")
	}
	if !exists(log) {
		t.Error("the audit log is not opened anew")
	}
	for what, text := range map[string]string{
		"a key of another runtime that is not there": "[runtimes.new]\ntype = \"oci\"\npath = \"" + dir + "/new\"\n",
		"a key that nobody knows":                    "wrong = true\n",
	} {
		rotate()
		configure(t, n, text)
		lines := signalled(t, n, syscall.SIGHUP, "the configuration is")
		if !slices.ContainsFunc(lines, func(l logLine) bool { return strings.Contains(l.Msg, "not reloaded") }) {
			t.Errorf("%s: the reload is not refused: %+v", what, lines)
		}
		if !exists(log) {
			t.Errorf("%s: the audit log is not opened anew", what)
		}
	}
}

// TestAKeeperOfLaterHasTheLevelOfAReload: berthd starts it with the log_level that is in force.
func TestAKeeperOfLaterHasTheLevelOfAReload(t *testing.T) {
	nodetest.BerthOnly(t, "it is Berth's configuration")
	n := nodetest.Start(t, node.Options{})
	configure(t, n, "log_level = \"debug\"\n")
	signalled(t, n, syscall.SIGHUP, reloaded)
	before, _ := n.KeeperPID()
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, time.Minute, "another keeper has the level", func() error {
		pid, ok := n.KeeperPID()
		if !ok || pid == before {
			return fmt.Errorf("no other keeper answers")
		}
		args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && !strings.Contains(string(args), "--log-level=debug") {
			err = fmt.Errorf("it has the arguments %q", args)
		}
		return err
	})
}
