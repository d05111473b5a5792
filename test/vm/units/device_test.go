package units

import (
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

	api "berth/api/berth/v1"
	"berth/internal/device"
	"berth/test/node"
	"berth/test/node/nodetest"
)

const (
	plugin   = "berth-device-plugin"
	resource = "berth.test/full"
)

// deviceNode makes a device node like /dev/full, which the plugin offers.
func deviceNode(t *testing.T, path string) {
	t.Helper()
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 7))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(path) })
}

// wantDevices waits until berthd knows these devices: one that is held ends with +, one that is unhealthy with -.
func wantDevices(t *testing.T, n *node.Node, when, want string) {
	t.Helper()
	devices := api.NewDevicesClient(n.Conn)
	nodetest.Eventually(t, 30*time.Second, when+" the devices are "+want, func() error {
		list, err := devices.List(nodetest.Context(t), &api.ListDevicesRequest{Resource: resource})
		if err != nil {
			return err
		}
		var got []string
		for _, r := range list.GetResources() {
			for _, d := range r.GetDevices() {
				text := d.GetId()
				if len(d.GetHolders()) > 0 {
					text += "+"
				}
				if !d.GetHealthy() {
					text += "-"
				}
				got = append(got, text)
			}
		}
		if all := strings.Join(got, " "); all != want {
			return fmt.Errorf("they are %q", all)
		}
		return nil
	})
}

// running waits until the plugin's service runs as another process than before, and says which.
func running(t *testing.T, before string) (pid string) {
	t.Helper()
	nodetest.Eventually(t, 30*time.Second, plugin+" runs", func() error {
		if pid = property(t, plugin, "MainPID"); pid == before || pid == "0" {
			return fmt.Errorf("its process is %s, and was %s", pid, before)
		}
		if state := property(t, plugin, "ActiveState"); state != "active" {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
	return pid
}

// TestTheDevicePluginServes: the unit as it is installed has nothing to offer, fails and is not tried again;
// with a resource in its file it hands devices out, from within what its unit shuts it off from;
// kills of it and of berthd take no device from a container.
func TestTheDevicePluginServes(t *testing.T) {
	n := installed(t)
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("journalctl", "--no-pager", "-n", "80", "-u", plugin).CombinedOutput()
			t.Logf("the plugin's journal:\n%s", out)
		}
		must(t, "systemctl", "disable", "--now", plugin)
		if err := os.RemoveAll("/var/lib/kubelet"); err != nil {
			t.Error(err)
		}
	})
	must(t, "systemctl", "enable", plugin)
	if out, err := exec.Command("systemctl", "start", plugin).CombinedOutput(); err == nil {
		t.Errorf("with nothing to offer it starts: %s", out)
	}
	time.Sleep(3 * time.Second) // RestartSec is one
	if state, restarts := property(t, plugin, "ActiveState"), property(t, plugin, "NRestarts"); state != "failed" ||
		restarts != "0" {
		t.Errorf("with nothing to offer it is %s, after %s restarts", state, restarts)
	}

	const file = "/etc/berth/device-plugin.toml"
	if err := os.WriteFile(file,
		[]byte(fmt.Sprintf("[[resource]]\nname = %q\nnodes = [\"/dev/berth-test[0-9]\"]\n", resource)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/etc/berth/config.toml", []byte("[device_plugins]\nenabled = true\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	deviceNode(t, "/dev/berth-test0")
	must(t, "systemctl", "start", plugin)
	pid := running(t, "")
	// The manager comes up after the plugin.
	must(t, "systemctl", "restart", "berthd")
	wantDevices(t, n, "at first", "berth-test0")
	deviceNode(t, "/dev/berth-test1")
	wantDevices(t, n, "with another node", "berth-test0 berth-test1")

	status, err := os.ReadFile(filepath.Join("/proc", pid, "status"))
	if err != nil || !strings.Contains(string(status), "\nNoNewPrivs:\t1\n") {
		t.Errorf("it may gain privileges (%v)", err)
	}
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if its, err := os.Readlink(filepath.Join("/proc", pid, "ns/net")); err != nil || its == own {
		t.Errorf("its network is the machine's (%v)", err)
	}

	text, err := device.Annotate([]device.Ask{{Container: "c", Limits: map[string]int{resource: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Annotations = map[string]string{device.Annotation: text}
	})
	c := p.Run(func(c *cri.ContainerConfig) { c.Metadata.Name = "c" })
	has := func(when string) {
		t.Helper()
		if got := c.Sh("echo x 2>/dev/null >/dev/berth-test0 && echo wrote; head -c 3 /dev/berth-test0 | wc -c; " +
			"ls /dev | grep -c berth"); got != "3\n1" {
			t.Errorf("%s the container says of its device %q", when, got)
		}
	}
	has("at first")
	wantDevices(t, n, "with a container", "berth-test0+ berth-test1")

	must(t, "systemctl", "kill", "-s", "KILL", plugin)
	pid = running(t, pid)
	wantDevices(t, n, "after a kill of the plugin", "berth-test0+ berth-test1")
	daemon := property(t, "berthd", "MainPID")
	must(t, "systemctl", "kill", "-s", "KILL", "berthd")
	changed(t, n, "berthd", daemon)
	wantDevices(t, n, "after a kill of berthd", "berth-test0+ berth-test1")
	if now := property(t, plugin, "MainPID"); now != pid {
		t.Errorf("the plugin is process %s, and was %s: it does not outlive berthd", now, pid)
	}
	has("after the kills")

	must(t, "systemctl", "stop", plugin)
	if result := property(t, plugin, "Result"); result != "success" {
		t.Errorf("a stop of it ends with %s", result)
	}
	if found, err := filepath.Glob("/var/lib/kubelet/device-plugins/berth-*"); err != nil || len(found) > 0 {
		t.Errorf("it leaves its sockets: %v (%v)", found, err)
	}
	wantDevices(t, n, "after a stop of the plugin", "berth-test0+- berth-test1-")
	has("after the stop")
	if first, err := n.ContainerPID(c.ID); err != nil || syscall.Kill(first, 0) != nil {
		t.Errorf("the container is gone: %v", err)
	}
	p.Remove()
	wantDevices(t, n, "without the pod", "berth-test0- berth-test1-")

	// Without its file the unit has nothing to do, which is no failure.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	must(t, "systemctl", "start", plugin)
	if state := property(t, plugin, "ActiveState"); state != "inactive" || property(t, plugin, "ConditionResult") != "no" {
		t.Errorf("without its file it is %s", state)
	}
	nothingLeft(t)
}
