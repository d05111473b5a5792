package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
)

func TestUpgradeInPlaceUnderLoad(t *testing.T) {
	n := start(t)
	const lines = 600000
	req := n.request("load", "sh", "-c", fmt.Sprintf("read go; seq 1 %d; printf tail; sleep 0.2; echo end; exit 9", lines))
	req.Stdin = true
	n.run(req)
	n.run(n.request("idle", "sleep", "1000"))
	n.run(n.request("dies", "sleep", "0.15"))
	in, err := n.client.Input("load")
	if err != nil {
		t.Fatal(err)
	}
	// A client that reads only after all upgrades: what it has not taken crosses them.
	r, w, _ := os.Pipe()
	if err := n.client.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "load", AttachID: "slow",
		Stdout: w}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	// An exec that is open over all of them, and calls that never stop.
	eR, eW, _ := os.Pipe()
	iR, iW, _ := os.Pipe()
	if _, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{
		ContainerID: "idle", ExecID: "open", Process: n.process("sh", "-c", "read x; echo $x; exit 6"), Stdin: iR, Stdout: eW,
	}); err != nil {
		t.Fatal(err)
	}
	iR.Close()
	eW.Close()
	waited := make(chan *keeper.ExecExit, 1)
	go func() {
		exit, err := n.client.WaitExec(n.ctx(), "idle", "open")
		if err != nil {
			t.Errorf("wait for exec: %v", err)
		}
		waited <- exit
	}()
	events := make(chan keeper.Event, 1000)
	watch, stopWatch := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = n.client.Watch(watch, func(e keeper.Event) { events <- e }) })
	stop := make(chan struct{})
	for i := range 2 {
		group.Go(func() {
			for k := 0; ; k++ {
				select {
				case <-stop:
					return
				default:
				}
				if i == 0 {
					out, exit := n.exec("idle", 0, "echo", "hi")
					if out != "hi\n" || exit.ExitCode != 0 {
						t.Errorf("exec during upgrades: %q %+v", out, exit)
					}
					continue
				}
				id := fmt.Sprint("short", k)
				n.run(n.request(id, "sh", "-c", "echo x; exit 2"))
				if st := n.ended(id); st.ExitCode != 2 || st.Lost {
					t.Errorf("started during upgrades: %+v", st)
				}
				n.delete(id)
			}
		})
	}
	io.WriteString(in.File, "\n")
	before, err := n.client.Info(n.ctx())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		began := time.Now()
		if i == 2 {
			if err := unix.Kill(before.PID, unix.SIGHUP); err != nil {
				t.Fatal(err)
			}
			n.until("SIGHUP has upgraded", func() bool {
				info, err := n.client.Info(n.ctx())
				return err == nil && info.Upgrades == 3
			})
		} else if err := n.client.Upgrade(n.ctx()); err != nil {
			t.Fatal(err)
		}
		t.Logf("upgrade took %v", time.Since(began))
		time.Sleep(20 * time.Millisecond)
	}
	close(stop)
	after, err := n.client.Info(n.ctx())
	if err != nil {
		t.Fatal(err)
	}
	if after.PID != before.PID || after.Generation != before.Generation || after.Upgrades != 5 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	in.File.Close()
	io.WriteString(iW, "word\n")
	iW.Close()
	if b, err := io.ReadAll(eR); err != nil || string(b) != "word\n" {
		t.Errorf("exec's output %q, %v", b, err)
	}
	if exit := <-waited; exit == nil || exit.ExitCode != 6 {
		t.Errorf("exec's exit %+v", exit)
	}
	if st := n.ended("load"); st.ExitCode != 9 || st.Lost || st.Orphan {
		t.Errorf("status %+v", st)
	}
	if st := n.ended("dies"); st.ExitCode != 0 || st.Lost {
		t.Errorf("one that ended during an upgrade: %+v", st)
	}
	var want bytes.Buffer
	for i := 1; i <= lines; i++ {
		fmt.Fprintln(&want, i)
	}
	want.WriteString("tailend\n")
	if got := n.output("stdout", n.logPath("load")); got != want.String() {
		t.Errorf("log has %d bytes, want %d", len(got), want.Len())
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want.Bytes()) {
		at := 0
		for at < min(len(got), want.Len()) && got[at] == want.Bytes()[at] {
			at++
		}
		t.Errorf("slow client has %d bytes, want %d; the first other one is at %d: %.60q; %v",
			len(got), want.Len(), at, got[at:], err)
	}
	stopWatch()
	group.Wait()
	close(events)
	exited := map[string]bool{}
	for e := range events {
		if e.Status.State == keeper.StateExited {
			exited[e.Status.ID] = true
		}
	}
	if !exited["load"] || !exited["dies"] || exited["idle"] {
		t.Errorf("events tell of %v", exited)
	}
}

// One that comes while an upgrade is on its way must not end the keeper.
func TestHangupsInARow(t *testing.T) {
	n := start(t)
	n.run(n.request("a", "sleep", "1000"))
	before, err := n.client.Info(n.ctx())
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		if err := unix.Kill(before.PID, unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	after, err := n.client.Info(n.ctx())
	if err != nil || after.PID != before.PID || after.Generation != before.Generation {
		t.Errorf("before %+v, after %+v, %v", before, after, err)
	}
	n.until("one more upgrades", func() bool {
		if err := unix.Kill(before.PID, unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		info, err := n.client.Info(n.ctx())
		return err == nil && info.Upgrades > after.Upgrades
	})
	if st, err := n.client.Status(n.ctx(), "a"); err != nil || st.State != keeper.StateRunning || st.Orphan {
		t.Errorf("%+v, %v", st, err)
	}
}

func TestUpgradeToABadProgramIsRefused(t *testing.T) {
	n := start(t)
	n.run(n.request("a", "sleep", "1000"))
	good, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), "berth-keeper")
	if err := os.WriteFile(own, good, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := n.config()
	cfg.Dir, cfg.Binary = n.dir+"2", own
	c, err := keeper.Connect(n.ctx(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	info, err := c.Info(n.ctx())
	if err != nil {
		t.Fatal(err)
	}
	defer n.end(info.PID, syscall.SIGTERM)
	os.Remove(own)
	if err := os.WriteFile(own, []byte("#!/bin/sh\necho 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.Upgrade(n.ctx()); err == nil || !strings.Contains(err.Error(), "state format") {
		t.Errorf("upgrade to another program: %v", err)
	}
	if now, err := c.Info(n.ctx()); err != nil || now.Upgrades != 0 || now.PID != info.PID {
		t.Errorf("after a refused upgrade: %+v %v", now, err)
	}
}

func TestKeeperKilled(t *testing.T) {
	n := start(t)
	script := "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); echo $i; [ -e /tmp/stop ] && exit 8; usleep 500; done"
	req := n.request("talks", "sh", "-c", script)
	n.run(req)
	cat := n.request("cat", "cat")
	cat.Stdin = true
	n.run(cat)
	tty := n.request("tty", "sh", "-c", "read x; echo got $x; exit 3")
	tty.Stdin, tty.Spec.Process.Terminal = true, true
	n.run(tty)
	n.run(n.request("idle", "sleep", "1000"))
	// It ends while no keeper is there.
	n.run(n.request("gap", "sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do usleep 1000; done"))
	n.until("gap is ready", func() bool { return n.output("stdout", n.logPath("gap")) != "" })
	gap, err := n.client.Status(n.ctx(), "gap")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{
		ContainerID: "idle", ExecID: "open", Process: n.process("sh", "-c", "sleep 1; exit 4"),
	}); err != nil {
		t.Fatal(err)
	}
	waited := make(chan *keeper.ExecExit, 1)
	go func() {
		exit, err := n.client.WaitExec(n.ctx(), "idle", "open")
		if err != nil {
			t.Errorf("wait for exec: %v", err)
		}
		waited <- exit
	}()
	n.until("output flows", func() bool { return strings.Count(n.output("stdout", n.logPath("talks")), "\n") > 50 })

	first := n.pid()
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(gap.PID, unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	var second int
	n.until("another keeper answers", func() bool {
		second = n.pid()
		return second != first
	})
	at := strings.Count(n.output("stdout", n.logPath("talks")), "\n")
	n.until("output goes on", func() bool { return strings.Count(n.output("stdout", n.logPath("talks")), "\n") > at+50 })
	for _, id := range []string{"talks", "cat", "idle", "tty"} {
		st, err := n.client.Status(n.ctx(), id)
		if err != nil || st.State != keeper.StateRunning || !st.Orphan {
			t.Errorf("%s: %+v, %v", id, st, err)
		}
	}
	if out, exit := n.exec("idle", 0, "echo", "alive"); out != "alive\n" || exit.ExitCode != 0 {
		t.Errorf("exec in an orphan: %q %+v", out, exit)
	}
	// Input, terminals and exit codes are as before.
	in, err := n.client.Input("cat")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(in.File, "after\n")
	in.File.Close()
	if err := n.client.CloseStdin(n.ctx(), "cat"); err != nil {
		t.Fatal(err)
	}
	n.endedOrphan("cat", 0)
	if got := n.output("stdout", n.logPath("cat")); got != "after\n" {
		t.Errorf("cat wrote %q", got)
	}
	in, err = n.client.Input("tty")
	if err != nil || !in.Terminal {
		t.Fatalf("terminal: %v", err)
	}
	io.WriteString(in.File, "me\n")
	in.File.Close()
	n.endedOrphan("tty", 3)
	if got := n.output("stdout", n.logPath("tty")); !strings.Contains(got, "got me") {
		t.Errorf("tty wrote %q", got)
	}
	if exit := <-waited; exit == nil || !orphanEnd(4, exit.ExitCode, exit.ExitCode == 255) {
		t.Errorf("exec's exit %+v", exit)
	}
	if st := n.ended("gap"); st.Lost == (st.ExitCode == 5) || st.ExitCode != 5 && st.ExitCode != 255 {
		t.Errorf("one that ended meanwhile: %+v", st)
	} else {
		t.Logf("one that ended meanwhile: code %d, lost %v", st.ExitCode, st.Lost)
	}
	// A second death: an orphan stays one.
	if err := unix.Kill(second, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.until("a third keeper answers", func() bool { return n.pid() != second })
	if err := os.WriteFile(n.root+"/tmp/stop", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.endedOrphan("talks", 8)
	n.sequence(strings.Count(n.output("stdout", n.logPath("talks")), "\n"), n.logPath("talks"))
	// Upgraded in place, an orphan is still watched as one.
	if err := n.client.Upgrade(n.ctx()); err != nil {
		t.Fatal(err)
	}
	if err := n.client.Signal(n.ctx(), "idle", unix.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
	n.endedOrphan("idle", 137)
}

// A keeper that is killed at any moment of a start or an exec loses neither, nor how they end. An exec that was about
// to begin then may be refused; its command runs once at most.
func TestKeeperKilledAtAnyMoment(t *testing.T) {
	n := start(t)
	n.run(n.request("idle", "sleep", "1000"))
	refused := 0
	for i := range 30 {
		before := n.pid()
		killed := make(chan error, 1)
		// A start takes some milliseconds, an exec fewer; what comes after them is hit as well.
		after := time.Duration(i) * time.Millisecond
		go func() {
			time.Sleep(after)
			killed <- unix.Kill(before, unix.SIGKILL)
		}()
		id := fmt.Sprint("c", i)
		n.run(n.request(id, "sh", "-c", "echo out; exit 7"))
		execID := fmt.Sprint("e", i)
		_, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{
			ContainerID: "idle", ExecID: execID, Process: n.process("sh", "-c", "echo >>/tmp/"+execID+"; exit 6"),
		})
		var exit *keeper.ExecExit
		if err == nil {
			exit, err = n.client.WaitExec(n.ctx(), "idle", execID)
		}
		switch {
		case errors.Is(err, errdefs.ErrAborted):
			refused++
		case err != nil || exit.ExitCode != 6:
			t.Errorf("exec, killed after %v: %+v, %v", after, exit, err)
		}
		if ran, _ := os.ReadFile(filepath.Join(n.root, "tmp", execID)); len(ran) > 1 || err == nil && len(ran) != 1 {
			t.Errorf("exec, killed after %v: its command ran %d times", after, len(ran))
		}
		if st := n.ended(id); st.ExitCode != 7 || st.Lost {
			t.Errorf("container, killed after %v: %+v", after, st)
		}
		if got := n.output("stdout", n.logPath(id)); got != "out\n" {
			t.Errorf("container, killed after %v: wrote %q", after, got)
		}
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
		n.until("another keeper answers", func() bool { return n.pid() != before })
		n.delete(id)
	}
	t.Logf("%d of 30 execs were refused", refused)
}

// A container gets each signal once, whenever in the call the keeper is killed. With the signal sent by the keeper, and
// by the next one again, one of 160 came twice.
func TestKeeperKilledAtAnyMomentOfASignal(t *testing.T) {
	n := start(t)
	n.run(n.request("c", "sh", "-c", "trap 'echo got' USR1; echo ready; while :; do sleep 0.01; done"))
	lines := func() int { return strings.Count(n.output("stdout", n.logPath("c")), "\n") }
	n.until("the container is ready", func() bool { return lines() == 1 })
	for i := range 40 {
		before := n.pid()
		killed := make(chan error, 1)
		go func() {
			for begin := time.Now(); time.Since(begin) < time.Duration(i*5)*time.Microsecond; { // a sleep takes longer
			}
			killed <- unix.Kill(before, unix.SIGKILL)
		}()
		if err := n.client.Signal(n.ctx(), "c", unix.SIGUSR1, false); err != nil {
			t.Errorf("signal %d: %v", i, err)
		}
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
		n.until("another keeper answers", func() bool { return n.pid() != before })
		n.until("the signal has come", func() bool { return lines() >= i+2 })
	}
	time.Sleep(100 * time.Millisecond) // a second one would have come by now
	if got := lines() - 1; got != 40 {
		t.Errorf("%d of 40 signals came", got)
	}
}

// A keeper that is killed while it takes things back costs nothing either.
func TestKeeperKilledWhileItTakesThingsBack(t *testing.T) {
	n := start(t)
	var ids []string
	for i := range 12 {
		ids = append(ids, fmt.Sprint("c", i))
		n.run(n.request(ids[i], "sh", "-c", "while :; do echo line; usleep 2000; done"))
	}
	last := 0
	for round := range 40 {
		n.until("another keeper listens", func() bool {
			conn, err := protocol.Dial("unixpacket", n.dir, protocol.FDsSocket)
			if err != nil {
				return false
			}
			defer conn.Close()
			raw, err := conn.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var cred *unix.Ucred
			if err := raw.Control(func(fd uintptr) {
				cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET,
					unix.SO_PEERCRED)
			}); err != nil {
				t.Fatal(err)
			}
			if err != nil || int(cred.Pid) == last {
				return false
			}
			last = int(cred.Pid)
			return true
		})
		time.Sleep(time.Duration(round) * 300 * time.Microsecond)
		if err := unix.Kill(last, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range ids {
		if st, err := n.client.Status(n.ctx(), id); err != nil || st.State != keeper.StateRunning {
			t.Errorf("%s: %+v, %v", id, st, err)
			continue
		}
		at := strings.Count(n.output("stdout", n.logPath(id)), "\n")
		n.until("output of "+id+" goes on", func() bool {
			return strings.Count(n.output("stdout", n.logPath(id)),
				"\n") > at
		})
	}
}

// What a call has been told of is in escrow: the keeper may die at once.
func TestKeeperKilledRightAfterItsAnswer(t *testing.T) {
	n := start(t)
	n.run(n.request("idle", "sleep", "1000"))
	for i := range 20 {
		id, execID := fmt.Sprint("c", i), fmt.Sprint("e", i)
		wait := fmt.Sprintf("until [ -e /tmp/go%d ]; do usleep 1000; done; ", i)
		kill := func(pid int) {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(fmt.Sprintf("%s/tmp/go%d", n.root, i), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		pid := n.pid()
		if _, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{
			ContainerID: "idle", ExecID: execID, Process: n.process("sh", "-c", wait+"exit 6"),
		}); err != nil {
			t.Fatal(err)
		}
		kill(pid)
		if exit, err := n.client.WaitExec(n.ctx(), "idle", execID); err != nil ||
			!orphanEnd(6, exit.ExitCode, exit.ExitCode == 255) {
			t.Errorf("exec: %+v, %v", exit, err)
		}
		if err := os.Remove(fmt.Sprintf("%s/tmp/go%d", n.root, i)); err != nil {
			t.Fatal(err)
		}
		pid = n.pid()
		n.run(n.request(id, "sh", "-c", wait+"echo out; exit 7"))
		kill(pid)
		n.endedOrphan(id, 7)
		if got := n.output("stdout", n.logPath(id)); got != "out\n" {
			t.Errorf("container wrote %q", got)
		}
		n.delete(id)
	}
}

func TestKeeperAndClientKilled(t *testing.T) {
	n := start(t)
	n.run(n.request("lives", "sleep", "1000"))
	n.run(n.request("dies", "sleep", "1000"))
	dies, err := n.client.Status(n.ctx(), "dies")
	if err != nil {
		t.Fatal(err)
	}
	pid := n.pid()
	start, err := pidfd.StartTime(dies.PID)
	if err != nil {
		t.Fatal(err)
	}
	n.client.Close() // and with it the escrow
	n.end(pid, unix.SIGKILL)
	if err := unix.Kill(dies.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.until("it is dead", func() bool { return !pidfd.Alive(dies.PID, start) })
	// What a start that was cut off leaves behind.
	if err := os.WriteFile(filepath.Join(n.dir, "rows", "half.json"),
		fmt.Appendf(nil, `{"id":"half","state":"starting","cgroupsPath":"%s/half"}`, n.cgroup), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(n.dir, "state", "half"), 0o711); err != nil {
		t.Fatal(err)
	}
	n.client = n.connect()
	if st := n.ended("dies"); st.ExitCode != 255 || !st.Lost {
		t.Errorf("one that ended: %+v", st)
	}
	st, err := n.client.Status(n.ctx(), "lives")
	if err != nil || st.State != keeper.StateRunning || !st.Orphan {
		t.Errorf("one that lives: %+v, %v", st, err)
	}
	if _, exit := n.exec("lives", 0, "true"); exit.ExitCode != 0 {
		t.Errorf("exec: %+v", exit)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "state", "half")); err == nil {
		t.Error("a start that was cut off has left its state")
	}
	n.delete("lives")
}

func TestClientComesAndGoes(t *testing.T) {
	n := start(t)
	req := n.request("a", "cat")
	req.Stdin = true
	n.run(req)
	for range 3 {
		n.client.Close()
		n.client = n.connect()
		n.until("the exec is in escrow", func() bool {
			in, err := n.client.Input("a")
			if err == nil {
				in.File.Close()
			}
			return err == nil
		})
	}
	in, err := n.client.Input("a")
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(in.File, "hello\n")
	in.File.Close()
	if err := n.client.CloseStdin(n.ctx(), "a"); err != nil {
		t.Fatal(err)
	}
	n.ended("a")
	if got := n.output("stdout", n.logPath("a")); got != "hello\n" {
		t.Errorf("output %q", got)
	}
}

func TestOneKeeperPerDirectory(t *testing.T) {
	n := start(t)
	out, err := exec.CommandContext(n.ctx(), binary, "--dir", n.dir).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another keeper") {
		t.Errorf("a second keeper: %v, %s", err, out)
	}
}
