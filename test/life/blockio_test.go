package life

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

const (
	classOfThePod  = "blockio.resources.beta.kubernetes.io/pod"
	classOfThisOne = "blockio.resources.beta.kubernetes.io/container."
)

// The annotations and the file are those of containerd and CRI-O.
func TestClassesOfBlockIOLimitContainers(t *testing.T) {
	nodetest.BerthOnly(t, "the key that names the file is Berth's")
	device, numbers := blockDevice(t)
	file := filepath.Join(t.TempDir(), "blockio.yaml")
	classes := func(rate string) {
		text := fmt.Sprintf("Classes:\n  slow:\n  - Devices: [%s]\n    ThrottleReadBps: %s\n  free: []\n", device, rate)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	classes("1Mi")
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("block_io_classes_file = %q\n", file)})
	annotated := func(annotations map[string]string) nodetest.PodEdit {
		return func(c *cri.PodSandboxConfig) {
			c.Annotations = map[string]string{}
			maps.Copy(c.Annotations, annotations)
		}
	}
	named := func(name string) nodetest.ContainerEdit {
		return func(c *cri.ContainerConfig) { c.Metadata.Name = name }
	}
	limit := func(c *nodetest.Container) string {
		return cgroupFile(t, c, "blkio/blkio.throttle.read_bps_device", "io.max")
	}
	p := nodetest.RunPod(t, n, annotated(map[string]string{classOfThePod: "slow", classOfThisOne + "web": "free"}))
	log, web := p.Run(named("log")), p.Run(named("web"))
	if got := limit(log); !strings.Contains(got, numbers) || !strings.Contains(got, "1048576") {
		t.Errorf("a container of the class of its pod has the limit %q", got)
	}
	if got := limit(web); strings.Contains(got, numbers) {
		t.Errorf("a container of a class of its own has the limit %q", got)
	}

	classes("2Mi")
	signalled(t, n, syscall.SIGHUP, reloaded)
	if got := limit(p.Run(named("later"))); !strings.Contains(got, "2097152") {
		t.Errorf("a container that is made after a reload has the limit %q", got)
	}
	if got := limit(log); !strings.Contains(got, "1048576") {
		t.Errorf("a reload changes the limit of one that runs to %q", got)
	}
	if err := os.WriteFile(file, []byte("Classes: 7"), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := signalled(t, n, syscall.SIGHUP, "is not reloaded")
	if !strings.Contains(fmt.Sprint(lines), file) {
		t.Errorf("a wrong file is refused with %v", lines)
	}

	wrong := nodetest.RunPod(t, n, annotated(map[string]string{classOfThePod: "gold"}))
	_, err := wrong.TryCreate()
	if nodetest.WantCode(t, err, codes.InvalidArgument); err == nil || !strings.Contains(err.Error(), `"gold"`) ||
		!strings.Contains(err.Error(), classOfThePod) {
		t.Errorf("a class that is not there: %v", err)
	}
}

func TestAClassOfBlockIOIsIgnoredWithAReasonWhereNoneIsConfigured(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "containerd refuses it, or ignores it, by configuration")
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Annotations = map[string]string{classOfThePod: "gold"} })
	c := p.Run()
	st, err := n.Runtime.ContainerStatus(nodetest.Context(t),
		&cri.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	_, told, _ := strings.Cut(st.Info["info"], `"ignored":`)
	if !strings.Contains(told, classOfThePod) || !strings.Contains(told, "block_io_classes_file") {
		t.Errorf("verbose status does not say that the annotation is ignored: %s", told)
	}
}
