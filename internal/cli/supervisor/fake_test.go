package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/launch"
	"berth/internal/cli/poddir"
	"berth/internal/cli/poddir/poddirtest"
	"berth/internal/manifest"
)

// node is a runtime with one pod, whose calls fail as a test says.
type node struct {
	cri.RuntimeServiceClient

	mu sync.Mutex // guards the rest
	// ends are the exit codes of containers that end at once, by name.
	ends map[string]int32
	// before is asked before a call has its effect, and after when the call has had it: the call returns the error. A call
	// is a name and what it is about, such as "StartContainer a".
	before, after func(call string) error

	gone       bool // the sandbox
	containers []*cri.ContainerStatus
	calls      []string
	timeout    int64 // of the last StopContainer
}

func (n *node) call(about string, effect func() error) error {
	n.mu.Lock()
	n.calls = append(n.calls, about)
	before, after := n.before, n.after
	n.mu.Unlock()
	if before != nil {
		if err := before(about); err != nil {
			return err
		}
	}
	n.mu.Lock()
	err := effect()
	n.mu.Unlock()
	if err == nil && after != nil {
		err = after(about)
	}
	return err
}

// count is how often a call was made.
func (n *node) count(about string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, call := range n.calls {
		if call == about {
			count++
		}
	}
	return count
}

// find returns a container, with the call that is about it.
func (n *node) find(call, id string) (about string, c *cri.ContainerStatus, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.containers {
		if c.Id == id {
			return call + " " + c.Metadata.Name, c, nil
		}
	}
	return call, nil, status.Errorf(codes.NotFound, "there is no container %s", id)
}

// removed takes a container away, as `crictl rm -f` does.
func (n *node) removed(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.containers = slices.DeleteFunc(n.containers, func(c *cri.ContainerStatus) bool { return c.Id == id })
}

func (n *node) exited(c *cri.ContainerStatus, code int32) {
	c.State, c.ExitCode, c.FinishedAt = cri.ContainerState_CONTAINER_EXITED, code, time.Now().UnixNano()
}

func (n *node) GetContainerEvents(context.Context, *cri.GetEventsRequest, ...grpc.CallOption) (
	grpc.ServerStreamingClient[cri.ContainerEventResponse], error) {
	return nil, status.Error(codes.Unimplemented, "no events")
}

func (n *node) RunPodSandbox(context.Context, *cri.RunPodSandboxRequest, ...grpc.CallOption) (
	*cri.RunPodSandboxResponse, error) {
	return &cri.RunPodSandboxResponse{PodSandboxId: "sandbox"}, n.call("RunPodSandbox", func() error { return nil })
}

func (n *node) PodSandboxStatus(context.Context, *cri.PodSandboxStatusRequest, ...grpc.CallOption) (
	*cri.PodSandboxStatusResponse, error) {
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{Id: "sandbox"}},
		n.call("PodSandboxStatus", n.sandbox)
}

func (n *node) sandbox() error {
	if n.gone {
		return status.Error(codes.NotFound, "there is no sandbox")
	}
	return nil
}

func (n *node) StopPodSandbox(context.Context, *cri.StopPodSandboxRequest, ...grpc.CallOption) (
	*cri.StopPodSandboxResponse, error) {
	return &cri.StopPodSandboxResponse{}, n.call("StopPodSandbox", func() error {
		for _, c := range n.containers {
			if c.State == cri.ContainerState_CONTAINER_RUNNING {
				n.exited(c, 137)
			}
		}
		return nil
	})
}

func (n *node) RemovePodSandbox(context.Context, *cri.RemovePodSandboxRequest, ...grpc.CallOption) (
	*cri.RemovePodSandboxResponse, error) {
	return &cri.RemovePodSandboxResponse{}, n.call("RemovePodSandbox", func() error {
		n.containers = nil
		return nil
	})
}

func (n *node) CreateContainer(_ context.Context, request *cri.CreateContainerRequest, _ ...grpc.CallOption) (
	*cri.CreateContainerResponse, error) {
	metadata := request.GetConfig().GetMetadata()
	id := fmt.Sprintf("%s-%d", metadata.GetName(), metadata.GetAttempt())
	return &cri.CreateContainerResponse{ContainerId: id}, n.call("CreateContainer "+metadata.GetName(), func() error {
		if err := n.sandbox(); err != nil {
			return err
		}
		n.containers = append(n.containers, &cri.ContainerStatus{Id: id, Metadata: metadata})
		return nil
	})
}

func (n *node) StartContainer(_ context.Context, request *cri.StartContainerRequest, _ ...grpc.CallOption) (
	*cri.StartContainerResponse, error) {
	about, c, err := n.find("StartContainer", request.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &cri.StartContainerResponse{}, n.call(about, func() error {
		c.State = cri.ContainerState_CONTAINER_RUNNING
		if code, ends := n.ends[c.Metadata.Name]; ends {
			n.exited(c, code)
		}
		return nil
	})
}

func (n *node) ContainerStatus(_ context.Context, request *cri.ContainerStatusRequest, _ ...grpc.CallOption) (
	*cri.ContainerStatusResponse, error) {
	about, c, err := n.find("ContainerStatus", request.GetContainerId())
	if err != nil {
		return nil, err
	}
	response := &cri.ContainerStatusResponse{}
	return response, n.call(about, func() error {
		response.Status = &cri.ContainerStatus{Id: c.Id, Metadata: c.Metadata, State: c.State, ExitCode: c.ExitCode,
			FinishedAt: c.FinishedAt}
		return nil
	})
}

func (n *node) ListContainers(context.Context, *cri.ListContainersRequest, ...grpc.CallOption) (
	*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{}, n.call("ListContainers", func() error { return nil })
}

func (n *node) StopContainer(ctx context.Context, request *cri.StopContainerRequest, _ ...grpc.CallOption) (
	*cri.StopContainerResponse, error) {
	about, c, err := n.find("StopContainer", request.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &cri.StopContainerResponse{}, n.call(about, func() error {
		if n.timeout = request.GetTimeout(); ctx.Err() != nil {
			return ctx.Err()
		}
		if c.State == cri.ContainerState_CONTAINER_RUNNING {
			n.exited(c, 137)
		}
		return nil
	})
}

func (n *node) RemoveContainer(_ context.Context, request *cri.RemoveContainerRequest, _ ...grpc.CallOption) (
	*cri.RemoveContainerResponse, error) {
	about, _, err := n.find("RemoveContainer", request.GetContainerId())
	if err != nil {
		return nil, err
	}
	err = n.call(about, func() error { return nil })
	if err == nil {
		n.removed(request.GetContainerId())
	}
	return &cri.RemoveContainerResponse{}, err
}

// ExecSync runs no probe successfully.
func (n *node) ExecSync(context.Context, *cri.ExecSyncRequest, ...grpc.CallOption) (*cri.ExecSyncResponse, error) {
	return &cri.ExecSyncResponse{ExitCode: 1}, n.call("ExecSync", func() error { return nil })
}

// away is the answer of a runtime that is killed during a call.
func away() error { return status.Error(codes.Unavailable, "error reading from server: EOF") }

// once returns an error at the first time that a call is made.
func once(call string, err error) func(string) error {
	failed := false
	var mu sync.Mutex
	return func(about string) error {
		mu.Lock()
		defer mu.Unlock()
		if about != call || failed {
			return nil
		}
		failed = true
		return err
	}
}

// notes are what a supervisor says.
type notes struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (n *notes) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.Write(b)
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}

// on makes a supervisor of the pods of a node, as `berth apply` has one if they last.
func on(t *testing.T, n *node, lasting bool) (*Supervisor, *notes) {
	t.Helper()
	said := &notes{}
	watch := launch.NewWatch(t.Context(), n)
	watch.Patience = -1
	return &Supervisor{Lasting: lasting, Notes: said, Launcher: &launch.Launcher{Runtime: n, Watch: watch,
		Store: &poddir.Store{Root: poddirtest.Root(t), Address: "unix:///run/berth.sock"},
		Host:  &manifest.Host{Name: "node", IPs: []string{"127.0.0.1"}, MilliCPU: 1000, Memory: 1 << 30}}}, said
}

// document is a pod whose containers are written as they are in a manifest, in one line each.
func document(t *testing.T, policy string, lines ...string) *manifest.Pod {
	t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  terminationGracePeriodSeconds: 1\n" +
		"  restartPolicy: " + policy + "\n  " + strings.Join(lines, "\n  ") + "\n"
	documents, err := manifest.DecodeFiles([]manifest.File{{In: strings.NewReader(text)}}, manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return documents.Pods()[0]
}

// run starts a pod, which is left at the end of the test.
func run(t *testing.T, s *Supervisor, pod *manifest.Pod) *Pod {
	t.Helper()
	running, err := s.Run(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(running.Leave)
	return running
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, said *notes, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it is not so that %s:\n%s", what, said)
		}
	}
}
