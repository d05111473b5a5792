package protocol

import "time"

// SetupChoice is a client's choice of what sets a container up.
type SetupChoice string

const (
	// SetupStage is the keeper's own program (package stage), and libcontainer for what that does not do.
	// Empty is the same.
	SetupStage SetupChoice = "stage"
	// SetupLibcontainer is libcontainer alone.
	SetupLibcontainer SetupChoice = "libcontainer"
)

// Engine is a piece of code that sets a container up or starts an exec.
type Engine string

const (
	EngineStage        Engine = "stage"        // the keeper's own program (package stage)
	EngineLibcontainer Engine = "libcontainer" // runc's library, in the keeper
	// EngineLibcontainerStage is libcontainer, whose init process becomes a stage in place of the container's program.
	// The stage then gives up user, capabilities and the right to gain more, and loads the seccomp filter.
	EngineLibcontainerStage Engine = "libcontainer, then stage"
	EngineCRIU              Engine = "criu" // restored from a checkpoint
	EngineOCI               Engine = "oci"  // an OCI runtime binary; the reason names it
	EngineShim              Engine = "shim" // one of containerd's shims; the reason names it
)

// Setup says what has set a container up, what its execs are started by, and why. An exec that asks for what its engine
// does not do is started by libcontainer.
type Setup struct {
	Engine     Engine `json:"engine,omitempty"`
	Reason     string `json:"reason,omitempty"`
	ExecEngine Engine `json:"execEngine,omitempty"`
	ExecReason string `json:"execReason,omitempty"`
}

// ReaperProgram is where a Reaper has its program in its root file system. A caller that puts the container into a user
// namespace makes an empty file there: nobody in such a namespace could.
const ReaperProgram = "/berth-init"

// State is the state of a container in the keeper.
type State string

const (
	StateStarting State = "starting"
	StateRunning  State = "running"
	StateExited   State = "exited"
)

// NoSignal as the number of a signal sends none, as with kill(2).
const NoSignal = 0

// Status is the status of a container in the keeper.
type Status struct {
	ID         string
	PodID      string
	State      State
	PID        int
	StartedAt  time.Time
	FinishedAt time.Time
	ExitCode   int // 128+signal for a signal, as shells have it
	OOMKilled  bool
	// Lost: the process ended while no keeper watched and the kernel kept no exit code; ExitCode is 255 then.
	Lost bool
	// LogDone: the container has exited and all that it wrote is in the log.
	LogDone bool
	// Orphan: the keeper was given this container by Adopt after another keeper's death: it is not its parent.
	Orphan bool
	// Paused: its processes are frozen. Only Client.Status looks.
	Paused bool
	// Setup is empty while the container is being started.
	Setup Setup
}

// Features of a keeper, which an older one does not have.
const (
	FeatureSetup       = "setup"        // it supports RunRequest.Setup
	FeaturePrepare     = "prepare"      // it has the call Prepare
	FeatureAttachFirst = "attach-first" // it supports RunRequest.Attach
	FeatureLogLimits   = "log-limits"   // it supports RunRequest.LogLimits
	FeatureFreeze      = "freeze"       // it has the call Freeze
	FeatureSandbox     = "sandbox"      // it supports RunRequest.Sandbox
	FeatureShim        = "shim"         // it supports RunRequest.Shim
	FeatureRawEnv      = "raw-env"      // it reads environments with package rawenv
)
