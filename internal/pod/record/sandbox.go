package record

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/steps"
	"berth/internal/state"
)

// Sandbox is the record of a pod. Its JSON is the format of <root>/pods/<id>/pod.json. CONTRIBUTING.md says how to add
// a field.
type Sandbox struct {
	ID      string               `json:"id"`
	Config  *model.SandboxConfig `json:"config"` // immutable: statuses share it
	Handler string               `json:"handler,omitempty"`
	// DefaultHandler is the node's default handler at the time when the pod was made. Records of earlier versions have
	// none.
	DefaultHandler string       `json:"defaultHandler,omitempty"`
	Phase          SandboxPhase `json:"phase"`
	CreatedAt      time.Time    `json:"createdAt"`

	CgroupParent string `json:"cgroupParent"`
	// OwnedCgroup is the topmost cgroup on the path to CgroupParent that did not exist before the pod. It is removed with
	// the pod.
	OwnedCgroup string `json:"ownedCgroup,omitempty"`

	// SharedTmpfs says that the pod's files and its shared memory are on one tmpfs. It is false for a pod that an
	// earlier version of Berth has made.
	SharedTmpfs bool `json:"sharedTmpfs,omitempty"`

	// SandboxContainer says that the pod's init has made a sandbox, by the OCI runtime of the handler, in which the pod's
	// containers are.
	SandboxContainer bool `json:"sandboxContainer,omitempty"`

	IPs       []string        `json:"ips,omitempty"`
	Interface string          `json:"interface,omitempty"`
	Network   json.RawMessage `json:"network,omitempty"` // a CNI result
	// ReaperPID is the PID of the pod's init, and ReaperSetup the engine that has set the init up. Both are zero for a pod
	// without an init.
	ReaperPID   int           `json:"reaperPID,omitempty"`
	ReaperSetup keeper.Setup  `json:"reaperSetup,omitzero"`
	Label       ocispec.Label `json:"label,omitzero"`
	// Restoring says that the pod is being made from a checkpoint: no client knows it yet, and a berthd that starts
	// removes it.
	Restoring bool          `json:"restoring,omitempty"`
	Timings   steps.History `json:"timings,omitempty"`
}

// NodeNetwork tells whether a pod lives in the node's network.
func (r *Sandbox) NodeNetwork() bool {
	return r.Config.NodeNetwork()
}

// Addresses are the addresses that a pod has, or had before it broke. The error names those of the record that are
// none; the others are returned all the same.
func (r *Sandbox) Addresses() (list []netip.Addr, err error) {
	for _, text := range r.IPs {
		addr, perr := netip.ParseAddr(text)
		if perr != nil {
			err = errors.Join(err, fmt.Errorf("record of pod sandbox %s: %w", ShortID(r.ID), perr))
			continue
		}
		list = append(list, addr)
	}
	return list, err
}

// HasInit tells whether the pod has an init process.
func (r *Sandbox) HasInit() bool {
	return r.SandboxContainer || r.Config.Security.Namespaces.PID == model.NamespacePod
}

// Sandboxes is the table of all pods, and SandboxEntry is one pod in it.
type (
	Sandboxes    = Table[Sandbox, model.SandboxStatus]
	SandboxEntry = Entry[Sandbox, model.SandboxStatus]
)

// NewSandboxes returns the empty table of the pods whose records are below dir. netns returns the path at which a pod's
// network namespace is pinned.
func NewSandboxes(dir string, netns func(id string) string, log *slog.Logger) *Sandboxes {
	return &Sandboxes{
		files: state.Records{Dir: dir, File: "pod.json"},
		log:   log,
		kind: kind[Sandbox, model.SandboxStatus]{
			noun: "pod", key: "pod_id",
			check: func(id string, r *Sandbox) error {
				if r.ID != id || r.Config == nil {
					return fmt.Errorf("the record is of %q", r.ID)
				}
				return nil
			},
			change: func(from, to *Sandbox) error {
				return checkPhase(sandboxNext, "pod sandbox "+ShortID(from.ID), from.Phase, to.Phase)
			},
			phase:  func(r *Sandbox) string { return string(r.Phase) },
			lasts:  func(r *Sandbox) bool { return r.Phase.lasts() },
			status: func(r *Sandbox) *model.SandboxStatus { return sandboxStatus(r, netns) },
		},
	}
}

// RuntimeName is the runtime handler that the pod was made with. Empty: the node's current default handler.
func (r *Sandbox) RuntimeName() string { return cmp.Or(r.Handler, r.DefaultHandler) }

func sandboxStatus(r *Sandbox, netns func(id string) string) *model.SandboxStatus {
	st := &model.SandboxStatus{
		Making:         r.Phase == SandboxCreating || r.Restoring,
		ID:             r.ID,
		Config:         r.Config,
		State:          model.SandboxNotReady,
		CreatedAt:      r.CreatedAt,
		IPs:            r.IPs,
		RuntimeHandler: r.Handler,
		PID:            r.ReaperPID,
	}
	if r.Phase == SandboxReady {
		st.State = model.SandboxReady
		if !r.NodeNetwork() {
			st.NetNS = netns(r.ID)
		}
	}
	return st
}
