package life

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestAHookThatHangsHurtsOnlyItsContainer, at each stage, with a child that has left its session and keeps its output
// open. The container can be stopped and removed, and nothing of the hook is left. Seen to fail at createRuntime and
// poststart where libcontainer calls hooks by itself: the container could not be removed while the hook hung.
func TestAHookThatHangsHurtsOnlyItsContainer(t *testing.T) {
	nodetest.BerthOnly(t, "its errors are its own")
	dir := t.TempDir()
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir)})
	nodetest.Pull(t, n, node.Busybox)
	for _, stage := range []string{"createRuntime", "createContainer", "startContainer", "poststart"} {
		t.Run(stage, func(t *testing.T) {
			pids := hangingHook(t, dir, stage, "")
			p := nodetest.RunPod(t, n, hangs)
			c := p.Create(sleeps)
			ctx, cancel := context.WithCancel(nodetest.Context(t))
			defer cancel()
			started := make(chan error, 1)
			go func() {
				_, err := n.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ID})
				started <- err
			}()
			if stage == "startContainer" {
				// Its files are in the container, and nobody waits for what runs once the init process has been let go.
				if err := <-started; err != nil {
					t.Errorf("its start: %v", err)
				}
			} else {
				begunHook(t, pids)
				time.Sleep(time.Second)
				cancel()
				if err := <-started; status.Code(err) != codes.Canceled {
					t.Errorf("its start: %v", err)
				}
			}
			if out := nodetest.RunPod(t, n).Output("echo lives"); strings.TrimSpace(out) != "lives" {
				t.Errorf("another container: %q", out)
			}
			began := time.Now()
			c.Stop(0)
			c.Remove()
			if took := time.Since(began); took > node.Patience(20*time.Second) {
				t.Errorf("its removal took %v", took)
			}
			if stage != "startContainer" { // whose files are in the container
				endedHook(t, pids)
			}
		})
	}
}

// TestAHookHasALimit, after which it is killed with all that it has started. After the container's end nothing else
// would end it. Seen to fail where libcontainer calls hooks by itself: the hook's child held it up.
func TestAHookHasALimit(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "its errors are its own")
	dir := t.TempDir()
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir)})
	nodetest.Pull(t, n, node.Busybox)
	pids := hangingHook(t, dir, "createRuntime", `, "timeout": 10`)
	p := nodetest.RunPod(t, n, hangs)
	if err := p.Create(sleeps).TryStart(); err == nil || !strings.Contains(err.Error(), "it took longer than 10 s") {
		t.Errorf("a start whose hook takes too long: %v", err)
	}
	endedHook(t, pids)
	pids = hangingHook(t, dir, "poststop", `, "timeout": 10`)
	c := p.Run(sleeps)
	c.Stop(0)
	nodetest.Eventually(t, 30e9, "the container is removed", func() error {
		_, err := n.Runtime.RemoveContainer(nodetest.Context(t), &cri.RemoveContainerRequest{ContainerId: c.ID})
		return err
	})
	endedHook(t, pids)
}

func hangs(c *cri.PodSandboxConfig) { c.Annotations = map[string]string{"hang": "yes"} }

func sleeps(c *cri.ContainerConfig) { c.Command, c.Args = []string{"sleep", "1000"}, nil }

// hangingHook writes a hook that hangs in pods that hang, with a child in a session of its own. pids is the file with
// their process IDs.
func hangingHook(t *testing.T, dir, stage, more string) (pids string) {
	t.Helper()
	pids = filepath.Join(t.TempDir(), "pids")
	writeHook(t, dir, "hang", stage,
		fmt.Sprintf("setsid sleep 654321 & echo $! >>%[1]s; echo $$ >>%[1]s; exec sleep 654321", pids), more)
	t.Cleanup(func() {
		text, _ := os.ReadFile(pids)
		for _, pid := range strings.Fields(string(text)) {
			data, err := os.ReadFile("/proc/" + pid + "/cmdline")
			if n, aerr := strconv.Atoi(pid); err == nil && aerr == nil && strings.Contains(string(data), "654321") {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
	})
	return pids
}

// writeHook writes a hook of this name that runs a script in pods that hang. more is JSON that is added to it.
func writeHook(t *testing.T, dir, name, stage, script, more string) {
	t.Helper()
	text := fmt.Sprintf(`{"version": "1.0.0", "hook": {"path": "/bin/sh", "args": ["sh", "-c", %q]%s},
		"when": {"annotations": {"hang": "yes"}}, "stages": [%q]}`, script, more, stage)
	if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// begunHook waits until a hook of hangingHook has begun, and its child.
func begunHook(t *testing.T, pids string) {
	t.Helper()
	nodetest.Eventually(t, 30e9, "the hook has begun", func() error {
		text, err := os.ReadFile(pids)
		if err == nil && strings.Count(string(text), "\n") < 2 {
			err = fmt.Errorf("it has written %q", text)
		}
		return err
	})
}

// endedHook waits until a hook and its child are gone.
func endedHook(t *testing.T, pids string) {
	t.Helper()
	nodetest.Eventually(t, 10e9, "the hook has ended", func() error {
		text, err := os.ReadFile(pids)
		if err != nil {
			return err
		}
		list := strings.Fields(string(text))
		if len(list) != 2 {
			return fmt.Errorf("it has not begun: %q", text)
		}
		for _, pid := range list {
			if data, err := os.ReadFile("/proc/" + pid + "/cmdline"); err == nil && len(data) > 0 {
				return fmt.Errorf("process %s is there: %q", pid, data)
			}
		}
		return nil
	})
}

// TestAHookEndsWithItsKeeper, since the next keeper undoes the start that the hook is a part of.
func TestAHookEndsWithItsKeeper(t *testing.T) {
	nodetest.BerthOnly(t, "its errors are its own")
	dir := t.TempDir()
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir)})
	nodetest.Pull(t, n, node.Busybox)
	pids := hangingHook(t, dir, "createRuntime", "")
	c := nodetest.RunPod(t, n, hangs).Create(sleeps)
	ctx, cancel := context.WithCancel(nodetest.Context(t))
	defer cancel()
	started := make(chan error, 1)
	go func() {
		_, err := n.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ID})
		started <- err
	}()
	begunHook(t, pids)
	cancel()
	if err := <-started; err == nil {
		t.Error("it starts though its hook hangs")
	}
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	endedHook(t, pids)
	c.Remove()
}
