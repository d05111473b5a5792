package devices

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	api "berth/api/berth/v1"
	"berth/internal/device"
	"berth/internal/device/plugintest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m) }

const gpu = "vendor.com/gpu"

// world is a node whose device manager is on.
type world struct {
	*node.Node
	t         *testing.T
	dir       string // of plugins
	cdi       string // of CDI specifications
	inventory api.DevicesClient
}

// timeout of a call of a plugin on these nodes.
var timeout = node.Lapse(3 * time.Second)

func start(t *testing.T, tables string) *world {
	t.Helper()
	return startPatient(t, timeout, tables)
}

// startPatient is start for a node whose plugins have so long for a call.
func startPatient(t *testing.T, timeout time.Duration, tables string) *world {
	t.Helper()
	nodetest.BerthOnly(t, "it has no device manager")
	w := &world{t: t, dir: short(t), cdi: t.TempDir()}
	w.Node = nodetest.Start(t, node.Options{
		Config: fmt.Sprintf("cdi_spec_dirs = [%q]\n", w.cdi),
		Tables: fmt.Sprintf("[device_plugins]\nenabled = true\ndir = %q\ntimeout = \"%v\"\n%s", w.dir, timeout, tables),
	})
	w.inventory = api.NewDevicesClient(w.Conn)
	return w
}

// short is a directory whose name leaves room for those of sockets.
func short(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// plug starts a plugin, registers it and waits until its devices are known.
func (w *world) plug(p *plugintest.Plugin, devices ...*pluginapi.Device) *plugintest.Plugin {
	w.t.Helper()
	p.Dir = w.dir
	if p.Resource == "" {
		p.Resource = gpu
	}
	if p.Endpoint == "" {
		p.Endpoint = "plugin.sock"
	}
	if err := p.Start(devices...); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(p.Stop)
	if err := p.Register(nodetest.Context(w.t)); err != nil {
		w.t.Fatal(err)
	}
	w.until("the plugin's devices are known", func() bool {
		r := w.resource(p.Resource)
		return r.GetConnected() && len(r.GetDevices()) == len(devices) && (len(devices) == 0 || r.Devices[0].Healthy)
	})
	return p
}

func (w *world) until(claim string, holds func() bool) {
	w.t.Helper()
	nodetest.Eventually(w.t, 30*time.Second, claim, func() error {
		if holds() {
			return nil
		}
		return fmt.Errorf("not yet: %q", w.held())
	})
}

func (w *world) resource(name string) *api.Resource {
	list, err := w.inventory.List(context.Background(), &api.ListDevicesRequest{})
	if err != nil {
		return nil
	}
	for _, r := range list.GetResources() {
		if r.GetName() == name {
			return r
		}
	}
	return nil
}

// held are all devices: ID, - if unhealthy, and the containers that hold it.
func (w *world) held() string {
	list, err := w.inventory.List(context.Background(), &api.ListDevicesRequest{})
	if err != nil {
		return err.Error()
	}
	var out []string
	for _, r := range list.GetResources() {
		for _, d := range r.GetDevices() {
			text := d.GetId()
			if !d.GetHealthy() {
				text += "-"
			}
			for _, h := range d.GetHolders() {
				text += ":" + h.GetContainer()
			}
			out = append(out, text)
		}
	}
	return strings.Join(out, " ")
}

func (w *world) wantHeld(want string) {
	w.t.Helper()
	if got := w.held(); got != want {
		w.t.Errorf("devices %q, want %q", got, want)
	}
}

// asks makes a pod ask for devices of gpu, by container.
func asks(list ...device.Ask) nodetest.PodEdit {
	return func(c *cri.PodSandboxConfig) {
		text, err := device.Annotate(list)
		if err != nil {
			panic(err)
		}
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[device.Annotation] = text
	}
}

func ask(container string, n int) device.Ask {
	return device.Ask{Container: container, Limits: map[string]int{gpu: n}}
}

// named gives a container a name.
func named(name string) nodetest.ContainerEdit {
	return func(c *cri.ContainerConfig) { c.Metadata.Name = name }
}

func attempt(n uint32) nodetest.ContainerEdit {
	return func(c *cri.ContainerConfig) { c.Metadata.Attempt = n }
}

// berth runs the command line.
func (w *world) berth(args ...string) (string, error) {
	w.t.Helper()
	binaries, err := node.Binaries(nodetest.Context(w.t))
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.CommandContext(nodetest.Context(w.t), filepath.Join(binaries, "berth"), args...)
	cmd.Env = append(os.Environ(), "BERTH_ADDRESS="+w.Address, "BERTH_DATA_DIR="+filepath.Join(w.Dir, "cli"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
