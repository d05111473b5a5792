package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/network"
	"berth/internal/ocispec"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/layout"
	"berth/internal/pod/operation"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
	"berth/internal/rootfs"
)

// RunSandbox makes a pod ready for containers: its namespaces, its network, its files. It returns the pod's ID.
//
// A name in use is errdefs.ErrAlreadyExists, an unknown handler errdefs.ErrNotFound.
func (m *Manager) RunSandbox(ctx context.Context, cfg *model.SandboxConfig, handler string) (string, error) {
	if _, err := m.handlers.get(handler); err != nil {
		return "", err
	}
	if err := m.checkUserNamespace(cfg, handler); err != nil {
		return "", err
	}
	if err := ocispec.CheckSysctls(cfg.Sysctls, cfg.Security.Namespaces); err != nil {
		return "", model.FieldSandboxSysctls.Wrong(err)
	}
	if err := m.devices.check(cfg); err != nil {
		return "", err
	}
	if cfg.Security.Namespaces.PID == "" {
		pod := *cfg
		pod.Security.Namespaces.PID = model.NamespacePod
		cfg = &pod
	}
	r := record.Sandbox{
		ID:      record.NewID(),
		Config:  cfg,
		Handler: handler,
		Phase:   record.SandboxCreating,
	}
	if err := m.cgroups.Place(&r); err != nil {
		return "", err
	}
	label, err := ocispec.NewLabel(cfg.Security.SELinux)
	if err != nil {
		m.cgroups.Leave(&r)
		return "", err
	}
	r.Label = label
	op, release := operation.Taken()
	defer release()
	s, err := m.index.addSandbox(m.pods, r, op)
	if err != nil {
		label.Release()
		m.cgroups.Leave(&r)
		return "", err
	}
	cfg = s.Record().Config
	log := m.log.With("pod", cfg.Metadata.Namespace+"/"+cfg.Metadata.Name, "id", record.ShortID(s.id))

	undone, err := steps.Run(ctx, log, append([]steps.Step{
		{
			Name: "write the pod's record",
			Do:   func(context.Context) error { return s.Update(record.Save, func(*record.Sandbox) {}) },
		},
		{
			Name: "limit the pod's cgroup",
			Do:   func(context.Context) error { return m.cgroups.Limit(new(s.Record())) },
		},
	}, m.parts.steps(s, nil)...), s.ready)
	if err != nil {
		// What the undo has left goes the way of a removal, which is done again at the next start of berthd if it fails now.
		clean, cancel := steps.Undoing(ctx)
		defer cancel()
		if undone {
			m.teardown.forgetSandbox(s)
		} else if rmErr := m.teardown.removeSandbox(clean, s); rmErr != nil {
			log.Error("remove a pod that failed to start", "error", rmErr)
		}
		return "", fmt.Errorf("run pod %s/%s: %w", cfg.Metadata.Namespace, cfg.Metadata.Name, record.NoSpace(err))
	}
	m.events.tell(s, s.id, model.EventCreated)
	m.events.tell(s, s.id, model.EventStarted)
	log.Debug("pod runs", "ips", s.Record().IPs)
	return s.id, nil
}

// ready records that a pod's parts are made.
func (s *sandbox) ready(timings []steps.Timing) error {
	return s.Update(record.Save, func(r *record.Sandbox) {
		r.Phase = record.SandboxReady
		r.Timings = timings
	})
}

// sandboxParts makes and removes the parts of pods: namespaces, network, files, init. The caller holds the pod's lock.
type sandboxParts struct {
	dirs     *layout.Dirs
	cgroups  *cgroups.Driver
	handlers handlers
	keeper   Keeper
	network  network.Provider
	systemd  bool
}

// steps are those that make a pod's parts: its namespaces, network, files and init. A pod that had a network
// before gets its addresses again, and that network stays on record when a step fails: its addresses are kept for the
// next try.
func (p *sandboxParts) steps(s *sandbox, before *network.Result) []steps.Step {
	return []steps.Step{
		{
			Name: "make the pod's namespaces",
			Do:   func(context.Context) error { return p.makeNamespaces(s) },
			Undo: func(context.Context) error { return p.dirs.Namespaces(s.id).Remove() },
		},
		{
			Name: "set up the pod's network",
			Do:   func(ctx context.Context) error { return p.setUpNetwork(ctx, s, before) },
			Undo: func(ctx context.Context) error {
				if before != nil {
					return nil
				}
				return p.tearDownNetwork(ctx, s)
			},
		},
		{
			Name: "make the pod's files and shared memory",
			Do:   func(context.Context) error { return p.makeFiles(s) },
			Undo: func(context.Context) error { return p.unmountFiles(s.id) },
		},
		{
			Name: "start the pod's init",
			Do:   func(ctx context.Context) error { return p.startReaper(ctx, s) },
			Undo: func(ctx context.Context) error { return p.stopReaper(ctx, s) },
		},
	}
}

func (m *Manager) checkUserNamespace(cfg *model.SandboxConfig, handler string) error {
	const field = model.FieldSandboxUserNamespace
	user := cfg.UserNamespace()
	if user == nil {
		return nil
	}
	if err := ocispec.CheckUserNamespace(user); err != nil {
		return field.Wrong(err)
	}
	h, err := m.handlers.get(handler)
	if err != nil {
		return err
	}
	if !h.UserNamespaces {
		return field.Wrong(fmt.Errorf("runtime handler %q cannot map the owners of mounts: %w", h.Name, errdefs.ErrFailedPrecondition))
	}
	if cfg.Security.Privileged {
		return field.Wrong(fmt.Errorf("a privileged pod cannot have a user namespace: %w", errdefs.ErrInvalidArgument))
	}
	return nil
}

func (p *sandboxParts) makeNamespaces(s *sandbox) error {
	r := s.Record()
	cfg := r.Config
	if err := p.dirs.MakeStatePod(&r); err != nil {
		return err
	}
	o := namespace.Options{Sysctls: cfg.Sysctls}
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
	return p.dirs.Namespaces(s.id).Create(o)
}

// networkPod is a pod as its network sees it.
func (p *sandboxParts) networkPod(r *record.Sandbox) *network.Pod {
	return &network.Pod{
		ID:           r.ID,
		Name:         r.Config.Metadata.Name,
		Namespace:    r.Config.Metadata.Namespace,
		UID:          r.Config.Metadata.UID,
		NetNS:        p.dirs.Namespaces(r.ID).Path(namespace.Network),
		Ports:        r.Config.PortMappings,
		Labels:       r.Config.Labels,
		Annotations:  r.Config.Annotations,
		CgroupParent: r.CgroupParent,
		DNS:          r.Config.DNS,
	}
}

func (p *sandboxParts) setUpNetwork(ctx context.Context, s *sandbox, before *network.Result) error {
	r := s.Record()
	if r.NodeNetwork() {
		return nil
	}
	pod := p.networkPod(&r)
	pod.Before = before
	result, err := p.network.Setup(ctx, pod)
	if err != nil {
		return err
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

func (p *sandboxParts) tearDownNetwork(ctx context.Context, s *sandbox) error {
	r := s.Record()
	if r.NodeNetwork() {
		return nil
	}
	return p.network.Teardown(ctx, p.networkPod(&r))
}

// startReaper gives a pod whose containers share a PID namespace the init that such a namespace needs.
func (p *sandboxParts) startReaper(ctx context.Context, s *sandbox) error {
	r := s.Record()
	if r.Config.Security.Namespaces.PID != model.NamespacePod {
		return nil
	}
	root := p.dirs.InitRoot(s.id)
	// In a user namespace nobody but the node could make these.
	for _, dir := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(root, keeper.ReaperProgram), nil, 0o755); err != nil {
		return err
	}
	if err := r.Label.Apply(root, false); err != nil {
		return err
	}
	spec, err := ocispec.Reaper(ocispec.ReaperInput{
		SandboxID:   s.id,
		Rootfs:      root,
		Namespaces:  p.dirs.NamespacePaths(&r),
		CgroupsPath: p.cgroups.Path(r.CgroupParent, s.id),
		Label:       r.Label,
	})
	if err != nil {
		return err
	}
	handler, err := p.handlers.get(r.Handler)
	if err != nil {
		return err
	}
	result, err := p.keeper.Run(ctx, &keeper.RunRequest{
		ID:            s.id,
		PodID:         s.id,
		Name:          "init",
		Spec:          spec,
		SystemdCgroup: p.systemd,
		Setup:         handler.Setup,
		Reaper:        true,
	})
	if err != nil {
		return notStarted(err)
	}
	err = s.Update(record.Draft, func(r *record.Sandbox) { r.ReaperPID, r.ReaperSetup = result.PID, result.Setup })
	if err != nil {
		return err
	}
	return p.dirs.Namespaces(s.id).PinProcess(namespace.PID, result.PID)
}

func (p *sandboxParts) stopReaper(ctx context.Context, s *sandbox) error {
	if s.Record().Config.Security.Namespaces.PID != model.NamespacePod {
		return nil
	}
	if err := p.keeper.Delete(ctx, s.id); err != nil {
		return err
	}
	return os.RemoveAll(p.dirs.InitRoot(s.id))
}

// forgetSandbox drops a sandbox of which nothing but the record is left.
func (td *teardown) forgetSandbox(s *sandbox) {
	r := s.Record()
	td.cgroups.Leave(&r) // while the record says what is to be removed
	if err := td.trash.discard(td.pods.Path(s.id)); err != nil {
		td.log.Error("remove a pod's directory", "id", record.ShortID(s.id), "error", err)
	}
	if err := rootfs.Remove(context.Background(), td.dirs.StatePod(s.id)); err != nil {
		td.log.Error("remove a pod's state directory", "id", record.ShortID(s.id), "error", err)
	}
	td.devices.freePod(s.id)
	r.Label.Release()
	td.index.forgetSandbox(s)
	td.sampler.Forget(s.id)
}

var errSandboxNotReady = fmt.Errorf("the pod sandbox is not ready: %w", errdefs.ErrFailedPrecondition)
