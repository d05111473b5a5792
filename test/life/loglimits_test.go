package life

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/logpart"
	"berth/test/node"
	"berth/test/node/nodetest"
)

const logAnnotation = "berth.dev/log"

// TestALogHasTheLimitsOfTheNodeOrOfItsPod: a container that writes faster than it may is held back and loses no line,
// or loses whole lines and its log says how many; files are rotated where they are written, and a client that follows
// the log reads through all of them.
func TestALogHasTheLimitsOfTheNodeOrOfItsPod(t *testing.T) {
	nodetest.BerthOnly(t, "containerd does not limit logs")
	const tables = "[log]\nmax_size = \"256k\"\nmax_files = 3\n" +
		"[runtimes.limited]\ntype = \"builtin\"\nallowed_annotations = [\"" + logAnnotation + "\"]\n"
	n := nodetest.Start(t, node.Options{Tables: tables})
	p := nodetest.RunPodHandler(t, n, "limited", func(c *cri.PodSandboxConfig) {
		c.Annotations = map[string]string{
			logAnnotation:              "max_files=1000",
			logAnnotation + ".held":    "rate=1m,burst=64k",
			logAnnotation + ".dropped": "max_size=0,rate=256k,over=drop",
			logAnnotation + ".wrong":   "rate=lots",
		}
	})
	named := func(name string) nodetest.ContainerEdit {
		return func(c *cri.ContainerConfig) { c.Metadata.Name = name }
	}
	_, err := p.TryCreate(named("wrong"))
	if nodetest.WantCode(t, err, codes.InvalidArgument); err == nil ||
		!strings.Contains(err.Error(), `annotation berth.dev/log.wrong: rate: "lots" is no size`) {
		t.Errorf("a rate that is none: %v", err)
	}

	const lines = 60000 // three megabytes
	held := p.Run(named("held"), nodetest.Sh(fmt.Sprintf("echo start; read x </tmp/go; seq 1 %d", lines)), fifo)
	follower := follows(t, n, held.ID)
	begin := time.Now()
	held.Sh("echo go >/tmp/go")
	held.WaitExit()
	// What is left in the pipe when it ends does not wait.
	if took := time.Since(begin); took < 1500*time.Millisecond {
		t.Errorf("three megabytes at one a second took %v", took)
	}
	files := logFiles(t, held)
	inOrder(t, "the log", strings.TrimPrefix(stdoutOf(t, files...), "start\n"), lines)
	inOrder(t, "what a client that follows it reads", follower(), lines)
	if len(files) < 10 {
		t.Errorf("the log is in %d files", len(files))
	}
	largest(t, 256<<10, files...)

	const fast = 100000
	dropped := p.Run(named("dropped"), nodetest.Sh(fmt.Sprintf("seq 1 %d", fast)))
	dropped.WaitExit()
	report := regexp.MustCompile(`(?m)^berth: (\d+) lines? \(\d+ bytes\) dropped: .*\n`)
	text, gone := stdoutOf(t, logFiles(t, dropped)...), 0
	for _, m := range report.FindAllStringSubmatch(text, -1) {
		lines, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		gone += lines
	}
	if there := strings.Count(report.ReplaceAllString(text, ""), "\n"); gone == 0 || there == 0 || there+gone != fast {
		t.Errorf("%d lines are there, and %d were dropped, of %d", there, gone, fast)
	}

	// A pod whose handler does not allow the annotation has the node's limits.
	other := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Annotations = map[string]string{logAnnotation: "max_size=0"}
	})
	plain := other.Run(nodetest.Sh(fmt.Sprintf("seq 1 %d", lines)))
	plain.WaitExit()
	if files := logFiles(t, plain); len(files) != 3 {
		t.Errorf("there are the files %q", files)
	}
	largest(t, 256<<10, logFiles(t, plain)...)
	for c, want := range map[*nodetest.Container]string{
		held:    `{"maxSize":262144,"maxFiles":1000,"rate":1048576,"burst":65536,"over":"wait"}`,
		dropped: `{"rate":262144,"burst":262144,"over":"drop"}`,
		plain:   `{"maxSize":262144,"maxFiles":3}`,
	} {
		if got := inForce(t, n, c.ID); got != want {
			t.Errorf("the status has the limits %s, want %s", got, want)
		}
	}
}

// fifo gives a container a fifo to wait at.
func fifo(c *cri.ContainerConfig) {
	script := &c.Command[len(c.Command)-1]
	*script = "mkdir -p /tmp; mkfifo /tmp/go; " + *script
}

// follows runs `berth logs -f` for a container that has written "start" and waits; what it returns waits for its end,
// and gives what it has printed.
func follows(t *testing.T, n *node.Node, id string) func() string {
	t.Helper()
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(nodetest.Context(t), filepath.Join(binaries, "berth"), "--address", n.Address,
		"logs", "-f", id)
	out, err := os.Create(filepath.Join(t.TempDir(), "followed"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	var complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	printed := func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	nodetest.Eventually(t, 10*time.Second, "the client prints the first line", func() error {
		if text := printed(); text != "start\n" {
			return fmt.Errorf("it has printed %q", text)
		}
		return nil
	})
	return func() string {
		if err := cmd.Wait(); err != nil {
			t.Errorf("berth logs -f: %v: %s", err, complaints.String())
		}
		return strings.TrimPrefix(printed(), "start\n")
	}
}

// logFiles are all files of a container's log, the oldest first.
func logFiles(t *testing.T, c *nodetest.Container) (paths []string) {
	t.Helper()
	path := c.LogPath()
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	for _, name := range logpart.Of(filepath.Base(path), names) {
		paths = append(paths, filepath.Join(filepath.Dir(path), name))
	}
	return append(paths, path)
}

func stdoutOf(t *testing.T, paths ...string) string {
	t.Helper()
	var all strings.Builder
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			_, content, ok := strings.Cut(line, " stdout F ")
			if !ok {
				t.Fatalf("%s has the line %q", path, line)
			}
			all.WriteString(content)
		}
	}
	return all.String()
}

// inOrder checks that a text is what seq prints.
func inOrder(t *testing.T, what, text string, lines int) {
	t.Helper()
	next := 1
	for line := range strings.Lines(text) {
		if line != fmt.Sprintf("%d\n", next) {
			t.Errorf("%s has %q, where %d is next", what, line, next)
			return
		}
		next++
	}
	if next != lines+1 {
		t.Errorf("%s has %d lines, want %d", what, next-1, lines)
	}
}

func largest(t *testing.T, size int64, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if st, err := os.Stat(path); err != nil || st.Size() > size {
			t.Errorf("%s: %v, %v", path, st, err)
		}
	}
}

// inForce are the limits in the verbose status of a container.
func inForce(t *testing.T, n *node.Node, id string) string {
	t.Helper()
	st, err := n.Runtime.ContainerStatus(nodetest.Context(t), &cri.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		LogLimits json.RawMessage `json:"logLimits"`
	}
	if err := json.Unmarshal([]byte(st.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, info.LogLimits); err != nil {
		t.Fatal(err)
	}
	return compact.String()
}

// TestLogsThatNoCommandLooksAfterAreRotated: those of pods that berth leaves running, with and without a named volume,
// and of the next attempt that `berth restart` makes. Nobody who makes a pod through the CRI can ask for that in it.
func TestLogsThatNoCommandLooksAfterAreRotated(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	data := filepath.Join(t.TempDir(), "data")
	berth := func(args ...string) string {
		t.Helper()
		code, out, complaints := typed(t, n, append([]string{"--data-dir", data}, args...)...)
		if code != 0 {
			t.Fatalf("%q: exit code %d, %s", args, code, complaints)
		}
		return out
	}
	limited := func(pod string) {
		t.Helper()
		list, err := n.Runtime.ListContainers(nodetest.Context(t), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
			State:         &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING},
			LabelSelector: map[string]string{"io.kubernetes.pod.name": pod}}})
		if err != nil || len(list.Containers) != 1 {
			t.Fatalf("pod %s has %v, %v", pod, list, err)
		}
		status, err := n.Runtime.ContainerStatus(nodetest.Context(t),
			&cri.ContainerStatusRequest{ContainerId: list.Containers[0].Id, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		if info := status.Info["info"]; !strings.Contains(info, `"logLimits":{"maxSize":10485760,"maxFiles":5}`) {
			t.Fatalf("pod %s: %s", pod, info)
		}
	}
	nodetest.Pull(t, n, node.Busybox)
	berth("run", "-d", "--name", "chatters", node.Busybox, "sh", "-c",
		"yes 0123456789012345678901234567890123456789 | head -c 13000000; exec sleep 1000")
	berth("run", "-d", "--name", "chatters-too", "-v", "of-chatters:/data", node.Busybox, "sleep", "1000")
	limited("chatters")
	limited("chatters-too")
	logs := filepath.Join(data, "pods", "default_chatters_*", "logs", "*", "0.log*")
	nodetest.Eventually(t, 60*time.Second, "the log is rotated", func() error {
		if names, err := filepath.Glob(logs); err != nil || len(names) < 2 {
			return fmt.Errorf("the files are %v, %v", names, err)
		}
		return nil
	})
	berth("restart", "-t", "0", "chatters-too")
	limited("chatters-too")
	berth("rm", "-f", "chatters", "chatters-too")
	berth("volume", "rm", "of-chatters")

	forged := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Annotations = map[string]string{"berth-rotate-log": "true"}
	})
	status, err := n.Runtime.ContainerStatus(nodetest.Context(t),
		&cri.ContainerStatusRequest{ContainerId: forged.Run().ID, Verbose: true})
	if err != nil || strings.Contains(status.GetInfo()["info"], `"maxSize"`) {
		t.Errorf("a pod of another client: %v, %v", status, err)
	}
}
