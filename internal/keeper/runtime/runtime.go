// Package runtime has the interface of a container engine: code that sets up containers, starts execs in them, and
// removes them. The engines are the packages stage, libcontainer, oci and shim below this one. Package selector chooses
// between them, and package plan knows which engine supports which field of a specification. The keeper does what all
// containers need, whatever their engine: pipes, logs, exit codes, records.
package runtime

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/opencontainers/runc/libcontainer/configs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
)

// Runtime is a container engine. Its methods may wait for the kernel without a limit; the context limits those that run
// a program. They may be called concurrently, for the same container too.
//
// Another engine implements all of it, and gets an Engine constant and a case in package selector. Started.PID is what
// the keeper waits for and sends signals to: the engine gives a process of the host that ends with the container's, and
// whose exit code is that of the container (a proxy, if the container's own process is none of the keeper's). What such
// an engine has to remember of a container goes into a field of its own in record.Container.
type Runtime interface {
	// Start sets a container up, calls Launch.Register, and lets the container's program begin. After an error, nothing
	// of the container is left but what Register has taken. The error is a *Declined where the engine cannot make such
	// a container; nothing has been made then.
	Start(ctx context.Context, c Container, l *Launch) error
	// Begun says whether the program of a container has begun. It is called if the keeper was killed after
	// Launch.Register and before the record said that the start is complete. A program must not be started a second time,
	// so an engine that cannot tell returns true. If Begun returns false, Abort is called for the container, and the
	// program must not begin before that.
	Begun(c Container) bool
	// Exec starts a further process in a running container, and calls Launch.Register. The end of the context ends a
	// start that is under way. The error is a *Declined where the engine cannot start such a process; nothing has been
	// started then.
	Exec(ctx context.Context, c Container, l *Launch) error
	// Update changes the limits of a running container. Limits that are not set stay as they are.
	Update(ctx context.Context, c Container, r *specs.LinuxResources) error
	// Pause and Resume freeze and thaw a running container. They have no effect if the container is in that state already.
	Pause(ctx context.Context, c Container) error
	Resume(ctx context.Context, c Container) error
	// Destroy removes what the engine has of a container whose processes are dead. It is idempotent.
	Destroy(ctx context.Context, c Container) error
	// Abort kills and removes whatever there is of a container whose start was cut off. It is idempotent.
	Abort(ctx context.Context, c Container) error
}

// Checkpointer is an engine whose containers CRIU can checkpoint.
type Checkpointer interface {
	// Freeze freezes a container that is marked as frozen for a checkpoint.
	Freeze(ctx context.Context, c Container) error
	// Checkpoint freezes a container and has CRIU write its processes to a directory. The container stays frozen.
	Checkpoint(ctx context.Context, c Container, d *Dump) error
}

// Signaller is an engine whose containers have proxies (record.Container.Proxied): the kernel cannot send signals to
// their processes, or the keeper does not know these.
type Signaller interface {
	// Signal sends a signal to the container's init process or, if all is set, to every process. It has no effect if the
	// container has ended.
	Signal(ctx context.Context, c Container, sig unix.Signal, all bool) error
	// KillExec kills the first process of an exec, by the exec's ID, and the process's in the container (Started.Inner).
	KillExec(ctx context.Context, c Container, execID string, inner int) error
}

// Dump is the request of Checkpoint.
type Dump struct {
	CRIU   string // the program; empty: the one in PATH
	Images string // an absolute directory, which exists
	Work   string // the same, for CRIU's log
	// Group is called with the number of the process group in which CRIU runs, before it does anything.
	Group func(pgid int)
}

// Container is the view that an engine has of a container.
type Container interface {
	ID() string
	Log() *slog.Logger
	// Record returns a copy of the container's record. What the copy points to is not written to.
	Record() record.Container
	// Process returns the init process; nil: it is not running, or nobody knows since a keeper's death.
	Process() *pidfd.FD
	// Guard is held while a process is entering the container, and locked during operations that must not run at that
	// time.
	Guard() *Guard
	// Loaded is a place where an engine caches the state of the container that it has read from disk. Its user must have
	// locked Guard.
	Loaded() *any
	// Thawed returns a channel that is closed when the container is thawed after a checkpoint; nil: it is not frozen
	// for one.
	Thawed() <-chan struct{}
	// UseFilter records that the container needs the compiled seccomp profile with this key, so that the profile's files
	// are kept.
	UseFilter(key string)
}

// Declined is the error of an engine that does not support a container or a process. Another engine may support it.
type Declined struct {
	Reason string // a clause without a full stop
}

func (d *Declined) Error() string { return d.Reason }

// Launch is the request to start a container, or an exec (a further process) in a container.
type Launch struct {
	// Spec is the container's. It is nil for a further process.
	Spec *specs.Spec
	// Config is what libcontainer makes of Spec, but for the seccomp profile. It is nil for engines that are given Spec
	// as it is.
	Config *configs.Config
	// Reason says why this engine was chosen.
	Reason string
	// Restore is the directory with CRIU's images, if the container is restored from a checkpoint; empty: its program is
	// started. CRIU is the path of CRIU's program.
	Restore string
	CRIU    string
	Phases  *Phases // of a container's start

	// Process is the process of an exec; nil for a container. ExecID is the exec's ID.
	Process *specs.Process
	ExecID  string
	// Sub are the names of the process's own cgroups below the container's, by controller; SubDir is the directory of
	// the one by which the keeper finds what the process has started. Empty: the process has none.
	Sub    map[string]string
	SubDir string
	// Traced: what the process starts has to be found later, also if it leaves its session and its parents, and the
	// process has no cgroup of its own. The engine gives it a cgroup namespace, or ExecMark.
	Traced bool

	// IO are the process's own ends of its pipes. The caller closes them.
	IO Stdio
	// Register is called with a process that is set up, before its program begins (if the engine can do that: see
	// Started.Waits). When Register returns, the process is in the keeper's tables and duplicates of its descriptors
	// are in escrow: nothing is lost with the keeper from then on. The terminal is Register's. After an error of
	// Register the program must not begin, and Start or Exec returns that error.
	Register func(Started) error
	// Settled is called by an engine that makes no further processes, although Start or Exec may take longer: the process
	// that is there may wait for a volume that does not answer, or be held by the container. Engines need not call it.
	Settled func()
	// Unregister kills the process that Register has taken, and waits for it. It returns false if Register has taken no
	// process.
	Unregister func() bool
}

// Terminal says whether the process has a terminal.
func (l *Launch) Terminal() bool {
	if l.Spec != nil {
		return l.Spec.Process.Terminal
	}
	return l.Process.Terminal
}

// Started is a process that has been started.
type Started struct {
	PID     int // on the host
	Console int // the master of its terminal; -1: none
	// Inner is the process's ID in the container, for an exec by an OCI runtime in a sandbox; 0: there is none.
	Inner int
	// Waits is false for an exec whose program is running already.
	Waits bool
	// CgroupNamespace and Marked are how what the process starts is found: see Launch.Traced and record.Exec.
	CgroupNamespace string
	Marked          bool

	// Of a container:

	Cgroups map[string]string // directories, as cgroupdir.Recorded has them
	Sandbox int               // the process of the sandbox that the container is in, where PID is a proxy's; 0: none
	Shim    *record.Shim      // that has made it; nil: none
	Join    *record.Join      // nil: the stage starts no execs in it
	// Setup names the engine. Package selector adds the reason why that engine was chosen.
	Setup protocol.Setup
}

// Stdio are a process's own ends of its pipes; nil: there is none. With a terminal, all are nil.
type Stdio struct {
	In, Out, Err *os.File
}

// Files are the three ends, some of which may be nil.
func (s *Stdio) Files() [3]*os.File { return [3]*os.File{s.In, s.Out, s.Err} }

// Close closes the ends.
func (s *Stdio) Close() {
	for _, f := range s.Files() {
		if f != nil {
			f.Close()
		}
	}
}

// Own changes the owner of the ends to the root user of a user namespace, who must be able to open them by /proc. uid
// and gid are the IDs of that user on the host.
func (s *Stdio) Own(uid, gid int) error {
	for _, f := range s.Files() {
		if f != nil {
			if err := f.Chown(uid, gid); err != nil {
				return err
			}
		}
	}
	return nil
}

// Dir is the keeper's directory, with the paths in it that engines use.
type Dir string

// States is the directory with libcontainer's state of each container, by ID. The stage's containers have such a state
// as well.
func (d Dir) States() string { return filepath.Join(string(d), "state") }

// Bundles is the directory with the bundles of containers, by ID.
func (d Dir) Bundles() string { return filepath.Join(string(d), "bundles") }

// State is the directory with libcontainer's state of a container.
func (d Dir) State(id string) string { return filepath.Join(d.States(), id) }

// Bundle is the directory of a container's bundle: its specification for an OCI runtime or for hooks, and files of
// calls under way.
func (d Dir) Bundle(id string) string { return filepath.Join(d.Bundles(), id) }

// OOMSeen tells whether the shim of a container has said that the kernel, perhaps that of a virtual machine, has killed
// a process of the container for want of memory. The proxy of the pod's init has made a file then.
func (d Dir) OOMSeen(id string) bool {
	_, err := os.Lstat(filepath.Join(d.Bundle(id), "oom"))
	return err == nil
}

// CRIUConfig is the file with CRIU's settings.
func (d Dir) CRIUConfig() string { return filepath.Join(string(d), "criu.conf") }

// Spawning is called by an engine before it starts processes of its own. The engine calls end when it has waited for
// these processes, or has registered them with the keeper. Until then the keeper reaps no process that it does not
// know.
type Spawning func() (end func())
