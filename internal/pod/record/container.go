package record

import (
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	keeper "berth/internal/keeper/client"
	"berth/internal/loglimit"
	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/steps"
	"berth/internal/rawenv"
	"berth/internal/state"
)

// Container is the record of a container: everything that the next berthd has to know. Its JSON is the format of
// <root>/containers/<id>/container.json. CONTRIBUTING.md says how to add a field.
type Container struct {
	ID        string                 `json:"id"`
	SandboxID string                 `json:"sandboxID"`
	Config    *model.ContainerConfig `json:"config"` // immutable: statuses share it
	Phase     ContainerPhase         `json:"phase"`
	ImageID   string                 `json:"imageID"`
	ImageRef  string                 `json:"imageRef"`
	// ImageTag is a tag of the image, if the client named the image by its ID when it created the container.
	ImageTag string `json:"imageTag,omitempty"`
	// VolumeImages are the IDs of the images that are volumes of the container.
	VolumeImages []string `json:"volumeImages,omitempty"`
	// Volumes are the container paths that the image declares as volumes. The container has a volume of its own for each
	// path in ImageVolumes, in a directory that is named by the path's index there.
	Volumes      []string `json:"volumes,omitempty"`
	ImageVolumes []string `json:"imageVolumes,omitempty"`
	// RemoteLayers: the image has layers of a remote snapshotter, whose file system may not answer.
	RemoteLayers bool `json:"remoteLayers,omitempty"`
	// QuotaID is the project ID of the root file system, where the client has asked for one.
	QuotaID string `json:"quotaID,omitempty"`

	// StartEnded: the start took too long, and the keeper was asked to end it. The program may have begun meanwhile, so
	// the container is not started again. A record of an earlier version does not say so.
	StartEnded bool `json:"startEnded,omitempty"`

	LogPath string `json:"logPath,omitempty"`
	// LogFile is LogPath without links, as the last start has found it. Empty: the container was not started, has no log,
	// or was started by an earlier version.
	LogFile string `json:"logFile,omitempty"`
	// LogLimits are those of the log, as they were when the container was created; zero: none.
	LogLimits loglimit.Limits `json:"logLimits,omitzero"`

	Cgroup string        `json:"cgroup"`
	Label  ocispec.Label `json:"label,omitzero"` // of SELinux

	User       model.User     `json:"user"`
	StopSignal syscall.Signal `json:"stopSignal"`
	// StopSignaled: StopContainer has sent StopSignal, and another call does not send it again. An older version of the
	// record may not say so.
	StopSignaled bool `json:"stopSignaled,omitempty"`

	Resources *model.Resources `json:"resources,omitempty"` // as created and updated
	Process   *specs.Process   `json:"process,omitempty"`   // what an exec inherits: see Inherited and SetProcess
	// RawEnv are the variables in Process that are not UTF-8, which Process has lost when it was read from disk.
	RawEnv rawenv.Entries `json:"rawEnv,omitempty"`

	CreatedAt  time.Time         `json:"createdAt"`
	StartedAt  time.Time         `json:"startedAt,omitzero"`
	FinishedAt time.Time         `json:"finishedAt,omitzero"`
	ExitCode   int32             `json:"exitCode,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	Message    string            `json:"message,omitempty"`
	PID        int               `json:"pid,omitempty"`
	Setup      keeper.Setup      `json:"setup,omitzero"`    // the engine that has set it up; zero: it has not been started
	Ignored    map[string]string `json:"ignored,omitempty"` // annotations that had no effect, and why
	Paused     bool              `json:"paused,omitempty"`  // written before the container is frozen
	Timings    steps.History     `json:"timings,omitempty"`

	// Restored is set for a container that was created from a checkpoint.
	Restored *Restored `json:"restored,omitempty"`
	// CheckpointTemp is a file outside of the container's directory to which an archive of a checkpoint is being written,
	// or the directory to which the container's part of a pod's checkpoint is. CheckpointPod is the file that describes
	// the latter, and CheckpointMark a file that is beside it until the checkpoint is finished.
	CheckpointTemp string `json:"checkpointTemp,omitempty"`
	CheckpointPod  string `json:"checkpointPod,omitempty"`
	CheckpointMark string `json:"checkpointMark,omitempty"`
}

// Restored says which checkpoint a container was created from.
type Restored struct {
	// Dir has the checkpoint in the layout of an archive, until the container starts.
	Dir string `json:"dir,omitempty"`
	// Source is the archive, or the image that is a checkpoint; CheckpointImage is that image's ID.
	Source          string `json:"source"`
	CheckpointImage string `json:"checkpointImage,omitempty"`
	// Container is the ID of the container of which the checkpoint was made, and Image the image of that container.
	Container string    `json:"container"`
	Image     string    `json:"image"`
	At        time.Time `json:"at,omitzero"`
}

// Containers is the table of all containers, and ContainerEntry is one container in it.
type (
	Containers     = Table[Container, model.ContainerStatus]
	ContainerEntry = Entry[Container, model.ContainerStatus]
)

// NewContainers returns the empty table of the containers whose records are below dir. volumePath says where a named
// volume is, for statuses; nil: they do not tell it.
func NewContainers(dir string, volumePath func(name string) string, log *slog.Logger) *Containers {
	return &Containers{
		files: state.Records{Dir: dir, File: "container.json"},
		log:   log,
		kind: kind[Container, model.ContainerStatus]{
			noun: "container", key: "container_id",
			check: func(id string, r *Container) error {
				if r.ID != id || r.Config == nil {
					return fmt.Errorf("the record is of %q", r.ID)
				}
				return nil
			},
			change: func(from, to *Container) error {
				return checkPhase(containerNext, "container "+ShortID(from.ID), from.Phase, to.Phase)
			},
			phase:  func(r *Container) string { return string(r.Phase) },
			lasts:  func(r *Container) bool { return r.Phase.lasts() },
			status: func(r *Container) *model.ContainerStatus { return containerStatus(r, volumePath) },
		},
	}
}

func containerStatus(of *Container, volumePath func(name string) string) *model.ContainerStatus {
	r := *of // a copy: what the status points to must not change
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
	return &model.ContainerStatus{
		Making:     r.Phase == ContainerCreating,
		ID:         r.ID,
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
		Env:        environment(r.Inherited()),

		ImageTag:     r.ImageTag,
		VolumeImages: r.VolumeImages,
		VolumePaths:  volumePaths(r.Config, volumePath),
	}
}

// volumePaths are where the named volumes of a container are, in the order of its mounts.
func volumePaths(cfg *model.ContainerConfig, volumePath func(name string) string) (paths []string) {
	if cfg == nil || volumePath == nil {
		return nil
	}
	for _, m := range cfg.Mounts {
		if m.Volume != "" {
			paths = append(paths, volumePath(m.Volume))
		}
	}
	return paths
}

// SetProcess sets what an exec inherits.
func (r *Container) SetProcess(p *specs.Process) { r.Process, r.RawEnv = p, rawenv.Of(p.Env) }

// Inherited is what an exec inherits, with the variables as the first process has them; nil: the record is of an
// earlier version. What it points to is not written to.
func (r *Container) Inherited() *specs.Process {
	if r.Process == nil || r.RawEnv == nil {
		return r.Process
	}
	p := *r.Process
	p.Env = r.RawEnv.In(p.Env)
	return &p
}

// environment returns the environment variables of a process.
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
