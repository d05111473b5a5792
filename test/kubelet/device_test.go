package kubelet

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "berth/api/berth/v1"
	"berth/internal/device"
	"berth/test/kubernetes"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// program is a process that a test starts and that ends with it.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	exited chan struct{}
}

func launch(t *testing.T, cmd *exec.Cmd, log string) *program {
	t.Helper()
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: cmd, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("%s said last:\n%s", filepath.Base(cmd.Args[len(cmd.Args)-1]), text[max(0, len(text)-4096):])
		}
		p.end(syscall.SIGKILL)
	})
	return p
}

func (p *program) end(sig syscall.Signal) {
	p.t.Helper()
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.exited:
	case <-time.After(node.Patience(30 * time.Second)):
		p.t.Errorf("%v outlives %v by 30 s", p.cmd.Args, sig)
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}

// ours starts Berth's device plugin for a kubelet.
func ours(t *testing.T, k *kubelet, config string) *program {
	t.Helper()
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "device-plugin.toml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	return launch(t, exec.Command(filepath.Join(binaries, "berth"), "device-plugin", "--plugin-dir", k.plugins,
		"--config", file),
		filepath.Join(k.dir, "device-plugin.log"))
}

// knows waits until the kubelet's own record has these devices.
func (k *kubelet) knows(t *testing.T, devices ...string) {
	t.Helper()
	eventually(t, time.Minute, "the kubelet knows the devices", func() error {
		record, err := os.ReadFile(filepath.Join(k.plugins, "kubelet_internal_checkpoint"))
		if err != nil {
			return err
		}
		for _, d := range devices {
			if !strings.Contains(string(record), `"`+d+`"`) {
				return fmt.Errorf("no %s in %s", d, record)
			}
		}
		return nil
	})
}

// needs skips where the machine has no such device nodes.
func needs(t *testing.T, paths ...string) {
	t.Helper()
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeDevice == 0 {
			t.Skipf("this machine has no %s", path)
		}
	}
}

func TestAKubeletHandsOutPlainDevicesAndCDIDevices(t *testing.T) {
	needs(t, "/dev/loop0", "/dev/loop1", "/dev/loop2", "/dev/fuse")
	cdi := t.TempDir()
	spec := "cdiVersion: 0.6.0\nkind: vendor.test/thing\ndevices:\n- name: one\n  containerEdits:\n" +
		"    env: [THING=one]\n" +
		"    deviceNodes:\n    - {path: /dev/thing, hostPath: /dev/loop-control, permissions: rw}\n"
	if err := os.WriteFile(filepath.Join(cdi, "vendor.yaml"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	k := own(t, node.Options{Config: fmt.Sprintf("cdi_spec_dirs = [%q]\n", cdi)}, options{})
	config := fmt.Sprintf(`cdi_spec_dirs = [%q]
[[resource]]
name = "berth.test/loop"
nodes = ["/dev/loop[0-2]"]
[[resource]]
name = "berth.test/fuse"
nodes = ["/dev/fuse"]
share = 2
[[resource]]
name = "berth.test/thing"
cdi = "vendor.test/thing"
`, cdi)
	network := false
	if _, err := os.Stat("/dev/net/tun"); err == nil {
		network = true
		config += "[[resource]]\nname = \"berth.test/tun\"\nnodes = [\"/dev/net/tun\"]\nshare = 2\n"
	}
	ours(t, k, config)
	k.knows(t, "loop0", "loop1", "loop2", "fuse::0", "one")

	limits := "berth.test/loop=2,berth.test/fuse=1,berth.test/thing=1"
	check := `for d in /dev/loop? /dev/fuse /dev/thing; do (exec 3<$d) || exit 9; done; `
	if network {
		limits += ",berth.test/tun=1"
		check += `(exec 3<>/dev/net/tun) || exit 8; `
		k.knows(t, "net/tun::0")
	}
	p := k.run(t, manifest("devices", sh("main", sleep, limited("", limits)), sh("other", sleep)))
	p.running()
	if got := p.sh("main", check+"echo $THING; ls /dev/loop? | wc -l"); strings.Join(strings.Fields(got), " ") != "one 2" {
		t.Errorf("in the container: %q", got)
	}
	// Of the three loop devices, the third does not open; nor does any in the other container.
	for container, want := range map[string]string{"main": "2", "other": "0"} {
		got := p.sh(container,
			`n=0; for i in 0 1 2; do rm -f /tmp/l; mkdir -p /tmp; mknod /tmp/l b 7 $i &&
				(exec 3</tmp/l) 2>/dev/null && n=$((n+1)); done; echo $n`)
		if strings.TrimSpace(got) != want {
			t.Errorf("in %s %s of three loop devices open, want %s", container, strings.TrimSpace(got), want)
		}
	}
	if got := p.sh("other", "ls /dev; echo -$THING-"); has(got, "fuse") || has(got, "loop") || !has(got, "--") {
		t.Errorf("the other container has %q", got)
	}

	// A kubelet that starts removes all sockets: the plugin comes back by itself.
	if err := k.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := k.start(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	k.knows(t, "loop0", "loop1", "loop2", "fuse::0", "one")
	eventually(t, time.Minute, "all resources are registered again", func() error {
		metrics, err := k.get(nodetest.Context(t), "/metrics")
		if err != nil {
			return err
		}
		for _, name := range []string{"loop", "fuse", "thing"} {
			if !has(metrics, `kubelet_device_plugin_registration_total{resource_name="berth.test/`+name+`"}`) {
				return fmt.Errorf("%s is not", name)
			}
		}
		return nil
	})
	// One loop device is left, and the pod that was there keeps its two.
	second := k.run(t, manifest("rest", sh("main", sleep, limited("", "berth.test/loop=1,berth.test/fuse=1"))))
	second.running()
	mine, theirs := p.sh("main", "ls /dev/loop?"), second.sh("main", "ls /dev/loop?")
	if all := strings.Fields(mine + " " + theirs); len(all) != 3 || has(mine, strings.TrimSpace(theirs)) {
		t.Errorf("the pods have %q and %q", mine, theirs)
	}
	third := k.run(t, manifest("toomany", sh("main", sleep, limited("", "berth.test/loop=1"))))
	third.ended(v1.PodFailed)
}

// sample starts Kubernetes' sample plugin for a manager whose sockets are in dir. The plugin looks for them
// where a kubelet has them, and writes its CDI specification to /run/cdi: it sees mounts of its own there.
func sample(t *testing.T, dir, run, log string) *program {
	t.Helper()
	binary, err := kubernetes.SampleDevicePlugin.Build(context.Background())
	if err != nil {
		t.Skipf("the sample cannot be built here: %v", err)
	}
	cmd := exec.Command("unshare", "--mount", "--propagation", "unchanged", "sh", "-ec", privateScript+`
own /var/lib/kubelet
mkdir /var/lib/kubelet/device-plugins
mount --bind "$1" /var/lib/kubelet/device-plugins
private /run
mount --bind "$2" /run
exec "$3"`, "sh", dir, run, binary)
	cmd.Env = append(os.Environ(), "CDI_ENABLED=1")
	return launch(t, cmd, log)
}

func TestTheSampleDevicePluginOfKubernetes(t *testing.T) {
	const resource = "example.com/resource"
	dir, err := os.MkdirTemp("", "s") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	run := t.TempDir()
	if err := os.Mkdir(filepath.Join(run, "cdi"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.RemoveAll(dir)
		for _, name := range []string{"Dev-1", "Dev-2"} { // the sample's
			os.Remove("/tmp/" + name)
		}
	})
	n := nodetest.Start(t, node.Options{
		Config: fmt.Sprintf("cdi_spec_dirs = [%q]\n", filepath.Join(run, "cdi")),
		Tables: fmt.Sprintf("[device_plugins]\nenabled = true\ndir = %q\n", dir),
	})
	devices := api.NewDevicesClient(n.Conn)
	want := func(claim, want string) {
		t.Helper()
		eventually(t, 90*time.Second, claim, func() error {
			list, err := devices.List(nodetest.Context(t), &api.ListDevicesRequest{Resource: resource})
			if err != nil {
				return err
			}
			var got []string
			for _, d := range list.GetResources()[0].GetDevices() {
				text := d.GetId()
				if !d.GetHealthy() {
					text += "-"
				}
				if len(d.GetHolders()) > 0 {
					text += " held"
				}
				got = append(got, text)
			}
			if all := strings.Join(got, ", "); all != want {
				return fmt.Errorf("devices %s, want %s", all, want)
			}
			return nil
		})
	}
	pod := func() *nodetest.Pod {
		return nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
			text, err := device.Annotate([]device.Ask{{Container: "c", Limits: map[string]int{resource: 1}}})
			if err != nil {
				t.Fatal(err)
			}
			c.Annotations = map[string]string{device.Annotation: text}
		})
	}
	named := func(c *cri.ContainerConfig) { c.Metadata.Name = "c" }
	log := filepath.Join(n.Dir, "sample.log")

	plugin := sample(t, dir, run, log)
	want("the plugin registers", "Dev-1, Dev-2")
	first := pod()
	c := first.Run(named)
	if got := c.Sh("echo $CDI_DEVICE; ls -d /tmp/Dev-1; test -b /tmp/CDI-Dev-1"); got != "CDI-Dev-1\n/tmp/Dev-1" {
		t.Errorf("in the container: %q", got)
	}
	want("the device is held", "Dev-1 held, Dev-2")

	// Its devices are unhealthy while it is away, and its container lives on.
	plugin.end(syscall.SIGKILL)
	want("the plugin's death is seen", "Dev-1- held, Dev-2-")
	c.Sh("ls -d /tmp/Dev-1")
	refused := pod()
	_, err = refused.TryCreate(named)
	nodetest.WantCode(t, err, codes.ResourceExhausted)

	// A restart: a new process, with a socket of another name.
	sample(t, dir, run, log)
	want("the plugin is back", "Dev-1 held, Dev-2")
	refused.Run(named).Sh("test -e /tmp/Dev-2")
	want("both are held", "Dev-1 held, Dev-2 held")
	refused.Remove()

	// The socket is removed and comes back; so does the plugin, which waits ten seconds before it registers.
	before := registrations(t, log)
	if err := os.Remove(filepath.Join(dir, "kubelet.sock")); err != nil {
		t.Fatal(err)
	}
	again := func(what string) {
		t.Helper()
		eventually(t, 90*time.Second, what, func() error {
			if n := registrations(t, log); n <= before {
				return fmt.Errorf("%d registrations", n)
			}
			return nil
		})
		want(what, "Dev-1 held, Dev-2")
		before = registrations(t, log)
	}
	again("registered after the socket was removed")
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	again("registered after the daemon was killed")
	last := pod()
	last.Run(named).Sh("test -e /tmp/Dev-2")
	first.Remove()
	want("the first pod's device is free", "Dev-1, Dev-2 held")
}

// registrations are how often the sample says that it has registered.
func registrations(t *testing.T, log string) int {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "Device Plugin registered with the Kubelet")
}
