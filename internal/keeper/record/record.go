// Package record has the keeper's records of containers and of execs, and the table of these records on disk.
//
// Another keeper needs these records to take over: after an upgrade, after this keeper was killed, or after a
// downgrade. So fields are added and never change their meaning. A field that an earlier version reads is written as
// long as a downgrade to that version is supported.
package record

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/codec"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/stage"
	"berth/internal/loglimit"
)

// Container is the record of a container on disk and in escrow. Another keeper needs it to take over. It has only facts
// that another keeper cannot find out by itself.
type Container struct {
	ID      string `json:"id"`
	Nonce   string `json:"nonce"` // of the call that ran it
	PodID   string `json:"podID,omitempty"`
	Name    string `json:"name,omitempty"`
	LogPath string `json:"logPath,omitempty"`
	// LogLimits are those of the log; zero: it has none, or an earlier version of the keeper has started the container.
	LogLimits loglimit.Limits `json:"logLimits,omitzero"`
	// Runtime is the OCI runtime binary; empty: this process.
	Runtime     string `json:"runtime,omitempty"`
	RuntimeRoot string `json:"runtimeRoot,omitempty"`
	Systemd     bool   `json:"systemd,omitempty"`
	// RuntimeFlags come before each command of the OCI runtime.
	RuntimeFlags []string `json:"runtimeFlags,omitempty"`
	// Sandbox is the ID of the container with which the OCI runtime has made the sandbox that this one is in, and
	// SandboxPID the sandbox's process. PID is that of a proxy then (package proxy). Empty and 0: it is in none.
	Sandbox    string `json:"sandbox,omitempty"`
	SandboxPID int    `json:"sandboxPID,omitempty"`
	// SharedPIDs says that a container in a sandbox has no PID namespace of its own.
	SharedPIDs bool `json:"sharedPIDs,omitempty"`
	// Shim is what is known of the shim, if Runtime is one of containerd's; nil: it is none. SandboxPID is the process
	// that the shim has named for the container then.
	Shim        *Shim  `json:"shim,omitempty"`
	Stdin       bool   `json:"stdin,omitempty"`
	StdinOnce   bool   `json:"stdinOnce,omitempty"`
	Terminal    bool   `json:"terminal,omitempty"`
	Reaper      bool   `json:"reaper,omitempty"`
	Root        string `json:"root,omitempty"`
	CgroupsPath string `json:"cgroupsPath,omitempty"` // as the spec has it
	// Cgroups are the directories by controller (v1), or the one under "" (v2).
	Cgroups map[string]string `json:"cgroups,omitempty"`
	// Join is what execs by the stage need; nil: libcontainer starts them, or the OCI runtime.
	Join *Join `json:"join,omitempty"`
	// Choice is what the request asked to be set up by, Setup what has been done. The latter is empty until then, and
	// where an earlier keeper has started the container.
	Choice protocol.SetupChoice `json:"setupChoice,omitempty"`
	Setup  protocol.Setup       `json:"setup,omitzero"`

	State protocol.State `json:"state"`
	// Prepared: all is set up and in escrow, and the runtime has yet to let the program begin.
	Prepared bool `json:"held,omitempty"`
	// Waits is the command line of the process while it is prepared, unless it is a stage.
	Waits      string    `json:"waits,omitempty"`
	PID        int       `json:"pid,omitempty"`
	Start      uint64    `json:"start,omitempty"` // of the process, see pidfd.StartTime
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	ExitCode   int       `json:"exitCode,omitempty"`
	OOMKilled  bool      `json:"oomKilled,omitempty"`
	Lost       bool      `json:"lost,omitempty"`
	LogDone    bool      `json:"logDone,omitempty"`
	Orphan     bool      `json:"orphan,omitempty"`

	// Checkpoint is the nonce of the call for which the container is frozen, CheckpointBy the session that made it.
	Checkpoint   string `json:"checkpoint,omitempty"`
	CheckpointBy string `json:"checkpointBy,omitempty"`
	// CheckpointGroup is the process group that writes it down.
	CheckpointGroup int `json:"checkpointGroup,omitempty"`
}

// Shim is a shim of containerd's, and what it is told.
type Shim struct {
	// OptionsType and Options are the runtime's options, as a protobuf Any has them. Empty: there are none.
	OptionsType string `json:"optionsType,omitempty"`
	Options     []byte `json:"options,omitempty"`
	// Address is where its socket is: a path, or a name after an @. It is empty until the shim of the pod is started.
	Address string `json:"address,omitempty"`
	Version int    `json:"version,omitempty"` // of its task service
	PID     int    `json:"pid,omitempty"`
	Start   uint64 `json:"start,omitempty"` // of that process
}

// Proxied says whether the container's process is a proxy (package proxy).
func (r *Container) Proxied() bool { return r.Sandbox != "" || r.Shim != nil }

// SetSetup records what has set the container up, and what its execs by the stage need (nil: they are not started by
// the stage). Earlier versions of the keeper know Setup by two booleans of Join, which are written for them and read in
// nothing but Engine.
func (r *Container) SetSetup(s protocol.Setup, join *Join) {
	r.Setup, r.Join = s, join
	if join != nil {
		join.Staged = s.Engine == protocol.EngineStage || s.Engine == protocol.EngineLibcontainerStage
		join.Whole = s.Engine == protocol.EngineStage
	}
}

// Engine returns the name of what has set the container up, or was about to. It is EngineLibcontainer for a container
// of the built-in runtime of which nothing is known yet.
func (r *Container) Engine() protocol.Engine {
	switch {
	case r.Setup.Engine != "":
		return r.Setup.Engine
	case r.Shim != nil:
		return protocol.EngineShim
	case r.Runtime != "":
		return protocol.EngineOCI
	case r.Join != nil && r.Join.Whole:
		return protocol.EngineStage
	case r.Join != nil && r.Join.Staged:
		return protocol.EngineLibcontainerStage
	}
	return protocol.EngineLibcontainer
}

// StatusSetup returns the engine that has set up the container, for its status. It is empty while the container is
// being started. For a container of an earlier version of the keeper, it is derived from the rest of the record.
func (r *Container) StatusSetup() protocol.Setup {
	switch {
	case r.Setup != protocol.Setup{} || r.State == protocol.StateStarting:
		return r.Setup
	case r.Runtime != "":
		return OCISetup(r.Runtime)
	}
	const reason = "an earlier version of the keeper has decided"
	s := protocol.Setup{Engine: r.Engine(), Reason: reason, ExecEngine: protocol.EngineLibcontainer, ExecReason: reason}
	if r.Join != nil {
		s.ExecEngine = protocol.EngineStage
	}
	return s
}

// OCISetup is that of a container of an OCI runtime binary.
func OCISetup(path string) protocol.Setup {
	reason := "the OCI runtime " + path + " is asked for"
	return protocol.Setup{Engine: protocol.EngineOCI, Reason: reason, ExecEngine: protocol.EngineOCI, ExecReason: reason}
}

// ShimSetup is that of a container of one of containerd's shims.
func ShimSetup(path string) protocol.Setup {
	reason := "the shim " + path + " is asked for"
	return protocol.Setup{Engine: protocol.EngineShim, Reason: reason, ExecEngine: protocol.EngineShim, ExecReason: reason}
}

// Exec is the record of an exec: a further process of a container.
type Exec struct {
	ContainerID string `json:"containerID"`
	ExecID      string `json:"execID"`
	Nonce       string `json:"nonce"`
	// Prepared: the process is in escrow, and its program has yet to begin, unless its holder says that it Began.
	Prepared bool `json:"held,omitempty"`
	Began    bool `json:"began,omitempty"`
	// Uncertain: it has ended, and nobody knows whether its program had begun.
	Uncertain bool   `json:"uncertain,omitempty"`
	PID       int    `json:"pid"`
	Start     uint64 `json:"start"`
	// Ends is when all of it is killed, by Monotonic; 0: never, or an earlier version of the keeper has started it.
	Ends time.Duration `json:"ends,omitempty"`
	// Deadline is the same by the wall clock, which somebody may set meanwhile. It is for earlier versions, and read
	// where these wrote it.
	Deadline time.Time `json:"deadline,omitzero"`
	// Inner is the process's ID in the container, where the container is in a sandbox; PID is that of a process of the
	// OCI runtime's then, which ends as the exec does.
	Inner int `json:"inner,omitempty"`
	// Cgroup holds all of it, where it has one of its own.
	Cgroup string `json:"cgroup,omitempty"`
	// CgroupNamespace is the exec's own, as /proc/PID/ns/cgroup names it: what the exec has started is in it too. Empty:
	// it is in the container's.
	CgroupNamespace string `json:"cgroupNamespace,omitempty"`
	// Marked: its program has the exec's ID in its environment (runtime.ExecMark).
	Marked   bool `json:"marked,omitempty"`
	Orphan   bool `json:"orphan,omitempty"`
	Exited   bool `json:"exited,omitempty"`
	ExitCode int  `json:"exitCode,omitempty"`
	TimedOut bool `json:"timedOut,omitempty"`
}

// Left returns how much of its time limit an exec has left, which is not positive if the limit has passed. It returns
// false for an exec without a limit.
func (r *Exec) Left() (time.Duration, bool) {
	if r.Ends != 0 {
		return r.Ends - Monotonic(), true
	}
	return time.Until(r.Deadline), !r.Deadline.IsZero()
}

// Escrowed is the record in a packet that puts something into escrow.
type Escrowed struct {
	Container *Container `json:"container,omitempty"`
	Exec      *Exec      `json:"exec,omitempty"`
}

// CheckID keeps names of containers and execs such that they are file names.
func CheckID(kind, id string) error {
	ok := id != "" && len(id) <= 200 && id != "." && id != ".."
	for i := 0; ok && i < len(id); i++ {
		c := id[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_+-.", c) >= 0
	}
	if !ok {
		return fmt.Errorf("%s ID %q: %w", kind, id, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Join is what an exec by the stage needs to know of a running container. Execs of a container that is without it, and
// those that ask for what a stage does not do, are started by libcontainer.
type Join struct {
	Namespaces uint32            `json:"namespaces"`
	Cgroups    map[string]string `json:"cgroups"` // all of them; v2 under ""
	Umask      *uint32           `json:"umask,omitempty"`
	OOMScore   *int              `json:"oomScore,omitempty"`
	Keyring    string            `json:"keyring,omitempty"`
	// KeyringUID is the user to whom the session keyring belongs. 0: the container's root, as in containers that
	// libcontainer or an earlier version of the keeper has set up.
	KeyringUID uint32        `json:"keyringUID,omitempty"`
	RootUID    int           `json:"rootUID,omitempty"` // on the host
	RootGID    int           `json:"rootGID,omitempty"`
	Limits     []stage.Limit `json:"limits,omitempty"`
	AppArmor   string        `json:"appArmor,omitempty"`
	Label      string        `json:"label,omitempty"` // of SELinux
	// Delegated: the container may write to its cgroup of version 2, and to what is below that.
	Delegated bool `json:"delegated,omitempty"`
	// Filter is the key of the seccomp filter that was loaded for it, empty: none.
	Filter string `json:"filter,omitempty"`
	// FilterSum is the CRC-32C of that filter's file; empty: an earlier version wrote none down.
	FilterSum string `json:"filterSum,omitempty"`
	// Staged is for earlier versions of the keeper: libcontainer's own state lacks what the last stage did in its
	// place. See Engine.
	Staged bool `json:"staged,omitempty"`
	// OwnProcesses: the init process has a PID namespace for itself and what descends from it.
	OwnProcesses bool `json:"ownProcesses,omitempty"`
	// OwnCgroupNamespace: the container's cgroup namespace was made in its own cgroup.
	OwnCgroupNamespace bool `json:"ownCgroupNamespace,omitempty"`
	// Seen: the keeper kept the mark of its init process. Others in the PID namespace saw the stage, or the stage might
	// write to no file (RLIMIT_FSIZE).
	Seen bool `json:"seen,omitempty"`
	// Whole is for earlier versions of the keeper: a stage has set all of it up. See Engine.
	Whole bool `json:"whole,omitempty"`
}

// JSON returns what it is given as JSON. Records are plain data: one that cannot be written is a mistake of the
// program, and it panics.
func JSON(v any) json.RawMessage {
	b, err := codec.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
