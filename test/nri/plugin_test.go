package nri

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// plugin is an NRI plugin. Its functions are set before it connects; nil: it agrees.
type plugin struct {
	create func(*api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error)
	update func(*api.PodSandbox, *api.Container, *api.LinuxResources) ([]*api.ContainerUpdate, error)
	stop   func(*api.PodSandbox, *api.Container) ([]*api.ContainerUpdate, error)
	// refuse is asked at each event of a pod or a container.
	refuse func(event string) error

	stub   stub.Stub
	closed chan struct{}

	mu         sync.Mutex
	events     []string // as "CreateContainer web/server"
	pods       map[string]*api.PodSandbox
	containers map[string]*api.Container
	created    map[string]int // how often it was asked about a container's creation, by ID
	// presentPods are the IDs of the pods that it was told of when it joined, and presentContainers those of the
	// containers, each with its state.
	presentPods, presentContainers []string
}

// connect has a plugin join a node, under a name such as 10-env. It leaves with the test.
func connect(t testing.TB, n *node.Node, name string, p *plugin) *plugin {
	t.Helper()
	if err := p.join(n.NRISocket, name); err != nil {
		t.Fatalf("plugin %s: %v", name, err)
	}
	t.Cleanup(p.stub.Stop)
	return p
}

// connectOnceServed is connect for a node whose berthd is about to listen. That the socket is there does not tell: it
// is bound before anybody listens on it.
func connectOnceServed(t testing.TB, n *node.Node, name string, p *plugin) {
	t.Helper()
	nodetest.Eventually(t, node.Patience(20*time.Second), "berthd serves plugin "+name, func() error {
		return p.join(n.NRISocket, name)
	})
	t.Cleanup(p.stub.Stop)
}

func (p *plugin) join(socket, name string) error {
	index, base, _ := strings.Cut(name, "-")
	p.pods, p.containers = map[string]*api.PodSandbox{}, map[string]*api.Container{}
	p.created = map[string]int{}
	p.closed = make(chan struct{})
	closed := sync.OnceFunc(func() { close(p.closed) })
	var err error
	p.stub, err = stub.New(p, stub.WithPluginIdx(index), stub.WithPluginName(base), stub.WithSocketPath(socket),
		stub.WithOnClose(closed))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(20*time.Second))
	defer cancel()
	if err := p.stub.Start(ctx); err != nil {
		return err
	}
	for p.told("Synchronize") == 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("it was not told what is there: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// note keeps an event, and asks refuse.
func (p *plugin) note(event string, pod *api.PodSandbox, c *api.Container) error {
	p.mu.Lock()
	line := event
	if pod != nil {
		line += " " + pod.GetName()
		p.pods[event] = pod
	}
	if c != nil {
		line += "/" + c.GetName()
		p.containers[event] = c
		if event == "CreateContainer" {
			p.created[c.GetId()]++
		}
	}
	p.events = append(p.events, line)
	p.mu.Unlock()
	if p.refuse != nil {
		return p.refuse(event)
	}
	return nil
}

// told is how often the plugin was told of an event.
func (p *plugin) told(event string) (count int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.events {
		if e == event || strings.HasPrefix(e, event+" ") {
			count++
		}
	}
	return count
}

// story is all that the plugin was told.
func (p *plugin) story() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.events)
}

// saw is the container as an event had it last.
func (p *plugin) saw(event string) *api.Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.containers[event]
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox,
	containers []*api.Container) ([]*api.ContainerUpdate, error) {
	p.mu.Lock()
	for _, pod := range pods {
		p.presentPods = append(p.presentPods, pod.GetId())
	}
	for _, c := range containers {
		p.presentContainers = append(p.presentContainers, c.GetId()+" "+c.GetState().String())
	}
	p.mu.Unlock()
	return nil, p.note("Synchronize", nil, nil)
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("RunPodSandbox", pod, nil)
}

func (p *plugin) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, _, _ *api.LinuxResources) error {
	return p.note("UpdatePodSandbox", pod, nil)
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("PostUpdatePodSandbox", pod, nil)
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("StopPodSandbox", pod, nil)
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("RemovePodSandbox", pod, nil)
}

func (p *plugin) CreateContainer(_ context.Context, pod *api.PodSandbox,
	c *api.Container) (adjust *api.ContainerAdjustment, updates []*api.ContainerUpdate, err error) {
	if err := p.note("CreateContainer", pod, c); err != nil {
		return nil, nil, err
	}
	if p.create != nil {
		return p.create(pod, c)
	}
	return nil, nil, nil
}

func (p *plugin) PostCreateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.note("PostCreateContainer", pod, c)
}

func (p *plugin) StartContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.note("StartContainer", pod, c)
}

func (p *plugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.note("PostStartContainer", pod, c)
}

func (p *plugin) UpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container,
	r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	if err := p.note("UpdateContainer", pod, c); err != nil {
		return nil, err
	}
	if p.update != nil {
		return p.update(pod, c, r)
	}
	return nil, nil
}

func (p *plugin) PostUpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.note("PostUpdateContainer", pod, c)
}

func (p *plugin) StopContainer(_ context.Context, pod *api.PodSandbox,
	c *api.Container) ([]*api.ContainerUpdate, error) {
	if err := p.note("StopContainer", pod, c); err != nil {
		return nil, err
	}
	if p.stop != nil {
		return p.stop(pod, c)
	}
	return nil, nil
}

func (p *plugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.note("RemoveContainer", pod, c)
}

// patientPlugin subscribes to the start of containers only, and stays connected when it answers too late.
type patientPlugin struct {
	started func()
	joined  chan struct{}
}

func (p *patientPlugin) connect(t *testing.T, n *node.Node, name string) {
	t.Helper()
	p.joined = make(chan struct{})
	index, base, _ := strings.Cut(name, "-")
	s, err := stub.New(p, stub.WithPluginIdx(index), stub.WithPluginName(base), stub.WithSocketPath(n.NRISocket),
		stub.WithFailurePolicy(&api.FailurePolicy{KeepConnected: true}))
	if err == nil {
		err = s.Start(t.Context())
	}
	if err != nil {
		t.Fatalf("plugin %s: %v", name, err)
	}
	t.Cleanup(s.Stop)
	<-p.joined
}

func (p *patientPlugin) Synchronize(context.Context, []*api.PodSandbox,
	[]*api.Container) ([]*api.ContainerUpdate, error) {
	close(p.joined)
	return nil, nil
}

func (p *patientPlugin) StartContainer(context.Context, *api.PodSandbox, *api.Container) error {
	p.started()
	return nil
}

// launched is the plugin that berthd starts: it gives each container a variable with its configuration.
func launched() error {
	p := &launchedPlugin{}
	s, err := stub.New(p)
	if err != nil {
		return err
	}
	return s.Run(context.Background())
}

type launchedPlugin struct{ config string }

func (p *launchedPlugin) Configure(_ context.Context, config, runtime, _ string) (api.EventMask, error) {
	p.config = runtime + " " + strings.TrimSpace(config)
	return 0, nil
}

func (p *launchedPlugin) CreateContainer(context.Context, *api.PodSandbox,
	*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adjust := &api.ContainerAdjustment{}
	adjust.AddEnv("LAUNCHED", p.config)
	adjust.AddEnv("LAUNCHED_AS", os.Getenv("NRI_PLUGIN_IDX")+"-"+os.Getenv("NRI_PLUGIN_NAME"))
	return adjust, nil, nil
}
