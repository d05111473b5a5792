package record

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/steps"
	"berth/internal/state"
)

// Sandbox is a pod as it stands on disk. Its JSON is the format of <root>/pods/<id>/pod.json.
type Sandbox struct {
	ID      string               `json:"id"`
	Config  *model.SandboxConfig `json:"config"` // immutable: statuses share it
	Handler string               `json:"handler,omitempty"`
	// DefaultHandler was the node's when the pod was made. Records of earlier versions have none.
	DefaultHandler string       `json:"defaultHandler,omitempty"`
	Phase          SandboxPhase `json:"phase"`
	CreatedAt      time.Time    `json:"createdAt"`

	CgroupParent string `json:"cgroupParent"`
	// OwnedCgroup is the topmost cgroup on the way to CgroupParent that was not there before; it goes with the pod.
	OwnedCgroup string `json:"ownedCgroup,omitempty"`

	// SharedTmpfs says that the pod's files and its shared memory are on one tmpfs. It is false for a pod that an
	// earlier version of Berth has made.
	SharedTmpfs bool `json:"sharedTmpfs,omitempty"`

	IPs       []string        `json:"ips,omitempty"`
	Interface string          `json:"interface,omitempty"`
	Network   json.RawMessage `json:"network,omitempty"` // a CNI result
	ReaperPID int             `json:"reaperPID,omitempty"`
	// ReaperSetup is what has set the pod's init up, where it has one.
	ReaperSetup keeper.Setup   `json:"reaperSetup,omitzero"`
	Label       ocispec.Label  `json:"label,omitzero"`
	Timings     []steps.Timing `json:"timings,omitempty"`
}

// NodeNetwork tells whether a pod lives in the node's network.
func (r *Sandbox) NodeNetwork() bool {
	return r.Config.NodeNetwork()
}

// Sandboxes and SandboxEntry are the table of pods and a pod in it.
type (
	Sandboxes    = Table[Sandbox, model.SandboxStatus]
	SandboxEntry = Entry[Sandbox, model.SandboxStatus]
)

// NewSandboxes is the empty table of the pods whose records are below dir. netns is where a pod's network namespace
// is pinned.
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

// RuntimeName is the runtime handler that the pod was made by. Empty: the node's default one, as it is now.
func (r *Sandbox) RuntimeName() string { return cmp.Or(r.Handler, r.DefaultHandler) }

func sandboxStatus(r *Sandbox, netns func(id string) string) *model.SandboxStatus {
	st := &model.SandboxStatus{
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
