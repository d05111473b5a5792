package launch

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/poddir"
	"berth/internal/jail"
	"berth/internal/manifest"
)

func TestPodsWithUserNamespacesShareNoIDs(t *testing.T) {
	var taken []*cri.IDMapping
	for i := range lastRange - firstRange + 1 {
		// a range of another client may begin anywhere
		first, err := chooseIDs(append(taken, &cri.IDMapping{HostId: firstRange*manifest.IDRange - 1, Length: 1}), i/2)
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range taken {
			if other.HostId < first+manifest.IDRange && first < other.HostId+other.Length {
				t.Fatalf("%d is given twice", first)
			}
		}
		taken = append(taken, &cri.IDMapping{HostId: first, Length: manifest.IDRange})
		if i > 40 {
			break
		}
	}
	all := []*cri.IDMapping{{HostId: firstRange*manifest.IDRange + 1,
		Length: (lastRange - firstRange + 1) * manifest.IDRange}}
	if _, err := chooseIDs(all, 7); err == nil {
		t.Error("IDs were given that a pod has")
	}
}

// TestPodsHaveNoIDsOfConfinedChildren: a process of the pod could send signals to a child that reads an image. It was
// seen to fail where the first range was the children's.
func TestPodsHaveNoIDsOfConfinedChildren(t *testing.T) {
	for i := range lastRange - firstRange + 1 {
		first, err := chooseIDs(nil, i)
		if err != nil {
			t.Fatal(err)
		}
		if first < jail.FirstUID+jail.UIDCount && jail.FirstUID < first+manifest.IDRange {
			t.Fatalf("a pod gets the IDs from %#x on, and children those from %#x", first, uint32(jail.FirstUID))
		}
	}
}

// idRuntime is a runtime whose sandboxes are made when the test says so. It shows the IDs of its pods.
type idRuntime struct {
	cri.RuntimeServiceClient
	asked chan struct{} // gets a value for each RunPodSandbox
	make  chan struct{} // closed once sandboxes are made

	mu   sync.Mutex // guards pods
	pods []*cri.UserNamespace
}

func (r *idRuntime) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest, ...grpc.CallOption) (
	*cri.ListPodSandboxResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := &cri.ListPodSandboxResponse{}
	for i := range r.pods {
		list.Items = append(list.Items, &cri.PodSandbox{Id: fmt.Sprint(i)})
	}
	return list, nil
}

func (r *idRuntime) PodSandboxStatus(_ context.Context, request *cri.PodSandboxStatusRequest, _ ...grpc.CallOption) (
	*cri.PodSandboxStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var i int
	if _, err := fmt.Sscan(request.PodSandboxId, &i); err != nil {
		return nil, err
	}
	return &cri.PodSandboxStatusResponse{Status: &cri.PodSandboxStatus{Linux: &cri.LinuxPodSandboxStatus{
		Namespaces: &cri.Namespace{Options: &cri.NamespaceOption{UsernsOptions: r.pods[i]}}}}}, nil
}

func (r *idRuntime) RunPodSandbox(ctx context.Context, request *cri.RunPodSandboxRequest, _ ...grpc.CallOption) (
	*cri.RunPodSandboxResponse, error) {
	r.asked <- struct{}{}
	select {
	case <-r.make:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pods = append(r.pods, request.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions)
	return &cri.RunPodSandboxResponse{PodSandboxId: fmt.Sprint(len(r.pods) - 1)}, nil
}

// TestPodsThatAreMadeAtATimeShareNoIDs: the one range that is free goes to one of two pods. Seen to go to both, where
// the second pod was made before the sandbox of the first one was there.
func TestPodsThatAreMadeAtATimeShareNoIDs(t *testing.T) {
	runtime := &idRuntime{asked: make(chan struct{}, 3), make: make(chan struct{})}
	runtime.pods = []*cri.UserNamespace{{Uids: []*cri.IDMapping{{HostId: (firstRange + 1) * manifest.IDRange,
		Length: (lastRange - firstRange) * manifest.IDRange}}}}
	root := t.TempDir()
	start := func(ctx context.Context, name string) error {
		decoded, err := decode("apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\n" +
			"spec: {hostUsers: false, containers: [{name: c, image: 'i:1'}]}\n")
		if err != nil {
			return err
		}
		l := &Launcher{Runtime: runtime, Store: &poddir.Store{Root: root, Address: "unix:///a"}}
		return l.sandbox(ctx, &Pod{Pod: decoded, Host: &manifest.Host{}, images: &images{}})
	}
	ends := make(chan error, 2)
	for _, name := range []string{"one", "two"} {
		go func() { ends <- start(t.Context(), name) }()
	}
	<-runtime.asked
	select {
	case <-runtime.asked:
		t.Error("a second sandbox is asked for before the IDs of the first one are known")
	case <-time.After(200 * time.Millisecond):
	}
	late, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := start(late, "three"); err == nil || late.Err() == nil {
		t.Errorf("a start does not end with its context: %v", err)
	}
	close(runtime.make)
	one, two := <-ends, <-ends
	if one == nil {
		one, two = two, one
	}
	if two != nil || one == nil || !strings.Contains(one.Error(), "all IDs for user namespaces are taken") {
		t.Errorf("two starts end with %v and %v", one, two)
	}
}
