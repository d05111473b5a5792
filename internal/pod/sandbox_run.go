package pod

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/containerd/errdefs"

	"berth/internal/disk"
	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/index"
	"berth/internal/pod/operation"
	"berth/internal/pod/parts"
	"berth/internal/pod/prepared"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
	"berth/internal/undo"
)

// RunSandbox makes a pod ready for containers: its namespaces, its network, its files. It returns the pod's ID.
//
// A name in use is errdefs.ErrAlreadyExists, an unknown handler errdefs.ErrNotFound.
func (m *Manager) RunSandbox(ctx context.Context, cfg *model.SandboxConfig, handler string) (string, error) {
	return m.runSandbox(ctx, cfg, handler, false)
}

// runSandbox is RunSandbox; restoring is in the pod's record.
func (m *Manager) runSandbox(ctx context.Context, cfg *model.SandboxConfig, handler string, restoring bool) (_ string,
	err error) {
	defer m.prepared.Busy(prepared.PodStep)()
	settings := m.settings.Load()
	h, err := settings.handler(handler)
	if err != nil {
		return "", err
	}
	if h.LacksSandboxContainer {
		return "", fmt.Errorf("runtime handler %q: %s runs the containers of a pod in a sandbox, and the handler needs "+
			"sandbox_container = true in the configuration of berthd: %w", h.Name, h.RuntimePath, errdefs.ErrFailedPrecondition)
	}
	if err := m.checkUserNamespace(cfg, &h); err != nil {
		return "", err
	}
	if err := ocispec.CheckSysctls(cfg.Sysctls, cfg.Security.Namespaces); err != nil {
		return "", model.FieldSandboxSysctls.Wrong(err)
	}
	if err := m.devices.Check(cfg); err != nil {
		return "", err
	}
	if cfg.Security.Namespaces.PID == "" {
		pod := *cfg
		pod.Security.Namespaces.PID = model.NamespacePod
		cfg = &pod
	}
	id, taken := m.sandboxID(cfg, h.parts())
	defer func() {
		if err != nil && taken {
			m.prepared.Drop(ctx, id)
		}
	}()
	r := record.Sandbox{
		ID:             id,
		Config:         cfg,
		Handler:        handler,
		DefaultHandler: settings.Default,
		Phase:          record.SandboxCreating,
		Restoring:      restoring,

		SandboxContainer: h.SandboxContainer,
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
	s, err := m.index.AddSandbox(m.pods, r, op)
	if err != nil {
		label.Release()
		m.cgroups.Leave(&r)
		return "", err
	}
	cfg = s.Record().Config
	log := m.log.With("pod", cfg.Metadata.Namespace+"/"+cfg.Metadata.Name, "pod_id", s.ID())

	if !taken { // a set of namespaces that was made ahead is joined to the network already
		m.parts.Expect(ctx, cfg)
	}
	arrival := m.relay.Arrival(s)
	defer arrival.Release()
	list := append([]steps.Step{
		{
			Name: "write the pod's record",
			Do:   func(context.Context) error { return s.Update(record.Save, func(*record.Sandbox) {}) },
		},
		{
			Name: "limit the pod's cgroup",
			Do:   func(context.Context) error { return m.cgroups.Limit(new(s.Record())) },
		},
	}, m.parts.Steps(s.SandboxEntry, parts.Origin{Prepared: taken}, h.parts())...)
	ready := m.ready(s, "RunPodSandbox")
	undone, err := steps.Run(ctx, log, append(list, arrival.Step()), func(timings []steps.Timing) error {
		return ready(append(timings, arrival.Timings...))
	})
	if err != nil {
		// If the undo has left something, the pod is removed as by RemovePodSandbox. If that fails too, its client sees it,
		// and removes it, or the next start of berthd does.
		clean, cancel := undo.Context(ctx)
		defer cancel()
		if taken { // also where a step failed before the one that has namespaces to undo
			m.prepared.Drop(ctx, id)
			taken = false
		}
		if undone {
			m.teardown.ForgetSandbox(s)
		} else if rmErr := m.teardown.RemoveSandbox(clean, s); rmErr != nil {
			log.Error("remove a pod that failed to start: it is listed until it is removed", "error", rmErr)
			m.showFailed(s, log)
		}
		return "", fmt.Errorf("run pod %s/%s: %w", cfg.Metadata.Namespace, cfg.Metadata.Name, disk.Exhausted(notStarted(err)))
	}
	if !s.Making() {
		m.events.Tell(s, s.ID(), model.EventCreated)
		m.events.Tell(s, s.ID(), model.EventStarted)
	}
	log.Debug("pod runs", "addresses", s.Record().IPs)
	return s.ID(), nil
}

// showFailed lets clients see a pod that could not be started, and could not be removed either, such as for a CNI
// plugin that has failed in both: the pod is not ready. Until somebody removes it, it keeps its name, of which a
// kubelet could not know otherwise.
func (m *Manager) showFailed(s *index.Sandbox, log *slog.Logger) {
	err := s.Update(record.Happened, func(r *record.Sandbox) { r.Phase, r.Restoring = record.SandboxRemoving, false })
	if err != nil {
		log.Error("record that a pod is to be removed", "error", err)
		return
	}
	m.events.Tell(s, s.ID(), model.EventCreated)
	m.events.Tell(s, s.ID(), model.EventStopped)
}

// sandboxID is the ID of a new pod. taken says that its namespaces and its network have been made ahead.
func (m *Manager) sandboxID(cfg *model.SandboxConfig, handler parts.Handler) (id string, taken bool) {
	if parts.Preparable(cfg, handler) {
		if id, taken := m.prepared.Take(); taken {
			return id, true
		}
	}
	return record.NewID(), false
}

// ready returns the end of a pod's start, for steps.Run: the record says that the pod is ready. call is the name of the
// CRI's call, for metrics.
func (m *Manager) ready(s *index.Sandbox, call string) func([]steps.Timing) error {
	return func(timings []steps.Timing) error {
		m.measureSteps(call, timings)
		return s.Update(record.Save, func(r *record.Sandbox) {
			r.Phase = record.SandboxReady
			r.Timings = steps.NewHistory(timings)
		})
	}
}

func (m *Manager) checkUserNamespace(cfg *model.SandboxConfig, h *Handler) error {
	const field = model.FieldSandboxUserNamespace
	user := cfg.UserNamespace()
	if user == nil {
		return nil
	}
	if err := ocispec.CheckUserNamespace(user); err != nil {
		return field.Wrong(err)
	}
	if !h.UserNamespaces {
		return field.Wrong(fmt.Errorf("runtime handler %q cannot map the owners of mounts: %w", h.Name,
			errdefs.ErrFailedPrecondition))
	}
	if err := m.ownersMapped(); err != nil {
		return field.Wrong(fmt.Errorf("this node has no pods with user namespaces (hostUsers: false): %w: %w", err,
			errdefs.ErrFailedPrecondition))
	}
	if cfg.Security.Privileged {
		return field.Wrong(fmt.Errorf("a privileged pod cannot have a user namespace: %w", errdefs.ErrInvalidArgument))
	}
	return nil
}

// ownersMapped says why root file systems cannot be mounted for pods with user namespaces on this node; nil: they can.
func (m *Manager) ownersMapped() error {
	if m.cfg.OwnersMapped == nil {
		return nil
	}
	return m.cfg.OwnersMapped()
}

var errSandboxNotReady = fmt.Errorf("the pod sandbox is not ready: %w", errdefs.ErrFailedPrecondition)
