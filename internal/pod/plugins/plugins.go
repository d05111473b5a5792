// Package plugins calls the node's NRI plugins for events of pods and containers.
package plugins

import (
	"context"
	"log/slog"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
	"berth/internal/nri"
	"berth/internal/pod/background"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
	"berth/internal/undo"
)

// Plugins is what the domain asks of the node's plugins that watch pods and containers, and change containers
// (package nri).
type Plugins interface {
	// Hold keeps plugins from joining until release is called. present says that there are plugins. Calls to plugins in
	// between take the context held.
	Hold(context.Context) (held context.Context, release func(), present bool, err error)
	Tell(context.Context, nri.Event, *nri.Pod, *nri.Container) error
	UpdatePod(ctx context.Context, pod *nri.Pod, overhead, resources *model.Resources) error
	// Create writes to the container's specification, and returns the limits that it has changed.
	Create(context.Context, *nri.Pod, *nri.Container, nri.Means) (*model.Resources, error)
	Update(context.Context, *nri.Pod, *nri.Container, *model.Resources) (*model.Resources, error)
	Stop(context.Context, *nri.Pod, *nri.Container) error
	Knows(id string) bool
	Forget(id string)
}

// None is a node without plugins.
type None struct{}

func (None) Hold(ctx context.Context) (context.Context, func(), bool, error) {
	return ctx, func() {}, false, nil
}
func (None) Tell(context.Context, nri.Event, *nri.Pod, *nri.Container) error { return nil }
func (None) UpdatePod(context.Context, *nri.Pod, *model.Resources, *model.Resources) error {
	return nil
}

func (None) Create(context.Context, *nri.Pod, *nri.Container, nri.Means) (*model.Resources, error) {
	return nil, nil
}

func (None) Update(_ context.Context, _ *nri.Pod, _ *nri.Container, r *model.Resources) (*model.Resources, error) {
	return r, nil
}
func (None) Stop(context.Context, *nri.Pod, *nri.Container) error { return nil }
func (None) Knows(string) bool                                    { return false }
func (None) Forget(string)                                        {}

// Relay calls the node's plugins for events. If there are none, it reads no record and builds no message. Its methods
// may be called concurrently.
type Relay struct {
	Plugins
	Dirs       *layout.Dirs
	Cgroups    *cgroups.Driver
	Background *background.Group // has each goroutine that an event starts
	Log        *slog.Logger
}

// Pod is a pod as plugins see it.
func (r *Relay) Pod(s *index.Sandbox) *nri.Pod {
	pod := s.Record()
	status := *s.Status()
	status.IPs = pod.IPs // a pod that is being made has them before its status says so
	out := &nri.Pod{
		SandboxStatus: &status, CgroupParent: pod.Config.CgroupParent, CgroupsPath: r.Cgroups.PodDir(pod.CgroupParent),
	}
	if pod.Phase != record.SandboxReady && pod.Phase != record.SandboxCreating {
		return out
	}
	paths := r.Dirs.NamespacePaths(&pod)
	for _, n := range []specs.LinuxNamespace{
		{Type: specs.NetworkNamespace, Path: paths.Network}, {Type: specs.IPCNamespace, Path: paths.IPC},
		{Type: specs.UTSNamespace, Path: paths.UTS}, {Type: specs.UserNamespace, Path: paths.User},
	} {
		if n.Path != "" {
			out.Namespaces = append(out.Namespaces, n)
		}
	}
	return out
}

// Container is a container as plugins see it. One whose specification cannot be read is shown without.
func (r *Relay) Container(c *index.Container) *nri.Container {
	spec, err := c.LoadSpec()
	if err != nil {
		r.Log.Warn("read the specification of a container for plugins", "container_id", c.ID(), "error", err)
		spec = &specs.Spec{}
	}
	return &nri.Container{ContainerStatus: c.Status(), Spec: spec}
}

// Tell sends plugins an event that has happened already. Their errors are only logged. A stop and a removal are told to
// all of them, also if the client goes away meanwhile: plugins learn of these once, and free what they have for the
// object.
func (r *Relay) Tell(ctx context.Context, event nri.Event, s *index.Sandbox, c *index.Container) {
	switch event {
	case nri.StopPod, nri.RemovePod, nri.RemoveContainer:
		var cancel context.CancelFunc
		ctx, cancel = undo.Context(ctx)
		defer cancel()
	}
	held, release, present, err := r.Hold(ctx)
	if err == nil && present {
		err = r.Ask(held, event, s, c)
	}
	release()
	r.logFailure(s, c, err)
}

// Ask calls plugins for something that is about to happen. The caller has called Hold.
func (r *Relay) Ask(ctx context.Context, event nri.Event, s *index.Sandbox, c *index.Container) error {
	var told *nri.Container
	if c != nil {
		told = r.Container(c)
	}
	return r.Plugins.Tell(ctx, event, r.Pod(s), told)
}

func (r *Relay) logFailure(s *index.Sandbox, c *index.Container, err error) {
	if err == nil {
		return
	}
	of := []any{"pod_id", s.ID(), "error", err}
	if c != nil {
		of = append(of, "container_id", c.ID())
	}
	r.Log.Error("tell plugins what happens", of...)
}

// StopContainer tells plugins, once, that a container ends or has ended. As Tell does, it tells all of them.
func (r *Relay) StopContainer(ctx context.Context, c *index.Container) {
	if !r.Knows(c.ID()) {
		return
	}
	ctx, cancel := undo.Context(ctx)
	defer cancel()
	held, release, present, err := r.Hold(ctx)
	defer release()
	if err == nil && present {
		err = r.Stop(held, r.Pod(c.Sandbox), r.Container(c))
	}
	r.logFailure(c.Sandbox, c, err)
}

// Ended calls StopContainer in the background, for a container that has ended by itself.
func (r *Relay) Ended(c *index.Container) {
	if !r.Knows(c.ID()) {
		return
	}
	r.Background.Go(func() { r.StopContainer(context.Background(), c) })
}

// Arrival is the last step of a pod's start: plugins get the event of the new pod, and no plugin can join until the
// pod's record says that the pod is ready.
type Arrival struct {
	relay   *Relay
	sandbox *index.Sandbox
	release func()
	// Timings are how long plugins took.
	Timings []steps.Timing
}

// Arrival returns the step for the start of a pod. Nothing is held until the step runs.
func (r *Relay) Arrival(s *index.Sandbox) *Arrival {
	return &Arrival{relay: r, sandbox: s, release: func() {}}
}

// Step returns the step, which has no name: its time is in Timings.
func (a *Arrival) Step() steps.Step {
	return steps.Step{Do: a.announce, Undo: a.takeBack}
}

func (a *Arrival) announce(ctx context.Context) error {
	held, release, present, err := a.relay.Hold(ctx)
	a.release = release
	if err != nil || !present {
		return err
	}
	begin := time.Now()
	err = a.relay.Ask(held, nri.RunPod, a.sandbox, nil)
	a.Timings = []steps.Timing{{Step: Step, Begin: begin, Took: time.Since(begin)}}
	return err
}

// takeBack is the undo of announce: plugins are told that the pod has stopped and is removed.
func (a *Arrival) takeBack(ctx context.Context) error {
	a.release()
	if a.relay.Knows(a.sandbox.ID()) {
		a.relay.Tell(ctx, nri.StopPod, a.sandbox, nil)
		a.relay.Tell(ctx, nri.RemovePod, a.sandbox, nil)
	}
	return nil
}

// Release lets plugins join again. It may be called again.
func (a *Arrival) Release() { a.release() }

// Step is the name of the time that a start waits for plugins, in timings.
const Step = "ask plugins"
