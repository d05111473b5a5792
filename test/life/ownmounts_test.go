package life

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// inOwnMounts are tests of this package that run once more with mount_namespace = "own".
const inOwnMounts = "^(TestOwnMounts.*|TestAWritableMountKeepsTheOptionsOfTheHosts|" +
	"TestMountsSpreadAsTheirPropagationSays|TestPropagationToAndFromAMountThatIsNotSharedIsRefused|" +
	"TestNetworkProvidersFindTheNamespacesOfLaterPods)$"

// TestMountsOfPodsStayOutOfTheNodes runs tests where the node has shared mounts, as with systemd, in a mount namespace
// with a copy of this machine's.
func TestMountsOfPodsStayOutOfTheNodes(t *testing.T) {
	nodetest.BerthOnly(t, "containerd has no such thing")
	nodetest.Root(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", `mount --make-rshared / && exec "$0" "$@"`, program,
		"-test.run", inOwnMounts, "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	cmd.Env = append(os.Environ(), node.EnvMountNamespace+"=own", "BERTH_BIN="+nodetest.Shared(t).Programs())
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestOwnMounts")) {
		t.Errorf("%v: %s", err, out)
	}
}

// needOwnMounts skips a test that TestMountsOfPodsStayOutOfTheNodes runs.
func needOwnMounts(t *testing.T) {
	t.Helper()
	if os.Getenv(node.EnvMountNamespace) != "own" {
		t.Skip("TestMountsOfPodsStayOutOfTheNodes runs it")
	}
}

// mountsOf are the mount points in a node's directories that a process sees.
func mountsOf(t *testing.T, n *node.Node, pid int) (points []string) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, n.Dir+"/") {
			points = append(points, strings.TrimPrefix(at, n.Dir+"/"))
		}
	}
	return points
}

func TestOwnMountsAreNotTheNodes(t *testing.T) {
	needOwnMounts(t)
	n := nodetest.Start(t, node.Options{})
	var containers []*nodetest.Container
	for _, options := range []*cri.NamespaceOption{
		{Pid: cri.NamespaceMode_CONTAINER},
		{Pid: cri.NamespaceMode_POD},
		{Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: userNamespace(200000, 65536)},
	} {
		p := nodetest.RunPod(t, n, podNamespaces(options))
		containers = append(containers, p.Run(), p.Run())
	}
	if _, there := n.Handlers["runc"]; there {
		containers = append(containers, nodetest.RunPodHandler(t, n, "runc").Run())
	}
	for _, at := range mountsOf(t, n, os.Getpid()) {
		if at != "netns" && !strings.HasPrefix(at, "netns/berth-") && at != "state/keeper/mounts" &&
			at != "state/keeper/mounts/ns" {
			t.Errorf("the node has a mount at %s", at)
		}
	}
	keeper, _ := n.KeeperPID()
	if own := mountsOf(t, n, keeper); len(own) < 4*len(containers) {
		t.Errorf("the keeper has %q", own)
	}
	lost := func() int {
		data, err := os.ReadFile(filepath.Join(n.State, "keeper", "keeper.log"))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(data, []byte("nobody held this container's output"))
	}
	// Whatever ends, the mounts stay: the pin holds them.
	for _, kill := range []struct {
		what string
		end  func() error
	}{
		{"berthd", n.Kill}, {"the keeper", n.KillKeeper}, {"both, which are asked to end", func() error {
			if err := n.Terminate(); err != nil {
				return err
			}
			pid, _ := n.KeeperPID()
			if err := unix.Kill(pid, unix.SIGTERM); err != nil {
				return err
			}
			nodetest.Eventually(t, 30*time.Second, "the keeper has ended", func() error {
				if err := unix.Kill(pid, 0); err == nil {
					return errors.New("it is there")
				}
				return nil
			})
			return nil
		}},
		{"both", func() error {
			if err := n.Kill(); err != nil {
				return err
			}
			return n.KillKeeper()
		}},
	} {
		what, before := kill.what, lost()
		if err := kill.end(); err != nil {
			t.Fatal(err)
		}
		if what != "the keeper" {
			if err := n.Restart(nodetest.Context(t)); err != nil {
				t.Fatal(err)
			}
		}
		for i, c := range containers {
			if got := c.Sh("cat /etc/hosts >/dev/null && echo ok"); got != "ok" {
				t.Errorf("container %d after a kill of %s: %q", i, what, got)
			}
		}
		// Only where both are killed, nobody holds the pipes.
		if now := lost(); now > before && what != "both" {
			t.Errorf("a kill of %s: output of %d containers was lost", what, now-before)
		}
		c := containers[0]
		c.Sh("echo " + strings.ReplaceAll(what, " ", "") + " >/dev/shm/x")
		if got := c.Pod.Run().Sh("cat /dev/shm/x; readlink /proc/self/ns/ipc"); got !=
			strings.ReplaceAll(what, " ", "")+"\n"+c.Sh("readlink /proc/self/ns/ipc") {
			t.Errorf("a later container of the pod after a kill of %s: %q", what, got)
		}
	}
}

// TestOwnMountsHaveTheAttributesOfTheNodes: a mount that is made read-only later is so in containers, though that does
// not get to peers of the mount. Seen to fail without setup.c's use of STAGE_NODE, and without mountns.Mirror.
func TestOwnMountsHaveTheAttributesOfTheNodes(t *testing.T) {
	needOwnMounts(t)
	for name, start := range map[string]func(*node.Node) *nodetest.Pod{
		"stage":        func(n *node.Node) *nodetest.Pod { return nodetest.RunPod(t, n) },
		"libcontainer": func(n *node.Node) *nodetest.Pod { return nodetest.RunPod(t, n) },
		"runc":         func(n *node.Node) *nodetest.Pod { return nodetest.RunPodHandler(t, n, "runc") },
	} {
		t.Run(name, func(t *testing.T) {
			var o node.Options
			if name == "libcontainer" {
				o.Setup = name
			}
			n := nodetest.Start(t, o)
			if name == "runc" {
				nodetest.Handler(t, n, name)
			}
			dir := t.TempDir()
			if err := unix.Mount("volume", dir, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			if err := os.Mkdir(filepath.Join(dir, "below"), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("below", filepath.Join(dir, "below"), "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(filepath.Join(dir, "below"), unix.MNT_DETACH) })
			for _, at := range []string{dir, filepath.Join(dir, "below")} {
				if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
					t.Fatal(err)
				}
			}
			c := start(n).Run(nodetest.Mounts(&cri.Mount{HostPath: dir, ContainerPath: "/v"}))
			if got := c.Sh("touch /v/x /v/below/x 2>/dev/null; ls -A /v /v/below"); strings.Contains(got, "x") {
				t.Errorf("a volume that is read-only on the node was written: %s", got)
			}
		})
	}
}

// TestOwnMountsBeginWithoutPods: what has run stays where it is, and the keeper that runs comes along later.
func TestOwnMountsBeginWithoutPods(t *testing.T) {
	needOwnMounts(t)
	const key = "mount_namespace = "
	n := nodetest.Start(t, node.Options{Config: key + "\"node\""})
	p := nodetest.RunPod(t, n)
	c := p.Run()
	config := filepath.Join(n.Dir, "config.toml")
	set := func(value string) {
		t.Helper()
		data, err := os.ReadFile(config)
		if err != nil {
			t.Fatal(err)
		}
		for _, old := range []string{"node", "own"} {
			data = bytes.ReplaceAll(data, []byte(key+`"`+old+`"`), []byte(key+`"`+value+`"`))
		}
		if err := os.WriteFile(config, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := n.Terminate(); err != nil {
			t.Fatal(err)
		}
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	mounts := func(want bool, when string) {
		t.Helper()
		has := false
		for _, at := range mountsOf(t, n, os.Getpid()) {
			has = has || strings.HasSuffix(at, "/rootfs")
		}
		if has != want {
			t.Errorf("%s: mounts of containers in the node's namespace: %v", when, has)
		}
	}
	keeper, _ := n.KeeperPID()
	set("own")
	mounts(true, "with a pod of before")
	if got := c.Sh("echo goes on"); got != "goes on" {
		t.Errorf("%q", got)
	}
	p.Remove()
	set("own")
	c = nodetest.RunPod(t, n).Run()
	mounts(false, "without one")
	if now, _ := n.KeeperPID(); now != keeper {
		t.Errorf("the keeper was process %d, and is %d", keeper, now)
	}
	set("node")
	mounts(false, "changed back, before a reboot")
	if got := c.Sh("echo goes on"); got != "goes on" {
		t.Errorf("%q", got)
	}
	c.Pod.Remove()
	if n.Systemd {
		return // a slice is gone that systemd believes to have
	}
	if err := n.Reboot(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	nodetest.RunPod(t, n).Run()
	mounts(true, "after a reboot")
}
