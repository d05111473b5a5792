package client_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
)

func TestInputReachesContainer(t *testing.T) {
	n := start(t)
	req := n.request("a", "cat")
	req.Stdin = true
	n.run(req)
	in, err := n.client.Input("a")
	if err != nil {
		t.Fatal(err)
	}
	defer in.File.Close()
	if in.Terminal {
		t.Error("a pipe says it is a terminal")
	}
	if _, err := io.WriteString(in.File, "one\ntwo\n"); err != nil {
		t.Fatal(err)
	}
	n.until("output is in the log", func() bool { return n.output("stdout", n.logPath("a")) == "one\ntwo\n" })
	if err := in.File.Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.client.CloseStdin(n.ctx(), "a"); err != nil {
		t.Fatal(err)
	}
	if st := n.ended("a"); st.ExitCode != 0 {
		t.Errorf("cat ended with %d", st.ExitCode)
	}
	n.run(n.request("b", "sleep", "100"))
	if _, err := n.client.Input("b"); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("input of one without: %v", err)
	}
	if _, err := n.client.Input("nobody"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("input of nobody: %v", err)
	}
}

func TestStdinOnceEndsWithItsClient(t *testing.T) {
	n := start(t)
	req := n.request("a", "cat")
	req.Stdin, req.StdinOnce = true, true
	n.run(req)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := n.client.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "a", AttachID: "x", Stdout: w,
		Stdin: true}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := n.client.Detach(n.ctx(), "a", "x"); err != nil {
		t.Fatal(err)
	}
	n.ended("a")

	// The same when the process that attached dies.
	req = n.request("b", "cat")
	req.Stdin, req.StdinOnce = true, true
	n.run(req)
	second := n.connect()
	r2, w2, _ := os.Pipe()
	defer r2.Close()
	if err := second.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "b", AttachID: "x", Stdout: w2,
		Stdin: true}); err != nil {
		t.Fatal(err)
	}
	w2.Close()
	second.Close()
	n.ended("b")
}

func TestTerminal(t *testing.T) {
	n := start(t)
	req := n.request("a", "sh", "-c", "stty size; read line; echo got $line; stty size; read x")
	req.Spec.Process.Terminal = true
	req.Spec.Process.ConsoleSize = &specs.Box{Height: 10, Width: 20}
	req.Stdin = true
	n.run(req)
	in, err := n.client.Input("a")
	if err != nil {
		t.Fatal(err)
	}
	defer in.File.Close()
	if !in.Terminal {
		t.Fatal("no terminal")
	}
	n.until("the shell has started", func() bool { return strings.Contains(n.output("stdout", n.logPath("a")), "10 20") })
	raw, err := in.File.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		if err := unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
			t.Error(err)
		}
	})
	if _, err := io.WriteString(in.File, "hello\n"); err != nil {
		t.Fatal(err)
	}
	n.until("the shell has answered", func() bool {
		out := n.output("stdout", n.logPath("a"))
		return strings.Contains(out, "got hello") && strings.Contains(out, "24 80")
	})
	if _, err := io.WriteString(in.File, "\n"); err != nil {
		t.Fatal(err)
	}
	n.ended("a")
	if out := n.output("stderr", n.logPath("a")); out != "" {
		t.Errorf("a terminal has no stderr: %q", out)
	}
}

func TestAttachSeveralClientsAndASlowOne(t *testing.T) {
	n := start(t)
	const lines = 400000 // 2.7 MB: more than is kept in memory
	req := n.request("a", "sh", "-c", fmt.Sprintf("read go; seq 1 %d; echo err >&2", lines))
	req.Stdin = true
	n.run(req)
	in, err := n.client.Input("a")
	if err != nil {
		t.Fatal(err)
	}
	defer in.File.Close()
	var want bytes.Buffer
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	type attached struct{ out, err *os.File }
	var clients []attached
	for i := range 5 {
		r, w, _ := os.Pipe()
		er, ew, _ := os.Pipe()
		if err := n.client.Attach(n.ctx(), &keeper.AttachRequest{
			ContainerID: "a", AttachID: fmt.Sprint("c", i), Stdout: w, Stderr: ew,
		}); err != nil {
			t.Fatal(err)
		}
		w.Close()
		ew.Close()
		clients = append(clients, attached{r, er})
	}
	// One that goes away at once, and one that is cut off.
	r, w, _ := os.Pipe()
	_ = n.client.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "a", AttachID: "gone", Stdout: w})
	w.Close()
	r.Close()
	r, w, _ = os.Pipe()
	_ = n.client.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "a", AttachID: "cut", Stdout: w})
	w.Close()
	if err := n.client.Detach(n.ctx(), "a", "cut"); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(r); err != nil || len(b) > 0 {
		t.Errorf("one that was cut off got %d bytes, %v", len(b), err)
	}
	r.Close()
	if _, err := io.WriteString(in.File, "\n"); err != nil {
		t.Fatal(err)
	}
	// Nobody reads yet, and the container ends all the same.
	began := time.Now()
	n.ended("a")
	if d := time.Since(began); d > 30*time.Second {
		t.Errorf("a slow reader has delayed the container: %v", d)
	}
	for i, c := range clients {
		got, err := io.ReadAll(c.out)
		if err != nil || !bytes.Equal(got, want.Bytes()) {
			t.Errorf("client %d: %d bytes of %d, %v", i, len(got), want.Len(), err)
		}
		if got, err := io.ReadAll(c.err); err != nil || string(got) != "err\n" {
			t.Errorf("client %d: stderr %q, %v", i, got, err)
		}
	}
	late := &keeper.AttachRequest{ContainerID: "a", AttachID: "late"}
	if err := n.client.Attach(n.ctx(), late); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("attach to one that has exited: %v", err)
	}
}

// TestWhoWasCutOffIsToldThoughTheContainerIsGone: the reason waits until it is asked for, once, and no longer than its
// client lives. Without that it was seen to fail.
func TestWhoWasCutOffIsToldThoughTheContainerIsGone(t *testing.T) {
	n := start(t)
	req := n.request("a", "sh", "-c", "read go; head -c 900000 /dev/zero; read go; head -c 9100000 /dev/zero")
	req.Stdin = true
	n.run(req)
	in, err := n.client.Input("a")
	if err != nil {
		t.Fatal(err)
	}
	defer in.File.Close()
	next := func() {
		if _, err := io.WriteString(in.File, "\n"); err != nil {
			t.Fatal(err)
		}
	}
	spill := filepath.Join(t.TempDir(), "attach")
	r, w, _ := os.Pipe()
	defer r.Close()
	if err := n.client.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "a", AttachID: "slow", Stdout: w,
		Backlog: 1 << 20, SpillDir: spill}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if err := n.client.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "a", AttachID: "bad",
		SpillDir: "attach"}); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a directory that is not absolute: %v", err)
	}
	next()
	n.until("some of it is kept where it was told to", func() bool { _, err := os.Stat(spill); return err == nil })
	next()
	n.ended("a")
	if err := n.client.Delete(n.ctx(), "a"); err != nil {
		t.Fatal(err)
	}
	if err := n.client.Detach(n.ctx(), "a", "slow"); !errors.Is(err, errdefs.ErrResourceExhausted) ||
		!strings.Contains(err.Error(), "1048576 bytes") {
		t.Errorf("it is told %v", err)
	}
	if err := n.client.Detach(n.ctx(), "a", "slow"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Errorf("told again: %v", err)
	}
}
