package life

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	statsv1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	statsv2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/containerd/api/events"
	containers "github.com/containerd/containerd/api/services/containers/v1"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	versions "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/internal/cri/containerd"
	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// kubernetes is a context of calls of containerd's API, in the CRI's namespace.
func kubernetes(t *testing.T) context.Context {
	return namespaces.WithNamespace(nodetest.Context(t), "k8s.io")
}

// ofPod has a pod's labels as kubelets give them, and its cgroup.
func ofPod(n *node.Node, name string) nodetest.PodEdit {
	return func(c *cri.PodSandboxConfig) {
		c.Labels = map[string]string{"io.kubernetes.pod.name": name, "io.kubernetes.pod.namespace": "default"}
		c.Linux.CgroupParent = n.PodCgroup(name)
		// As kubelets have it: no process of the pod's own.
		c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
	}
}

// TestContainerdsAPITellsOfPodsAndContainers through the CRI's socket.
func TestContainerdsAPITellsOfPodsAndContainers(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "it answers for containerd")
	ctx := kubernetes(t)
	p := nodetest.RunPod(t, n, ofPod(n, "told"))
	c := p.Run(func(c *cri.ContainerConfig) { c.Labels = map[string]string{"io.kubernetes.container.name": "main"} })

	got, err := containers.NewContainersClient(n.Conn).Get(ctx, &containers.GetContainerRequest{ID: c.ID})
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(got.Container.Spec.Value, &spec); err != nil {
		t.Fatal(err)
	}
	labels := got.Container.Labels
	if labels["io.cri-containerd.kind"] != "container" || labels["io.kubernetes.container.name"] != "main" {
		t.Errorf("labels %v", labels)
	}
	if spec.Process == nil || !slices.Equal(spec.Process.Args, []string{"sleep", "3600"}) ||
		spec.Linux.CgroupsPath == "" || spec.Annotations["io.kubernetes.cri.sandbox-id"] != p.ID ||
		got.Container.Image != node.Busybox {
		t.Errorf("specification %+v of image %s", spec, got.Container.Image)
	}
	client := tasks.NewTasksClient(n.Conn)
	process, err := client.Get(ctx, &tasks.GetRequest{ContainerID: c.ID})
	if err != nil {
		t.Fatal(err)
	}
	if pid := int(process.Process.Pid); pid != hostPID(t, c) || process.Process.Status != task.Status_RUNNING {
		t.Errorf("task %+v, and the process is %v", process.Process, hostPID(t, c))
	}
	pids, err := client.ListPids(ctx, &tasks.ListPidsRequest{ContainerID: c.ID})
	if err != nil || len(pids.Processes) != 1 || pids.Processes[0].Pid != process.Process.Pid {
		t.Errorf("processes %v, %v", pids, err)
	}
	sandbox, err := client.Get(ctx, &tasks.GetRequest{ContainerID: p.ID})
	if err != nil || sandbox.Process.Pid != process.Process.Pid || sandbox.Process.Status != task.Status_RUNNING {
		t.Errorf("the sandbox's task: %v, %v", sandbox, err)
	}
	shared := nodetest.RunPod(t, n) // its containers share their PID namespace, for which it has an init process
	shared.Run()
	sandbox, err = client.Get(ctx, &tasks.GetRequest{ContainerID: shared.ID})
	if err != nil {
		t.Fatal(err)
	}
	pids, err = client.ListPids(ctx, &tasks.ListPidsRequest{ContainerID: shared.ID})
	if err != nil || len(pids.Processes) != 1 || pids.Processes[0].Pid != sandbox.Process.Pid || sandbox.Process.Pid == 0 {
		t.Errorf("the init process of a pod: %v, %v, task %v", pids, err, sandbox)
	}
	c.Stop(0)
	process, err = client.Get(ctx, &tasks.GetRequest{ContainerID: c.ID})
	if err != nil || process.Process.Status != task.Status_STOPPED || process.Process.ExitStatus != 137 ||
		process.Process.Pid != 0 {
		t.Errorf("the task of a killed container: %v, %v", process, err)
	}
	health, err := healthapi.NewHealthClient(n.Conn).Check(ctx, &healthapi.HealthCheckRequest{})
	if err != nil || health.Status != healthapi.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", health, err)
	}
}

// TestContainerdsAPIChangesNothing: what would is refused, with a reason, also in services that are not answered at
// all.
func TestContainerdsAPIChangesNothing(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "it answers for containerd")
	ctx := kubernetes(t)
	c := nodetest.RunPod(t, n).Run()
	_, kill := tasks.NewTasksClient(n.Conn).Kill(ctx, &tasks.KillRequest{ContainerID: c.ID, Signal: 9})
	_, remove := containers.NewContainersClient(n.Conn).Delete(ctx, &containers.DeleteContainerRequest{ID: c.ID})
	_, mounts := snapshots.NewSnapshotsClient(n.Conn).Mounts(ctx, &snapshots.MountsRequest{Key: c.ID})
	for call, err := range map[string]error{
		"containerd.services.tasks.v1.Tasks/Kill": kill, "containerd.services.containers.v1.Containers/Delete": remove,
		"containerd.services.snapshots.v1.Snapshots/Mounts": mounts,
	} {
		nodetest.WantCode(t, err, codes.Unimplemented)
		if err != nil && (!strings.Contains(err.Error(), call) || !strings.Contains(err.Error(), "Berth")) {
			t.Errorf("%s: %v", call, err)
		}
	}
	if s := c.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %v", s.State)
	}
}

// TestContainerdsEventsAreTold in the order in which things happen.
func TestContainerdsEventsAreTold(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "it answers for containerd")
	ctx, stop := context.WithCancel(kubernetes(t))
	defer stop()
	req := &eventsapi.SubscribeRequest{Filters: []string{"topic~=/tasks/"}}
	stream, err := eventsapi.NewEventsClient(n.Conn).Subscribe(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // until it is subscribed
	c := nodetest.RunPod(t, n).Run(nodetest.Sh("exit 3"))
	for _, want := range []struct {
		topic string
		event proto.Message
	}{{"/tasks/start", &events.TaskStart{}}, {"/tasks/exit", &events.TaskExit{}}} {
		for {
			e, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(string(e.Event.Value), c.ID) {
				continue
			}
			if e.Topic != want.topic || e.Namespace != "k8s.io" {
				t.Fatalf("event %s in %s, not %s", e.Topic, e.Namespace, want.topic)
			}
			if err := proto.Unmarshal(e.Event.Value, want.event); err != nil {
				t.Fatal(err)
			}
			if exit, ok := want.event.(*events.TaskExit); ok && exit.ExitStatus != 3 {
				t.Errorf("%+v", exit)
			}
			break
		}
	}
}

// TestContainerdsEventsTellOfImages: an agent that lists images once and follows these events knows each name of each
// image. Seen to fail without the events of images.
func TestContainerdsEventsTellOfImages(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "it answers for containerd")
	ctx, stop := context.WithCancel(kubernetes(t))
	defer stop()
	r, host := broken(t, n)
	name := host + "/app"
	req := &eventsapi.SubscribeRequest{Filters: []string{"topic~=/images/"}}
	stream, err := eventsapi.NewEventsClient(n.Conn).Subscribe(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // until it is subscribed
	type names struct{ digest, id string }
	pulled := func(content string) names {
		made := image(t, registrytest.WithFiles(map[string]string{"file": content}))
		push(t, r, "app:1", made)
		if err := pull(t, n, name+":1", nil); err != nil {
			t.Fatal(err)
		}
		digest, err := made.Digest()
		if err != nil {
			t.Fatal(err)
		}
		id, err := made.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		return names{name + "@" + digest.String(), id.String()}
	}
	removed := func(image string) {
		request := &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: image}}
		if _, err := n.Images.RemoveImage(ctx, request); err != nil {
			t.Fatal(err)
		}
	}
	first := pulled("first")
	second := pulled("second")
	removed(name + ":1")
	removed(first.id)
	ours := map[string]bool{name + ":1": true}
	for _, of := range []names{first, second} {
		ours[of.digest], ours[of.id] = true, true
	}
	for _, want := range []string{
		"/images/create " + name + ":1", "/images/create " + first.digest, "/images/create " + first.id,
		"/images/update " + name + ":1", "/images/create " + second.digest, "/images/create " + second.id,
		"/images/delete " + name + ":1", "/images/delete " + second.digest, "/images/delete " + second.id,
		"/images/delete " + first.digest, "/images/delete " + first.id,
	} {
		for {
			e, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			var event interface {
				proto.Message
				GetName() string
			}
			switch e.Topic {
			case "/images/create":
				event = &events.ImageCreate{}
			case "/images/update":
				event = &events.ImageUpdate{}
			default:
				event = &events.ImageDelete{}
			}
			if err := proto.Unmarshal(e.Event.Value, event); err != nil {
				t.Fatal(err)
			}
			if !ours[event.GetName()] { // of another test
				continue
			}
			if got := e.Topic + " " + event.GetName(); got != want || e.Namespace != "k8s.io" {
				t.Fatalf("event %s in %s, not %s", got, e.Namespace, want)
			}
			break
		}
	}
}

// TestAPodsCgroupIsForMonitors: from the first question of a monitor on there is an empty cgroup with the pod's ID,
// while a container of the pod runs. It is another one when another container stands for the pod, and goes with the
// pod.
func TestAPodsCgroupIsForMonitors(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	nodetest.BerthOnly(t, "a pod of containerd has a process")
	ctx := kubernetes(t)
	p := nodetest.RunPod(t, n, ofPod(n, "monitored"))
	first := p.Run()
	controllers, err := node.CgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(controllers[0], n.SandboxCgroup(n.PodCgroup("monitored"), p.ID))
	inode := func() (uint64, error) {
		var st syscall.Stat_t
		err := syscall.Stat(dir, &st)
		return st.Ino, err
	}
	time.Sleep(1500 * time.Millisecond)
	if _, err := inode(); err == nil {
		t.Errorf("%s is there though nobody has asked", dir)
	}
	_, err = containers.NewContainersClient(n.Conn).Get(ctx, &containers.GetContainerRequest{ID: first.ID})
	if err != nil {
		t.Fatal(err)
	}
	var before uint64
	nodetest.Eventually(t, 20*time.Second, "the pod has its cgroup", func() (err error) {
		before, err = inode()
		return err
	})
	pid := func() uint32 {
		got, err := tasks.NewTasksClient(n.Conn).Get(ctx, &tasks.GetRequest{ContainerID: p.ID})
		if err != nil {
			t.Fatal(err)
		}
		return got.Process.Pid
	}
	if got := pid(); int(got) != hostPID(t, first) {
		t.Errorf("PID %d stands for the pod, not %d", got, hostPID(t, first))
	}
	second := p.Run()
	time.Sleep(1500 * time.Millisecond)
	if after, err := inode(); err != nil || after != before {
		t.Errorf("a second container has changed it: %d, %d, %v", before, after, err)
	}
	first.Stop(0)
	nodetest.Eventually(t, 20*time.Second, "the second container stands for the pod", func() error {
		if after, err := inode(); err != nil || after == before {
			return fmt.Errorf("inode %d, %v", after, err)
		}
		return nil
	})
	if got := pid(); int(got) != hostPID(t, second) {
		t.Errorf("PID %d stands for the pod, not %d", got, hostPID(t, second))
	}
	second.Stop(0)
	nodetest.Eventually(t, 20*time.Second, "nothing stands for a pod in which nothing runs", func() error {
		if _, err := inode(); err == nil {
			return fmt.Errorf("%s is there", dir)
		}
		return nil
	})
	p.Run()
	nodetest.Eventually(t, 20*time.Second, "the third one stands for it", func() error {
		_, err := inode()
		return err
	})
	// One that a killed berthd has made goes, too.
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	p.Stop()
	if _, err := inode(); err == nil {
		t.Errorf("%s is there after the pod has stopped", dir)
	}
}

// TestContainerdAddressIsServed at its path, which comes later where somebody else answers there.
func TestContainerdAddressIsServed(t *testing.T) {
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "sub", "containerd.sock")
	if err := os.Mkdir(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("containerd_address = %q\n", socket)})
	nodetest.BerthOnly(t, "it answers for containerd")
	if log, err := os.ReadFile(n.DaemonLog); !strings.Contains(string(log), "containerd_address cannot be served") {
		t.Errorf("the log says nothing of a socket that another answers on: %v, %s", err, log)
	}
	other.Close()
	if err := os.RemoveAll(filepath.Dir(socket)); err != nil { // its directory is made, too
		t.Fatal(err)
	}
	nodetest.Eventually(t, 20*time.Second, "the socket is there", func() error { _, err := os.Stat(socket); return err })
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info, err)
	}
	v, err := versions.NewVersionClient(n.Conn).Version(kubernetes(t), &emptypb.Empty{})
	if err != nil || !strings.Contains(v.Version, "berth") || !strings.HasPrefix(v.Version, containerd.Version("")) {
		t.Errorf("version %v, %v", v, err)
	}
	p := nodetest.RunPod(t, n, ofPod(n, "ctr"))
	c := p.Run()
	ctr, err := exec.LookPath("ctr")
	if err != nil {
		t.Skip("no ctr (Debian: containerd)")
	}
	run := func(command string) (string, error) {
		args := append([]string{"-a", socket}, strings.Fields(command)...)
		out, err := exec.CommandContext(t.Context(), ctr, args...).CombinedOutput()
		return string(out), err
	}
	memory := "memory.usage_in_bytes" // in `ctr tasks metrics`, by the node's cgroup version
	if host, err := cgroup.Host(); err != nil {
		t.Fatal(err)
	} else if host.Version == cgroup.V2 {
		memory = "memory.usage_limit"
	}
	for _, tc := range []struct {
		command string
		want    []string
	}{
		{"version", []string{"berth"}},
		{"namespaces list", []string{"k8s.io"}},
		{"-n k8s.io containers list", []string{c.ID, p.ID, node.Busybox, "registry.k8s.io/pause"}},
		{"-n k8s.io containers info " + c.ID, []string{`"args"`, "cgroupsPath"}},
		{"-n k8s.io tasks list", []string{c.ID, strconv.Itoa(hostPID(t, c)), "RUNNING"}},
		{"-n k8s.io tasks ps " + c.ID, []string{strconv.Itoa(hostPID(t, c))}},
		{"-n k8s.io tasks metrics " + c.ID, []string{c.ID, memory, "pids.current"}},
		{"-n k8s.io images list", []string{node.Busybox, "sha256:", "linux/amd64"}},
		{"-n k8s.io content list", []string{"sha256:"}},
		{"plugins list", []string{"io.containerd.grpc.v1", "containers"}},
		{"-n default containers list", nil},
	} {
		out, err := run(tc.command)
		if err != nil {
			t.Errorf("ctr %s: %v: %s", tc.command, err, out)
		}
		for _, text := range tc.want {
			if !strings.Contains(out, text) {
				t.Errorf("ctr %s has no %s:\n%s", tc.command, text, out)
			}
		}
	}
	toldToCtr(t, exec.CommandContext(t.Context(), ctr, "-a", socket, "events"), n, p)
	for _, command := range []string{
		"-n k8s.io tasks kill " + c.ID, "-n k8s.io containers label " + c.ID + " a=b", "namespaces create x",
	} {
		out, err := run(command)
		if err == nil || !strings.Contains(out, "Berth is not containerd") {
			t.Errorf("ctr %s: %v: %s", command, err, out)
		}
	}
}

// TestContainerdAddressAnswersBeforeSystemdIsTold that berthd is ready: units that are ordered after it start then,
// and a kubelet's cAdvisor looks for containerd once. The service manager here takes no message for a time,
// at which berthd stops where it tells it.
func TestContainerdAddressAnswersBeforeSystemdIsTold(t *testing.T) {
	nodetest.BerthOnly(t, "it answers for containerd")
	dir, err := os.MkdirTemp("", "c")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket, notify := filepath.Join(dir, "containerd.sock"), filepath.Join(dir, "notify")
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("containerd_address = %q\n", socket)})
	if err := n.Terminate(); err != nil {
		t.Fatal(err)
	}
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close() // before the node's end, which would wait to tell of it
	other, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: notify})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	filled := 0
	for ; err == nil && filled < 10000; filled++ {
		if err = other.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err == nil {
			_, err = other.Write([]byte("STATUS=of another"))
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the service manager takes %d messages: %v", filled, err)
	}
	t.Setenv("NOTIFY_SOCKET", notify) // the keeper runs already, and has none
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	nodetest.Eventually(t, 20*time.Second, "the second socket answers", func() error {
		_, err := versions.NewVersionClient(conn).Version(kubernetes(t), &emptypb.Empty{})
		return err
	})
	message := make([]byte, 100)
	for ready := false; !ready; {
		if err := manager.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		size, err := manager.Read(message)
		if err != nil {
			t.Fatalf("berthd does not say that it is ready: %v", err)
		}
		ready = string(message[:size]) == "READY=1"
	}
}

// toldToCtr pulls an image and runs a container in a pod while `ctr events` listens, which has to print both.
func toldToCtr(t *testing.T, listener *exec.Cmd, n *node.Node, p *nodetest.Pod) {
	t.Helper()
	out, err := listener.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := listener.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	defer func() {
		_ = listener.Process.Kill()
		for range lines { // until its end, so that Wait closes nothing that is read
		}
		_ = listener.Wait() // killed
	}()
	r, host := broken(t, n)
	deadline, found := time.After(2*time.Minute), false
	for try := 1; !found; try++ { // it is told of none that comes before it has subscribed
		name := fmt.Sprintf("told:%d", try)
		push(t, r, name, image(t))
		if err := pull(t, n, host+"/"+name, nil); err != nil {
			t.Fatal(err)
		}
		for again := time.After(time.Second); again != nil && !found; {
			select {
			case line := <-lines:
				found = strings.Contains(line, "/images/create") && strings.Contains(line, host+"/told:")
				if found && (!strings.Contains(line, "io.cri-containerd.image") || !strings.Contains(line, " k8s.io ")) {
					t.Errorf("ctr events: %s", line)
				}
			case <-again:
				again = nil
			case <-deadline:
				t.Fatalf("ctr events has no /images/create of %s", host)
			}
		}
	}
	deadline = time.After(2 * time.Minute)
	c := p.Run(nodetest.Sh("exit 5"))
	for _, want := range []string{"/containers/create", "/tasks/start", "/tasks/exit"} {
		for found := false; !found; {
			select {
			case line := <-lines:
				found = strings.Contains(line, want) && strings.Contains(line, c.ID)
				code := want != "/tasks/exit" || strings.Contains(line, `"exit_status":5`)
				if found && (!code || !strings.Contains(line, " k8s.io ")) {
					t.Errorf("ctr events: %s", line)
				}
			case <-deadline:
				t.Fatalf("ctr events has no %s of %s", want, c.ID)
			}
		}
	}
}

// TestTasksMetricsAreTheCgroups of a container that runs, and of a pod once it has a cgroup of its own. A container
// that has ended has none.
func TestTasksMetricsAreTheCgroups(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "it answers for containerd")
	ctx := kubernetes(t)
	p := nodetest.RunPod(t, n, ofPod(n, "measured"))
	c := p.Run(func(c *cri.ContainerConfig) {
		c.Linux.Resources = &cri.LinuxContainerResources{MemoryLimitInBytes: 48 << 20}
	}, nodetest.Sh("x=$(head -c 6000000 /dev/zero | tr '\\0' x); while :; do :; done"))
	client := tasks.NewTasksClient(n.Conn)
	metrics := func(id string) (*types.Metric, error) {
		got, err := client.Metrics(ctx, &tasks.MetricsRequest{Filters: []string{"id==" + id}})
		if err != nil || len(got.Metrics) != 1 {
			return nil, fmt.Errorf("metrics of %s: %v, %w", id, got, err)
		}
		return got.Metrics[0], nil
	}
	nodetest.Eventually(t, 30*time.Second, "the container's use is told", func() error {
		m, err := metrics(c.ID)
		if err != nil {
			return err
		}
		var used, limit, cpu, pids uint64
		switch m.Data.TypeUrl {
		case "io.containerd.cgroups.v1.Metrics":
			v1 := &statsv1.Metrics{}
			if err := proto.Unmarshal(m.Data.Value, v1); err != nil {
				return err
			}
			used, limit, cpu, pids = v1.Memory.TotalRSS, v1.Memory.Usage.Limit, v1.CPU.Usage.Total, v1.Pids.Current
		case "io.containerd.cgroups.v2.Metrics":
			v2 := &statsv2.Metrics{}
			if err := proto.Unmarshal(m.Data.Value, v2); err != nil {
				return err
			}
			used, limit, cpu, pids = v2.Memory.Anon, v2.Memory.UsageLimit, v2.CPU.UsageUsec*1000, v2.Pids.Current
		}
		if used < 5e6 || limit != 48<<20 || cpu < 1e6 || pids == 0 {
			return fmt.Errorf("%s: %d bytes of %d, %d ns, %d processes", m.Data.TypeUrl, used, limit, cpu, pids)
		}
		return nil
	})
	// A monitor that has asked for a container finds the pod's cgroup, too.
	if _, err := containers.NewContainersClient(n.Conn).Get(ctx, &containers.GetContainerRequest{ID: c.ID}); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, 20*time.Second, "the sandbox has metrics", func() error {
		_, err := metrics(p.ID)
		return err
	})
	c.Stop(0)
	got, err := client.Metrics(ctx, &tasks.MetricsRequest{Filters: []string{"id==" + c.ID}})
	if err != nil || len(got.Metrics) != 0 {
		t.Errorf("metrics of a container that has ended: %v, %v", got, err)
	}
}
