package devices

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	api "berth/api/berth/v1"
	"berth/internal/device"
	"berth/internal/device/plugintest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// answer is one container's part of an Allocate.
func answer(one *pluginapi.ContainerAllocateResponse) func(context.Context,
	*pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return func(_ context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		out := &pluginapi.AllocateResponse{}
		for range req.GetContainerRequests() {
			out.ContainerResponses = append(out.ContainerResponses, one)
		}
		return out, nil
	}
}

func TestWhatAPluginAnswersIsInTheContainer(t *testing.T) {
	w := start(t, "")
	shared := t.TempDir()
	if err := os.WriteFile(filepath.Join(shared, "library"), []byte("from the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.cdi, "vendor.yaml"),
		[]byte("cdiVersion: 0.6.0\nkind: vendor.com/part\ndevices:\n"+
			"- {name: named, containerEdits: {env: [CDI_NAMED=1]}}\n"+
			"- {name: annotated, containerEdits: {env: [CDI_ANNOTATED=1]}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.plug(&plugintest.Plugin{OnAllocate: answer(&pluginapi.ContainerAllocateResponse{
		Envs:        map[string]string{"GPU": "a", "MINE": "plugin"},
		Mounts:      []*pluginapi.Mount{{ContainerPath: "/vendor", HostPath: shared, ReadOnly: true}},
		Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/gpu0", HostPath: "/dev/loop-control", Permissions: "r"}},
		Annotations: map[string]string{"vendor.com/note": "kept", "cdi.k8s.io/vendor": "vendor.com/part=annotated"},
		CdiDevices:  []*pluginapi.CDIDevice{{Name: "vendor.com/part=named"}},
	})}, plugintest.Devices("a", "b")...)
	p := nodetest.RunPod(t, w.Node, asks(ask("c", 1)))
	c := p.Run(named("c"), func(c *cri.ContainerConfig) {
		c.Envs = append(c.Envs, &cri.KeyValue{Key: "MINE", Value: []byte("client")})
	})
	if got := c.Sh("echo $GPU $MINE $CDI_NAMED $CDI_ANNOTATED; cat /vendor/library"); got !=
		"a client 1 1\nfrom the host" {
		t.Errorf("got %q", got)
	}
	c.Sh("exec 3</dev/gpu0")
	if r, err := c.Exec(60, "sh", "-c", "exec 3>/dev/gpu0"); err != nil || r.ExitCode == 0 {
		t.Errorf("a device with permissions r can be written: %v, %v", r, err)
	}
	if r, err := c.Exec(60, "sh", "-c", "touch /vendor/x"); err != nil || r.ExitCode == 0 {
		t.Errorf("a read-only mount can be written: %v, %v", r, err)
	}
	if r, err := c.Exec(60, "sh", "-c", "mknod /tmp/other b 7 0 && head -c 1 /tmp/other"); err != nil || r.ExitCode == 0 {
		t.Errorf("a device that was not given opens: %v, %v", r, err)
	}
	spec, err := os.ReadFile(filepath.Join(w.Root, "containers", c.ID, "spec.json"))
	if err != nil || !strings.Contains(string(spec), `"vendor.com/note":"kept"`) {
		t.Errorf("the annotation is not in the spec: %v", err)
	}
	w.wantHeld("a:c b")
	// One that asks for nothing gets nothing.
	if got := p.Output("echo -$GPU-; ls /dev"); !strings.HasPrefix(got, "--\n") || strings.Contains(got, "gpu0") {
		t.Errorf("another container has %q", got)
	}
	c.Remove()
	w.wantHeld("a b")
}

func TestDevicesAreFreedWithTheContainerOrThePod(t *testing.T) {
	w := start(t, "")
	w.plug(&plugintest.Plugin{}, plugintest.Devices("a", "b")...)
	p := nodetest.RunPod(t, w.Node, asks(ask("one", 1), ask("two", 1)))
	one := p.Run(named("one"))
	w.wantHeld("a:one b:two")
	q := nodetest.RunPod(t, w.Node, asks(ask("c", 1)))
	_, err := q.TryCreate(named("c"))
	nodetest.WantCode(t, err, codes.ResourceExhausted)
	if !strings.Contains(err.Error(), "asks for 1 of vendor.com/gpu: 0 are free") {
		t.Error(err)
	}
	one.Stop(0)
	w.wantHeld("a:one b:two") // it may start again
	again := p.Run(named("one"), attempt(1))
	one.Remove()
	w.wantHeld("a:one b:two")
	again.Remove()
	w.wantHeld("a b:two")
	q.Run(named("c"))
	w.wantHeld("a:c b:two")
	p.Remove()
	w.wantHeld("a:c b")
	q.Remove()
	w.wantHeld("a b")
}

func TestOnePodOfManyGetsTheLastDevice(t *testing.T) {
	w := start(t, "")
	w.plug(&plugintest.Plugin{}, plugintest.Devices("a")...)
	nodetest.Pull(t, w.Node, node.Busybox)
	var pods []*nodetest.Pod
	for range 5 {
		pods = append(pods, nodetest.RunPod(t, w.Node, asks(ask("c", 1))))
	}
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() { _, errs[i] = p.TryCreate(named("c")) })
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		nodetest.WantCode(t, err, codes.ResourceExhausted)
	}
	if won != 1 {
		t.Errorf("%d pods have the one device", won)
	}
}

func TestAllocationsOutliveAKill(t *testing.T) {
	w := start(t, "")
	p := w.plug(&plugintest.Plugin{
		Options:    &pluginapi.DevicePluginOptions{PreStartRequired: true},
		OnAllocate: answer(&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"GPU": "yes"}}),
	}, plugintest.Devices("a", "b", "c")...)
	pod := nodetest.RunPod(t, w.Node, asks(ask("one", 1), ask("two", 1)))
	one := pod.Run(named("one"))
	kept := nodetest.RunPod(t, w.Node, asks(ask("k", 1)))
	kept.Create(named("k"))
	w.wantHeld("a:one b:two c:k")
	for range 3 {
		if err := w.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := w.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	w.wantHeld("a-:one b-:two c-:k") // the plugin has not returned
	if got := one.Sh("echo $GPU"); got != "yes" {
		t.Errorf("the container that runs has %q", got)
	}
	if err := p.Return(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	w.until("the plugin is back", func() bool { return w.held() == "a:one b:two c:k" })
	two := pod.Run(named("two"))
	if got := two.Sh("echo $GPU"); got != "yes" {
		t.Errorf("the container that was made afterwards has %q", got)
	}
	if n := p.Calls("Allocate"); n != 2 {
		t.Errorf("%d calls of Allocate for two pods", n)
	}
	pod.Remove()
	w.wantHeld("a b c:k")
	kept.Remove()
	w.wantHeld("a b c")
	if entries, _ := os.ReadDir(filepath.Join(w.Root, "devices")); len(entries) != 0 {
		t.Errorf("records are left: %v", entries)
	}
}

func TestEachStartIsToldToThePlugin(t *testing.T) {
	w := start(t, "")
	var refuse error
	p := w.plug(&plugintest.Plugin{
		Options: &pluginapi.DevicePluginOptions{PreStartRequired: true},
		OnPreStart: func(context.Context, *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
			return &pluginapi.PreStartContainerResponse{}, refuse
		},
	}, plugintest.Devices("a")...)
	pod := nodetest.RunPod(t, w.Node, asks(ask("c", 1)))
	c := pod.Create(named("c"))
	if n := p.Calls("PreStartContainer"); n != 0 {
		t.Errorf("told %d times before the start", n)
	}
	c.Start()
	if n := p.Calls("PreStartContainer"); n != 1 {
		t.Errorf("told %d times", n)
	}
	c.Stop(0)
	refuse = errors.New("cannot be reset")
	again := pod.Create(named("c"), attempt(1))
	err := again.TryStart()
	if err == nil || !strings.Contains(err.Error(),
		"device plugin of vendor.com/gpu: PreStartContainer: cannot be reset") {
		t.Errorf("error %v", err)
	}
	if s := again.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.Reason != "StartError" {
		t.Errorf("it is %v (%s)", s.State, s.Reason)
	}
	w.wantHeld("a")
}

func TestAFailedAllocationLeavesNothing(t *testing.T) {
	w := start(t, "")
	bad := &pluginapi.ContainerAllocateResponse{
		Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/no-such", ContainerPath: "/dev/x", Permissions: "rw"}}}
	fail := errors.New("out of power")
	p := &plugintest.Plugin{}
	p.OnAllocate = func(ctx context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		if fail != nil {
			return nil, fail
		}
		return answer(bad)(ctx, req)
	}
	w.plug(p, plugintest.Devices("a", "b")...)
	pod := nodetest.RunPod(t, w.Node, asks(ask("c", 1), ask("later", 1)))
	_, err := pod.TryCreate(named("c"))
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if !strings.Contains(err.Error(), "device plugin of vendor.com/gpu: Allocate: out of power") {
		t.Error(err)
	}
	w.wantHeld("a b")
	// The plugin agrees, and what it gives is not there.
	fail = nil
	if _, err := pod.TryCreate(named("c")); err == nil || !strings.Contains(err.Error(), "/dev/no-such") {
		t.Errorf("error %v", err)
	}
	w.wantHeld("a b")
	if left, err := filepath.Glob(filepath.Join(w.Root, "containers", "*")); err != nil || len(left) != 0 {
		t.Errorf("containers are left: %v, %v", left, err)
	}
}

// hanging is a plugin whose Allocate does not answer before hang is closed.
func hanging(hang <-chan struct{}) *plugintest.Plugin {
	return &plugintest.Plugin{OnAllocate: func(context.Context,
		*pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		<-hang
		return nil, errors.New("out of power")
	}}
}

func TestAPluginThatHangsIsCutOff(t *testing.T) {
	w := start(t, "")
	hang := make(chan struct{})
	defer close(hang)
	w.plug(hanging(hang), plugintest.Devices("a", "b")...)
	nodetest.Pull(t, w.Node, node.Busybox)
	_, err := nodetest.RunPod(t, w.Node, asks(ask("c", 1))).TryCreate(named("c"))
	nodetest.WantCode(t, err, codes.DeadlineExceeded)
	if !strings.Contains(err.Error(), "Allocate: no answer within "+timeout.String()) {
		t.Error(err)
	}
	w.wantHeld("a b")
}

// TestAPluginThatHangsHurtsOnlyItsPod has a plugin hang for as long as other pods need, which is long on a busy
// machine.
func TestAPluginThatHangsHurtsOnlyItsPod(t *testing.T) {
	w := startPatient(t, node.Patience(time.Minute), "")
	hang := make(chan struct{})
	release := sync.OnceFunc(func() { close(hang) })
	defer release()
	w.plug(hanging(hang), plugintest.Devices("a", "b")...)
	w.plug(&plugintest.Plugin{Endpoint: "nic.sock", Resource: "vendor.com/nic"}, plugintest.Devices("n")...)
	nodetest.Pull(t, w.Node, node.Busybox)
	stuck := nodetest.RunPod(t, w.Node, asks(ask("c", 1)))
	done := make(chan error, 1)
	go func() {
		_, err := stuck.TryCreate(named("c"))
		done <- err
	}()
	w.until("it hangs", func() bool { return strings.Contains(w.held(), "a:c") })
	other := nodetest.RunPod(t, w.Node, asks(device.Ask{Container: "c", Limits: map[string]int{"vendor.com/nic": 1}}))
	other.Run(named("c")).Sh("true")
	plain := nodetest.RunPod(t, w.Node)
	plain.Run().Sh("true")
	select {
	case err := <-done:
		t.Errorf("the others waited for it: it ended before (%v)", err)
		done <- err
	default:
	}
	release()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "out of power") {
		t.Errorf("once the plugin answers: %v", err)
	}
	w.wantHeld("a b n:c")
}

func TestAPluginThatDiesLeavesItsContainersAlone(t *testing.T) {
	w := start(t, "")
	p := w.plug(&plugintest.Plugin{
		OnAllocate: answer(&pluginapi.ContainerAllocateResponse{Envs: map[string]string{"GPU": "yes"}})},
		plugintest.Devices("a", "b")...)
	pod := nodetest.RunPod(t, w.Node, asks(ask("c", 1)))
	c := pod.Run(named("c"))
	p.Stop()
	w.until("its devices are unhealthy", func() bool { return w.held() == "a-:c b-" })
	if got := c.Sh("echo $GPU"); got != "yes" {
		t.Errorf("the container has %q", got)
	}
	q := nodetest.RunPod(t, w.Node, asks(ask("c", 1)))
	_, err := q.TryCreate(named("c"))
	nodetest.WantCode(t, err, codes.ResourceExhausted)
	out, err := w.berth("devices")
	if err != nil || !strings.Contains(out, "unhealthy (plugin away)") || !strings.Contains(out, "went away") {
		t.Errorf("berth devices: %v\n%s", err, out)
	}
}

func TestANodeWithoutADeviceManagerRefusesWhoAsks(t *testing.T) {
	nodetest.BerthOnly(t, "the annotation is Berth's")
	n := nodetest.Shared(t)
	_, err := n.Runtime.RunPodSandbox(nodetest.Context(t),
		&cri.RunPodSandboxRequest{Config: nodetest.PodConfig(n, asks(ask("c", 1)))})
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if !strings.Contains(err.Error(), "device_plugins.enabled") {
		t.Error(err)
	}
	_, err = n.Runtime.RunPodSandbox(nodetest.Context(t),
		&cri.RunPodSandboxRequest{Config: nodetest.PodConfig(n, func(c *cri.PodSandboxConfig) {
			c.Annotations = map[string]string{device.Annotation: "two"}
		})})
	nodetest.WantCode(t, err, codes.InvalidArgument)
	_, err = api.NewDevicesClient(n.Conn).List(nodetest.Context(t), &api.ListDevicesRequest{})
	nodetest.WantCode(t, err, codes.FailedPrecondition)
}

const manifest = `apiVersion: v1
kind: Pod
metadata: {name: gpus}
spec:
  initContainers:
  - name: init
    image: %[1]s
    command: [sh, -c, "echo init has $GPU"]
    resources: {limits: {vendor.com/gpu: 1}}
  containers:
  - name: one
    image: %[1]s
    command: [sh, -c, "echo one has $GPU; sleep 3600"]
    resources: {limits: {vendor.com/gpu: 2}}
  - name: none
    image: %[1]s
    command: [sh, -c, "echo none has $GPU; sleep 3600"]
`

func TestRunHonoursLimitsOfExtendedResources(t *testing.T) {
	w := start(t, "")
	w.plug(&plugintest.Plugin{OnAllocate: func(_ context.Context,
		req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
		out := &pluginapi.AllocateResponse{}
		for _, c := range req.GetContainerRequests() {
			out.ContainerResponses = append(out.ContainerResponses, &pluginapi.ContainerAllocateResponse{
				Envs: map[string]string{"GPU": strings.Join(c.GetDevicesIds(), "+")},
			})
		}
		return out, nil
	}}, plugintest.Devices("a", "b")...)
	file := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf(manifest, node.Busybox)), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := w.berth("run", "-d", file); err != nil {
		t.Fatalf("run: %v\n%s", err, out)
	}
	for container, want := range map[string]string{"init": "init has a\n", "one": "one has a+b\n", "none": "none has\n"} {
		nodetest.Eventually(t, 30e9, container+" has said what it has", func() error {
			if out, err := w.berth("logs", "gpus/"+container); err != nil || strings.ReplaceAll(out, " \n", "\n") != want {
				return fmt.Errorf("%q, %v", out, err)
			}
			return nil
		})
	}
	out, err := w.berth("devices")
	if err != nil {
		t.Fatal(out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "RESOURCE") ||
		!slices.Equal(strings.Fields(lines[1]), strings.Fields("vendor.com/gpu a healthy - gpus/init, gpus/one")) ||
		!slices.Equal(strings.Fields(lines[2]), strings.Fields("vendor.com/gpu b healthy - gpus/one")) {
		t.Errorf("berth devices:\n%s", out)
	}
	if out, err := w.berth("devices", "no.com/such"); err == nil || !strings.Contains(out, "no.com/such") {
		t.Errorf("a resource that is not: %v, %s", err, out)
	}
	if out, err := w.berth("devices", gpu, "-o", "json"); err != nil || !strings.Contains(out, `"container": "one"`) {
		t.Errorf("as JSON: %v, %s", err, out)
	}
	if out, err := w.berth("run", "-d", "--name", "second", file); err == nil || !strings.Contains(out, "0 are free") {
		t.Errorf("a second pod: %v\n%s", err, out)
	}
	if out, err := w.berth("rm", "-f", "gpus"); err != nil {
		t.Fatalf("rm: %v\n%s", err, out)
	}
	w.wantHeld("a b")
}

func TestMetricsTellOfDevices(t *testing.T) {
	address := nodetest.FreeAddress(t)
	w := start(t, fmt.Sprintf("[metrics]\naddress = %q\n", address))
	list := plugintest.Devices("a", "b", "c")
	list[2].Health = pluginapi.Unhealthy
	w.plug(&plugintest.Plugin{}, list...)
	nodetest.RunPod(t, w.Node, asks(ask("c", 1))).Create(named("c"))
	r, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`berth_devices{resource="vendor.com/gpu"} 3`,
		`berth_devices_allocated{resource="vendor.com/gpu"} 1`,
		`berth_devices_unhealthy{resource="vendor.com/gpu"} 1`,
		`berth_device_plugin_calls_total{call="Allocate",code="OK",resource="vendor.com/gpu"} 1`,
		`berth_device_plugin_call_duration_seconds_count{call="Allocate",resource="vendor.com/gpu"} 1`,
		`berth_device_plugin_call_duration_seconds_count{call="GetDevicePluginOptions",resource="vendor.com/gpu"} 1`,
	} {
		if !strings.Contains(string(body), want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}
