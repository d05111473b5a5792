package life

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containerd/console"
	"golang.org/x/sys/unix"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// readOne starts a command, reads some of its output, and closes its end of the pipe, as head does.
func readOne(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout = w
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 2)); err != nil {
		t.Fatal(err)
	}
}

// TestACommandWhoseReaderIsGoneEndsAndLeavesNothing, as in `berth run IMAGE yes | head -1`.
func TestACommandWhoseReaderIsGoneEndsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Create(nodetest.Sh("yes | head -n 100000; sleep 600"))
	c.Start()
	c.WaitLog("y")
	for _, args := range [][]string{
		{"run", "--name", "unread", node.Busybox, "yes"}, {"run", "--name", "unread", "-t", node.Busybox, "yes"},
		{"run", "--name", "unread", "-i", node.Busybox, "yes"},
		{"logs", "-f", c.ID}, {"exec", c.ID, "yes"}, {"exec", "-t", c.ID, "yes"},
	} {
		cmd := commandLine(t, n, args...)
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		readOne(t, cmd)
		if err := cmd.Wait(); err != nil || complaints.Len() > 0 {
			t.Errorf("%q: %v, %s", args, err, complaints.String())
		}
		wantNoPod(t, n, "unread")
	}
}

// TestATerminalIsRestoredWhenTheReaderIsGone, as in `berth exec -it POD yes | head -1`.
func TestATerminalIsRestoredWhenTheReaderIsGone(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run()
	master, path, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	side, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer side.Close()
	cmd := commandLine(t, n, "exec", "-it", c.ID, "yes")
	cmd.Stdin = side
	readOne(t, cmd)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if mode, err := unix.IoctlGetTermios(int(side.Fd()), unix.TCGETS); err != nil || mode.Lflag&unix.ICANON == 0 {
		t.Errorf("the terminal is left raw: %v, %+v", err, mode)
	}
}

// TestOutputThatCannotBeWrittenIsAnError, without the notes too.
func TestOutputThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	c := nodetest.RunPod(t, n).Run()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	file := written(t, `apiVersion: v1
kind: Pod
metadata: {name: unwritten}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: a, image: IMAGE, command: [echo, hi]}, {name: b, image: IMAGE, command: [sleep, "600"]}]
`)
	for _, args := range [][]string{
		{"run", "-q", "--name", "unwritten", node.Busybox, "echo", "hi"},
		{"run", "-q", "--name", "unwritten", node.Busybox, "sh", "-c", "echo hi; exit 3"},
		{"run", "-q", "--name", "unwritten", "-t", node.Busybox, "echo", "hi"}, {"run", "-q", file},
		{"run", "-qd", "--name", "unwritten", node.Busybox, "sleep", "600"},
		{"exec", c.ID, "echo", "hi"}, {"exec", "-t", c.ID, "echo", "hi"},
	} {
		data := t.TempDir()
		cmd := commandLine(t, n, append([]string{"--data-dir", data}, args...)...)
		var complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &complaints
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != 1 || strings.Count(complaints.String(), "no space left") != 1 {
			t.Errorf("%q: exit code %d, %s", args, code, complaints.String())
		}
		if args[1] == "-qd" { // the pod itself has been started
			typed(t, n, "--data-dir", data, "rm", "-f", "unwritten")
		}
		wantNoPod(t, n, "unwritten")
	}
}

// TestAQuietRunSaysWhyAContainerFailed.
func TestAQuietRunSaysWhyAContainerFailed(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	code, _, complaints := ranImage(t, n, nil, "-q", node.Busybox, "sh", "-c",
		"echo out of tea >/dev/termination-log; exit 3")
	if code != 3 || !strings.Contains(complaints, "out of tea") {
		t.Errorf("exit code %d, %q", code, complaints)
	}
}
