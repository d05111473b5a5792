package faults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/faults/tally"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// A fork bomb has the processes that its limit gives, and no others: execs in another container are answered,
// berthd and the keeper are killed and come back, and it is stopped and removed.
func TestAForkBombHurtsItselfAlone(t *testing.T) {
	const limit = 100
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("pids_limit = %d\n", limit)})
	c := count(t)
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	c.before(t, n)
	for range size(1, 5) {
		// A shell that cannot fork ends; the init process does not.
		bomb := p.Run(nodetest.Sh("bomb() { while :; do bomb & sleep 0.1; done; }; bomb 2>/dev/null & exec sleep 3600"))
		// The kernel's own count: a look at one process after another counts those twice that end and come meanwhile.
		cgroup := pidsCgroup(t, bomb.ID)
		processes := func() (found int) {
			text, err := os.ReadFile(filepath.Join(cgroup, "pids.current"))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return 0 // it has been removed with its last process
			}
			if err != nil {
				t.Fatal(err)
			}
			if found, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
				t.Fatal(err)
			}
			return found
		}
		nodetest.Eventually(t, 40*time.Second, "the bomb has its limit", func() error {
			if n := processes(); n < limit*9/10 {
				return fmt.Errorf("it has %d processes", n)
			}
			return nil
		})
		for range 5 {
			began := time.Now()
			answers(t, n, w)
			c.answered(time.Since(began))
			if n := processes(); n > limit {
				t.Errorf("the bomb has %d processes, and may have %d", n, limit)
			}
		}
		c.answered(w.killBoth(t, n))
		bomb.Stop(0)
		c.add(tally.Exits, 1)
		if s := bomb.WaitExit(); !node.OrphanEnded(s, 137) {
			c.add(tally.ExitsWrong, 1)
			t.Errorf("the bomb ended with %d (%s: %s)", s.ExitCode, s.Reason, s.Message)
		}
		nodetest.Eventually(t, 10*time.Second, "all of the bomb is gone", func() error {
			if n := processes(); n > 0 {
				return fmt.Errorf("%d processes are left", n)
			}
			return nil
		})
		bomb.Remove()
		c.add(tally.Rounds, 1)
	}
	w.check(t)
	nothingLeft(t, n)
}

// pidsCgroup is the cgroup that counts the processes of a container.
func pidsCgroup(t *testing.T, id string) (path string) {
	t.Helper()
	hierarchies, err := node.CgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	all, err := node.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range all {
		for _, cgroup := range process.Cgroups {
			for _, root := range hierarchies {
				path := filepath.Join(root, cgroup)
				if _, err := os.Stat(filepath.Join(path, "pids.current")); err == nil && strings.Contains(cgroup, id) {
					return path
				}
			}
		}
	}
	t.Fatalf("no cgroup counts the processes of container %s", id)
	return ""
}

// A program that the kernel ends for want of memory is told as such, each time. Seen to fail with kills that the keeper
// does not count.
func TestOOMKillsAreTold(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	c := count(t)
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	c.before(t, n)
	const hungry = "echo line 1; x=0123456789abcdef; while :; do x=$x$x; done"
	for range size(3, 40) {
		o := p.Run(nodetest.Sh(hungry), func(c *cri.ContainerConfig) { c.Linux.Resources.MemoryLimitInBytes = 24 << 20 })
		s := o.WaitExit()
		c.add(tally.Rounds, 1)
		c.add(tally.Exits, 1)
		c.add(tally.Lines, 1)
		if s.ExitCode != 137 || s.Reason != "OOMKilled" {
			c.add(tally.ExitsWrong, 1)
			t.Errorf("it ended with %d (%s: %s)", s.ExitCode, s.Reason, s.Message)
		}
		if got := o.Stdout(); got != "line 1\n" {
			c.add(tally.LinesWrong, 1)
			t.Errorf("its log: %q", got)
		}
		o.Remove()
	}
	w.check(t)
	nothingLeft(t, n)
}

// Many pods that are run, started and removed at once are all there, and all gone.
func TestManyPodsAtOnce(t *testing.T) {
	pods := size(20, 300)
	n := nodetest.Start(t, node.Options{Pods: pods})
	nodetest.Pull(t, n, node.Busybox)
	w := newWitness(t, nodetest.RunPod(t, n))
	c := &churn{n: n, counts: count(t), dir: t.TempDir()}
	c.counts.before(t, n)
	var wg sync.WaitGroup
	lives := make([]*life, pods)
	each := func(do func(i int) error) {
		for i := range pods {
			wg.Go(func() {
				if err := do(i); err != nil {
					c.failed(err)
				}
			})
		}
		wg.Wait()
		if len(c.errors) > 0 {
			t.Fatalf("%d of %d pods: %v", len(c.errors), pods, c.errors[0])
		}
	}
	began := time.Now()
	each(func(i int) (err error) {
		if lives[i], err = c.pod(); err != nil {
			return err
		}
		q, err := lives[i].create(node.Busybox, briefScript+"exit 4", 4)
		if err == nil {
			err = q.start()
		}
		if err == nil {
			err = q.end(40)
		}
		c.counts.add(tally.Rounds, 1)
		return err
	})
	t.Logf("%d pods in %v", pods, time.Since(began).Round(time.Millisecond))
	list, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{})
	if err != nil || len(list.Items) != pods+1 {
		t.Errorf("%d pods are listed, %v", len(list.Items), err)
	}
	addresses := map[string]bool{}
	for _, l := range lives {
		s, err := n.Runtime.PodSandboxStatus(nodetest.Context(t), &cri.PodSandboxStatusRequest{PodSandboxId: l.id})
		if err != nil {
			t.Fatal(err)
		}
		addresses[s.Status.Network.Ip] = true
	}
	if len(addresses) != pods {
		t.Errorf("%d pods have %d addresses", pods, len(addresses))
	}
	// berthd comes back among all of them.
	killed := time.Now()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	answers(t, n, w)
	c.counts.answered(time.Since(killed))
	each(func(i int) error { return lives[i].remove(i%2 == 0) })
	w.check(t)
	nothingLeft(t, n)
}

// freeze stops all processes of a container by its cgroup.
func freeze(t *testing.T, n *node.Node, id string) {
	t.Helper()
	mounts, err := node.CgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	frozen := false
	for _, mount := range mounts {
		_ = filepath.WalkDir(filepath.Join(mount, n.CgroupRoot), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.Contains(filepath.Base(path), id) {
				return nil
			}
			for file, value := range map[string]string{"freezer.state": "FROZEN", "cgroup.freeze": "1"} {
				if _, err := os.Stat(filepath.Join(path, file)); err == nil &&
					os.WriteFile(filepath.Join(path, file), []byte(value), 0) == nil {
					frozen = true
				}
			}
			return filepath.SkipDir
		})
	}
	if !frozen {
		t.Skip("no freezer on this machine")
	}
}

// A container that is frozen from outside costs the calls that name it, and those end in time; also under another
// berthd and another keeper.
func TestAFrozenContainerHurtsItselfAlone(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	c := count(t)
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	c.before(t, n)
	for range size(1, 5) {
		stuck := p.Run()
		freeze(t, n, stuck.ID)
		_, err := stuck.Exec(1, "true")
		nodetest.WantCode(t, err, codes.FailedPrecondition, codes.DeadlineExceeded) // it is taken for paused
		c.answered(w.killBoth(t, n))
		_, err = stuck.Exec(1, "true")
		nodetest.WantCode(t, err, codes.FailedPrecondition, codes.DeadlineExceeded) // it is taken for paused
		ctx, cancel := context.WithTimeout(context.Background(), node.Patience(time.Minute))
		_, err = n.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: stuck.ID, Timeout: 1})
		cancel()
		if err != nil {
			t.Errorf("stop of a frozen container: %v", err)
		}
		c.add(tally.Exits, 1)
		if s := stuck.WaitExit(); !node.OrphanEnded(s, 137) {
			c.add(tally.ExitsWrong, 1)
			t.Errorf("a frozen container that was stopped ended with %d (%s: %s)", s.ExitCode, s.Reason, s.Message)
		}
		stuck.Remove()
		c.add(tally.Rounds, 1)
	}
	w.check(t)
	nothingLeft(t, n)
}
