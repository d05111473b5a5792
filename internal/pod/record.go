package pod

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/semaphore"

	"berth/internal/keeper"
	"berth/internal/model"
	"berth/internal/ocispec"
)

// SandboxRecord is a pod as it stands on disk. Its JSON is the format of <root>/pods/<id>/pod.json.
type SandboxRecord struct {
	ID        string               `json:"id"`
	Config    *model.SandboxConfig `json:"config"` // immutable: statuses share it
	Handler   string               `json:"handler,omitempty"`
	Phase     SandboxPhase         `json:"phase"`
	CreatedAt time.Time            `json:"createdAt"`

	CgroupParent string `json:"cgroupParent"`
	// OwnedCgroup is the topmost cgroup on the way to CgroupParent that was not there before; it goes with the pod.
	OwnedCgroup string `json:"ownedCgroup,omitempty"`

	// SharedTmpfs: its files and its shared memory are on one tmpfs. Not so in a pod that an earlier version of Berth has made.
	SharedTmpfs bool `json:"sharedTmpfs,omitempty"`

	IPs       []string        `json:"ips,omitempty"`
	Interface string          `json:"interface,omitempty"`
	Network   json.RawMessage `json:"network,omitempty"` // a CNI result
	ReaperPID int             `json:"reaperPID,omitempty"`
	// ReaperSetup is what has set the pod's init up, where it has one.
	ReaperSetup keeper.Setup  `json:"reaperSetup,omitzero"`
	Label       ocispec.Label `json:"label,omitzero"`
	Timings     []Timing      `json:"timings,omitempty"`
}

// ContainerRecord is a container as it stands on disk. Its JSON is the format of <root>/containers/<id>/container.json.
type ContainerRecord struct {
	ID        string                 `json:"id"`
	SandboxID string                 `json:"sandboxID"`
	Config    *model.ContainerConfig `json:"config"` // immutable: statuses share it
	Phase     ContainerPhase         `json:"phase"`
	ImageID   string                 `json:"imageID"`
	ImageRef  string                 `json:"imageRef"`
	// VolumeImages are the IDs of the images that are volumes of the container.
	VolumeImages []string `json:"volumeImages,omitempty"`
	// Volumes are the container paths that the image declares as volumes. For ImageVolumes among them the container has a volume of
	// its own, in a directory that is named by its place here.
	Volumes      []string `json:"volumes,omitempty"`
	ImageVolumes []string `json:"imageVolumes,omitempty"`
	// QuotaID is the project ID of the root file system, where the client has asked for one.
	QuotaID string `json:"quotaID,omitempty"`

	LogPath string        `json:"logPath,omitempty"`
	Cgroup  string        `json:"cgroup"`
	Label   ocispec.Label `json:"label,omitzero"` // of SELinux

	User       model.User       `json:"user"`
	StopSignal syscall.Signal   `json:"stopSignal"`
	Resources  *model.Resources `json:"resources,omitempty"` // as created and updated
	Process    *specs.Process   `json:"process,omitempty"`   // what an exec inherits

	CreatedAt  time.Time         `json:"createdAt"`
	StartedAt  time.Time         `json:"startedAt,omitzero"`
	FinishedAt time.Time         `json:"finishedAt,omitzero"`
	ExitCode   int32             `json:"exitCode,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	Message    string            `json:"message,omitempty"`
	PID        int               `json:"pid,omitempty"`
	Setup      keeper.Setup      `json:"setup,omitzero"`    // what has set it up; zero: it has not been started
	Ignored    map[string]string `json:"ignored,omitempty"` // annotations that were not heeded, and why
	Paused     bool              `json:"paused,omitempty"`  // its client wants it frozen; written before it is
	Timings    []Timing          `json:"timings,omitempty"`

	// Restored is set for a container that was created from a checkpoint.
	Restored *Restored `json:"restored,omitempty"`
	// CheckpointTemp is a file outside of the container's directory in which an archive of it is being written.
	CheckpointTemp string `json:"checkpointTemp,omitempty"`
}

// exclusive is the weight of a lock that shuts out all others.
const exclusive = 1 << 30

// opLock orders the operations on one object. Waiting for it honours the caller's deadline, so that one stuck operation
// does not pile up calls that nobody waits for any more.
type opLock struct{ sem *semaphore.Weighted }

func newOpLock() opLock { return opLock{semaphore.NewWeighted(exclusive)} }

// sandbox is a pod in memory.
type sandbox struct {
	id string
	// netns is where its network namespace is pinned, if it has one.
	netns string
	left  bool // it is counted out of its cgroups; guarded by cgroupUse.mu
	// op is held exclusively by run, stop and remove, and shared by what happens to a container of the pod.
	op opLock

	mu  sync.Mutex // guards rec
	rec SandboxRecord

	// status is what readers see. It is replaced, never changed, so that no reader waits for an operation.
	status atomic.Pointer[model.SandboxStatus]
}

// container is a container in memory.
type container struct {
	id      string
	sandbox *sandbox
	// op is held exclusively by start, remove, update and the end of a container.
	op opLock

	mu   sync.Mutex // guards rec, spec and cut
	rec  ContainerRecord
	spec *specs.Spec             // from create to start only; afterwards it is on disk
	cut  context.CancelCauseFunc // ends a checkpoint that is under way; nil: none is

	status atomic.Pointer[model.ContainerStatus]
	log    string        // the log file that it writes, in Manager.logs; guarded by Manager.mu
	exited chan struct{} // closed when the container has become exited, or is gone
	once   sync.Once
}

func newContainer(id string, s *sandbox) *container {
	return &container{id: id, sandbox: s, op: newOpLock(), exited: make(chan struct{})}
}

// ended wakes everybody who waits for the container's end.
func (c *container) ended() { c.once.Do(func() { close(c.exited) }) }

func (s *sandbox) publish() {
	state, netns := model.SandboxNotReady, ""
	if s.rec.Phase == SandboxReady {
		state = model.SandboxReady
		if !nodeNetwork(s.rec.Config) {
			netns = s.netns
		}
	}
	s.status.Store(&model.SandboxStatus{
		ID:             s.id,
		Config:         s.rec.Config,
		State:          state,
		CreatedAt:      s.rec.CreatedAt,
		IPs:            s.rec.IPs,
		RuntimeHandler: s.rec.Handler,
		NetNS:          netns,
	})
}

func (c *container) publish() {
	r := c.rec // a copy: what the status points to must not change
	state := model.ContainerUnknown
	switch r.Phase {
	case ContainerCreated, ContainerStarting:
		state = model.ContainerCreated
	case ContainerRunning:
		state = model.ContainerRunning
		if r.Paused {
			state, r.Reason = model.ContainerPaused, model.ReasonPaused
		}
	case ContainerExited, ContainerRemoving:
		state = model.ContainerExited
	}
	c.status.Store(&model.ContainerStatus{
		ID:         c.id,
		SandboxID:  r.SandboxID,
		Config:     r.Config,
		State:      state,
		CreatedAt:  r.CreatedAt,
		StartedAt:  r.StartedAt,
		FinishedAt: r.FinishedAt,
		ExitCode:   r.ExitCode,
		Reason:     r.Reason,
		Message:    r.Message,
		ImageID:    r.ImageID,
		ImageRef:   r.ImageRef,
		LogPath:    r.LogPath,
		Resources:  r.Resources,
		User:       &r.User,
		StopSignal: r.StopSignal,
		PID:        r.PID,
		Volumes:    r.Volumes,
		QuotaID:    r.QuotaID,
		Env:        environment(r.Process),
	})
}

// environment is what a process was given.
func environment(p *specs.Process) []model.EnvVar {
	if p == nil {
		return nil
	}
	out := make([]model.EnvVar, 0, len(p.Env))
	for _, entry := range p.Env {
		key, value, _ := strings.Cut(entry, "=")
		out = append(out, model.EnvVar{Key: key, Value: value})
	}
	return out
}
