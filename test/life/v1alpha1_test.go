package life

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	early "berth/api/runtime/v1alpha1"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// client2016 is a client of the interface of July 2016, for a node that others speak v1 to.
type client2016 struct {
	early.RuntimeServiceClient
	early.ImageServiceClient
	n *node.Node
	t *testing.T
}

func open2016(t *testing.T, n *node.Node) *client2016 {
	t.Helper()
	nodetest.BerthOnly(t, "it does not speak this interface")
	return &client2016{early.NewRuntimeServiceClient(n.Conn), early.NewImageServiceClient(n.Conn), n, t}
}

var serial2016 atomic.Int64

// pod makes a pod that is deleted when the test ends.
func (d *client2016) pod(edits ...func(*early.PodSandboxConfig)) (string, *early.PodSandboxConfig) {
	d.t.Helper()
	name := fmt.Sprintf("early_%d", serial2016.Add(1))
	config := &early.PodSandboxConfig{
		Name:         proto.String(name),
		Hostname:     proto.String("early"),
		LogDirectory: proto.String(filepath.Join(d.n.LogDir, name)),
		Linux:        &early.LinuxPodSandboxConfig{CgroupParent: proto.String(d.n.PodCgroup(name))},
	}
	for _, edit := range edits {
		edit(config)
	}
	r, err := d.CreatePodSandbox(nodetest.Context(d.t), &early.CreatePodSandboxRequest{Config: config})
	if err != nil {
		d.t.Fatalf("create pod %s: %v", config.GetName(), err)
	}
	d.t.Cleanup(func() { d.remove(r.GetPodSandboxId()) })
	return r.GetPodSandboxId(), config
}

func (d *client2016) remove(pod string) {
	if d.n.PID() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if _, err := d.DeletePodSandbox(ctx, &early.DeletePodSandboxRequest{PodSandboxId: &pod}); err != nil {
		d.t.Errorf("delete pod: %v", err)
	}
}

// config2016 is a container that sleeps, with edits.
func config2016(edits ...func(*early.ContainerConfig)) *early.ContainerConfig {
	name := fmt.Sprintf("c_%d", serial2016.Add(1))
	config := &early.ContainerConfig{
		Name:    proto.String(name),
		Image:   &early.ImageSpec{Image: proto.String(node.Busybox)},
		Command: []string{"sleep", "3600"},
		LogPath: proto.String(name + "_0.log"),
	}
	for _, edit := range edits {
		edit(config)
	}
	return config
}

func script2016(script string) func(*early.ContainerConfig) {
	return func(c *early.ContainerConfig) { c.Command = []string{"sh", "-c", script} }
}

func (d *client2016) create(pod string, edits ...func(*early.ContainerConfig)) string {
	d.t.Helper()
	nodetest.Pull(d.t, d.n, node.Busybox)
	r, err := d.CreateContainer(nodetest.Context(d.t), &early.CreateContainerRequest{
		PodSandboxId: &pod, Config: config2016(edits...),
	})
	if err != nil {
		d.t.Fatalf("create container: %v", err)
	}
	return r.GetContainerId()
}

func (d *client2016) start(id string) {
	d.t.Helper()
	if _, err := d.StartContainer(nodetest.Context(d.t), &early.StartContainerRequest{ContainerId: &id}); err != nil {
		d.t.Fatalf("start container: %v", err)
	}
}

func (d *client2016) run(pod string, edits ...func(*early.ContainerConfig)) string {
	d.t.Helper()
	id := d.create(pod, edits...)
	d.start(id)
	return id
}

func (d *client2016) status(id string) *early.ContainerStatus {
	d.t.Helper()
	r, err := d.ContainerStatus(nodetest.Context(d.t), &early.ContainerStatusRequest{ContainerId: &id})
	if err != nil {
		d.t.Fatalf("container status: %v", err)
	}
	return r.Status
}

func (d *client2016) podStatus(id string) *early.PodSandboxStatus {
	d.t.Helper()
	r, err := d.PodSandboxStatus(nodetest.Context(d.t), &early.PodSandboxStatusRequest{PodSandboxId: &id})
	if err != nil {
		d.t.Fatalf("pod status: %v", err)
	}
	return r.Status
}

func (d *client2016) ended(id string) *early.ContainerStatus {
	d.t.Helper()
	var st *early.ContainerStatus
	nodetest.Eventually(d.t, 30*time.Second, "the container has ended", func() error {
		if st = d.status(id); st.GetState() != early.ContainerState_EXITED {
			return fmt.Errorf("it is %v", st.GetState())
		}
		return nil
	})
	return st
}

// exec runs a command with an input and returns what it wrote and the status that it ended with.
func (d *client2016) exec(id string, in io.Reader, tty bool, cmd ...string) (stdout, stderr string, err error) {
	d.t.Helper()
	s, err := d.Exec(nodetest.Context(d.t))
	if err != nil {
		return "", "", err
	}
	if err := s.Send(&early.ExecRequest{ContainerId: &id, Cmd: cmd, Tty: &tty}); err != nil {
		return "", "", err
	}
	go func() {
		buf := make([]byte, 64<<10)
		for in != nil {
			n, err := in.Read(buf)
			if n > 0 && s.Send(&early.ExecRequest{Stdin: buf[:n]}) != nil || err != nil {
				break
			}
		}
		_ = s.CloseSend()
	}()
	var out, errOut strings.Builder
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return out.String(), errOut.String(), nil
		}
		if err != nil {
			return out.String(), errOut.String(), err
		}
		out.Write(m.Stdout)
		errOut.Write(m.Stderr)
	}
}

// sh runs a shell script in a container, which must end with 0, and returns its output without the last newline.
func (d *client2016) sh(id, script string) string {
	d.t.Helper()
	out, errOut, err := d.exec(id, nil, false, "sh", "-c", script)
	if err != nil {
		d.t.Fatalf("exec %q: %v: %s%s", script, err, out, errOut)
	}
	return strings.TrimSuffix(out, "\n")
}

// exitCode is the code that the status of an exec tells.
func exitCode(t testing.TB, err error) int {
	t.Helper()
	st := status.Convert(err)
	if st.Code() == codes.OK {
		return 0
	}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.Reason == "EXIT_CODE" && st.Code() == codes.Aborted {
			code, convErr := strconv.Atoi(info.Metadata["exit_code"])
			if convErr != nil || !strings.Contains(st.Message(), "exit code "+info.Metadata["exit_code"]) {
				t.Errorf("status %v with %v", st, info)
			}
			return code
		}
	}
	t.Errorf("no exit code in %v", err)
	return -1
}

func TestThe2016LifeOfAPod(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	ctx := nodetest.Context(t)
	version, err := d.Version(ctx, &early.VersionRequest{Version: proto.String("0.1.0")})
	if err != nil || version.GetRuntimeName() != "berth" || version.GetRuntimeApiVersion() != "v1alpha1" ||
		version.GetRuntimeVersion() == "" {
		t.Errorf("version: %v, %v", version, err)
	}
	image := &early.ImageSpec{Image: proto.String(node.StopSignal)}
	if _, err := d.PullImage(ctx, &early.PullImageRequest{Image: image}); err != nil {
		t.Fatal(err)
	}
	have, err := d.ImageStatus(ctx, &early.ImageStatusRequest{Image: image})
	if err != nil || have.GetImage().GetSize() == 0 || len(have.GetImage().GetRepoTags()) == 0 {
		t.Fatalf("image: %v, %v", have, err)
	}

	before := time.Now()
	pod, config := d.pod(func(c *early.PodSandboxConfig) {
		c.Labels = map[string]string{"a_label": "1"}
		c.Annotations = map[string]string{"note": "2"}
	})
	st := d.podStatus(pod)
	if st.GetState() != early.PodSandBoxState_READY || st.GetName() != config.GetName() || st.Labels["a_label"] != "1" ||
		st.Annotations["note"] != "2" || st.GetCreatedAt() < before.UnixNano() || st.GetCreatedAt() > time.Now().UnixNano() {
		t.Errorf("pod: %v", st)
	}
	if ip := st.GetNetwork().GetIp(); !strings.HasPrefix(ip, strings.TrimSuffix(n.PodCIDR.Addr().String(), "0")) {
		t.Errorf("address %q", ip)
	}

	id := d.create(pod, func(c *early.ContainerConfig) {
		c.Image, c.Command = image, nil
		c.Labels, c.Annotations = map[string]string{"b": "3"}, map[string]string{"d": "4"}
	})
	created := d.status(id)
	if created.GetState() != early.ContainerState_CREATED || created.StartedAt != nil || created.ExitCode != nil {
		t.Errorf("created: %v", created)
	}
	d.start(id)
	running := d.status(id)
	if running.GetState() != early.ContainerState_RUNNING || running.GetStartedAt() < running.GetCreatedAt() ||
		running.GetImage().GetImage() != node.StopSignal || running.GetImageRef() != have.GetImage().GetId() ||
		running.Labels["b"] != "3" || running.Annotations["d"] != "4" {
		t.Errorf("running: %v", running)
	}
	nodetest.Eventually(t, 30*time.Second, "its program is ready", func() error {
		text, err := os.ReadFile(filepath.Join(config.GetLogDirectory(), running.GetName()+"_0.log"))
		if err == nil && !strings.Contains(string(text), "ready") {
			err = fmt.Errorf("the log is %q", text)
		}
		return err
	})
	// The image ignores SIGTERM and ends with 7 at its own stop signal, which a grace period gives it the time for.
	if _, err := d.StopContainer(ctx,
		&early.StopContainerRequest{ContainerId: &id, Timeout: proto.Int64(20)}); err != nil {
		t.Fatal(err)
	}
	if ended := d.ended(id); ended.GetExitCode() != 7 || ended.GetReason() != "Error" ||
		ended.GetFinishedAt() < ended.GetStartedAt() {
		t.Errorf("ended: %v", ended)
	}
	// Without a grace period it is killed.
	stubborn := d.run(pod, script2016("trap '' TERM; echo out; echo err >&2; while :; do sleep 1; done"),
		func(c *early.ContainerConfig) { c.LogPath = proto.String("sub/dir/stubborn_0.log") })
	log := filepath.Join(config.GetLogDirectory(), "sub/dir/stubborn_0.log")
	nodetest.Eventually(t, 30*time.Second, "the log has both streams", func() error {
		text, err := os.ReadFile(log)
		if err == nil && (!strings.Contains(string(text), "stdout F out") ||
			!strings.Contains(string(text), "stderr F err")) {
			err = fmt.Errorf("it is %q", text)
		}
		return err
	})
	if _, err := d.StopContainer(ctx, &early.StopContainerRequest{ContainerId: &stubborn}); err != nil {
		t.Fatal(err)
	}
	if ended := d.ended(stubborn); ended.GetExitCode() != 137 {
		t.Errorf("ended: %v", ended)
	}
	for range 2 { // a second time is no error
		if _, err := d.RemoveContainer(ctx, &early.RemoveContainerRequest{ContainerId: &stubborn}); err != nil {
			t.Error(err)
		}
	}
	left := d.run(pod)
	for range 2 {
		if _, err := d.StopPodSandbox(ctx, &early.StopPodSandboxRequest{PodSandboxId: &pod}); err != nil {
			t.Error(err)
		}
	}
	if st := d.podStatus(pod); st.GetState() != early.PodSandBoxState_NOTREADY || st.Network != nil ||
		st.GetLinux().GetNamespaces().Network != nil {
		t.Errorf("stopped: %v", st)
	}
	if st := d.status(left); st.GetState() != early.ContainerState_EXITED || st.GetExitCode() != 137 {
		t.Errorf("a container of a stopped pod: %v", st)
	}
	_, err = d.CreateContainer(ctx, &early.CreateContainerRequest{PodSandboxId: &pod, Config: config2016()})
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	for range 2 {
		if _, err := d.DeletePodSandbox(ctx, &early.DeletePodSandboxRequest{PodSandboxId: &pod}); err != nil {
			t.Error(err)
		}
	}
	_, err = d.PodSandboxStatus(ctx, &early.PodSandboxStatusRequest{PodSandboxId: &pod})
	nodetest.WantCode(t, err, codes.NotFound)
	_, err = d.ContainerStatus(ctx, &early.ContainerStatusRequest{ContainerId: &left})
	nodetest.WantCode(t, err, codes.NotFound)
	if all, err := d.ListContainers(ctx, &early.ListContainersRequest{
		Filter: &early.ContainerFilter{PodSandboxId: &pod}}); err != nil || len(all.Containers) > 0 {
		t.Errorf("left: %v, %v", all, err)
	}
}

func TestThe2016PodThatIsDeletedTakesWhatRunsAlong(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	pod, _ := d.pod()
	id := d.run(pod)
	pid, err := n.ContainerPID(id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.DeletePodSandbox(nodetest.Context(t), &early.DeletePodSandboxRequest{PodSandboxId: &pod}); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, 20*time.Second, "its container is gone", func() error {
		if exists(fmt.Sprintf("/proc/%d", pid)) {
			return fmt.Errorf("process %d lives", pid)
		}
		return nil
	})
}

func TestPodsAreSharedByTheAPIsOf2016AndOfNow(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	ctx := nodetest.Context(t)

	// Made then, used, stopped and removed now.
	pod, config := d.pod(func(c *early.PodSandboxConfig) { c.Labels = map[string]string{"k": "v"} })
	theirs := d.run(pod)
	st, err := n.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	meta := st.Status.Metadata
	if meta.Name != config.GetName() || meta.Namespace != "default" || len(meta.Uid) != 36 || meta.Attempt != 0 ||
		st.Status.State != cri.PodSandboxState_SANDBOX_READY || st.Status.Labels["k"] != "v" {
		t.Errorf("v1 says %v", st.Status)
	}
	one, err := n.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: theirs})
	if err != nil || one.Status.Metadata.Name != d.status(theirs).GetName() ||
		one.Status.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("v1 says %v, %v", one, err)
	}
	r, err := n.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "now", Attempt: 3}, Image: &cri.ImageSpec{Image: node.Busybox},
		Command: []string{"sleep", "3600"},
		Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	d.start(r.ContainerId)
	if d.status(r.ContainerId).GetName() != "now" || d.sh(r.ContainerId, "hostname") != "early" {
		t.Errorf("the container of v1: %v", d.status(r.ContainerId))
	}
	if _, err := n.Runtime.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: theirs}); err != nil {
		t.Fatal(err)
	}
	d.ended(theirs)
	if _, err := n.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if st := d.podStatus(pod); st.GetState() != early.PodSandBoxState_NOTREADY {
		t.Errorf("%v", st)
	}
	if _, err := n.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	_, err = d.PodSandboxStatus(ctx, &early.PodSandboxStatusRequest{PodSandboxId: &pod})
	nodetest.WantCode(t, err, codes.NotFound)

	// Made now, used, stopped and removed then.
	p := nodetest.RunPod(t, n)
	c := p.Run()
	m := p.Config.Metadata
	name := fmt.Sprintf("%s/%s/%s/%d", m.Namespace, m.Name, m.Uid, m.Attempt)
	listed, err := d.ListPodSandbox(ctx, &early.ListPodSandboxRequest{Filter: &early.PodSandboxFilter{Name: &name}})
	if err != nil || len(listed.Items) != 1 || listed.Items[0].GetId() != p.ID || d.podStatus(p.ID).GetName() != name {
		t.Errorf("%v, %v", listed, err)
	}
	if d.status(c.ID).GetName() != c.Config.Metadata.Name {
		t.Errorf("%v", d.status(c.ID))
	}
	mine := d.run(p.ID)
	if d.sh(mine, "cat /etc/hostname") != p.Config.Hostname {
		t.Error("the container is not of its pod")
	}
	if _, err := d.StopContainer(ctx, &early.StopContainerRequest{ContainerId: &c.ID}); err != nil {
		t.Fatal(err)
	}
	if s := c.WaitExit(); s.ExitCode != 137 {
		t.Errorf("%v", s)
	}
	if _, err := d.StopPodSandbox(ctx, &early.StopPodSandboxRequest{PodSandboxId: &p.ID}); err != nil {
		t.Fatal(err)
	}
	if p.Status().State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Error("the pod is ready")
	}
	if _, err := d.DeletePodSandbox(ctx, &early.DeletePodSandboxRequest{PodSandboxId: &p.ID}); err != nil {
		t.Fatal(err)
	}
	_, err = n.Runtime.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.ID})
	nodetest.WantCode(t, err, codes.NotFound)
}

func TestThe2016PodOfAKubeletHasTheMetadataOfItsLabels(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	pod, _ := d.pod(func(c *early.PodSandboxConfig) {
		c.Labels = map[string]string{"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "shop",
			"io.kubernetes.pod.uid": "u_1"}
	})
	id := d.create(pod, func(c *early.ContainerConfig) {
		c.Labels = map[string]string{"io.kubernetes.container.name": "main"}
	})
	st, err := n.Runtime.PodSandboxStatus(nodetest.Context(t), &cri.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	if m := st.Status.Metadata; m.Name != "web" || m.Namespace != "shop" || m.Uid != "u_1" {
		t.Errorf("%v", m)
	}
	if len(st.ContainersStatuses) != 1 || st.ContainersStatuses[0].Id != id ||
		st.ContainersStatuses[0].Metadata.Name != "main" {
		t.Errorf("%v", st.ContainersStatuses)
	}
}

func TestThe2016NameIsOfOneLivePod(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	d := open2016(t, n)
	ctx := nodetest.Context(t)
	first, config := d.pod()
	again := func() error {
		r, err := d.CreatePodSandbox(ctx, &early.CreatePodSandboxRequest{Config: config})
		if err == nil {
			t.Cleanup(func() { d.remove(r.GetPodSandboxId()) })
		}
		return err
	}
	taken := func(err error, holder string) {
		t.Helper()
		nodetest.WantCode(t, err, codes.AlreadyExists)
		if err != nil && !strings.Contains(err.Error(), holder) {
			t.Errorf("%v does not name %s", err, holder)
		}
	}
	taken(again(), first)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	taken(again(), first) // a name outlives berthd

	nodetest.Pull(t, n, node.Busybox)
	c := config2016(script2016("exit 0"))
	make := func() (string, error) {
		r, err := d.CreateContainer(ctx, &early.CreateContainerRequest{PodSandboxId: &first, Config: c,
			SandboxConfig: config})
		return r.GetContainerId(), err
	}
	one, err := make()
	if err != nil {
		t.Fatal(err)
	}
	_, err = make()
	taken(err, one)
	d.start(one)
	d.ended(one)
	two, err := make()
	if err != nil {
		t.Fatalf("the name of a container that has ended: %v", err)
	}
	listed, err := d.ListContainers(ctx, &early.ListContainersRequest{Filter: &early.ContainerFilter{Name: c.Name}})
	if err != nil || len(listed.Containers) != 2 {
		t.Errorf("%v, %v", listed, err)
	}
	now, err := n.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: two})
	if err != nil || now.Status.Metadata.Attempt != 1 {
		t.Errorf("the second one to v1: %v, %v", now, err)
	}

	if _, err := d.StopPodSandbox(ctx, &early.StopPodSandboxRequest{PodSandboxId: &first}); err != nil {
		t.Fatal(err)
	}
	if err := again(); err != nil {
		t.Fatalf("the name of a pod that has stopped: %v", err)
	}
	pods, err := d.ListPodSandbox(ctx, &early.ListPodSandboxRequest{Filter: &early.PodSandboxFilter{Name: config.Name}})
	if err != nil || len(pods.Items) != 2 {
		t.Errorf("%v, %v", pods, err)
	}
	done := make2016(20, func() error {
		r, err := d.CreatePodSandbox(ctx,
			&early.CreatePodSandboxRequest{Config: &early.PodSandboxConfig{Name: proto.String("race")}})
		if err == nil {
			t.Cleanup(func() { d.remove(r.GetPodSandboxId()) })
		}
		return err
	})
	made := 0
	for range 20 {
		if err := <-done; err == nil {
			made++
		} else {
			nodetest.WantCode(t, err, codes.AlreadyExists)
		}
	}
	if made != 1 {
		t.Errorf("%d pods have one name", made)
	}
}

// make2016 does something n times at once.
func make2016(n int, do func() error) <-chan error {
	done := make(chan error, n)
	for range n {
		go func() { done <- do() }()
	}
	return done
}

func TestThe2016ExecIsAStreamOfBothSides(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	pod, _ := d.pod()
	id := d.run(pod)

	out, errOut, err := d.exec(id, strings.NewReader("given\n"), false, "sh", "-c", "cat; echo err >&2; exit 5")
	if out != "given\n" || errOut != "err\n" || exitCode(t, err) != 5 {
		t.Errorf("got %q, %q, %v", out, errOut, err)
	}
	if out, _, err := d.exec(id, nil, false, "echo", "whole"); err != nil || out != "whole\n" {
		t.Errorf("got %q, %v", out, err)
	}
	if _, _, err := d.exec(id, nil, false, "sh", "-c", "kill -9 $$"); exitCode(t, err) != 137 {
		t.Errorf("killed: %v", err)
	}
	_, _, err = d.exec(id, nil, false, "/no/such/program")
	nodetest.WantCode(t, err, codes.FailedPrecondition)

	ctx := nodetest.Context(t)
	// The first message may bring input, and an answer comes while the client's side is open.
	s, err := d.Exec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cat := []string{"cat"}
	if err := s.Send(&early.ExecRequest{ContainerId: &id, Cmd: cat, Stdin: []byte("one\n")}); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"one\n", "two\n"} {
		var got []byte
		for len(got) < len(line) {
			m, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, m.Stdout...)
		}
		if string(got) != line {
			t.Errorf("got %q, want %q", got, line)
		}
		// Later messages may repeat what the first one said.
		if err := s.Send(&early.ExecRequest{ContainerId: &id, Cmd: cat, Stdin: []byte("two\n")}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = s.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("the end of input: %v", err)
	}

	refused := func(want codes.Code, messages ...*early.ExecRequest) {
		t.Helper()
		s, err := d.Exec(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			_ = s.Send(m)
		}
		if len(messages) == 0 {
			_ = s.CloseSend()
		}
		for err == nil {
			_, err = s.Recv()
		}
		nodetest.WantCode(t, err, want)
	}
	refused(codes.InvalidArgument)
	refused(codes.InvalidArgument, &early.ExecRequest{Cmd: cat})
	refused(codes.InvalidArgument, &early.ExecRequest{ContainerId: &id})
	refused(codes.InvalidArgument, &early.ExecRequest{ContainerId: &id, Cmd: cat}, &early.ExecRequest{Cmd: []string{"rm"}})
	refused(codes.InvalidArgument, &early.ExecRequest{ContainerId: &id, Cmd: cat},
		&early.ExecRequest{ContainerId: proto.String("x")})
	refused(codes.InvalidArgument, &early.ExecRequest{ContainerId: &id, Cmd: cat},
		&early.ExecRequest{Tty: proto.Bool(true)})
	refused(codes.NotFound, &early.ExecRequest{ContainerId: proto.String("gone"), Cmd: cat})
	created := d.create(pod)
	refused(codes.FailedPrecondition, &early.ExecRequest{ContainerId: &created, Cmd: cat})
}

func TestThe2016ExecHasATerminal(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	pod, _ := d.pod()
	id := d.run(pod)
	// The end of the client's side is no hang-up of the terminal: the shell ends by what it is told.
	out, errOut, err := d.exec(id, strings.NewReader("tty; echo on-err >&2; exit 4\n"), true, "sh")
	if !strings.Contains(out, "/dev/pts/") || !strings.Contains(out, "on-err") || errOut != "" || exitCode(t, err) != 4 {
		t.Errorf("got %q, %q, %v", out, errOut, err)
	}
}

func TestThe2016ExecEndsWithItsClient(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	pod, _ := d.pod()
	id := d.run(pod)
	ctx, cancel := context.WithCancel(context.Background())
	s, err := d.Exec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&early.ExecRequest{ContainerId: &id, Cmd: []string{"sh", "-c", "echo up; sleep 3791"}}); err != nil {
		t.Fatal(err)
	}
	if m, err := s.Recv(); err != nil || string(m.Stdout) != "up\n" {
		t.Fatalf("%v, %v", m, err)
	}
	cancel()
	nodetest.Eventually(t, 30*time.Second, "the command is gone", func() error {
		if ps := d.sh(id, "ps -o args"); strings.Contains(ps, "sleep 379"+"1") {
			return errors.New(ps)
		}
		return nil
	})
}

func TestThe2016ExecHoldsBackWhoIsAheadAndLosesNothing(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	pod, _ := d.pod()
	id := d.run(pod)
	const size = 8 << 20
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	out, _, err := d.exec(id, bytes.NewReader(data), false, "cat")
	if err != nil || out != string(data) {
		t.Errorf("%d of %d bytes came back: %v", len(out), size, err)
	}
	// A client that reads nothing stops the command, and nobody else.
	s, err := d.Exec(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("head -c %d /dev/zero; echo done >/tmp/done", 4*size)
	if err := s.Send(&early.ExecRequest{ContainerId: &id, Cmd: []string{"sh", "-c", script}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	if got := d.sh(id, "cat /tmp/done 2>/dev/null || echo not yet"); got != "not yet" {
		t.Errorf("the command went on: %s", got)
	}
	read := 0
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		read += len(m.Stdout)
	}
	if read < 3*size || d.sh(id, "cat /tmp/done") != "done" {
		t.Errorf("%d bytes", read)
	}
}

func TestThe2016LimitsOfAPodAreOnItsCgroup(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	parent := n.PodCgroup("early_limits")
	pod, _ := d.pod(func(c *early.PodSandboxConfig) {
		c.Linux.CgroupParent = &parent
		c.Resources = &early.PodSandboxResources{
			Cpu:    &early.ResourceRequirements{Limits: proto.Float64(0.5), Requests: proto.Float64(0.25)},
			Memory: &early.ResourceRequirements{Limits: proto.Float64(64 << 20), Requests: proto.Float64(32 << 20)},
		}
	})
	for _, want := range []struct{ v1, v2, inV1, inV2 string }{
		{"cpu/cpu.cfs_quota_us", "cpu.max", "50000", "50000 100000"},
		{"cpu/cpu.shares", "cpu.weight", "256", "35"},
		{"memory/memory.limit_in_bytes", "memory.max", "67108864", "67108864"},
		{"memory/memory.soft_limit_in_bytes", "memory.low", "33554432", "33554432"},
	} {
		if got := podCgroupFile(t, n.OwnCgroup(parent, pod), want.v1, want.v2); got != want.inV1 && got != want.inV2 {
			t.Errorf("%s or %s is %q", want.v1, want.v2, got)
		}
	}
	// The pod's limit holds for a container that has none.
	id := d.run(pod, func(c *early.ContainerConfig) {
		c.Linux = &early.LinuxContainerConfig{Resources: &early.LinuxContainerResources{
			CpuPeriod: proto.Int64(50000), CpuQuota: proto.Int64(20000), CpuShares: proto.Int64(512),
			MemoryLimitInBytes: proto.Int64(48 << 20), OomScoreAdj: proto.Int64(321)}}
	})
	inner := n.ContainerCgroup(n.OwnCgroup(parent, pod), id)
	for _, want := range []struct{ v1, v2, inV1, inV2 string }{
		{"cpu/cpu.cfs_quota_us", "cpu.max", "20000", "20000 50000"},
		{"cpu/cpu.shares", "cpu.weight", "512", "59"},
		{"memory/memory.limit_in_bytes", "memory.max", "50331648", "50331648"},
	} {
		if got := podCgroupFile(t, inner, want.v1, want.v2); got != want.inV1 && got != want.inV2 {
			t.Errorf("container: %s or %s is %q", want.v1, want.v2, got)
		}
	}
	if got := d.sh(id, "cat /proc/1/oom_score_adj"); got != "321" {
		t.Errorf("oom_score_adj %s", got)
	}
	hog := d.run(pod, script2016("exec dd if=/dev/zero of=/dev/null bs=100000000 count=1"))
	if st := d.ended(hog); st.GetExitCode() == 0 {
		t.Errorf("a container takes more than its pod has: %v", st)
	}
}

func TestThe2016PodSaysItsNameServersPortsAndNamespaces(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	port := freePort(t)
	pod, _ := d.pod(func(c *early.PodSandboxConfig) {
		c.Hostname = proto.String("with-a-name")
		c.DnsOptions = &early.DNSOption{Servers: []string{"10.1.2.3", "fd00::7"}, Searches: []string{"a.test", "b.test"}}
		c.PortMappings = []*early.PortMapping{{Name: proto.String("web"), ContainerPort: proto.Int32(8080), HostPort: &port,
			HostIp: proto.String("127.0.0.1")},
			{Protocol: early.Protocol_UDP.Enum(), ContainerPort: proto.Int32(53)}}
	})
	id := d.run(pod, script2016("mkdir /www; echo page2016 >/www/index.html; exec httpd -f -p 8080 -h /www"))
	if got := d.sh(id, "hostname; cat /etc/resolv.conf"); got !=
		"with-a-name\nsearch a.test b.test\nnameserver 10.1.2.3\nnameserver fd00::7" {
		t.Errorf("got %q", got)
	}
	wantPage(t, fmt.Sprintf("127.0.0.1:%d", port), "page2016")

	st := d.podStatus(pod).GetLinux().GetNamespaces()
	pid, err := n.ContainerPID(id)
	if err != nil {
		t.Fatal(err)
	}
	path, err := os.Stat(st.GetNetwork())
	if err != nil {
		t.Fatal(err)
	}
	inside, err := os.Stat(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil || !os.SameFile(path, inside) {
		t.Errorf("%s is not the pod's network: %v", st.GetNetwork(), err)
	}
	if o := st.GetOptions(); o.GetHostNetwork() || o.GetHostPid() || o.GetHostIpc() {
		t.Errorf("%v", o)
	}
	if namespace(t, pid, "pid") == namespace(t, "self", "pid") ||
		d.sh(id, "tr '\\0' ' ' </proc/1/cmdline") != "httpd -f -p 8080 -h /www " {
		t.Error("the container has no PID namespace of its own")
	}

	host, _ := d.pod(func(c *early.PodSandboxConfig) {
		c.Hostname = nil
		c.Linux.NamespaceOptions = &early.NamespaceOption{HostNetwork: proto.Bool(true), HostPid: proto.Bool(true),
			HostIpc: proto.Bool(true)}
	})
	id = d.run(host)
	if pid, err = n.ContainerPID(id); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"net", "pid", "ipc"} {
		if namespace(t, pid, kind) != namespace(t, "self", kind) {
			t.Errorf("not the node's %s", kind)
		}
	}
	st = d.podStatus(host).GetLinux().GetNamespaces()
	if o := st.GetOptions(); !o.GetHostNetwork() || !o.GetHostPid() || !o.GetHostIpc() || st.Network != nil {
		t.Errorf("%v", st)
	}
}

func TestThe2016ContainerIsMadeAsItIsAskedFor(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	nodetest.Pull(t, n, node.Defaults)
	pod, _ := d.pod()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("from the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	mounts := []*early.Mount{
		{Name: proto.String("data"), ContainerPath: proto.String("/host"), HostPath: &dir},
		{Name: proto.String("ro"), ContainerPath: proto.String("/ro"), HostPath: &dir, Readonly: proto.Bool(true),
			SelinuxRelabel: proto.Bool(true)},
	}
	id := d.run(pod, func(c *early.ContainerConfig) {
		c.Command, c.Args = []string{"sleep"}, []string{"3600"}
		c.WorkingDir = proto.String("/tmp")
		c.Envs = []*early.KeyValue{{Key: proto.String("GIVEN"), Value: proto.String("a b")}}
		c.Mounts = mounts
		c.ReadonlyRootfs = proto.Bool(true)
		c.Linux = &early.LinuxContainerConfig{
			User:         &early.LinuxUser{Uid: proto.Int64(1234), Gid: proto.Int64(2345), AdditionalGids: []int64{3456}},
			Capabilities: &early.Capability{AddCapabilities: []string{"NET_ADMIN"}, DropCapabilities: []string{"CAP_CHOWN"}},
		}
	})
	if got := d.sh(id, "echo $GIVEN $(pwd) $(id -u) $(id -g); id -G | tr ' ' '\n' | grep 3456; cat /host/file"); got !=
		"a b /tmp 1234 2345\n3456\nfrom the host" {
		t.Errorf("got %q", got)
	}
	for _, path := range []string{"/ro/x", "/x"} {
		_, _, err := d.exec(id, nil, false, "touch", path)
		if exitCode(t, err) == 0 {
			t.Errorf("%s can be written", path)
		}
	}
	const netAdmin, chown = 1 << 12, 1 << 0
	bounds, err := strconv.ParseUint(d.sh(id, "grep CapBnd /proc/self/status | cut -f2"), 16, 64)
	if err != nil || bounds&netAdmin == 0 || bounds&chown != 0 {
		t.Errorf("capabilities %x, %v", bounds, err)
	}
	got := d.status(id).Mounts
	if len(got) != 2 || got[0].GetName() != "data" || got[0].GetHostPath() != dir ||
		got[0].GetContainerPath() != "/host" ||
		got[0].GetReadonly() || !got[1].GetReadonly() || !got[1].GetSelinuxRelabel() {
		t.Errorf("%v", got)
	}

	// A user of 0 is root; no user is the image's.
	defaults := func(c *early.ContainerConfig) {
		c.Image = &early.ImageSpec{Image: proto.String(node.Defaults)}
		c.Command = []string{"sleep", "3600"}
	}
	id = d.run(pod, defaults)
	if got := d.sh(id, "id -u"); got != "1001" {
		t.Errorf("the image's user is %s", got)
	}
	id = d.run(pod, defaults, func(c *early.ContainerConfig) {
		c.Linux = &early.LinuxContainerConfig{User: &early.LinuxUser{Uid: proto.Int64(0)}}
	})
	if got := d.sh(id, "id -u"); got != "0" {
		t.Errorf("user 0 is %s", got)
	}

	// Not even root of a plain container gets at what is masked; that of a privileged one does.
	id = d.run(pod)
	if _, _, err := d.exec(id, nil, false, "sh", "-c", "echo 0 >/proc/sys/kernel/sysrq"); exitCode(t, err) == 0 {
		t.Error("/proc/sys can be written")
	}
	id = d.run(pod, func(c *early.ContainerConfig) { c.Privileged = proto.Bool(true) })
	if got := d.sh(id, "test -w /proc/sys/kernel && echo writable"); got != "writable" {
		t.Errorf("privileged: %q", got)
	}
}

func TestThe2016ContainersInputIsKeptOpen(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	pod, config := d.pod()
	log := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(config.GetLogDirectory(), name))
		return string(text)
	}
	// Without stdin a container's input is at its end.
	d.ended(d.run(pod, script2016("cat; echo end"), func(c *early.ContainerConfig) {
		c.LogPath = proto.String("closed.log")
	}))
	if got := log("closed.log"); !strings.Contains(got, "end") {
		t.Errorf("got %q", got)
	}
	id := d.run(pod, script2016("cat; echo end"), func(c *early.ContainerConfig) {
		c.Stdin, c.StdinOnce, c.LogPath = proto.Bool(true), proto.Bool(true), proto.String("open.log")
	})
	c := &nodetest.Container{Pod: &nodetest.Pod{Node: n}, ID: id}
	at := attachURL(t, c, &cri.AttachRequest{Stdin: true, Stdout: true})
	if _, err := nodetest.Stream(nodetest.Context(t), nodetest.SPDY, at, remotecommand.StreamOptions{
		Stdin: strings.NewReader("said\n"), Stdout: io.Discard,
	}); err != nil {
		t.Fatal(err)
	}
	d.ended(id)
	if got := log("open.log"); !strings.Contains(got, "said") || !strings.Contains(got, "end") {
		t.Errorf("got %q", got)
	}
	d.run(pod, script2016("tty; exec sleep 3600"), func(c *early.ContainerConfig) {
		c.Tty, c.LogPath = proto.Bool(true), proto.String("tty.log")
	})
	nodetest.Eventually(t, 30*time.Second, "the container has a terminal", func() error {
		if got := log("tty.log"); !strings.Contains(got, "/dev/") || strings.Contains(got, "not a tty") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

func TestThe2016ListsAreFiltered(t *testing.T) {
	n := nodetest.Shared(t)
	d := open2016(t, n)
	ctx := nodetest.Context(t)
	key := fmt.Sprintf("filter%d", serial2016.Add(1))
	labelled := func(v string) func(*early.PodSandboxConfig) {
		return func(c *early.PodSandboxConfig) { c.Labels = map[string]string{key: v} }
	}
	a, configA := d.pod(labelled("a"))
	b, _ := d.pod(labelled("b"))
	created := d.create(a, func(c *early.ContainerConfig) { c.Labels = map[string]string{key: "c"} })
	running := d.run(a, func(c *early.ContainerConfig) { c.Labels = map[string]string{key: "r"} })
	if _, err := d.StopPodSandbox(ctx, &early.StopPodSandboxRequest{PodSandboxId: &b}); err != nil {
		t.Fatal(err)
	}
	pods := func(f *early.PodSandboxFilter) (ids []string) {
		t.Helper()
		r, err := d.ListPodSandbox(ctx, &early.ListPodSandboxRequest{Filter: f})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Items {
			if _, mine := p.Labels[key]; mine {
				ids = append(ids, p.GetId())
			}
		}
		return ids
	}
	containers := func(f *early.ContainerFilter) (ids []string) {
		t.Helper()
		r, err := d.ListContainers(ctx, &early.ListContainersRequest{Filter: f})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range r.Containers {
			if _, mine := c.Labels[key]; mine {
				ids = append(ids, c.GetId())
			}
		}
		return ids
	}
	want := func(what string, got []string, want ...string) {
		t.Helper()
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	want("all", pods(nil), b, a) // newest first
	want("ready, which is 0", pods(&early.PodSandboxFilter{State: early.PodSandBoxState_READY.Enum()}), a)
	want("not ready", pods(&early.PodSandboxFilter{State: early.PodSandBoxState_NOTREADY.Enum()}), b)
	want("name", pods(&early.PodSandboxFilter{Name: configA.Name}), a)
	want("no such name", pods(&early.PodSandboxFilter{Name: proto.String("no such")}))
	want("id", pods(&early.PodSandboxFilter{Id: proto.String(a[:13])}), a)
	want("label", pods(&early.PodSandboxFilter{LabelSelector: map[string]string{key: "b"}}), b)
	want("label and state",
		pods(&early.PodSandboxFilter{LabelSelector: map[string]string{key: "b"}, State: early.PodSandBoxState_READY.Enum()}))

	want("all", containers(nil), running, created)
	want("created, which is 0", containers(&early.ContainerFilter{State: early.ContainerState_CREATED.Enum()}), created)
	want("running", containers(&early.ContainerFilter{State: early.ContainerState_RUNNING.Enum()}), running)
	want("unknown", containers(&early.ContainerFilter{State: early.ContainerState_UNKNOWN.Enum()}))
	want("name", containers(&early.ContainerFilter{Name: proto.String(d.status(created).GetName())}), created)
	want("id", containers(&early.ContainerFilter{Id: &running}), running)
	want("pod", containers(&early.ContainerFilter{PodSandboxId: &a}), running, created)
	want("other pod", containers(&early.ContainerFilter{PodSandboxId: &b}))
	want("label", containers(&early.ContainerFilter{LabelSelector: map[string]string{key: "c"}}), created)
	for _, c := range []string{created, running} {
		r, err := d.ListContainers(ctx, &early.ListContainersRequest{Filter: &early.ContainerFilter{Id: &c}})
		if err != nil || len(r.Containers) != 1 {
			t.Fatalf("%v, %v", r, err)
		}
		st, item := d.status(c), r.Containers[0]
		if item.GetName() != st.GetName() || item.GetState() != st.GetState() || item.GetImageRef() != st.GetImageRef() ||
			item.GetImage().GetImage() != st.GetImage().GetImage() {
			t.Errorf("the list says %v, the status %v", item, st)
		}
	}
}

func TestThe2016ImagesComeAndGo(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	d := open2016(t, n)
	ctx := nodetest.Context(t)
	spec := &early.ImageSpec{Image: proto.String(node.Busybox)}
	if r, err := d.ImageStatus(ctx, &early.ImageStatusRequest{Image: spec}); err != nil || r.Image != nil {
		t.Errorf("an image that is not there: %v, %v", r, err)
	}
	if _, err := d.PullImage(ctx,
		&early.PullImageRequest{Image: spec, SandboxConfig: &early.PodSandboxConfig{Name: proto.String("p")}}); err != nil {
		t.Fatal(err)
	}
	st, err := d.ImageStatus(ctx, &early.ImageStatusRequest{Image: spec})
	if err != nil || !strings.HasPrefix(st.Image.GetId(), "sha256:") || st.Image.RepoTags[0] != node.Busybox ||
		len(st.Image.RepoDigests) != 1 || st.Image.GetSize() == 0 {
		t.Fatalf("%v, %v", st, err)
	}
	for what, f := range map[string]*early.ImageFilter{"all": nil, "tag": {Image: spec},
		"id":     {Image: &early.ImageSpec{Image: st.Image.Id}},
		"digest": {Image: &early.ImageSpec{Image: &st.Image.RepoDigests[0]}}} {
		if r, err := d.ListImages(ctx, &early.ListImagesRequest{Filter: f}); err != nil || len(r.Images) != 1 ||
			!proto.Equal(r.Images[0], st.Image) {
			t.Errorf("%s: %v, %v", what, r, err)
		}
	}
	other := &early.ImageFilter{Image: &early.ImageSpec{Image: proto.String("registry.test/other:1")}}
	if r, err := d.ListImages(ctx, &early.ListImagesRequest{Filter: other}); err != nil || len(r.Images) != 0 {
		t.Errorf("%v, %v", r, err)
	}
	_, err = d.PullImage(ctx,
		&early.PullImageRequest{Image: &early.ImageSpec{Image: proto.String("registry.test/none:1")}})
	nodetest.WantCode(t, err, codes.NotFound)
	_, err = d.PullImage(ctx, &early.PullImageRequest{})
	nodetest.WantCode(t, err, codes.InvalidArgument)
	for range 2 {
		if _, err := d.RemoveImage(ctx, &early.RemoveImageRequest{Image: spec}); err != nil {
			t.Error(err)
		}
	}
	if r, err := d.ListImages(ctx, &early.ListImagesRequest{}); err != nil || len(r.Images) != 0 {
		t.Errorf("%v, %v", r, err)
	}
}

func auth2016(ref string, auth *cri.AuthConfig) *early.PullImageRequest {
	return &early.PullImageRequest{Image: &early.ImageSpec{Image: &ref}, Auth: &early.AuthConfig{
		Username: &auth.Username, Password: &auth.Password, Auth: &auth.Auth, ServerAddress: &auth.ServerAddress,
		IdentityToken: &auth.IdentityToken, RegistryToken: &auth.RegistryToken,
	}}
}

func TestAPodOf2016IsPausedAndStoppedThroughV1alpha2(t *testing.T) {
	n := nodetest.Shared(t)
	d, between := open2016(t, n), nodetest.DialV1alpha2(n)
	ctx := nodetest.Context(t)
	pod, config := d.pod()
	id := d.run(pod)
	st, err := between.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil || st.Status.Metadata.Name != config.GetName() {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := between.Pouch.PauseContainer(ctx, &pouch.PauseContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if got := d.status(id); got.GetState() != early.ContainerState_RUNNING {
		t.Errorf("paused: %v", got)
	}
	_, _, err = d.exec(id, nil, false, "true")
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if _, err := between.Pouch.UnpauseContainer(ctx, &pouch.UnpauseContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if d.sh(id, "echo on") != "on" {
		t.Error("it does not go on")
	}
	if _, err := between.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if d.podStatus(pod).GetState() != early.PodSandBoxState_NOTREADY ||
		d.status(id).GetState() != early.ContainerState_EXITED {
		t.Errorf("%v, %v", d.podStatus(pod), d.status(id))
	}
	if _, err := between.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	_, err = d.ContainerStatus(ctx, &early.ContainerStatusRequest{ContainerId: &id})
	nodetest.WantCode(t, err, codes.NotFound)
}
