package life

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/internal/keeper/procfs"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestPoststopHooksRunOnce, also after one that fails, whose error keeps nobody from removing the container. A pause
// has the keeper hold libcontainer's state of the container in memory. Seen to fail where the error of the hook was
// that of the removal: the hook ran again at each try, the next one never ran, and the container stayed.
func TestPoststopHooksRunOnce(t *testing.T) {
	nodetest.BerthOnly(t, "its errors are its own")
	dir, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir)})
	nodetest.Pull(t, n, node.Busybox)
	writeHook(t, dir, "a", "poststop", fmt.Sprintf("echo fails >>%s; echo so it says; exit 3", ran), "")
	writeHook(t, dir, "b", "poststop", fmt.Sprintf("echo follows >>%s", ran), "")
	c := nodetest.RunPod(t, n, hangs).Run(sleeps)
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	if _, err := d.Pouch.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: c.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Pouch.UnpauseContainer(ctx, &pouch.UnpauseContainerRequest{ContainerId: c.ID}); err != nil {
		t.Fatal(err)
	}
	c.Stop(0)
	c.Remove()
	if text, err := os.ReadFile(ran); err != nil || strings.Join(strings.Fields(string(text)), " ") != "fails follows" {
		t.Errorf("hooks that ran: %q, %v", text, err)
	}
	logged := ""
	for _, path := range n.Logs() {
		text, _ := os.ReadFile(path)
		logged += string(text)
	}
	if !strings.Contains(logged, "poststop hook failed") || !strings.Contains(logged, "so it says") {
		t.Error("no log says that the hook has failed")
	}
}

// TestAHookOfARestoredContainerHasALimit, as it has in TestAHookHasALimit. Seen to fail where hooks were given their
// limit by the start of a program alone: the removal waited for the hook's child.
func TestAHookOfARestoredContainerHasALimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir),
		Tables: fmt.Sprintf("[checkpoint]\ncriu = %q\n", criuPath(t))})
	nodetest.Pull(t, n, node.Busybox)
	c := nodetest.RunPod(t, n).Run(counting)
	waitCount(t, c, 3)
	archive := filepath.Join(t.TempDir(), "checkpoint.tar")
	checkpoint(t, n, c, archive)

	p := nodetest.RunPod(t, n, hangs)
	pids := hangingHook(t, dir, "createRuntime", `, "timeout": 10`)
	if err := p.Create(fromArchive(archive)).TryStart(); err == nil {
		t.Error("it is restored though its hook hangs")
	}
	endedHook(t, pids)
	pids = hangingHook(t, dir, "poststop", `, "timeout": 10`)
	r := p.Run(fromArchive(archive))
	r.Stop(0)
	nodetest.Eventually(t, 60e9, "the container is removed", func() error {
		ctx, cancel := context.WithTimeout(nodetest.Context(t), time.Minute)
		defer cancel()
		_, err := n.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: r.ID})
		return err
	})
	endedHook(t, pids)
}

// TestAPoststopHookOutlivesItsKeeper: the container's state is gone by then, so that no other keeper would run it.
// Seen to fail where every hook was killed at the end of its keeper.
func TestAPoststopHookOutlivesItsKeeper(t *testing.T) {
	nodetest.BerthOnly(t, "its errors are its own")
	dir, files := t.TempDir(), t.TempDir()
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir)})
	nodetest.Pull(t, n, node.Busybox)
	begun, done := filepath.Join(files, "begun"), filepath.Join(files, "done")
	writeHook(t, dir, "slow", "poststop",
		fmt.Sprintf("sleep 654321 & echo $! $$ $PPID >>%s; sleep 3; echo done >>%s; kill $!", begun, done), "")
	c := nodetest.RunPod(t, n, hangs).Run(sleeps)
	c.Stop(0)
	removed := make(chan struct{})
	ctx, cancel := context.WithCancel(nodetest.Context(t))
	defer cancel()
	go func() {
		defer close(removed)
		_, _ = n.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.ID})
	}()
	nodetest.Eventually(t, 10e9, "the hook has begun", func() error {
		text, err := os.ReadFile(begun)
		if err == nil && len(text) == 0 {
			err = errors.New("it is writing")
		}
		return err
	})
	time.Sleep(time.Second)
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, 20e9, "the hook has ended", func() error {
		text, err := os.ReadFile(done)
		if err == nil && string(text) != "done\n" {
			err = fmt.Errorf("it has written %q", text)
		}
		return err
	})
	cancel()
	<-removed
	c.Remove()
	text, _ := os.ReadFile(begun)
	pids := strings.Fields(string(text))
	if len(pids) != 3 {
		t.Fatalf("it has begun with %q", text)
	}
	nodetest.Eventually(t, 10e9, "nothing of the hook is left", func() error {
		for _, pid := range pids {
			if data, err := os.ReadFile("/proc/" + pid + "/cmdline"); err == nil && len(data) > 0 {
				return fmt.Errorf("process %s is there: %q", pid, data)
			}
		}
		return nil
	})
}

// TestAHookThatHangsKeepsNoOrphans: processes of another pod that the kernel gives to the keeper, as those of pods in
// the node's PID namespace, are reaped while a hook hangs. Seen to fail where the keeper reaped nothing during a start.
func TestAHookThatHangsKeepsNoOrphans(t *testing.T) {
	nodetest.BerthOnly(t, "its errors are its own")
	dir := t.TempDir()
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir)})
	nodetest.Pull(t, n, node.Busybox)
	daemons := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_NODE}))
	p := nodetest.RunPod(t, n, hangs)
	for _, stage := range []string{"createRuntime", "poststart", "poststop"} {
		t.Run(stage, func(t *testing.T) {
			pids := hangingHook(t, dir, stage, `, "timeout": 300`)
			c := p.Create(sleeps)
			ctx, cancel := context.WithCancel(nodetest.Context(t))
			defer cancel()
			over := make(chan struct{})
			if stage == "poststop" {
				c.Start()
				c.Stop(0)
			}
			go func() {
				defer close(over)
				if stage == "poststop" {
					_, _ = n.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.ID})
				} else {
					_, _ = n.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ID})
				}
			}()
			nodetest.Eventually(t, 10e9, "the hook has begun", func() error {
				text, err := os.ReadFile(pids)
				if err == nil && len(strings.Fields(string(text))) < 2 {
					err = errors.New("it is writing")
				}
				return err
			})
			daemon := daemons.Run(nodetest.Sh("(sh -c 'echo $$ is it; exec sleep 0.5' &); exec sleep 1000"))
			daemon.WaitLog("is it")
			pid, _, _ := strings.Cut(daemon.Stdout(), " ")
			nodetest.Eventually(t, 5e9, "the orphan is reaped", func() error {
				stat, err := os.ReadFile("/proc/" + pid + "/stat")
				if err == nil {
					return fmt.Errorf("it is there: %s", stat)
				}
				return nil
			})
			text, _ := os.ReadFile(pids)
			for _, pid := range strings.Fields(string(text)) {
				if data, err := os.ReadFile("/proc/" + pid + "/cmdline"); err != nil || len(data) == 0 {
					t.Errorf("process %s of the hook has ended meanwhile", pid)
				} else if n, err := strconv.Atoi(pid); err == nil && stage == "poststop" {
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			}
			cancel()
			<-over
			if stage != "poststop" {
				c.Stop(0)
			}
			nodetest.Eventually(t, 60e9, "the container is removed", func() error {
				_, err := n.Runtime.RemoveContainer(nodetest.Context(t), &cri.RemoveContainerRequest{ContainerId: c.ID})
				return err
			})
			endedHook(t, pids)
		})
	}
}

// TestAnExecThatIsHeldKeepsNoOrphans: the root user of a container stops the process of an exec before its program
// begins, and the exec may take a day. Orphans of another pod are reaped meanwhile. Seen to fail where the keeper
// reaped nothing until the exec had started.
func TestAnExecThatIsHeldKeepsNoOrphans(t *testing.T) {
	nodetest.BerthOnly(t, "it is the keeper's promise")
	n := nodetest.Start(t, node.Options{Setup: "stage"})
	nodetest.Pull(t, n, node.Busybox)
	daemons := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_NODE}))
	// A signal to all processes goes to all but the shell itself, and the namespace's first process, which it is.
	holder := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER})).
		Run(nodetest.Sh("echo begins; while :; do kill -STOP -1; done 2>/dev/null"))
	holder.WaitLog("begins")
	keeper, ok := n.KeeperPID()
	if !ok {
		t.Fatal("there is no keeper")
	}
	ctx, cancel := context.WithCancel(nodetest.Context(t))
	var execs sync.WaitGroup
	defer execs.Wait()
	defer cancel()
	defer holder.Stop(0) // its execs end with it
	held := func() bool {
		stages, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		return slices.ContainsFunc(stages, func(path string) bool {
			line, _ := os.ReadFile(path)
			f := procfs.Status(pidOf(path))
			return string(line) == "berth-stage\x00" && len(f) > 1 && f[0] == "T" && f[1] == strconv.Itoa(keeper)
		})
	}
	// The shell may be too late for one of them: then its program is stopped.
	nodetest.Eventually(t, 60e9, "the container holds the process of an exec", func() error {
		execs.Go(func() {
			_, _ = n.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: holder.ID, Cmd: []string{"true"}, Timeout: 86400})
		})
		time.Sleep(300 * time.Millisecond)
		if !held() {
			return errors.New("it does not")
		}
		return nil
	})
	time.Sleep(1500 * time.Millisecond) // the keeper looks at starts that take a second
	daemon := daemons.Run(nodetest.Sh("(sh -c 'echo $$ is it; exec sleep 0.5' &); exec sleep 1000"))
	daemon.WaitLog("is it")
	pid, _, _ := strings.Cut(daemon.Stdout(), " ")
	nodetest.Eventually(t, 5e9, "the orphan is reaped", func() error {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err == nil {
			return fmt.Errorf("it is there: %s", stat)
		}
		return nil
	})
	if !held() {
		t.Error("no exec is held any more")
	}
}

// pidOf is the process that a file below /proc is of.
func pidOf(path string) int {
	pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
	return pid
}
