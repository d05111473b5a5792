package life

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// commandLine is a command line of berth with a data directory of its own.
func commandLine(t *testing.T, n *node.Node, args ...string) *exec.Cmd {
	t.Helper()
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(nodetest.Context(t), filepath.Join(binaries, "berth"),
		append([]string{"--address", n.Address, "--data-dir", filepath.Join(t.TempDir(), "data")}, args...)...)
}

// ranImage runs `berth run`, and returns what it wrote to its two outputs.
func ranImage(t *testing.T, n *node.Node, input io.Reader, args ...string) (code int, out, complaints string) {
	t.Helper()
	cmd := commandLine(t, n, append([]string{"run"}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = input, &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatalf("berth run %s: %v", strings.Join(args, " "), err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

// wantNoPod makes sure that no pod of a name is left.
func wantNoPod(t *testing.T, n *node.Node, prefix string) {
	t.Helper()
	list, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range list.Items {
		if strings.HasPrefix(pod.Metadata.Name, prefix) {
			t.Errorf("pod %s is left", pod.Metadata.Name)
		}
	}
}

func TestAnImageRunsWithTheExitCodeOfItsCommand(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	nodetest.Pull(t, n, node.Busybox)
	for _, test := range []struct {
		args            []string
		code            int
		out, complaints string
	}{
		{[]string{node.Busybox, "echo", "hello"}, 0, "hello\n", ""},
		{[]string{node.Busybox, "sh", "-c", "echo out; echo err >&2; exit 3"}, 3, "out\n", "err\n"},
		{[]string{node.Busybox, "printf", "no end"}, 0, "no end", ""},
		{[]string{node.Busybox, "echo", "-n", "$(HOME) $$ $HOME"}, 0, "$(HOME) $$ $HOME", ""},
		{[]string{"-e", "A=$(HOME) $$", "-w", "/tmp", "-u", "daemon", node.Busybox, "sh", "-c",
			`echo "$A $(pwd) $(id -u)"`}, 0, "$(HOME) $$ /tmp 1\n", ""},
		{[]string{"-u", "4711:12", node.Busybox, "sh", "-c", "id -u; id -g"}, 0, "4711\n12\n", ""},
		{[]string{"--entrypoint", "/bin/echo", node.Busybox, "a", "b"}, 0, "a b\n", ""},
		{[]string{"--entrypoint", "/bin/hostname", "--name", "harbour", node.Busybox}, 0, "harbour\n", ""},
		{[]string{"--read-only", node.Busybox, "touch", "/x"}, 1, "", "touch: /x: Read-only file system\n"},
		{[]string{"-v", "/scratch", "--read-only", node.Busybox, "touch", "/scratch/x"}, 0, "", ""},
		{[]string{"--rm", node.Busybox, "false"}, 1, "", ""},
	} {
		code, out, complaints := ranImage(t, n, nil, test.args...)
		if code != test.code || out != test.out || complaints != test.complaints {
			t.Errorf("%q: exit code %d, want %d; %q, want %q; %q, want %q", test.args, code, test.code, out, test.out,
				complaints, test.complaints)
		}
	}
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{node.Busybox, "no-such-program"}, 127, "no-such-program"},
		{[]string{node.Busybox, "/etc"}, 126, "/etc"},
		{[]string{"--pull", "never", "127.0.0.1:1/none:1"}, 1, "not on the node"},
	} {
		if code, out, complaints := ranImage(t, n, nil, test.args...); code != test.code || out != "" ||
			!strings.Contains(complaints, test.says) {
			t.Errorf("%q: exit code %d, want %d; %q, %q", test.args, code, test.code, out, complaints)
		}
	}
	wantNoPod(t, n, "busybox-")
}

// TestInputReachesTheCommandOfAnImage: all of it, then its end, and all of the output comes back.
func TestInputReachesTheCommandOfAnImage(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	nodetest.Pull(t, n, node.Busybox) // whoever pulls it is told of the progress
	if code, out, complaints := ranImage(t, n, strings.NewReader("hi\n"), "-i", node.Busybox, "cat"); code != 0 ||
		out != "hi\n" || complaints != "" {
		t.Errorf("exit code %d, %q, %q", code, out, complaints)
	}
	// Bytes of all kinds, without a newline at the end, in both directions.
	big := bytes.Repeat([]byte("0123456789\x00\xff\r\n\n "), 200_000)
	if code, out, complaints := ranImage(t, n, bytes.NewReader(big), "-i", node.Busybox, "cat"); code != 0 ||
		out != string(big) || complaints != "" {
		t.Errorf("exit code %d, %d bytes of %d, %q", code, len(out), len(big), complaints)
	}
	if code, out, _ := ranImage(t, n, bytes.NewReader(big), "-i", node.Busybox, "wc", "-c"); code != 0 ||
		strings.TrimSpace(out) != strconv.Itoa(len(big)) {
		t.Errorf("exit code %d, %q bytes arrived of %d", code, out, len(big))
	}
	// A command that does not read its input ends all the same, and one without -i has none.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if code, out, complaints := ranImage(t, n, r, "-i", node.Busybox, "echo", "done"); code != 0 || out != "done\n" {
		t.Errorf("exit code %d, %q, %q", code, out, complaints)
	}
	if code, out, _ := ranImage(t, n, r, node.Busybox, "cat"); code != 0 || out != "" {
		t.Errorf("without -i: exit code %d, %q", code, out)
	}
	wantNoPod(t, n, "busybox-")
}

// lines are those that `seq 1 count` writes.
func lines(count int) string {
	var b strings.Builder
	for i := 1; i <= count; i++ {
		fmt.Fprintln(&b, i)
	}
	return b.String()
}

func TestNoOutputOfAnImageIsLost(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	want := lines(10_000)
	for _, args := range [][]string{nil, {"-i"}, {"-t"}} {
		code, out, complaints := ranImage(t, n, nil, append(args, node.Busybox, "seq", "1", "10000")...)
		if out = strings.ReplaceAll(out, "\r\n", "\n"); code != 0 || out != want {
			t.Errorf("%v: exit code %d, %d bytes of %d: %s", args, code, len(out), len(want), complaints)
		}
	}
	// Without a terminal nothing is lost when the daemon is killed, either.
	cmd := commandLine(t, n, "run", node.Busybox, "sh", "-c", "for i in $(seq 1 300); do echo $i; sleep 0.01; done")
	out := &growing{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	out.await(t, lines(10))
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || out.String() != lines(300) {
		t.Errorf("with a daemon that was killed: %v, %d bytes", err, len(out.String()))
	}
	wantNoPod(t, n, "busybox-")
}

// growing is the output of a command that goes on.
type growing struct {
	mu   sync.Mutex
	text strings.Builder
}

func (g *growing) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

func (g *growing) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.String()
}

// await waits until the output begins with a text.
func (g *growing) await(t *testing.T, text string) {
	t.Helper()
	nodetest.Eventually(t, 20*time.Second, "the output begins", func() error {
		if got := g.String(); !strings.HasPrefix(got, text) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
}

func TestAnImagesPodGoesThoughTheDaemonIsKilledOnItsWay(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	// At any point of a start: while the sandbox or the container is made, and while the container is started.
	for wait := 10 * time.Millisecond; wait < time.Second; wait = wait * 3 / 2 {
		cmd := commandLine(t, n, "run", "--name", "on-its-way", node.Busybox, "sleep", "0.2")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond) // a service manager does not start it at once, either
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Logf("killed %v after the command's start: %v", wait, err)
		}
		wantNoPod(t, n, "on-its-way")
	}
}

// typist is a terminal at which a test types.
type typist struct {
	console.Console
	mu  sync.Mutex
	out bytes.Buffer
}

// terminal runs a command at a terminal of 80 by 24 characters.
func terminal(t *testing.T, cmd *exec.Cmd) *typist {
	t.Helper()
	master, path, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := master.Resize(console.WinSize{Width: 80, Height: 24}); err != nil {
		t.Fatal(err)
	}
	side, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer side.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = side, side, side
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &typist{Console: master}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			p.mu.Lock()
			p.out.Write(buffer[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

// await waits until the terminal shows a text.
func (p *typist) await(t *testing.T, text string) {
	t.Helper()
	p.awaitCount(t, text, 1)
}

// awaitCount waits until the terminal shows a text so many times.
func (p *typist) awaitCount(t *testing.T, text string, count int) {
	t.Helper()
	nodetest.Eventually(t, 20*time.Second, "the terminal shows "+text, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if strings.Count(p.out.String(), text) < count {
			return fmt.Errorf("it shows %q", p.out.String())
		}
		return nil
	})
}

func (p *typist) write(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(p, text); err != nil {
		t.Fatal(err)
	}
}

func TestAnImageRunsAtATerminal(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	cmd := commandLine(t, n, "run", "-it", node.Busybox, "sh", "-c",
		"echo first; tty; stty size; echo TERM=$TERM; exec sh")
	p := terminal(t, cmd)
	p.await(t, "first\r\n/dev/pts/0\r\n24 80\r\nTERM=xterm\r\n")
	p.write(t, "echo $((40 + 2)) is it\r")
	p.await(t, "42 is it")
	if err := p.Resize(console.WinSize{Width: 100, Height: 30}); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, 10*time.Second, "the size changes", func() error {
		p.write(t, "stty size\r")
		time.Sleep(200 * time.Millisecond)
		p.mu.Lock()
		defer p.mu.Unlock()
		if !strings.Contains(p.out.String(), "30 100") {
			return errors.New("not yet")
		}
		return nil
	})
	p.write(t, "sleep 3600\r")
	time.Sleep(300 * time.Millisecond)
	nodetest.Eventually(t, 10*time.Second, "Ctrl-C interrupts the program at the terminal, and not berth", func() error {
		p.write(t, "\x03") // again, where the program had not begun
		p.write(t, "echo still $((1 + 1))\r")
		time.Sleep(300 * time.Millisecond)
		p.mu.Lock()
		defer p.mu.Unlock()
		if !strings.Contains(p.out.String(), "still 2") {
			return errors.New("not yet")
		}
		return nil
	})
	p.write(t, "exit 5\r")
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("exit: %v", err)
	}
	wantNoPod(t, n, "busybox-")

	cmd = commandLine(t, n, "run", "-it", node.Busybox, "no-such-program")
	p = terminal(t, cmd)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 127 {
		t.Errorf("a program that is missing: %v", err)
	}
	p.await(t, "no-such-program")
	if code, _, complaints := ranImage(t, n, strings.NewReader("x"), "-it", node.Busybox, "sh"); code != 2 ||
		!strings.Contains(complaints, "not a terminal") {
		t.Errorf("-it without a terminal: exit code %d, %q", code, complaints)
	}
	wantNoPod(t, n, "busybox-")
}

// TestATerminalOfRunCanBeLeft with the keys of attach: the pod runs on as that of run -d, and attach and restart know
// it. A Ctrl-P alone is the program's. Seen to fail where the program got both keys.
func TestATerminalOfRunCanBeLeft(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	data := filepath.Join(t.TempDir(), "data")
	cmd := commandLine(t, n, "--data-dir", data, "run", "-it", "--name", "left", node.Busybox, "sh")
	p := terminal(t, cmd)
	p.write(t, "echo $((40 + 2)) is it\r")
	p.await(t, "42 is it")
	p.write(t, "\x10\x11")
	p.await(t, "detached from pod left, which runs on: `berth attach left` joins it")
	if err := cmd.Wait(); err != nil {
		t.Errorf("a run that was left: %v", err)
	}
	cmd = commandLine(t, n, "--data-dir", data, "attach", "left")
	p = terminal(t, cmd)
	p.write(t, "echo $((50 + 3)) is it\r")
	p.await(t, "53 is it")
	p.write(t, "\x10\x11")
	p.await(t, "detached from left/busybox")
	if err := cmd.Wait(); err != nil {
		t.Errorf("an attach that was left: %v", err)
	}
	for _, args := range [][]string{{"restart", "-t", "0", "left"}, {"rm", "-f", "left"}} {
		if code, _, complaints := typed(t, n, append([]string{"--data-dir", data}, args...)...); code != 0 {
			t.Errorf("%q: exit code %d, %s", args, code, complaints)
		}
	}
}

func TestCtrlCEndsAnImageAndRemovesItsPod(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	for _, args := range [][]string{nil, {"-i"}, {"-t"}} {
		run := append([]string{"run", "--stop-timeout", "300", "--name", "interrupted"}, args...)
		cmd := commandLine(t, n, append(run, node.Busybox, "sh", "-c",
			`trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.1; done`)...)
		p := terminal(t, cmd)
		p.await(t, "ready")
		p.write(t, "\x03")
		began := time.Now()
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("%v: %v", args, err)
		}
		p.await(t, "bye")
		if took := time.Since(began); took > 40*time.Second {
			t.Errorf("%v: the end took %v", args, took)
		}
		wantNoPod(t, n, "interrupted")
	}
}

func TestAnImageCanBeLeftRunning(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "named volumes are Berth's")
	n := nodetest.Shared(t)
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "index.html"), []byte("from the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	volume, data := strings.ToLower(t.Name()), filepath.Join(t.TempDir(), "data")
	port := freePort(t)
	code, out, complaints := ranImage(t, n, nil, "--data-dir", data, "-d", "--name", "left", "-l", "app=web",
		"--memory", "64m", "--cpus", "0.5", "-p", fmt.Sprintf("127.0.0.1:%d:80", port),
		"-v", host+":/www:ro", "-v", volume+":/data",
		node.Busybox, "sh", "-c", "touch /www/x 2>/data/complaint; exec httpd -f -h /www")
	if code != 0 || len(strings.TrimSpace(out)) != 64 {
		t.Fatalf("exit code %d, %q, %q", code, out, complaints)
	}
	defer func() {
		if code, _, complaints := typed(t, n, "--data-dir", data, "rm", "-f", "left"); code != 0 {
			t.Error(complaints)
		}
		if code, _, complaints := typed(t, n, "volume", "rm", volume); code != 0 {
			t.Error(complaints)
		}
	}()
	wantPage(t, fmt.Sprintf("127.0.0.1:%d", port), "\r\n\r\nfrom the host\n")
	for command, want := range map[string]string{
		"cat /data/complaint": "touch: /www/x: Read-only file system\n",
		"cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null": "67108864\n",
	} {
		if code, out, complaints := typed(t, n, "exec", "left", "sh", "-c", command); out != want {
			t.Errorf("%s: exit code %d, %q, %q", command, code, out, complaints)
		}
	}
	if _, out, _ := typed(t, n, "pods", "-q", "-l", "app=web"); strings.Count(out, "\n") != 1 {
		t.Errorf("pods with the label: %q", out)
	}
	if code, _, complaints := ranImage(t, n, nil, "--name", "left", node.Busybox, "true"); code != 1 ||
		!strings.Contains(complaints, "exists already") {
		t.Errorf("the same name again: exit code %d, %q", code, complaints)
	}
}

func TestAnImageKeepsItsPodWithoutRm(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	data := filepath.Join(t.TempDir(), "data")
	if code, out, complaints := typed(t, n, "--data-dir", data, "run", "--rm=false", "--name", "kept", node.Busybox, "sh",
		"-c", "echo kept; exit 4"); code != 4 || out != "kept\n" {
		t.Errorf("exit code %d, %q, %q", code, out, complaints)
	}
	if code, out, complaints := typed(t, n, "--data-dir", data, "logs", "kept"); code != 0 || out != "kept\n" {
		t.Errorf("logs: exit code %d, %q, %q", code, out, complaints)
	}
	if code, _, complaints := typed(t, n, "--data-dir", data, "rm", "kept"); code != 0 {
		t.Error(complaints)
	}
}

// TestATerminalOutlivesAKillOfTheDaemon: what is typed afterwards arrives, and the exit code is the command's.
func TestATerminalOutlivesAKillOfTheDaemon(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Start(t, node.Options{})
	restart := func() {
		t.Helper()
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	wait := func(cmd *exec.Cmd, want int) {
		t.Helper()
		ended := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
		defer ended.Stop()
		if err := cmd.Wait(); cmd.ProcessState.ExitCode() != want {
			t.Errorf("%v, want exit code %d", err, want)
		}
		wantNoPod(t, n, "lasting")
	}
	cmd := commandLine(t, n, "run", "-it", "--name", "lasting", node.Busybox, "sh", "-c", "echo begun; exec sh")
	p := terminal(t, cmd)
	p.await(t, "begun")
	for i := range 2 {
		restart()
		p.awaitCount(t, "attached again", i+1)
		p.write(t, fmt.Sprintf("echo $((4%d + 2)) is it\r", i))
		p.await(t, fmt.Sprintf("4%d is it", i+2))
	}
	p.write(t, "exit 5\r")
	wait(cmd, 5)

	// The container ends while the daemon is away.
	dir := t.TempDir()
	cmd = commandLine(t, n, "run", "-t", "--name", "lasting", "-v", dir+":/test", node.Busybox, "sh", "-c",
		"echo begun; while [ ! -e /test/end ]; do sleep 0.1; done; exit 6")
	p = terminal(t, cmd)
	p.await(t, "begun")
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // usually it has ended then; if not, it ends after the restart, with the same code
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	wait(cmd, 6)
}
