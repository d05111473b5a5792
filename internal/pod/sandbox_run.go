package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"berth/internal/keeper"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/network"
	"berth/internal/ocispec"
	"berth/internal/rootfs"
)

// RunSandbox makes a pod ready for containers: its namespaces, its network, its files. It returns the pod's ID.
//
// A name in use is errdefs.ErrAlreadyExists, an unknown handler errdefs.ErrNotFound.
func (m *Manager) RunSandbox(ctx context.Context, cfg *model.SandboxConfig, handler string) (string, error) {
	if _, err := m.handler(handler); err != nil {
		return "", err
	}
	if err := m.checkUserNamespace(cfg, handler); err != nil {
		return "", err
	}
	if err := ocispec.CheckSysctls(cfg.Sysctls, cfg.Security.Namespaces); err != nil {
		return "", fmt.Errorf("config.linux.sysctls: %w", err)
	}
	if err := m.checkDevices(cfg); err != nil {
		return "", err
	}
	s := m.newSandbox(newID())
	if cfg.Security.Namespaces.PID == "" {
		pod := *cfg
		pod.Security.Namespaces.PID = model.NamespacePod
		cfg = &pod
	}
	s.rec = SandboxRecord{
		ID:      s.id,
		Config:  cfg,
		Handler: handler,
		Phase:   SandboxCreating,
	}
	if err := m.placeCgroup(&s.rec); err != nil {
		return "", err
	}
	label, err := ocispec.NewLabel(cfg.Security.SELinux)
	if err != nil {
		m.leaveCgroup(s)
		return "", err
	}
	s.rec.Label = label
	_ = s.op.sem.Acquire(ctx, exclusive) // nobody else has it
	defer s.op.sem.Release(exclusive)

	m.mu.Lock()
	if err = m.nameSandbox(s); err == nil {
		cfg = s.rec.Config
		s.rec.CreatedAt = m.sandboxCreated(cfg.Metadata)
		s.publish()
		m.pod[s.id] = s
	}
	m.mu.Unlock()
	if err != nil {
		label.Release()
		m.leaveCgroup(s)
		return "", err
	}
	log := m.log.With("pod", cfg.Metadata.Namespace+"/"+cfg.Metadata.Name, "id", shortID(s.id))

	timings, undone, err := runSteps(ctx, log, append([]step{
		{
			name: "write the pod's record",
			do:   func(context.Context) error { return m.setSandbox(s, func(*SandboxRecord) {}) },
		},
		{
			name: "limit the pod's cgroup",
			do:   func(context.Context) error { return m.limitPod(&s.rec) },
		},
	}, m.buildSandbox(s, nil)...))
	if err == nil {
		err = m.setSandbox(s, func(r *SandboxRecord) {
			r.Phase = SandboxReady
			r.Timings = timings
		})
		undone = false
	}
	if err != nil {
		// What the undo has left, or a record that could not be written, goes the way of a removal, which is done again at
		// the next start of berthd if it fails now.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if undone {
			m.forgetSandbox(s)
		} else if rmErr := m.removeSandboxLocked(clean, s); rmErr != nil {
			log.Error("remove a pod that failed to start", "error", rmErr)
		}
		return "", fmt.Errorf("run pod %s/%s: %w", cfg.Metadata.Namespace, cfg.Metadata.Name, noSpace(err))
	}
	m.tell(s, s.id, model.EventCreated)
	m.tell(s, s.id, model.EventStarted)
	log.Debug("pod runs", "ips", s.rec.IPs)
	return s.id, nil
}

// buildSandbox are the steps that make a pod's parts: its namespaces, network, files and init. A pod that had a network
// before gets its addresses again, and that network stays on record when a step fails: its addresses are kept for the
// next try.
func (m *Manager) buildSandbox(s *sandbox, before *network.Result) []step {
	return []step{
		{
			name: "make the pod's namespaces",
			do:   func(context.Context) error { return m.makeNamespaces(s) },
			undo: func(context.Context) error { return m.namespaces(s.id).Remove() },
		},
		{
			name: "set up the pod's network",
			do:   func(ctx context.Context) error { return m.setUpNetwork(ctx, s, before) },
			undo: func(ctx context.Context) error {
				if before != nil {
					return nil
				}
				return m.tearDownNetwork(ctx, s)
			},
		},
		{
			name: "make the pod's files and shared memory",
			do:   func(context.Context) error { return m.makeFiles(s) },
			undo: func(context.Context) error { return m.unmountFiles(s.id) },
		},
		{
			name: "start the pod's init",
			do:   func(ctx context.Context) error { return m.startReaper(ctx, s) },
			undo: func(ctx context.Context) error { return m.stopReaper(ctx, s) },
		},
	}
}

// nodeNetwork tells whether a pod lives in the node's network.
func nodeNetwork(cfg *model.SandboxConfig) bool {
	return cfg.Security.Namespaces.Network == model.NamespaceNode
}

// userNamespace is the user namespace that a pod asks for; nil: the node's.
func userNamespace(cfg *model.SandboxConfig) *model.UserNamespace {
	if user := cfg.Security.Namespaces.User; user != nil && user.Mode == model.NamespacePod {
		return user
	}
	return nil
}

func (m *Manager) checkUserNamespace(cfg *model.SandboxConfig, handler string) error {
	const field = "config.linux.security_context.namespace_options.userns_options"
	user := userNamespace(cfg)
	if user == nil {
		return nil
	}
	if err := ocispec.CheckUserNamespace(user); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	h, err := m.handler(handler)
	if err != nil {
		return err
	}
	if !h.UserNamespaces {
		return fmt.Errorf("%s: runtime handler %q cannot map the owners of mounts: %w", field, h.Name, errdefs.ErrFailedPrecondition)
	}
	if cfg.Security.Privileged {
		return fmt.Errorf("%s: a privileged pod cannot have a user namespace: %w", field, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (m *Manager) makeNamespaces(s *sandbox) error {
	cfg := s.rec.Config
	if err := m.makeStatePod(&s.rec); err != nil {
		return err
	}
	o := namespace.Options{Sysctls: cfg.Sysctls}
	if !nodeNetwork(cfg) {
		// A pod in the node's network has the node's name too: it is the node, to its peers.
		o.Kinds = append(o.Kinds, namespace.Network, namespace.UTS)
		o.Hostname = cfg.Hostname
	}
	if ownShm(cfg) {
		o.Kinds = append(o.Kinds, namespace.IPC)
	}
	if user := userNamespace(cfg); user != nil {
		o.User = &namespace.UserMappings{UIDs: user.UIDs, GIDs: user.GIDs}
	} else if len(o.Kinds) == 0 {
		return nil
	}
	return m.namespaces(s.id).Create(o)
}

// networkPod is a pod as its network sees it.
func (m *Manager) networkPod(r *SandboxRecord) *network.Pod {
	return &network.Pod{
		ID:           r.ID,
		Name:         r.Config.Metadata.Name,
		Namespace:    r.Config.Metadata.Namespace,
		UID:          r.Config.Metadata.UID,
		NetNS:        m.namespaces(r.ID).Path(namespace.Network),
		Ports:        r.Config.PortMappings,
		Labels:       r.Config.Labels,
		Annotations:  r.Config.Annotations,
		CgroupParent: r.CgroupParent,
		DNS:          r.Config.DNS,
	}
}

func (m *Manager) setUpNetwork(ctx context.Context, s *sandbox, before *network.Result) error {
	if nodeNetwork(s.rec.Config) {
		return nil
	}
	pod := m.networkPod(&s.rec)
	pod.Before = before
	result, err := m.cfg.Network.Setup(ctx, pod)
	if err != nil {
		return err
	}
	// The record is written with the pod's next phase; until then the network's own records know the address.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rec.IPs = nil // a slice of its own: statuses share the old one
	for _, ip := range result.IPs {
		s.rec.IPs = append(s.rec.IPs, ip.String())
	}
	s.rec.Interface = result.Interface
	s.rec.Network = result.CNI
	return nil
}

func (m *Manager) tearDownNetwork(ctx context.Context, s *sandbox) error {
	r := s.record()
	if nodeNetwork(r.Config) {
		return nil
	}
	return m.cfg.Network.Teardown(ctx, m.networkPod(&r))
}

// startReaper gives a pod whose containers share a PID namespace the init that such a namespace needs.
func (m *Manager) startReaper(ctx context.Context, s *sandbox) error {
	if s.rec.Config.Security.Namespaces.PID != model.NamespacePod {
		return nil
	}
	root := m.reaperRoot(s.id)
	// In a user namespace nobody but the node could make these.
	for _, dir := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(root, keeper.ReaperProgram), nil, 0o755); err != nil {
		return err
	}
	if err := s.rec.Label.Apply(root, false); err != nil {
		return err
	}
	spec, err := ocispec.Reaper(ocispec.ReaperInput{
		SandboxID:   s.id,
		Rootfs:      root,
		Namespaces:  m.namespacePaths(&s.rec),
		CgroupsPath: m.cgroupPath(s.rec.CgroupParent, s.id),
		Label:       s.rec.Label,
	})
	if err != nil {
		return err
	}
	handler, err := m.handler(s.rec.Handler)
	if err != nil {
		return err
	}
	result, err := m.cfg.Keeper.Run(ctx, &keeper.RunRequest{
		ID:            s.id,
		PodID:         s.id,
		Name:          "init",
		Spec:          spec,
		SystemdCgroup: m.cfg.SystemdCgroup,
		Setup:         handler.Setup,
		Reaper:        true,
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.rec.ReaperPID, s.rec.ReaperSetup = result.PID, result.Setup
	s.mu.Unlock()
	return m.namespaces(s.id).PinProcess(namespace.PID, result.PID)
}

func (m *Manager) reaperRoot(id string) string { return filepath.Join(m.statePod(id), initDir) }

func (m *Manager) stopReaper(ctx context.Context, s *sandbox) error {
	if s.record().Config.Security.Namespaces.PID != model.NamespacePod {
		return nil
	}
	if err := m.cfg.Keeper.Delete(ctx, s.id); err != nil {
		return err
	}
	return os.RemoveAll(m.reaperRoot(s.id))
}

// namespacePaths are the pins of a pod's shared namespaces; empty where it lives in the node's.
func (m *Manager) namespacePaths(r *SandboxRecord) ocispec.Namespaces {
	set := m.namespaces(r.ID)
	var n ocispec.Namespaces
	if !nodeNetwork(r.Config) {
		n.Network = set.Path(namespace.Network)
		n.UTS = set.Path(namespace.UTS)
	}
	if ownShm(r.Config) {
		n.IPC = set.Path(namespace.IPC)
	}
	if userNamespace(r.Config) != nil {
		n.User = set.Path(namespace.User)
	}
	return n
}

// forgetSandbox drops a sandbox of which nothing but the record is left.
func (m *Manager) forgetSandbox(s *sandbox) {
	m.leaveCgroup(s) // while the record says what is to be removed
	if err := m.discard(m.pods.Path(s.id)); err != nil {
		m.log.Error("remove a pod's directory", "id", shortID(s.id), "error", err)
	}
	if err := rootfs.Remove(context.Background(), m.statePod(s.id)); err != nil {
		m.log.Error("remove a pod's state directory", "id", shortID(s.id), "error", err)
	}
	if m.cfg.Devices != nil {
		m.cfg.Devices.FreePod(s.id)
	}
	r := s.record()
	r.Label.Release()
	m.mu.Lock()
	delete(m.pod, s.id)
	m.sampler.Forget(s.id)
	if name := sandboxName(r.Config.Metadata); m.names[name] == s.id {
		delete(m.names, name)
	}
	m.mu.Unlock()
}

var errSandboxNotReady = fmt.Errorf("the pod sandbox is not ready: %w", errdefs.ErrFailedPrecondition)
