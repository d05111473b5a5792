// Package parts makes and removes the parts of a pod that are not containers: its namespaces, its network, its files
// with the shared memory, and its init process. Maker.Steps returns the steps that make them.
package parts

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/containerd/errdefs"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/network"
	"berth/internal/ocispec"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
	"berth/internal/resolvconf"
)

// Keeper is what a Maker asks of the keeper: to run and to end the inits of pods.
type Keeper interface {
	Run(context.Context, *keeper.RunRequest) (*keeper.RunResult, error)
	Delete(ctx context.Context, id string) error
}

// Maker makes and removes the parts of pods. The caller of its methods holds the pod's lock.
type Maker struct {
	Dirs    *layout.Dirs
	Cgroups *cgroups.Driver
	Keeper  Keeper
	Network network.Provider
	Systemd bool // the cgroup driver
	Tmpfs   Tmpfs
	// ResolvConf are the node's files for pods that have no DNS of their own.
	ResolvConf resolvconf.Files

	reserved atomic.Pointer[netip.AddrPort] // see Reserve
}

// Handler is what a runtime handler says of the parts of its pods.
type Handler struct {
	Setup   keeper.SetupChoice // what sets the init up
	Sysctls map[string]string  // those of pods that ask for no other value
	ShmSize uint64             // of /dev/shm, in bytes; 0: ocispec.DefaultShmSize
	// Sandbox is the runtime of the init of a pod with a sandbox container (record.Sandbox.SandboxContainer); nil: none.
	Sandbox *Sandbox
}

// Sandbox is an OCI runtime, or a shim, that makes a sandbox with the first container of a pod.
type Sandbox struct {
	RuntimePath, RuntimeRoot string
	RuntimeFlags             []string
	Shim                     *keeper.Shim // nil: it is an OCI runtime
	Annotations              []string     // of the pod, that the runtime is told
}

// Origin is what there is of a pod before its parts are made.
type Origin struct {
	Before   *network.Result // the network that it had; nil: none, or the node's
	Prepared bool            // Prepare has made its namespaces and its network
}

// Steps are those that make a pod's parts: its namespaces, network, files and init. A pod that had a network
// before gets its addresses again, and that network stays on record when a step fails: its addresses are kept for the
// next try. The namespaces and the network of a pod that was given the ID of a set of them (Prepare) are there.
func (p *Maker) Steps(s *record.SandboxEntry, origin Origin, handler Handler) []steps.Step {
	before := origin.Before
	return []steps.Step{
		{
			Name: "make the pod's namespaces",
			Do:   func(context.Context) error { return p.makeNamespaces(s, origin, handler) },
			Undo: func(context.Context) error { return p.RemoveNamespaces(s.ID()) },
		},
		{
			Name: "set up the pod's network",
			Do:   func(ctx context.Context) error { return p.setUpNetwork(ctx, s, before, handler) },
			Undo: func(ctx context.Context) error {
				if before != nil {
					return nil
				}
				return p.TearDownNetwork(ctx, s)
			},
		},
		{
			Name: "make the pod's files and shared memory",
			Do:   func(context.Context) error { return p.makeFiles(s, handler) },
			Undo: func(context.Context) error { return p.UnmountFiles(s.ID()) },
		},
		{
			Name: "start the pod's init",
			Do:   func(ctx context.Context) error { return p.startInit(ctx, s, handler) },
			Undo: func(ctx context.Context) error { return p.StopInit(ctx, s) },
		},
	}
}

// makeNamespaces makes and pins those namespaces that are the pod's own, but for that of PIDs, which its init makes.
func (p *Maker) makeNamespaces(s *record.SandboxEntry, origin Origin, handler Handler) error {
	r := s.Record()
	cfg := r.Config
	if err := p.Dirs.MakeStatePod(&r); err != nil {
		return err
	}
	var o namespace.Options
	o.Sysctls, _ = sysctls(cfg, handler)
	if !cfg.NodeNetwork() {
		// A pod in the node's network has the node's name too: it is the node, to its peers.
		o.Kinds = append(o.Kinds, namespace.Network, namespace.UTS)
		o.Hostname = cfg.Hostname
	}
	if cfg.OwnIPC() {
		o.Kinds = append(o.Kinds, namespace.IPC)
	}
	if user := cfg.UserNamespace(); user != nil {
		o.User = &namespace.UserMappings{UIDs: user.UIDs, GIDs: user.GIDs}
	} else if len(o.Kinds) == 0 {
		return nil
	}
	if origin.Prepared {
		return p.Dirs.Namespaces(s.ID()).Configure(o)
	}
	return p.Dirs.Namespaces(s.ID()).Create(o)
}

// RemoveNamespaces lets a pod's namespaces go. That of its network stays as long as CNI plugins have to take the pod
// out of it: a teardown that failed is repeated, and then needs it. It is idempotent.
func (p *Maker) RemoveNamespaces(id string) error {
	if p.Network.NeedsNetNS(id) {
		return p.Dirs.Namespaces(id).RemoveOthers()
	}
	return p.Dirs.Namespaces(id).Remove()
}

// sysctls are those of a pod's namespaces, and those of its network interface, which is there later.
func sysctls(cfg *model.SandboxConfig, handler Handler) (beginning, interfaces map[string]string) {
	return namespace.SplitSysctls(ocispec.Sysctls(cfg.Sysctls, handler.Sysctls, cfg.Security.Namespaces))
}

// networkPod is a pod as its network sees it.
func (p *Maker) networkPod(r *record.Sandbox) *network.Pod {
	return &network.Pod{
		ID:           r.ID,
		Name:         r.Config.Metadata.Name,
		Namespace:    r.Config.Metadata.Namespace,
		UID:          r.Config.Metadata.UID,
		NetNS:        p.Dirs.NetNS(r.ID),
		Ports:        r.Config.PortMappings,
		Labels:       r.Config.Labels,
		Annotations:  r.Config.Annotations,
		CgroupParent: r.CgroupParent,
		DNS:          r.Config.DNS,
	}
}

// JoinedPod is a pod with the network that it has by its record. Of sysctls of its interface it has the pod's own: its
// runtime handler may have others by now. The error is that of NetworkBefore: the pod is returned all the same.
func (p *Maker) JoinedPod(r *record.Sandbox) (*network.Pod, error) {
	pod := p.networkPod(r)
	_, pod.Sysctls = sysctls(r.Config, Handler{})
	if len(r.IPs) == 0 {
		return pod, nil
	}
	var err error
	pod.Before, err = NetworkBefore(r)
	return pod, err
}

// NetworkBefore is the network that a pod with a network of its own has by its record. The error names addresses that
// are none: the result lacks them.
func NetworkBefore(r *record.Sandbox) (*network.Result, error) {
	addresses, err := r.Addresses()
	return &network.Result{IPs: addresses, Interface: r.Interface, CNI: r.Network}, err
}

// Expect says that the parts of a pod are made soon.
func (p *Maker) Expect(ctx context.Context, cfg *model.SandboxConfig) {
	if !cfg.NodeNetwork() {
		p.Network.Expect(ctx)
	}
}

// setUpNetwork joins a pod to the network, with the addresses that it had before where it comes back, and sets the
// sysctls of its interface.
func (p *Maker) setUpNetwork(ctx context.Context, s *record.SandboxEntry, before *network.Result,
	handler Handler) error {
	r := s.Record()
	if r.NodeNetwork() {
		return nil
	}
	if err := p.checkPorts(r.Config.PortMappings); err != nil {
		return err
	}
	pod := p.networkPod(&r)
	pod.Before = before
	_, pod.Sysctls = sysctls(r.Config, handler)
	result, err := p.Network.Setup(ctx, pod)
	if err != nil {
		return err
	}
	if len(pod.Sysctls) > 0 {
		o := namespace.Options{Kinds: []namespace.Kind{namespace.Network}, Sysctls: pod.Sysctls}
		if err := p.Dirs.Namespaces(s.ID()).Configure(o); err != nil {
			return err
		}
	}
	// The record is written with the pod's next phase; until then the network's own records know the address.
	return s.Update(record.Draft, func(r *record.Sandbox) {
		r.IPs = nil // a slice of its own: statuses share the old one
		for _, ip := range result.IPs {
			r.IPs = append(r.IPs, ip.String())
		}
		r.Interface = result.Interface
		r.Network = result.CNI
	})
}

// TearDownNetwork gives a pod's addresses and host ports back. It is idempotent.
func (p *Maker) TearDownNetwork(ctx context.Context, s *record.SandboxEntry) error {
	r := s.Record()
	if r.NodeNetwork() {
		return nil
	}
	return p.Network.Teardown(ctx, p.networkPod(&r))
}

// ForgetNetwork is TearDownNetwork for a pod that its client wants to be gone: plugins that have never given it a
// network and do not work, since their provider was uninstalled for example, do not keep it.
func (p *Maker) ForgetNetwork(ctx context.Context, s *record.SandboxEntry) error {
	r := s.Record()
	if r.NodeNetwork() || r.Network != nil {
		return p.TearDownNetwork(ctx, s)
	}
	return p.Network.Forget(ctx, p.networkPod(&r))
}

// LeaveNetwork is called before a pod is made again with the addresses that it has: what is in its old network
// namespace is given back, and the namespace may go.
func (p *Maker) LeaveNetwork(ctx context.Context, s *record.SandboxEntry) error {
	r := s.Record()
	if r.NodeNetwork() {
		return nil
	}
	return p.Network.Leave(ctx, r.ID)
}

// startInit gives a pod whose containers share a PID namespace the init that such a namespace needs. The init of a pod
// with a sandbox container is that container: it makes the sandbox.
func (p *Maker) startInit(ctx context.Context, s *record.SandboxEntry, handler Handler) error {
	r := s.Record()
	if !r.HasInit() {
		return nil
	}
	root := p.Dirs.InitRoot(s.ID())
	// In a user namespace nobody but the node could make these.
	for _, dir := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(root, keeper.ReaperProgram), nil, 0o755); err != nil {
		return err
	}
	if err := r.Label.Apply(ctx, root, false); err != nil {
		return err
	}
	input := ocispec.ReaperInput{
		SandboxID:   s.ID(),
		Rootfs:      root,
		Namespaces:  p.Dirs.NamespacePaths(&r),
		User:        r.Config.UserNamespace(),
		CgroupsPath: p.Cgroups.SandboxPath(r.CgroupParent, s.ID()),
		Label:       r.Label,
	}
	request := &keeper.RunRequest{
		ID:            s.ID(),
		PodID:         s.ID(),
		Name:          "init",
		SystemdCgroup: p.Systemd,
		Setup:         handler.Setup,
		Reaper:        true,
	}
	if r.SandboxContainer {
		if handler.Sandbox == nil {
			return fmt.Errorf("the pod has a sandbox container, and its runtime handler has none any more: %w",
				errdefs.ErrFailedPrecondition)
		}
		input.Sandbox, input.Annotations = r.Config, handler.Sandbox.Annotations
		request.RuntimePath, request.RuntimeRoot = handler.Sandbox.RuntimePath, handler.Sandbox.RuntimeRoot
		request.RuntimeFlags, request.Shim, request.Setup = handler.Sandbox.RuntimeFlags, handler.Sandbox.Shim, ""
	}
	var err error
	if request.Spec, err = ocispec.Reaper(input); err != nil {
		return err
	}
	result, err := p.Keeper.Run(ctx, request)
	err = p.Dirs.Barred(&r, err)
	if err != nil {
		return err
	}
	err = s.Update(record.Draft, func(r *record.Sandbox) { r.ReaperPID, r.ReaperSetup = result.PID, result.Setup })
	if err != nil {
		return err
	}
	if r.Config.Security.Namespaces.PID != model.NamespacePod {
		return nil
	}
	return p.Dirs.Namespaces(s.ID()).PinProcess(namespace.PID, result.PID)
}

// StopInit ends a pod's init, where it has one. It is idempotent.
func (p *Maker) StopInit(ctx context.Context, s *record.SandboxEntry) error {
	if !new(s.Record()).HasInit() {
		return nil
	}
	if err := p.Keeper.Delete(ctx, s.ID()); err != nil {
		return err
	}
	return os.RemoveAll(p.Dirs.InitRoot(s.ID()))
}
