package life

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// blockDevice is a block device of the machine and its numbers.
func blockDevice(t testing.TB) (path, numbers string) {
	t.Helper()
	disks, err := filepath.Glob("/sys/block/*/size")
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range disks {
		path := "/dev/" + filepath.Base(filepath.Dir(size))
		var st unix.Stat_t
		data, err := os.ReadFile(size)
		if err == nil && strings.TrimSpace(string(data)) != "0" && unix.Stat(path, &st) == nil &&
			st.Mode&unix.S_IFMT == unix.S_IFBLK {
			return path, fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
	}
	t.Skip("this machine has no block device")
	return "", ""
}

func cgroupV2() bool { return exists("/sys/fs/cgroup/cgroup.controllers") }

// limited makes a container with limits through v1alpha2.
func limited(t testing.TB, p *nodetest.Pod, ext *pouch.LinuxContainerResources,
	edits ...nodetest.ContainerEdit) (*nodetest.Container, error) {
	t.Helper()
	config := p.ContainerConfig(edits...)
	add(t, config.Linux.Resources, ext)
	nodetest.Pull(t, p.Node, config.Image.Image)
	made, err := nodetest.DialV1alpha2(p.Node).CreateContainer(nodetest.Context(t), &cri.CreateContainerRequest{
		PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config,
	})
	if err != nil {
		return nil, err
	}
	return &nodetest.Container{Pod: p, ID: made.ContainerId, Config: config}, nil
}

func update(t testing.TB, c *nodetest.Container, ext *pouch.LinuxContainerResources) error {
	t.Helper()
	limits := &cri.LinuxContainerResources{}
	add(t, limits, ext)
	_, err := nodetest.DialV1alpha2(c.Pod.Node).UpdateContainerResources(nodetest.Context(t),
		&cri.UpdateContainerResourcesRequest{
			ContainerId: c.ID, Linux: limits,
		})
	return err
}

func TestUlimitsAreTheContainers(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	asked := []*pouch.Ulimit{{Name: "nofile", Soft: 60, Hard: 70}, {Name: "core", Soft: 0, Hard: 0}}
	c, err := limited(t, p, &pouch.LinuxContainerResources{Ulimits: asked})
	if err != nil {
		t.Fatal(err)
	}
	// Of a created container they can still be changed.
	if err := update(t, c,
		&pouch.LinuxContainerResources{Ulimits: []*pouch.Ulimit{{Name: "nofile", Soft: 61, Hard: 71}}}); err != nil {
		t.Fatal(err)
	}
	c.Start()
	for what, where := range map[string]func() string{
		"the container": func() string {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", hostPID(t, c)))
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		},
		"an exec": func() string { return c.Sh("cat /proc/self/limits") },
	} {
		limits := strings.Join(strings.Fields(where()), " ")
		if !strings.Contains(limits, "Max open files 61 71 files") ||
			!strings.Contains(limits, "Max core file size 0 0 bytes") {
			t.Errorf("%s has %s", what, limits)
		}
	}
	_, told := pouchResources(t, pouchStatus(t, nodetest.DialV1alpha2(n), c.ID))
	want := []*pouch.Ulimit{{Name: "nofile", Soft: 61, Hard: 71}, asked[1]}
	if !proto.Equal(&pouch.LinuxContainerResources{Ulimits: told.Ulimits}, &pouch.LinuxContainerResources{Ulimits: want}) {
		t.Errorf("the status tells %v", told.Ulimits)
	}
	if err := update(t, c, &pouch.LinuxContainerResources{Ulimits: want}); err != nil {
		t.Errorf("an update that changes nothing: %v", err)
	}
	nodetest.WantCode(t, update(t, c, &pouch.LinuxContainerResources{Ulimits: asked}), codes.FailedPrecondition)

	var own syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &own); err != nil {
		t.Fatal(err)
	}
	above := int64(own.Max) + 1
	c, err = limited(t, p,
		&pouch.LinuxContainerResources{Ulimits: []*pouch.Ulimit{{Name: "nofile", Soft: 1, Hard: above}}})
	if mayRaiseLimits(t) {
		if err == nil {
			err = c.TryStart()
		}
		// beyond the node's fs.nr_open
		if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("RLIMIT_NOFILE=1:%d", above)) {
			t.Error(err)
		}
		return
	}
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if err == nil || !strings.Contains(err.Error(), "CAP_SYS_RESOURCE") ||
		!strings.Contains(err.Error(), fmt.Sprint(own.Max)) {
		t.Errorf("%v", err)
	}
}

func mayRaiseLimits(t testing.TB) bool {
	t.Helper()
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			var caps uint64
			_, _ = fmt.Sscanf(strings.TrimSpace(v), "%x", &caps)
			return caps&(1<<unix.CAP_SYS_RESOURCE) != 0
		}
	}
	return false
}

func TestBlockIOIsThrottled(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	device, numbers := blockDevice(t)
	rate := func(rate uint64) []*pouch.ThrottleDevice { return []*pouch.ThrottleDevice{{Path: device, Rate: rate}} }
	asked := &pouch.LinuxContainerResources{
		BlkioDeviceReadBps: rate(1 << 20), BlkioDeviceWriteBps: rate(2 << 20), BlkioDeviceRead_IOps: rate(100),
		BlkioDeviceWrite_IOps: rate(200),
	}
	c, err := limited(t, p, asked)
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	check := func(want map[string]uint64) {
		t.Helper()
		for name, value := range want {
			v1 := map[string]string{"rbps": "read_bps", "wbps": "write_bps", "riops": "read_iops", "wiops": "write_iops"}[name]
			got := cgroupFile(t, c, "blkio/blkio.throttle."+v1+"_device", "io.max")
			if !strings.Contains(got, fmt.Sprintf("%s %d", numbers, value)) &&
				!strings.Contains(got, fmt.Sprintf("%s=%d", name, value)) {
				t.Errorf("%s is %q, want %d", name, got, value)
			}
		}
	}
	check(map[string]uint64{"rbps": 1 << 20, "wbps": 2 << 20, "riops": 100, "wiops": 200})
	_, told := pouchResources(t, pouchStatus(t, nodetest.DialV1alpha2(n), c.ID))
	if !proto.Equal(told, asked) {
		t.Errorf("the status tells %v", told)
	}
	if err := update(t, c, &pouch.LinuxContainerResources{BlkioDeviceReadBps: rate(4 << 20)}); err != nil {
		t.Fatal(err)
	}
	check(map[string]uint64{"rbps": 4 << 20, "wbps": 2 << 20, "riops": 100, "wiops": 200})
	if err := update(t, c, &pouch.LinuxContainerResources{BlkioDeviceReadBps: rate(0)}); err != nil {
		t.Fatal(err)
	}
	if got := cgroupFile(t, c, "blkio/blkio.throttle.read_bps_device", "io.max"); strings.Contains(got, numbers+" 41") ||
		strings.Contains(got, "rbps=41") {
		t.Errorf("a rate of 0 leaves %q", got)
	}
	for what, path := range map[string]string{"no device": "/dev/null", "not there": "/dev/none-such", "relative": "vda"} {
		_, err := limited(t, p,
			&pouch.LinuxContainerResources{BlkioDeviceReadBps: []*pouch.ThrottleDevice{{Path: path, Rate: 1}}})
		if nodetest.WantCode(t, err, codes.InvalidArgument); err == nil ||
			!strings.Contains(err.Error(), "blkio_device_read_bps") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestBlockIOIsWeighedOrRefused(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c, err := limited(t, p, &pouch.LinuxContainerResources{BlkioWeight: 300})
	weights := []string{"blkio/*/blkio.weight", "blkio/*/blkio.bfq.weight"}
	if cgroupV2() {
		weights = []string{"*/io.weight", "*/io.bfq.weight"}
	}
	have := false
	for _, pattern := range weights {
		found, _ := filepath.Glob("/sys/fs/cgroup/" + pattern)
		have = have || len(found) > 0
	}
	if !have {
		nodetest.WantCode(t, err, codes.FailedPrecondition)
		if err == nil || !strings.Contains(err.Error(), "blkio_weight") {
			t.Errorf("%v", err)
		}
		device, _ := blockDevice(t)
		_, err = limited(t, p,
			&pouch.LinuxContainerResources{BlkioWeightDevice: []*pouch.WeightDevice{{Path: device, Weight: 20}}})
		nodetest.WantCode(t, err, codes.FailedPrecondition)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	_, told := pouchResources(t, pouchStatus(t, nodetest.DialV1alpha2(n), c.ID))
	if told.BlkioWeight != 300 {
		t.Errorf("the status tells %v", told)
	}
}

// An update with a weight that the kernel does not take changes nothing else, either. Without the check
// of the scheduler the update was Internal, and left the weight of the container at 500.
func TestAWeightForADeviceWithoutBFQIsRefused(t *testing.T) {
	device, numbers := blockDevice(t)
	list, err := os.ReadFile("/sys/dev/block/" + numbers + "/queue/scheduler")
	if err != nil || strings.Contains(string(list), "[bfq]") {
		t.Skipf("the scheduler of %s is %q (%v)", device, list, err)
	}
	p := nodetest.RunPod(t, nodetest.Shared(t))
	weights := []*pouch.WeightDevice{{Path: device, Weight: 20}}
	refused := func(err error) {
		t.Helper()
		nodetest.WantCode(t, err, codes.FailedPrecondition)
		if err != nil && !strings.Contains(err.Error(), "blkio_weight_device") {
			t.Errorf("the field is not named: %v", err)
		}
	}
	_, err = limited(t, p, &pouch.LinuxContainerResources{BlkioWeightDevice: weights})
	refused(err)
	c, err := limited(t, p, &pouch.LinuxContainerResources{})
	if err != nil {
		t.Fatal(err)
	}
	refused(update(t, c, &pouch.LinuxContainerResources{BlkioWeightDevice: weights}))
	c.Start()
	refused(update(t, c, &pouch.LinuxContainerResources{BlkioWeightDevice: weights}))
	weight := func() (all string) {
		for _, dir := range cgroups(t, c) {
			for _, name := range []string{"blkio.bfq.weight", "io.bfq.weight", "io.weight"} {
				data, _ := os.ReadFile(filepath.Join(dir, name)) // a kernel has some of them
				all += string(data)
			}
		}
		return all
	}
	before := weight()
	refused(update(t, c, &pouch.LinuxContainerResources{BlkioWeight: 500, BlkioWeightDevice: weights}))
	if after := weight(); after != before {
		t.Errorf("the weight was %q and is %q", before, after)
	}
}

func TestMemoryHasAReservationAndSwappiness(t *testing.T) {
	n := nodetest.Shared(t)
	d := nodetest.DialV1alpha2(n)
	p := nodetest.RunPod(t, n)
	c, err := limited(t, p, &pouch.LinuxContainerResources{MemoryReservation: 16 << 20}, func(c *cri.ContainerConfig) {
		c.Linux.Resources.MemoryLimitInBytes = 64 << 20
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	if got := cgroupFile(t, c, "memory/memory.soft_limit_in_bytes", "memory.low"); got != "16777216" {
		t.Errorf("the reservation is %s", got)
	}
	if err := update(t, c, &pouch.LinuxContainerResources{MemoryReservation: 32 << 20}); err != nil {
		t.Fatal(err)
	}
	if got := cgroupFile(t, c, "memory/memory.soft_limit_in_bytes", "memory.low"); got != "33554432" {
		t.Errorf("the reservation is %s after an update", got)
	}
	linux, told := pouchResources(t, pouchStatus(t, d, c.ID))
	if linux.MemoryLimitInBytes != 64<<20 || told.MemoryReservation != 32<<20 {
		t.Errorf("the status tells %v, %v", linux, told)
	}
	_, err = limited(t, p, &pouch.LinuxContainerResources{MemoryReservation: 128 << 20}, func(c *cri.ContainerConfig) {
		c.Linux.Resources.MemoryLimitInBytes = 64 << 20
	})
	nodetest.WantCode(t, err, codes.InvalidArgument)

	swappy, err := limited(t, p, &pouch.LinuxContainerResources{MemorySwappiness: &pouch.Int64Value{Value: 7}})
	if cgroupV2() {
		nodetest.WantCode(t, err, codes.FailedPrecondition)
	} else if err != nil {
		t.Fatal(err)
	} else {
		swappy.Start()
		if got := cgroupFile(t, swappy, "memory/memory.swappiness", ""); got != "7" {
			t.Errorf("swappiness is %s", got)
		}
		if err := update(t, swappy, &pouch.LinuxContainerResources{MemorySwappiness: &pouch.Int64Value{}}); err != nil {
			t.Fatal(err)
		}
		if got := cgroupFile(t, swappy, "memory/memory.swappiness", ""); got != "0" {
			t.Errorf("swappiness is %s after an update", got)
		}
		if _, told := pouchResources(t, pouchStatus(t, d, swappy.ID)); told.MemorySwappiness == nil ||
			told.MemorySwappiness.Value != 0 {
			t.Errorf("the status tells %v", told)
		}
	}
	_, err = limited(t, p, &pouch.LinuxContainerResources{KernelMemory: 1 << 20})
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if err == nil || !strings.Contains(err.Error(), "kernel_memory") {
		t.Errorf("%v", err)
	}
	nodetest.WantCode(t, update(t, c, &pouch.LinuxContainerResources{KernelMemory: 1 << 20}), codes.FailedPrecondition)
}

func TestPouchAnnotationsLimitAContainer(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	annotated := func(annotations map[string]string) nodetest.ContainerEdit {
		return func(c *cri.ContainerConfig) {
			c.Annotations = annotations
			c.Linux.Resources.MemoryLimitInBytes = 64 << 20
		}
	}
	c, err := limited(t, p, &pouch.LinuxContainerResources{}, annotated(map[string]string{
		"io.alibaba.pouch.resources.pids-limit": "33", "io.alibaba.pouch.resources.memory-swap": "100663296",
	}))
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	if got := cgroupFile(t, c, "pids/pids.max", "pids.max"); got != "33" {
		t.Errorf("the limit of processes is %s", got)
	}
	if linux, _ := pouchResources(t,
		pouchStatus(t, nodetest.DialV1alpha2(n), c.ID)); linux.MemorySwapLimitInBytes != 96<<20 {
		t.Errorf("the status tells %v", linux)
	}
	if exists("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes") {
		if got := cgroupFile(t, c, "memory/memory.memsw.limit_in_bytes", ""); got != "100663296" {
			t.Errorf("memory and swap are %s", got)
		}
	}
	// Through v1 they are words like any others.
	plain := p.Run(annotated(map[string]string{"io.alibaba.pouch.resources.pids-limit": "33"}))
	if got := cgroupFile(t, plain, "pids/pids.max", "pids.max"); got == "33" {
		t.Error("v1 heeds an annotation of another interface")
	}
	_, err = limited(t, p, &pouch.LinuxContainerResources{},
		annotated(map[string]string{"io.alibaba.pouch.resources.pids-limit": "many"}))
	nodetest.WantCode(t, err, codes.InvalidArgument)
}

func TestAnnotationsOfAPodChooseItsHandlerAndLXCFS(t *testing.T) {
	n := nodetest.Shared(t)
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	run := func(handler string, annotations map[string]string) (*nodetest.Pod, error) {
		config := nodetest.PodConfig(n, func(c *cri.PodSandboxConfig) { c.Annotations = annotations })
		pod, err := d.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		if err != nil {
			return nil, err
		}
		p := nodetest.Adopt(t, n, pod.PodSandboxId, config)
		return p, nil
	}
	if n.Handlers["runc"] != "" {
		p, err := run("", map[string]string{"io.kubernetes.runtime": "runc"})
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Status().RuntimeHandler; got != "runc" {
			t.Errorf("the handler is %q", got)
		}
		p, err = run("berth", map[string]string{"io.kubernetes.runtime": "runc"})
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Status().RuntimeHandler; got != "berth" {
			t.Errorf("the request's handler does not hold: %q", got)
		}
	}
	_, err := run("", map[string]string{"io.kubernetes.runtime": "none-such"})
	nodetest.WantCode(t, err, codes.NotFound)

	p, err := run("", map[string]string{"io.kubernetes.lxcfs.enabled": "true"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.TryCreate()
	if exists("/var/lib/lxcfs/proc/meminfo") {
		if err != nil {
			t.Error(err)
		}
	} else if nodetest.WantCode(t, err, codes.FailedPrecondition); err == nil || !strings.Contains(err.Error(), "lxcfs") {
		t.Errorf("%v", err)
	}
	_, err = run("", map[string]string{"io.kubernetes.lxcfs.enabled": "perhaps"})
	nodetest.WantCode(t, err, codes.InvalidArgument)
}

func TestNetPriorityIsForTheNodesInterfaces(t *testing.T) {
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Network: cri.NamespaceMode_NODE,
			Pid: cri.NamespaceMode_CONTAINER}
	})
	config := p.ContainerConfig()
	add(t, config, &pouch.ContainerConfig{NetPriority: 5})
	nodetest.Pull(t, n, node.Busybox)
	made, err := nodetest.DialV1alpha2(n).CreateContainer(nodetest.Context(t), &cri.CreateContainerRequest{
		PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config,
	})
	if !exists("/sys/fs/cgroup/net_prio") {
		if nodetest.WantCode(t, err, codes.FailedPrecondition); err == nil || !strings.Contains(err.Error(), "net_priority") {
			t.Errorf("%v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &nodetest.Container{Pod: p, ID: made.ContainerId, Config: config}
	c.Start()
	if got := cgroupFile(t, c, "net_prio/net_prio.ifpriomap", ""); !strings.Contains(got, "lo 5") {
		t.Errorf("the priorities are %q", got)
	}
}

func TestAStatusTellsTheEnvironmentAndAnImageItsVolumes(t *testing.T) {
	n := nodetest.Shared(t)
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	p := nodetest.RunPod(t, n)
	c := p.Create(func(c *cri.ContainerConfig) { c.Envs = []*cri.KeyValue{{Key: "COLOUR", Value: []byte("blue=green")}} })
	found := false
	for _, e := range added(t, pouchStatus(t, d, c.ID), &pouch.ContainerStatus{}).Envs {
		found = found || e.Key == "COLOUR" && string(e.Value) == "blue=green"
	}
	if !found {
		t.Error("the status does not tell the environment")
	}
	spec := &cri.ImageSpec{Image: node.Busybox}
	add(t, spec, &pouch.ImageSpec{SpecAnnotations: map[string]string{"a": "b"}})
	config := p.ContainerConfig()
	config.Image = spec
	made, err := d.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: p.ID, Config: config,
		SandboxConfig: p.Config})
	if err != nil {
		t.Fatal(err)
	}
	if got := added(t, pouchStatus(t, d, made.ContainerId).Image, &pouch.ImageSpec{}).SpecAnnotations; got["a"] != "b" {
		t.Errorf("the status tells %v", got)
	}
	list, err := d.ListContainers(ctx, &cri.ListContainersRequest{Filter: &cri.ContainerFilter{Id: made.ContainerId}})
	if err != nil || len(list.Containers) != 1 ||
		added(t, list.Containers[0].Image, &pouch.ImageSpec{}).SpecAnnotations["a"] != "b" {
		t.Errorf("the list tells %v, %v", list, err)
	}
}

// Without the annotations in fromImage, in the request to the store or in the image's record, one part of this fails
// each.
func TestAnImageTellsTheAnnotationsOfItsPull(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	pull := func(annotations map[string]string) error {
		t.Helper()
		spec := &cri.ImageSpec{Image: node.Busybox}
		add(t, spec, &pouch.ImageSpec{SpecAnnotations: annotations})
		_, err := d.PullImage(ctx, &cri.PullImageRequest{Image: spec})
		return err
	}
	told := func(when string, want map[string]string) {
		t.Helper()
		status, err := d.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: node.Busybox}})
		if err != nil {
			t.Fatal(err)
		}
		list, err := d.ListImages(ctx,
			&cri.ListImagesRequest{Filter: &cri.ImageFilter{Image: &cri.ImageSpec{Image: node.Busybox}}})
		if err != nil || len(list.Images) != 1 || status.Image == nil {
			t.Fatalf("%s: %v, %v, %v", when, status, list, err)
		}
		for call, image := range map[string]*cri.Image{"ImageStatus": status.Image, "ListImages": list.Images[0]} {
			if got := added(t, image.Spec, &pouch.ImageSpec{}).SpecAnnotations; !maps.Equal(got, want) {
				t.Errorf("%s: %s tells %v, want %v", when, call, got, want)
			}
		}
	}
	if err := pull(map[string]string{"a": "b", "c": "d"}); err != nil {
		t.Fatal(err)
	}
	told("after a pull", map[string]string{"a": "b", "c": "d"})
	if err := pull(map[string]string{"e": ""}); err != nil {
		t.Fatal(err)
	}
	told("after another", map[string]string{"e": ""})
	nodetest.Pull(t, n, node.Busybox)
	told("after one through v1", map[string]string{"e": ""})
	nodetest.WantCode(t, pull(map[string]string{"big": strings.Repeat("x", 256<<10)}), codes.InvalidArgument)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	told("after a restart", map[string]string{"e": ""})
	if _, err := d.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: node.Busybox}}); err != nil {
		t.Fatal(err)
	}
	if err := pull(nil); err != nil {
		t.Fatal(err)
	}
	told("after a removal", nil)
}

func TestAPodsOwnLimitsAreNotThoseOfContainers(t *testing.T) {
	n := nodetest.Shared(t)
	d, ctx := nodetest.DialV1alpha2(n), nodetest.Context(t)
	config := nodetest.PodConfig(n)
	config.Linux.Resources = &cri.LinuxContainerResources{}
	add(t, config.Linux.Resources,
		&pouch.LinuxContainerResources{Ulimits: []*pouch.Ulimit{{Name: "nofile", Soft: 1, Hard: 1}}})
	_, err := d.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if nodetest.WantCode(t, err, codes.InvalidArgument); err == nil || !strings.Contains(err.Error(), "ulimits") {
		t.Errorf("%v", err)
	}
}

func TestAnnotationsLimitAContainerWhereTheHandlerAllowsThem(t *testing.T) {
	n := nodetest.Start(t, node.Options{Tables: `
[runtimes.loose]
type = "builtin"
allowed_annotations = ["berth.dev/ulimits", "berth.dev/pids-limit", "berth.dev/memory-reservation", "berth.dev/blkio"]
`})
	device, numbers := blockDevice(t)
	annotate := func(c *cri.PodSandboxConfig) {
		c.Annotations = map[string]string{
			"berth.dev/ulimits.web": "nofile=60:70", "berth.dev/pids-limit.web": "44",
			"berth.dev/memory-reservation.web": "16Mi",
			"berth.dev/ulimits.other":          "nofile=1:1", "berth.dev/blkio.web": "write-bps=" + device + ":1Mi",
			"berth.dev/memory-swappiness.web": "5", "berth.dev/ulimit.web": "nofile=1:1",
		}
	}
	web := func(c *cri.ContainerConfig) { c.Metadata.Name = "web" }
	p := nodetest.RunPodHandler(t, n, "loose", annotate)
	c := p.Run(web)
	if got := c.Sh("ulimit -Sn; ulimit -Hn"); got != "60\n70" {
		t.Errorf("the limits of files are %q", got)
	}
	if got := cgroupFile(t, c, "pids/pids.max", "pids.max"); got != "44" {
		t.Errorf("the limit of processes is %s", got)
	}
	if got := cgroupFile(t, c, "memory/memory.soft_limit_in_bytes", "memory.low"); got != "16777216" {
		t.Errorf("the reservation is %s", got)
	}
	if got := cgroupFile(t, c, "blkio/blkio.throttle.write_bps_device", "io.max"); !strings.Contains(got, numbers) ||
		!strings.Contains(got, "1048576") {
		t.Errorf("the throttle is %s", got)
	}
	ignored := func(c *nodetest.Container) string {
		st, err := n.Runtime.ContainerStatus(nodetest.Context(t),
			&cri.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(st.Info["info"], `"ignored":`)
		return rest[:min(len(rest), strings.IndexByte(rest+"}", '}'))]
	}
	if got := ignored(c); !strings.Contains(got, "berth.dev/memory-swappiness.web") ||
		!strings.Contains(got, "berth.dev/ulimit.web") ||
		strings.Contains(got, "berth.dev/ulimits") {
		t.Errorf("ignored are %s", got)
	}
	// What is said of the container itself needs no name, and holds before what the pod says.
	own := p.Run(func(c *cri.ContainerConfig) {
		c.Metadata = &cri.ContainerMetadata{Name: "web", Attempt: 1}
		c.Annotations = map[string]string{"berth.dev/ulimits": "nofile=33"}
	})
	if got := own.Sh("ulimit -Sn; ulimit -Hn"); got != "33\n33" {
		t.Errorf("the limits of files are %q", got)
	}
	_, err := p.TryCreate(func(c *cri.ContainerConfig) {
		c.Annotations = map[string]string{"berth.dev/ulimits": "nofile"}
	})
	if nodetest.WantCode(t, err, codes.InvalidArgument); err == nil ||
		!strings.Contains(err.Error(), "berth.dev/ulimits") {
		t.Errorf("%v", err)
	}

	strict := nodetest.RunPod(t, n, annotate).Run(web)
	if got := strict.Sh("ulimit -Sn"); got == "60" {
		t.Error("a handler that allows nothing lets an annotation pass")
	}
	if got := ignored(strict); !strings.Contains(got, "berth.dev/ulimits.web") {
		t.Errorf("ignored are %s", got)
	}
	if log, err := os.ReadFile(n.DaemonLog); !strings.Contains(string(log), "an annotation is ignored") {
		t.Errorf("the log does not tell of it: %v", err)
	}
}
