package launch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// decode is the first pod of a manifest.
func decode(text string) (*manifest.Pod, error) {
	documents, err := manifest.DecodeFiles([]manifest.File{{In: strings.NewReader(text)}}, manifest.Options{})
	if err != nil {
		return nil, err
	}
	return documents.Pods()[0], nil
}

// refusingRuntime answers CreateContainer with the error of the test. It makes the container if there is none.
type refusingRuntime struct {
	idRuntime
	refusal    error
	containers []*cri.Container
}

func (r *refusingRuntime) CreateContainer(_ context.Context, request *cri.CreateContainerRequest,
	_ ...grpc.CallOption) (*cri.CreateContainerResponse, error) {
	if r.refusal != nil {
		return nil, r.refusal
	}
	metadata := request.GetConfig().GetMetadata()
	id := fmt.Sprint(metadata.GetAttempt())
	r.containers = append(r.containers, &cri.Container{Id: id, Metadata: metadata})
	return &cri.CreateContainerResponse{ContainerId: id}, nil
}

func (r *refusingRuntime) StartContainer(context.Context, *cri.StartContainerRequest, ...grpc.CallOption) (
	*cri.StartContainerResponse, error) {
	return &cri.StartContainerResponse{}, nil
}

func (r *refusingRuntime) ListContainers(context.Context, *cri.ListContainersRequest, ...grpc.CallOption) (
	*cri.ListContainersResponse, error) {
	return &cri.ListContainersResponse{Containers: slices.Clone(r.containers)}, nil
}

func (r *refusingRuntime) RemoveContainer(_ context.Context, request *cri.RemoveContainerRequest,
	_ ...grpc.CallOption) (*cri.RemoveContainerResponse, error) {
	r.containers = slices.DeleteFunc(r.containers, func(c *cri.Container) bool { return c.Id == request.ContainerId })
	return &cri.RemoveContainerResponse{}, nil
}

// TestAContainerThatIsRefusedLeavesNothing: a container of `berth apply` is tried again every few minutes, and each try
// mounts the sub-paths of its volumes. Seen to fail where the mounts and files of each try stayed with the pod, also
// those of berth restart, and those of tries that were not answered once a later one had succeeded.
func TestAContainerThatIsRefusedLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("sub-paths of volumes need root")
	}
	decoded, err := decode(strings.ReplaceAll(`apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    image: i:1
    volumeMounts: [{name: host, mountPath: /sub, subPath: sub}]
  volumes:
  - {name: host, hostPath: {path: OUTSIDE}}
`, "OUTSIDE", t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	runtime := &refusingRuntime{idRuntime: idRuntime{asked: make(chan struct{}, 1), make: make(chan struct{})}}
	close(runtime.make)
	l := &Launcher{Runtime: runtime, Store: &poddir.Store{Root: t.TempDir(), Address: "unix:///a"}, Repeatable: true}
	pod := &Pod{Pod: decoded, Host: &manifest.Host{}, images: &images{byContainer: map[string]*cri.Image{"c": {}}}}
	if err := l.sandbox(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pod.dir.Remove(); err != nil {
			t.Error(err)
		}
	})
	// left are the numbers of the attempts that have a file or a mount.
	left := func() (numbers []string) {
		t.Helper()
		infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Join(pod.dir.Path, "subpaths")))
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range infos {
			numbers = append(numbers, filepath.Base(filepath.Dir(info.Mountpoint)))
		}
		for _, kind := range []string{"subpaths", "messages"} {
			entries, err := os.ReadDir(filepath.Join(pod.dir.Path, kind, "c"))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			for _, entry := range entries {
				numbers = append(numbers, entry.Name())
			}
		}
		slices.Sort(numbers)
		return slices.Compact(numbers)
	}
	check := func(what string, want ...string) {
		t.Helper()
		if got := left(); !slices.Equal(got, want) {
			t.Errorf("%s: there is something of the attempts %v, want %v", what, got, want)
		}
	}
	start := func(attempt int, refusal error) {
		t.Helper()
		runtime.refusal = refusal
		if _, err := l.Start(t.Context(), pod, &pod.Spec.Containers[0], attempt); (err == nil) != (refusal == nil) {
			t.Fatalf("attempt %d: %v", attempt, err)
		}
	}
	refused := status.Error(codes.FailedPrecondition, "the device is taken")
	for attempt := range 3 {
		start(attempt, refused)
	}
	check("three refusals")
	start(3, status.Error(codes.Unavailable, "error reading from server: EOF"))
	check("a container that may be there", "3")
	start(4, nil)
	start(4, refused)
	check("a container that is there", "3", "4")
	start(5, nil)
	if err := l.Forget(t.Context(), pod, "c", 5); err != nil {
		t.Fatal(err)
	}
	check("a container that runs", "4", "5")
	requests, err := pod.dir.Requests()
	if err != nil || len(requests) != 1 {
		t.Fatal(requests, err)
	}
	runtime.refusal = refused
	for range 2 {
		request := proto.Clone(requests[0]).(*cri.CreateContainerRequest)
		if err := l.next(t.Context(), pod, request, nil); err == nil {
			t.Error("berth restart has made a container that is refused")
		}
	}
	check("berth restart", "4", "5")
}
