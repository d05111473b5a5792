package nodetest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

var serial atomic.Int64

// Pod is a sandbox of a node. It is removed when its test ends.
type Pod struct {
	Node   *node.Node
	ID     string
	Config *cri.PodSandboxConfig
	t      testing.TB
}

// PodEdit changes a pod's configuration before it runs.
type PodEdit func(*cri.PodSandboxConfig)

// ContainerEdit changes a container's configuration before it is made.
type ContainerEdit func(*cri.ContainerConfig)

// PodConfig is the configuration of a plain pod with a name of its own and a log directory, with edits.
func PodConfig(n *node.Node, edits ...PodEdit) *cri.PodSandboxConfig {
	name := fmt.Sprintf("pod%d", serial.Add(1))
	config := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "test", Uid: name + "-uid"},
		Hostname:     name,
		LogDirectory: filepath.Join(n.LogDir, name),
		Linux:        &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{}},
	}
	config.Linux.CgroupParent = n.PodCgroup(name)
	for _, edit := range edits {
		edit(config)
	}
	return config
}

// RunPod runs a pod.
func RunPod(t testing.TB, n *node.Node, edits ...PodEdit) *Pod {
	t.Helper()
	return RunPodHandler(t, n, "", edits...)
}

// RunPodHandler runs a pod under a runtime handler.
func RunPodHandler(t testing.TB, n *node.Node, handler string, edits ...PodEdit) *Pod {
	t.Helper()
	config := PodConfig(n, edits...)
	response, err := n.Runtime.RunPodSandbox(Context(t),
		&cri.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	if err != nil {
		t.Fatalf("run pod %s: %v", config.Metadata.Name, err)
	}
	return Adopt(t, n, response.PodSandboxId, config)
}

// Adopt takes a pod that was run by other means for a test's own: it is removed when the test ends.
func Adopt(t testing.TB, n *node.Node, id string, config *cri.PodSandboxConfig) *Pod {
	p := &Pod{Node: n, ID: id, Config: config, t: t}
	t.Cleanup(func() {
		if n.PID() == 0 {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), node.Patience(time.Minute))
		defer cancel()
		if _, err := n.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.ID}); err != nil {
			t.Errorf("remove pod %s: %v", config.Metadata.Name, err)
		}
	})
	return p
}

// Stop stops the pod.
func (p *Pod) Stop() {
	p.t.Helper()
	if _, err := p.Node.Runtime.StopPodSandbox(Context(p.t), &cri.StopPodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		p.t.Fatalf("stop pod: %v", err)
	}
}

// Remove removes the pod.
func (p *Pod) Remove() {
	p.t.Helper()
	if _, err := p.Node.Runtime.RemovePodSandbox(Context(p.t),
		&cri.RemovePodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		p.t.Fatalf("remove pod: %v", err)
	}
}

// Status is the pod's.
func (p *Pod) Status() *cri.PodSandboxStatus {
	p.t.Helper()
	response, err := p.Node.Runtime.PodSandboxStatus(Context(p.t), &cri.PodSandboxStatusRequest{PodSandboxId: p.ID})
	if err != nil {
		p.t.Fatalf("pod status: %v", err)
	}
	return response.Status
}

// IP is the pod's first address.
func (p *Pod) IP() string {
	p.t.Helper()
	ip := p.Status().GetNetwork().GetIp()
	if ip == "" {
		p.t.Fatal("the pod has no address")
	}
	return ip
}

// ContainerConfig is the configuration of a plain container of the pod (busybox, sleeping) with a name of its own, with
// edits.
func (p *Pod) ContainerConfig(edits ...ContainerEdit) *cri.ContainerConfig {
	name := fmt.Sprintf("c%d", serial.Add(1))
	config := &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: name},
		Image:    &cri.ImageSpec{Image: node.Busybox},
		Command:  []string{"sleep", "3600"},
		LogPath:  name + ".log",
		Linux: &cri.LinuxContainerConfig{
			Resources:       &cri.LinuxContainerResources{},
			SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: namespaces(p.Config)},
		},
	}
	for _, edit := range edits {
		edit(config)
	}
	return config
}

// namespaces are what a kubelet sends for a container of the pod: the pod's own, with a PID namespace
// for each container unless the pod says otherwise.
func namespaces(config *cri.PodSandboxConfig) *cri.NamespaceOption {
	if o := config.GetLinux().GetSecurityContext().GetNamespaceOptions(); o != nil {
		return o
	}
	return &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}
}

// Container is a container of a pod.
type Container struct {
	Pod    *Pod
	ID     string
	Config *cri.ContainerConfig
}

// Create makes a container and does not start it. Its image is pulled first.
func (p *Pod) Create(edits ...ContainerEdit) *Container {
	p.t.Helper()
	c, err := p.TryCreate(edits...)
	if err != nil {
		p.t.Fatalf("create container: %v", err)
	}
	return c
}

// TryCreate is Create that hands back the runtime's error.
func (p *Pod) TryCreate(edits ...ContainerEdit) (*Container, error) {
	p.t.Helper()
	config := p.ContainerConfig(edits...)
	if !strings.HasPrefix(config.Image.Image, "/") { // the archive of a checkpoint
		Pull(p.t, p.Node, config.Image.Image)
	}
	response, err := p.Node.Runtime.CreateContainer(Context(p.t), &cri.CreateContainerRequest{
		PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config,
	})
	if err != nil {
		return nil, err
	}
	return &Container{Pod: p, ID: response.ContainerId, Config: config}, nil
}

// Run makes and starts a container.
func (p *Pod) Run(edits ...ContainerEdit) *Container {
	p.t.Helper()
	c := p.Create(edits...)
	c.Start()
	return c
}

// Output runs a shell script as a container, waits until it has ended with code 0, and returns what it wrote to stdout.
func (p *Pod) Output(script string, edits ...ContainerEdit) string {
	p.t.Helper()
	c := p.Run(append([]ContainerEdit{Sh(script)}, edits...)...)
	if s := c.WaitExit(); s.ExitCode != 0 {
		p.t.Fatalf("%q ended with %d (%s: %s): %s", script, s.ExitCode, s.Reason, s.Message, c.Log())
	}
	return c.Stdout()
}

// Start starts the container.
func (c *Container) Start() {
	c.Pod.t.Helper()
	if err := c.TryStart(); err != nil {
		c.Pod.t.Fatalf("start container: %v", err)
	}
}

// TryStart is Start that hands back the runtime's error.
func (c *Container) TryStart() error {
	_, err := c.Pod.Node.Runtime.StartContainer(Context(c.Pod.t), &cri.StartContainerRequest{ContainerId: c.ID})
	return err
}

// Stop stops the container with a grace period in seconds.
func (c *Container) Stop(grace int64) {
	c.Pod.t.Helper()
	_, err := c.Pod.Node.Runtime.StopContainer(Context(c.Pod.t),
		&cri.StopContainerRequest{ContainerId: c.ID, Timeout: grace})
	if err != nil {
		c.Pod.t.Fatalf("stop container: %v", err)
	}
}

// Remove removes the container.
func (c *Container) Remove() {
	c.Pod.t.Helper()
	if _, err := c.Pod.Node.Runtime.RemoveContainer(Context(c.Pod.t),
		&cri.RemoveContainerRequest{ContainerId: c.ID}); err != nil {
		c.Pod.t.Fatalf("remove container: %v", err)
	}
}

// Status is the container's.
func (c *Container) Status() *cri.ContainerStatus {
	c.Pod.t.Helper()
	response, err := c.Pod.Node.Runtime.ContainerStatus(Context(c.Pod.t), &cri.ContainerStatusRequest{ContainerId: c.ID})
	if err != nil {
		c.Pod.t.Fatalf("container status: %v", err)
	}
	return response.Status
}

// WaitExit waits until the container has ended, for at most 20 s, and returns its status.
func (c *Container) WaitExit() *cri.ContainerStatus {
	c.Pod.t.Helper()
	var s *cri.ContainerStatus
	Eventually(c.Pod.t, 20*time.Second, "the container has ended", func() error {
		if s = c.Status(); s.State != cri.ContainerState_CONTAINER_EXITED {
			return fmt.Errorf("it is %v", s.State)
		}
		return nil
	})
	return s
}

// Exec runs a command in the container and hands back what came of it.
func (c *Container) Exec(timeout int64, command ...string) (*cri.ExecSyncResponse, error) {
	return c.Pod.Node.Runtime.ExecSync(Context(c.Pod.t), &cri.ExecSyncRequest{
		ContainerId: c.ID, Cmd: command, Timeout: timeout,
	})
}

// Sh runs a shell script in the container, which must end with code 0, and returns its stdout without the last newline.
func (c *Container) Sh(script string) string {
	c.Pod.t.Helper()
	response, err := c.Exec(60, "sh", "-c", script)
	if err != nil {
		c.Pod.t.Fatalf("exec %q: %v", script, err)
	}
	if response.ExitCode != 0 {
		c.Pod.t.Fatalf("exec %q ended with %d: %s%s", script, response.ExitCode, response.Stdout, response.Stderr)
	}
	return strings.TrimSuffix(string(response.Stdout), "\n")
}

// LogPath is the container's log file.
func (c *Container) LogPath() string {
	return filepath.Join(c.Pod.Config.LogDirectory, c.Config.LogPath)
}

// Log is the container's log file as it stands.
func (c *Container) Log() string {
	c.Pod.t.Helper()
	data, err := os.ReadFile(c.LogPath())
	if err != nil {
		c.Pod.t.Fatalf("log: %v", err)
	}
	return string(data)
}

// Stdout is what the log holds of stdout, partial lines joined.
func (c *Container) Stdout() string { return stream(c.Log(), "stdout") }

// Stderr is what the log holds of stderr, partial lines joined.
func (c *Container) Stderr() string { return stream(c.Log(), "stderr") }

func stream(log, name string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(parts) == 4 && parts[1] == name {
			b.WriteString(parts[3])
			if parts[2] == "F" {
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

// WaitLog waits until the log's stdout contains text, for at most 10 s.
func (c *Container) WaitLog(text string) {
	c.Pod.t.Helper()
	Eventually(c.Pod.t, 10*time.Second, fmt.Sprintf("the log says %q", text), func() error {
		data, err := os.ReadFile(c.LogPath())
		if err == nil && !strings.Contains(stream(string(data), "stdout"), text) {
			err = fmt.Errorf("it says %q", data)
		}
		return err
	})
}

// Sh makes a container run a shell script.
func Sh(script string) ContainerEdit {
	return func(c *cri.ContainerConfig) { c.Command, c.Args = []string{"sh", "-c", script}, nil }
}

// Security changes a container's security context.
func Security(edit func(*cri.LinuxContainerSecurityContext)) ContainerEdit {
	return func(c *cri.ContainerConfig) { edit(c.Linux.SecurityContext) }
}

// Mounts gives a container mounts.
func Mounts(mounts ...*cri.Mount) ContainerEdit {
	return func(c *cri.ContainerConfig) { c.Mounts = append(c.Mounts, mounts...) }
}

// patience is the least that Eventually waits: what takes a blink takes long on a machine that does ten other things.
const patience = 40 * time.Second

// Eventually waits until a claim holds.
func Eventually(t testing.TB, wait time.Duration, claim string, holds func() error) {
	t.Helper()
	wait = node.Patience(max(wait, patience))
	for deadline := time.Now().Add(wait); ; time.Sleep(10 * time.Millisecond) {
		err := holds()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s: %v", wait, claim, err)
		}
	}
}

// WantCode fails the test unless an error has one of the codes.
func WantCode(t testing.TB, err error, want ...codes.Code) {
	t.Helper()
	for _, code := range want {
		if status.Code(err) == code {
			return
		}
	}
	t.Errorf("got %v (%v), want %v", status.Code(err), err, want)
}
