package client

import (
	"os"
	"time"

	"berth/internal/keeper/protocol"
	"berth/internal/loglimit"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// RunRequest asks for a container to be created and started.
type RunRequest struct {
	ID    string      // unique on the keeper
	PodID string      // containers of one pod may join the PID namespaces of one another
	Name  string      // the container's name in its pod, for messages
	Spec  *specs.Spec // Spec.Root.Path is a mounted root file system; Spec.Process.Terminal chooses a terminal
	// RuntimePath is an OCI runtime binary (runc, crun). Empty: the keeper makes the container itself.
	RuntimePath  string
	RuntimeRoot  string   // the state directory of that binary; empty: one of the keeper's
	RuntimeFlags []string // come before each command of that binary; like Sandbox, of newer keepers
	// Sandbox is the ID of the container with which that binary has made a sandbox, such as gVisor's: this one is made in
	// it. Empty: in none. A keeper that is too old for it gets no such request: Run fails with ErrFailedPrecondition.
	Sandbox string
	// Shim says that RuntimePath is a shim of containerd's, and has its options; nil: it is none. The container makes the
	// pod's sandbox (Reaper), or is in one. A keeper that is too old for it gets no such request: Run fails with
	// ErrFailedPrecondition.
	Shim          *Shim
	SystemdCgroup bool // Spec.Linux.CgroupsPath is slice:prefix:name
	// Setup chooses what sets the container up, and starts its execs, where RuntimePath is empty. A keeper that is too old
	// to know of SetupLibcontainer gets no such request: Run fails with ErrFailedPrecondition.
	Setup SetupChoice

	LogPath string // absolute; empty: output goes to attached clients only. Its directory exists.
	// LogLimits are complete (see loglimit.Limits.Complete); zero: none. A keeper that is too old for them gets no such
	// request: Run fails with ErrFailedPrecondition.
	LogLimits loglimit.Limits
	Stdin     bool // keep an open stdin
	StdinOnce bool // close stdin when the first attached client that brought one leaves
	// Reaper starts the pod's init of ours in place of Spec.Process.Args: it only reaps. Spec.Root.Path is a directory
	// that the caller makes, and removes after Delete. The caller also makes its directories proc and dev and the empty
	// file ReaperProgram, where those are to belong to the node's root: in a user namespace nobody else could make them.
	// Delete, and a Run that fails, remove proc and ReaperProgram; whatever else is there is the caller's to remove.
	Reaper bool

	// Restore is a directory of CRIU's images, absolute: the container's processes are made from them, and Spec.Process
	// says what they are. Empty: Spec.Process is started.
	Restore string
	CRIU    string // the program for it; empty: the one in PATH

	// Attach is a client that is attached before the program begins, and so gets all of its output. Its ContainerID is
	// not used. A keeper that is too old for it gets no such request: Run fails with ErrFailedPrecondition.
	Attach *AttachRequest
}

// Shim has the options that a shim of containerd's is given, as a protobuf Any. Both are empty if there are none.
type Shim struct {
	OptionsType string // the name of the message
	Options     []byte
}

// What both sides say of containers, see package protocol.
type (
	SetupChoice = protocol.SetupChoice
	Engine      = protocol.Engine
	Setup       = protocol.Setup
	State       = protocol.State
	Status      = protocol.Status
)

// The values of these types.
const (
	SetupStage              = protocol.SetupStage
	SetupLibcontainer       = protocol.SetupLibcontainer
	EngineStage             = protocol.EngineStage
	EngineLibcontainer      = protocol.EngineLibcontainer
	EngineLibcontainerStage = protocol.EngineLibcontainerStage
	EngineCRIU              = protocol.EngineCRIU
	EngineOCI               = protocol.EngineOCI
	EngineShim              = protocol.EngineShim
	StateStarting           = protocol.StateStarting
	StateRunning            = protocol.StateRunning
	StateExited             = protocol.StateExited
	ReaperProgram           = protocol.ReaperProgram
	FeatureSetup            = protocol.FeatureSetup
	FeatureLogLimits        = protocol.FeatureLogLimits
	FeatureSandbox          = protocol.FeatureSandbox
	FeatureShim             = protocol.FeatureShim
)

// RunResult describes a container whose program runs.
type RunResult struct {
	PID       int
	StartedAt time.Time
	Phases    []Phase
	Setup     Setup
}

// Phase is a part of a start.
type Phase struct {
	Name  string
	Begin time.Time
	Took  time.Duration
}

// CheckpointRequest asks for a container's processes to be written down.
type CheckpointRequest struct {
	ID    string
	Nonce string // of Freeze; empty: the container is not frozen yet
	// Images and Work are absolute directories that are made anew: for CRIU's images, and for its log and statistics.
	Images, Work string
	// Timeout is that of all until EndCheckpoint, when the container is thawed.
	Timeout time.Duration
	CRIU    string // the program; empty: the one in PATH
}

// StartError is why a program could not be started. ExitCode is what a shell would give: 127 for one that is not there
// (the error is ErrNotFound then), 126 for one that may not be executed, 128 for all else.
type StartError struct {
	ExitCode int
	Message  string
}

func (e *StartError) Error() string { return e.Message }

// Unwrap makes a program that is not there ErrNotFound, one that may not be executed ErrPermissionDenied.
func (e *StartError) Unwrap() error {
	switch e.ExitCode {
	case 127:
		return errdefs.ErrNotFound
	case 126:
		return errdefs.ErrPermissionDenied
	}
	return errdefs.ErrUnknown
}

// Info tells about a keeper.
type Info struct {
	Version    string
	PID        int
	Generation string // new for each fresh start, the same over an upgrade in place
	Upgrades   int    // upgrades in place so far
	Containers int
	StartedAt  time.Time
	Features   []string // what it does that earlier keepers did not
	Counts     *Counts  // nil: the keeper is too old to tell
}

// Counts are a keeper's numbers for who watches the node.
type Counts struct {
	Execs   int
	Holders int   // of the escrow
	Queue   int   // packets that wait for them
	Backlog int64 // bytes that are kept for attached clients
	// Since the keeper's program was started, or upgraded in place.
	LogBytes, LogLinesCut, LogDropped uint64
	// Of the limits of logs: see LogLimits.
	LogRotations, LogRemovedBytes, LogLimitedLines, LogLimitedBytes uint64
	LogHeld                                                         time.Duration
}

// ExecRequest starts a further process in a running container. The files are the process's own ends: pipes, or for a
// terminal nothing, since ExecResult.Console is the terminal then. The keeper gets duplicates; the caller closes
// its own. They are made blocking: few programs bear anything else.
type ExecRequest struct {
	ContainerID string
	ExecID      string // unique on the keeper
	Process     *specs.Process
	Stdin       *os.File // nil: /dev/null
	Stdout      *os.File
	Stderr      *os.File
	// Timeout ends the whole exec, daemons that it made included, with SIGKILL. 0: none.
	Timeout time.Duration
	// Width and Height are the terminal's first size; 0: the kernel's default.
	Width, Height uint16
}

// ExecResult is a started exec. Console is the terminal's master side, owned by the caller; nil without a terminal.
type ExecResult struct {
	PID     int
	Console *os.File
}

// ExecExit is how an exec ended.
type ExecExit struct {
	ExitCode int // 128+signal for a signal
	TimedOut bool
}

// AttachRequest asks for a copy of what a container writes from now on. The keeper writes to the files and closes its
// duplicates when the container has ended and all is written, or when a write fails. Output is never lost and never
// waits for these files: what a slow reader has not taken is kept for it, in memory first, then in an unlinked file,
// up to Backlog, and up to what it leaves to others of TotalBacklog, while its file system takes it and has a tenth
// to spare. Past that the keeper closes both files, and Detach tells why.
type AttachRequest struct {
	ContainerID string
	AttachID    string
	Stdout      *os.File // nil: not wanted. A terminal's output comes here.
	Stderr      *os.File
	Backlog     int64 // bytes of one stream; 0: 256 MiB
	// TotalBacklog is how many bytes are kept for all clients of the keeper, from now on; 0: 1 GiB.
	TotalBacklog int64
	SpillDir     string // absolute, on the file system that has the file; empty: the keeper's own directory
	// Stdin: this client also writes to the container's input. With RunRequest.StdinOnce the container reads the end of
	// it when this client is detached, or when the process that attached it dies.
	Stdin bool
}

// Input is the container's standard input, as it is in escrow: with a terminal File is the terminal's master (resize it
// with TIOCSWINSZ), else the write end of a pipe. The caller owns File.
type Input struct {
	File     *os.File
	Terminal bool
}

// Event tells of a change of a container. A subscriber gets one for every container when it subscribes.
type Event struct {
	Status Status
	// Gone: the keeper has deleted the container.
	Gone bool
}
