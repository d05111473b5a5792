package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/handover"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
)

// counts are scripts that write numbers, each in a line, until a file is there.
func counting(file string, code int) string {
	return fmt.Sprintf("i=0; until [ -e %s ]; do i=$((i+1)); echo $i; sleep 0.002; done; exit %d", file, code)
}

// counted checks that the log of a counting container has each number once, and returns the last.
func (n *node) counted(id string) int {
	n.Helper()
	last := 0
	for line := range strings.Lines(n.output(id)) {
		if line != fmt.Sprintf("%d\n", last+1) {
			n.Fatalf("%s: %q follows %d", id, line, last)
		}
		last++
	}
	return last
}

// TestContainersOutliveTheirKeeper: however it ends, the next one tells how they ended, and their logs have each line
// once. An exec goes on too, an attached client reads on after a handover, and what a client had frozen is thawed.
func TestContainersOutliveTheirKeeper(t *testing.T) {
	for name, next := range map[string]func(*node){
		"killed": (*node).replace,
		"killed twice": func(n *node) {
			n.replace()
			n.replace()
		},
		"upgraded": (*node).handOver,
		"upgraded twice": func(n *node) {
			n.handOver()
			n.handOver()
		},
		"killed after an upgrade": func(n *node) {
			n.handOver()
			n.replace()
		},
		"ended in order": func(n *node) {
			s := n.server
			s.shutdown()
			n.free(s)
			n.serve()
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			stop := filepath.Join(t.TempDir(), "stop")
			n.run(n.shell("counts", counting(stop, 5)))
			cat := n.shell("cat", "exec cat")
			cat.Stdin = true
			n.run(cat)
			n.run(n.shell("over", "echo was; exit 4"))
			n.ended("over")
			n.run(n.shell("frozen", "exec sleep 1000"))
			if _, err := n.client.Checkpoint(n.ctx(), n.checkpoint("frozen", time.Minute)); err != nil {
				t.Fatal(err)
			}
			out := n.exec("counts", "e", fmt.Sprintf("until [ -e %s ]; do sleep 0.01; done; echo done; exit 6", stop),
				time.Minute)
			n.exec("counts", "known", "exit 7", 0)
			n.exit("counts", "known")
			n.until("it counts", func() bool { return n.counted("counts") > 10 })
			before := n.counted("counts")

			next(n)

			n.until("it counts on", func() bool { return n.counted("counts") > before+10 })
			in, err := n.client.Input("cat")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := in.File.WriteString("after\n"); err != nil {
				t.Fatal(err)
			}
			in.File.Close()
			n.until("input arrives", func() bool { return n.output("cat") == "after\n" })
			if err := n.client.CloseStdin(n.ctx(), "cat"); err != nil {
				t.Fatal(err)
			}
			if st := n.ended("cat"); st.ExitCode != 0 {
				t.Errorf("cat: %+v", st)
			}
			n.until("what was frozen is thawed", func() bool { return !n.frozen("frozen") })
			if st := n.status("over"); st.ExitCode != 4 || st.State != keeper.StateExited || !st.LogDone {
				t.Errorf("what had ended: %+v", st)
			}
			if err := os.WriteFile(stop, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if exit := n.exit("counts", "e"); exit.ExitCode != 6 || read(t, out) != "done\n" {
				t.Errorf("exec: %+v", exit)
			}
			if st := n.ended("counts"); st.ExitCode != 5 || st.Lost {
				t.Errorf("counts: %+v", st)
			}
			n.counted("counts")
			n.run(n.shell("new", "exit 8"))
			if st := n.ended("new"); st.ExitCode != 8 || st.Orphan {
				t.Errorf("a container of the next keeper: %+v", st)
			}
		})
	}
}

// TestAnInputThatIsClosedStaysClosed: after a restart of the keeper several hold the escrow and hand it back, one after
// another. A write end that comes after the client has closed the input must not open it again: the container would
// wait for its end for ever.
func TestAnInputThatIsClosedStaysClosed(t *testing.T) {
	n := start(t)
	cat := n.shell("cat", "exec cat")
	cat.Stdin = true
	n.run(cat)
	in, err := n.client.Input("cat")
	if err != nil {
		t.Fatal(err)
	}
	late, err := unix.FcntlInt(in.File.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	in.File.Close()
	if err := n.client.CloseStdin(n.ctx(), "cat"); err != nil {
		t.Fatal(err)
	}
	c, err := n.server.containers.get("cat")
	if err != nil {
		t.Fatal(err)
	}
	n.server.adoption.adoptFiles(c, map[protocol.Role]int{protocol.RoleStdin: late})
	n.server.escrow.put(c)
	if st := n.ended("cat"); st.ExitCode != 0 {
		t.Errorf("cat: %+v", st)
	}
}

// TestAnAttachedClientIsHandedOver: it reads on, and is told by none that the keeper is another program.
func TestAnAttachedClientIsHandedOver(t *testing.T) {
	n := start(t)
	stop := filepath.Join(t.TempDir(), "stop")
	n.run(n.shell("c", counting(stop, 0)))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := n.client.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "c", AttachID: "a", Stdout: w}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	old, containers := n.server, n.server.containers.all()
	n.handOver()
	// What the next program has is duplicates: the old one's end is closed with the old program.
	for _, c := range containers {
		_ = c.out.Detach("a")
	}
	at := n.counted("c")
	n.until("it counts on", func() bool { return n.counted("c") > at+10 })
	if info, err := n.client.Info(n.ctx()); err != nil || info.Upgrades != 1 ||
		info.Generation != old.identity.generation {
		t.Errorf("%+v, %v", info, err)
	}
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.ended("c")
	if err := n.client.Detach(n.ctx(), "c", "a"); err != nil {
		t.Error(err)
	}
	if got := read(t, r); !strings.HasSuffix(n.output("c"), got) || len(got) == 0 {
		t.Errorf("the client has read %q of %q", got, n.output("c"))
	}
}

// TestAKeeperThatIsKilledAsAContainerStarts: its program has not begun, so it is removed, and the client's call, which
// goes on, starts it once.
func TestAKeeperThatIsKilledAsAContainerStarts(t *testing.T) {
	for _, at := range []string{"start c", "register c", "begin c"} {
		t.Run(at, func(t *testing.T) {
			n := start(t)
			n.engine.dieAt(at)
			ran := make(chan error, 1)
			go func() {
				_, err := n.client.Run(n.ctx(), n.shell("c", "echo once; exit 3"))
				ran <- err
			}()
			n.until("the start has come there", func() bool { return n.engine.has(at) })
			n.replace()
			if err := <-ran; err != nil {
				t.Fatal(err)
			}
			if st := n.ended("c"); st.ExitCode != 3 || n.output("c") != "once\n" {
				t.Errorf("%+v, log %q", st, n.output("c"))
			}
			if !n.engine.has("abort c") {
				t.Error("the start that was cut off was not undone")
			}
		})
	}
}

// TestAProgramThatHasBegunIsNotStartedAgain: the keeper was killed before it could write down that it runs.
func TestAProgramThatHasBegunIsNotStartedAgain(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "echo once; exec sleep 1000"))
	c, err := n.server.containers.get("c")
	if err != nil {
		t.Fatal(err)
	}
	n.until("it has begun", func() bool { return n.output("c") == "once\n" })
	n.kill()
	r := c.Record()
	r.Prepared, r.Waits = true, "sh\x00-c\x00"+waiting
	if err := n.server.table.Save(&r); err != nil {
		t.Fatal(err)
	}
	n.serve()
	if st := n.status("c"); st.State != keeper.StateRunning || st.PID != r.PID || n.engine.has("abort c") {
		t.Errorf("%+v", st)
	}
}

// TestRecordsThatAreSpoilt: a container whose client holds an escrow lives on; one that nobody holds is ended, since
// nobody could be told of it.
func TestRecordsThatAreSpoilt(t *testing.T) {
	for _, held := range []bool{true, false} {
		t.Run(fmt.Sprintf("in escrow %t", held), func(t *testing.T) {
			n := start(t)
			res := n.run(n.shell("c", "exec sleep 1000"))
			if !held {
				// What ends it is the engine's part, and this one does not know its processes.
				t.Cleanup(func() { _ = unix.Kill(res.PID, unix.SIGKILL) })
				n.client.Close()
			}
			n.kill()
			files, _ := filepath.Glob(filepath.Join(n.dir, recordsDir, "c.*"))
			for _, f := range files {
				if err := os.WriteFile(f, bytes.Repeat([]byte("x"), 100), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			n.serve()
			if held {
				n.until("it is handed back", func() bool {
					st, err := n.client.Status(n.ctx(), "c")
					return err == nil && st.State == keeper.StateRunning
				})
				return
			}
			n.connect()
			n.until("it is ended", func() bool { return n.engine.has("remove c") })
			if _, err := n.client.Status(n.ctx(), "c"); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("status: %v", err)
			}
		})
	}
}

// TestAContainerThatIsLostIsEndedBeforeItsIDIsFree: a start of the same ID that came as it was being ended left it
// running, with nobody who knows it.
func TestAContainerThatIsLostIsEndedBeforeItsIDIsFree(t *testing.T) {
	n := start(t)
	res := n.run(n.shell("c", "exec sleep 1000"))
	t.Cleanup(func() { _ = unix.Kill(res.PID, unix.SIGKILL) }) // which is the engine's part
	n.client.Close()
	n.kill()
	for _, name := range []string{"c.json", "c.json.spare"} {
		if err := os.WriteFile(filepath.Join(n.dir, recordsDir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n.serve()
	ending, goOn := make(chan struct{}), make(chan struct{})
	n.engine.meanwhile("remove c", func() {
		close(ending)
		<-goOn
	})
	n.connect()
	<-ending
	if _, err := n.server.find("c"); !errdefs.IsUnavailable(err) {
		t.Errorf("while it is being ended: %v", err)
	}
	close(goOn)
	n.until("it is gone", func() bool {
		_, err := n.server.find("c")
		return errdefs.IsNotFound(err)
	})
}

// TestWhatNobodyHeldIsTold: a container that went on while nobody held its pipes has a log until then, and its end is
// told, or that nobody knows it.
func TestWhatNobodyHeldIsTold(t *testing.T) {
	n := start(t)
	n.run(n.shell("runs", "exec sleep 1000"))
	n.run(n.shell("ends", "exec sleep 1000"))
	pid := n.status("ends").PID
	n.client.Close()
	n.kill()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(pid, nil, 0, nil); err != nil { // as its next parent reaps it
		t.Fatal(err)
	}
	n.serve()
	n.connect()
	if st := n.ended("ends"); !st.Lost || st.ExitCode != 255 {
		t.Errorf("%+v", st)
	}
	if st := n.status("runs"); st.State != keeper.StateRunning ||
		!n.log.has("this container's output was not handed back") {
		t.Errorf("%+v", st)
	}
	if err := n.client.Signal(n.ctx(), "runs", unix.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
	if st := n.ended("runs"); st.ExitCode != 137 {
		t.Errorf("%+v", st)
	}
}

// TestAnUpgradeThatFails: all goes on as it was, execs and output included.
func TestAnUpgradeThatFails(t *testing.T) {
	n := start(t)
	stop := filepath.Join(t.TempDir(), "stop")
	n.run(n.shell("c", counting(stop, 5)))
	n.exec("c", "e", fmt.Sprintf("until [ -e %s ]; do sleep 0.01; done; exit 6", stop), time.Minute)
	program := filepath.Join(t.TempDir(), "keeper")
	for _, test := range []struct {
		script string
		want   string
	}{
		{"#!/bin/sh\nexit 1\n", "exit status 1"},
		{"#!/bin/sh\necho 99\n", "state format"},
		// It is gone when it is to be executed.
		{fmt.Sprintf("#!/bin/sh\nrm \"$0\"\necho %d\n", handover.Format), "no such file"},
	} {
		if err := os.WriteFile(program, []byte(test.script), 0o700); err != nil {
			t.Fatal(err)
		}
		n.server.cfg.Binary = program
		if err := n.server.Upgrade(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want %s", test.script, err, test.want)
		}
		at := n.counted("c")
		n.until("it counts on", func() bool { return n.counted("c") > at+10 })
	}
	if err := n.client.Upgrade(n.ctx()); err == nil {
		t.Error("the client was told of an upgrade to nothing")
	}
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if exit := n.exit("c", "e"); exit.ExitCode != 6 {
		t.Errorf("exec: %+v", exit)
	}
	if st := n.ended("c"); st.ExitCode != 5 || st.Orphan {
		t.Errorf("%+v", st)
	}
	n.counted("c")
}

// TestAnUpgradeThatCannotPause: what waits at a file system that does not answer holds up no upgrade for ever. That is
// refused, all goes on, and the next one need not be.
func TestAnUpgradeThatCannotPause(t *testing.T) {
	n := start(t)
	stop := filepath.Join(t.TempDir(), "stop")
	n.run(n.shell("c", counting(stop, 5)))
	n.exec("c", "e", fmt.Sprintf("until [ -e %s ]; do sleep 0.01; done; exit 6", stop), time.Minute)
	program := filepath.Join(t.TempDir(), "keeper")
	n.server.cfg.Binary, n.server.upgradeWaits.pause = program, 3*time.Second
	upgrade := func(want string) {
		t.Helper()
		script := fmt.Sprintf("#!/bin/sh\nrm \"$0\"\necho %d\n", handover.Format) // gone when it is to be executed
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := n.server.Upgrade(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		at := n.counted("c")
		n.until("it counts on", func() bool { return n.counted("c") > at+10 })
	}
	hangs := make(chan struct{})
	n.server.watching.Go(func() { <-hangs })
	upgrade("still being recorded")
	upgrade("still being recorded")
	close(hangs)
	n.server.upgradeWaits = usualWaits
	upgrade("no such file")
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if exit := n.exit("c", "e"); exit.ExitCode != 6 {
		t.Errorf("exec: %+v", exit)
	}
	if st := n.ended("c"); st.ExitCode != 5 || st.Orphan {
		t.Errorf("%+v", st)
	}
	n.counted("c")
}

// TestAnExecThatDoesNotGetInHoldsUpNoUpgrade: its container may be frozen. The start is ended, and made again after the
// upgrade. A start or a removal of a container that hangs has the upgrade refused, with its name.
func TestAnExecThatDoesNotGetInHoldsUpNoUpgrade(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "exec sleep 1000"))
	c, err := n.server.containers.get("c")
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.record.Join = &record.Join{} // as one whose execs are stages
	c.mu.Unlock()
	n.engine.hangs["exec c"] = true
	ran := make(chan error, 1)
	mark := filepath.Join(t.TempDir(), "mark")
	go func() {
		_, err := n.client.Exec(n.ctx(), &keeper.ExecRequest{ContainerID: "c", ExecID: "e",
			Process: &specs.Process{Args: []string{"sh", "-c", "echo >>" + mark + "; exit 6"}, Cwd: "/"}})
		ran <- err
	}()
	n.until("the exec hangs", func() bool { return n.engine.has("exec c") })
	program := filepath.Join(t.TempDir(), "keeper")
	n.server.cfg.Binary = program
	upgrade := func(want string) {
		t.Helper()
		script := fmt.Sprintf("#!/bin/sh\nrm \"$0\"\necho %d\n", handover.Format) // gone when it is to be executed
		if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := n.server.Upgrade(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	n.server.upgradeWaits = upgradeWaits{calls: time.Minute, execs: 50 * time.Millisecond, pause: time.Minute}
	upgrade("no such file")
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	if exit := n.exit("c", "e"); exit.ExitCode != 6 {
		t.Errorf("%+v", exit)
	}
	if b, _ := os.ReadFile(mark); len(b) != 1 {
		t.Errorf("the command ran %d times", len(b))
	}

	n.server.upgradeWaits.calls = 100 * time.Millisecond
	goOn := make(chan struct{})
	n.engine.meanwhile("start hangs", func() { <-goOn })
	go func() {
		_, err := n.client.Run(n.ctx(), n.shell("hangs", "exit 7"))
		ran <- err
	}()
	n.until("the start hangs", func() bool { return n.engine.has("start hangs") })
	upgrade("the start of container hangs")
	close(goOn)
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
	if st := n.ended("hangs"); st.ExitCode != 7 {
		t.Errorf("%+v", st)
	}

	goOn = make(chan struct{})
	n.engine.meanwhile("destroy hangs", func() { <-goOn })
	go func() { ran <- n.client.Delete(n.ctx(), "hangs") }()
	n.until("the removal hangs", func() bool { return n.engine.has("destroy hangs") })
	upgrade("the removal of container hangs")
	close(goOn)
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
}

// TestAnUpgradeThatFailsLeavesNoDescriptors: what a slow client has yet to take is copied for the next program. The
// copies stayed open where there was none.
func TestAnUpgradeThatFailsLeavesNoDescriptors(t *testing.T) {
	n := start(t)
	n.run(n.shell("c", "while :; do echo line; done"))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() // nobody reads
	if err := n.client.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "c", AttachID: "a", Stdout: w}); err != nil {
		t.Fatal(err)
	}
	w.Close()
	n.until("the client is behind", func() bool { return n.server.backlogs.Held() > 0 })
	n.server.cfg.Binary = filepath.Join(t.TempDir(), "keeper")
	script := fmt.Sprintf("#!/bin/sh\nrm \"$0\"\necho %d\n", handover.Format)
	if err := os.WriteFile(n.server.cfg.Binary, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := n.server.Upgrade(); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Fatal(err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range open {
		if name, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(name, "berth-attach") {
			t.Errorf("%s stays open", name)
		}
	}
}

// TestNothingIsClosedBehindAnUpgrade: the state of an upgrade names descriptors by their numbers. What closes one waits
// until the upgrade is over: the number could be another file's by the time the next program takes it over.
func TestNothingIsClosedBehindAnUpgrade(t *testing.T) {
	n := start(t)
	cat := n.shell("cat", "exec cat")
	cat.Stdin = true
	n.run(cat)
	_, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := n.client.Attach(n.ctx(), &keeper.AttachRequest{ContainerID: "cat", AttachID: "a", Stdout: w}); err != nil {
		t.Fatal(err)
	}
	s, v := n.server, &service{s: n.server}
	c, err := s.containers.get("cat")
	if err != nil {
		t.Fatal(err)
	}
	s.gate.Close()
	_, stdin := v.CloseStdin(t.Context(), &api.ContainerRequest{Id: "cat"})
	_, detach := v.Detach(t.Context(), &api.AttachID{ContainerId: "cat", AttachId: "a"})
	_, reopen := v.ReopenLog(t.Context(), &api.ContainerRequest{Id: "cat"})
	for what, err := range map[string]error{"input": stdin, "client": detach, "log": reopen} {
		if !errdefs.IsUnavailable(protocol.Decode(err)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	attached := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.clients)
	}
	for _, ses := range s.sessions.All() {
		s.sessions.Remove(ses) // as one that does not come back
		s.abandon(ses.ID)
	}
	if attached() != 1 {
		t.Error("a client that has not come back is cut off")
	}
	s.gate.Open()
	n.until("the client is cut off when the upgrade has failed", func() bool { return attached() == 0 })
}

// TestClientsComeAfterAnUpgradeThatWasRefused: the socket of descriptors is accepted from, also after an error that
// passes. After a refused upgrade such an error ended that for good.
func TestClientsComeAfterAnUpgradeThatWasRefused(t *testing.T) {
	n := start(t)
	n.server.gate.Close() // as an upgrade that a start holds up
	n.server.gate.Open()
	if err := n.server.sockets.fds.SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // it has failed by then
	if err := n.server.sockets.fds.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	c, err := keeper.Connect(ctx, keeper.Config{Dir: n.dir, Await: true, Logger: n.server.log})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// TestOneKeeperForADirectory: a second one is refused.
func TestOneKeeperForADirectory(t *testing.T) {
	n := start(t)
	if _, err := New(n.server.cfg); err == nil || !strings.Contains(err.Error(), "another keeper runs") {
		t.Errorf("a second keeper: %v", err)
	}
	if _, err := New(Config{Dir: "relative"}); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("a relative directory: %v", err)
	}
}
