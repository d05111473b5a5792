package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/internal/device"
	"berth/internal/device/plugintest"
	"berth/test/faults/tally"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestPartsThatHaveRecordsOfTheirOwnNeedNoRoomToEnd: networks of CNI plugins, OCI runtimes, named volumes, devices
// and checkpoints keep records of their own on the disk that is full. What they have is given back there as well.
// Seen to fail where a detachment from a CNI network writes its record first.
func TestPartsThatHaveRecordsOfTheirOwnNeedNoRoomToEnd(t *testing.T) {
	for _, s := range scarcities {
		if s.long && os.Getenv("BERTH_LONG") == "" {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			plugins, err := os.MkdirTemp("", "d") // short, for the names of sockets in it
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(plugins)
			tables := fmt.Sprintf("[network]\nprepared_pods = 0\n[device_plugins]\nenabled = true\ndir = %q\n", plugins)
			criu, why := nodetest.TryCRIU()
			if why == nil {
				tables += fmt.Sprintf("[checkpoint]\ncriu = %q\n", criu)
			}
			c := startCrowded(t, s, node.Options{CNI: true, Tables: tables})
			nodetest.Pull(t, c.Node, node.Busybox)
			t.Run("CNI and OCI runtimes", c.othersNetworks)
			t.Run("named volumes", c.namedVolumes)
			t.Run("devices", func(t *testing.T) { c.devices(t, plugins) })
			t.Run("checkpoints", func(t *testing.T) {
				if why != nil {
					t.Skip(why)
				}
				c.checkpoint(t)
			})
			c.room(t)
			nothingLeft(t, c.Node)
		})
	}
}

// leases are the addresses that the host-local plugin has given.
func (c *crowded) leases(t *testing.T) int {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(c.Dir, "ipam", "*", "[0-9]*.*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

func (c *crowded) othersNetworks(t *testing.T) {
	count(t).add(tally.Rounds, 1)
	port := func(p *cri.PodSandboxConfig) {
		p.PortMappings = []*cri.PortMapping{{ContainerPort: 80, HostPort: int32(20000 + os.Getpid()%10000),
			HostIp: "127.0.0.1"}}
	}
	var handlers []string
	var pods []*nodetest.Pod
	for _, handler := range []string{"", "runc", "crun"} {
		var edits []nodetest.PodEdit
		switch {
		case handler == "":
			edits = append(edits, port)
		case c.Handlers[handler] == "":
			t.Logf("%s is not installed", handler)
			continue
		}
		p := nodetest.RunPodHandler(t, c.Node, handler, edits...)
		if err := p.Create().TryStart(); err != nil {
			if handler == "" {
				t.Fatal(err)
			}
			t.Logf("%s starts nothing on this kernel: %v", handler, err)
			p.Remove()
			continue
		}
		handlers, pods = append(handlers, handler), append(pods, p)
	}
	if has := c.leases(t); has != len(pods) {
		t.Fatalf("%d pods have %d addresses", len(pods), has)
	}
	before := c.listed(t)
	c.full(t)
	defer c.room(t)
	for _, handler := range handlers {
		config := nodetest.PodConfig(c.Node)
		made, err := c.Runtime.RunPodSandbox(nodetest.Context(t),
			&cri.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		if !refused(t, "RunPodSandbox with "+handler, err) {
			nodetest.Adopt(t, c.Node, made.PodSandboxId, config).Remove()
		}
		if now := c.listed(t); now != before {
			t.Errorf("RunPodSandbox with %q has left something: %s, before: %s", handler, now, before)
		}
	}
	for i, p := range pods {
		made, err := p.TryCreate()
		if !refused(t, "CreateContainer", err) {
			if !refused(t, "StartContainer with "+handlers[i], made.TryStart()) {
				made.Stop(0)
			}
			made.Remove()
		}
	}
	if has := c.leases(t); has != len(pods) {
		t.Errorf("%d pods have %d addresses", len(pods), has)
	}
	for _, p := range pods {
		p.Stop()
	}
	if has := c.leases(t); has != 0 {
		t.Errorf("%d addresses are left when the pods have been stopped", has)
	}
	c.again(t)
	for _, p := range pods {
		if s := p.Status(); s.State != cri.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("after a restart a pod is %v", s.State)
		}
		p.Remove()
	}
}

func (c *crowded) namedVolumes(t *testing.T) {
	count(t).add(tally.Rounds, 1)
	d := nodetest.DialV1alpha2(c.Node)
	p := nodetest.RunPod(t, c.Node)
	id, err := createNamed(nodetest.Context(t), p, node.Busybox, "there")
	if err != nil {
		t.Fatal(err)
	}
	c.full(t)
	defer c.room(t)
	if _, err := createNamed(nodetest.Context(t), p, node.Busybox, "new"); refused(t,
		"CreateContainer with a named volume", err) {
		if _, err := os.Lstat(filepath.Join(c.Root, "volumes", "new")); err == nil {
			t.Error("a volume is left of a container that was refused")
		}
	}
	if _, err := d.RemoveContainer(nodetest.Context(t), &cri.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Errorf("remove a container with a volume: %v", err)
	}
	p.Remove()
	for _, name := range []string{"there", "new"} {
		_, err := d.Volumes.RemoveVolume(nodetest.Context(t), &pouch.RemoveVolumeRequest{VolumeName: name})
		if err != nil && (name == "there" || status.Code(err) != codes.NotFound) {
			t.Errorf("remove volume %s: %v", name, err)
		}
	}
	c.again(t)
	for _, name := range []string{"there", "new"} {
		if _, err := os.Lstat(filepath.Join(c.Root, "volumes", name)); err == nil {
			t.Errorf("after a restart volume %s is there", name)
		}
	}
}

func (c *crowded) devices(t *testing.T, dir string) {
	count(t).add(tally.Rounds, 1)
	const resource = "vendor.com/gpu"
	plugin := &plugintest.Plugin{Dir: dir, Resource: resource, Endpoint: "plugin.sock"}
	if err := plugin.Start(plugintest.Devices("a", "b")...); err != nil {
		t.Fatal(err)
	}
	defer plugin.Stop()
	if err := plugin.Register(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	asks := func(container string) nodetest.PodEdit {
		return func(p *cri.PodSandboxConfig) {
			text, err := device.Annotate([]device.Ask{{Container: container, Limits: map[string]int{resource: 1}}})
			if err != nil {
				t.Fatal(err)
			}
			p.Annotations = map[string]string{device.Annotation: text}
		}
	}
	named := func(name string) nodetest.ContainerEdit {
		return func(c *cri.ContainerConfig) { c.Metadata.Name = name }
	}
	first, second := nodetest.RunPod(t, c.Node, asks("one")), nodetest.RunPod(t, c.Node, asks("two"))
	var holder *nodetest.Container
	nodetest.Eventually(t, 30*time.Second, "the plugin's devices are there", func() (err error) {
		holder, err = first.TryCreate(named("one"))
		return err
	})
	holder.Start()
	c.full(t)
	if made, err := second.TryCreate(named("two")); !refused(t, "CreateContainer with a device", err) {
		made.Remove()
	}
	first.Remove()
	second.Remove()
	c.again(t)
	c.room(t)
	if err := plugin.Return(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	// Both are free again.
	for _, name := range []string{"three", "four"} {
		p := nodetest.RunPod(t, c.Node, asks(name))
		nodetest.Eventually(t, 30*time.Second, "a device is free", func() error {
			_, err := p.TryCreate(named(name))
			return err
		})
		defer p.Remove()
	}
}

func (c *crowded) checkpoint(t *testing.T) {
	count(t).add(tally.Rounds, 1)
	p := nodetest.RunPod(t, c.Node)
	running := p.Run(nodetest.Sh(counter))
	running.WaitLog("line 5")
	dir := t.TempDir()
	archive := filepath.Join(dir, "checkpoint.tar")
	c.full(t)
	defer c.room(t)
	_, err := c.Runtime.CheckpointContainer(nodetest.Context(t),
		&cri.CheckpointContainerRequest{ContainerId: running.ID, Location: archive})
	if refused(t, "CheckpointContainer", err) {
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("it has left %v, %v", entries, err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(c.Root, "containers", "*", "checkpoint")); len(left) > 0 {
		t.Errorf("it has left %v", left)
	}
	lines := func() int { return strings.Count(running.Log(), "line ") }
	before := lines()
	nodetest.Eventually(t, 20*time.Second, "the container goes on", func() error {
		if now := lines(); now <= before {
			return fmt.Errorf("it has written %d lines", now)
		}
		return nil
	})
	p.Remove()
}
