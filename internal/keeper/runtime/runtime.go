// Package runtime has the interface of a container engine: code that sets up containers, starts execs in them, and
// removes them. The engines are the packages stage, libcontainer and oci below this one. Package selector chooses
// between them, and package plan knows which engine supports which field of a specification. The keeper does what all
// containers need, whatever their engine: pipes, logs, exit codes, records.
package runtime

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/opencontainers/runc/libcontainer/configs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
)

// Runtime is a container engine. Its methods may wait for the kernel without a limit; the context limits those that run
// a program. They may be called concurrently, for the same container too.
//
// Another engine, as one for sandboxed containers that speaks containerd's shim v2 protocol, implements all of it, and
// gets an Engine constant and a case in package selector. Start is the shim's Create, Launch.Register, and its Start;
// Begun asks State whether the task has left "created". Exec is Exec and Start with Launch.Register between. Update,
// Pause and Resume are the calls of these names, Destroy is Delete and Shutdown, and Abort is Destroy after a Kill.
// Started.PID is what the keeper waits for and sends signals to: the engine gives a process of the host that ends with
// the container's, and whose exit code is that of the container (a process of the keeper that waits for the shim's
// Wait, say). What such an engine has to remember of a container goes into a field of its own in record.Container.
type Runtime interface {
	// Start sets a container up, calls Launch.Register, and lets the container's program begin. After an error, nothing
	// of the container is left but what Register has taken. The error is a *Declined where the engine cannot make such
	// a container; nothing has been made then.
	Start(ctx context.Context, c Container, l *Launch) error
	// Begun says whether the program of a container has begun, whose keeper was killed between Launch.Register and the
	// record that all is over. A program must not be started a second time, so an engine that cannot tell says that it
	// has. A container of which Begun is false is given to Abort, and its program must not begin meanwhile.
	Begun(c Container) bool
	// Exec starts a further process in a running container, and calls Launch.Register. The end of the context ends a
	// start that is under way. The error is a *Declined where the engine cannot start such a process; nothing has been
	// started then.
	Exec(ctx context.Context, c Container, l *Launch) error
	// Update changes the limits of a running container. Limits that are not set stay as they are.
	Update(ctx context.Context, c Container, r *specs.LinuxResources) error
	// Pause and Resume freeze and thaw a running container. They do nothing to one that is paused, or not.
	Pause(ctx context.Context, c Container) error
	Resume(ctx context.Context, c Container) error
	// Destroy removes what the engine has of a container whose processes are dead. It is idempotent.
	Destroy(ctx context.Context, c Container) error
	// Abort kills and removes whatever there is of a container whose start was cut off. It is idempotent.
	Abort(ctx context.Context, c Container) error
}

// Checkpointer is an engine whose containers can be written down by CRIU.
type Checkpointer interface {
	// Checkpoint freezes a container and has CRIU write its processes to a directory. The container stays frozen.
	Checkpoint(ctx context.Context, c Container, d *Dump) error
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
	// Guard is held for reading while a process is half in the container, and for writing by what must not meet one: a
	// pause, an update, a checkpoint, the removal.
	Guard() *sync.RWMutex
	// Loaded is a place where an engine caches the state of the container that it has read from disk. Its user must hold
	// Guard for writing.
	Loaded() *any
	// Thawed returns a channel that is closed when the container is thawed after a checkpoint; nil: it is not frozen
	// for one.
	Thawed() <-chan struct{}
	// UseFilter says that the container needs the compiled seccomp profile of this key, so that its files stay.
	UseFilter(key string)
}

// Declined is the error of an engine that does not make such a container, or start such a process. Another engine may.
type Declined struct {
	Reason string // a clause without a full stop
}

func (d *Declined) Error() string { return d.Reason }

// Launch is a container, or a further process of a container, that is to be started.
type Launch struct {
	// Spec is the container's. It is nil for a further process.
	Spec *specs.Spec
	// Config is what libcontainer makes of Spec, but for the seccomp profile. It is nil for engines that are given Spec
	// as it is.
	Config *configs.Config
	// Reason says why this engine was chosen.
	Reason string
	// Restore is where the images are of which CRIU makes the container; empty: its program is started. CRIU is the
	// program for it.
	Restore string
	CRIU    string
	Phases  *Phases // of a container's start

	// Process is the further process; nil for a container. ExecID is its name.
	Process *specs.Process
	ExecID  string
	// Sub are the names of the process's own cgroups below the container's, by controller; SubDir is the directory of
	// the one by which the keeper finds what the process has started. Empty: the process has none.
	Sub    map[string]string
	SubDir string

	// IO are the process's own ends of its pipes. The caller closes them.
	IO Stdio
	// Register is called with a process that is set up, before its program begins (where the engine can do that: see
	// Started.Waits). When Register returns, the process is in the keeper's tables and duplicates of its descriptors
	// are in escrow: nothing is lost with the keeper from then on. The terminal is Register's. After an error of
	// Register the program must not begin, and Start or Exec returns that error.
	Register func(Started) error
	// Unregister kills the process that Register has taken, and waits for it. It is false where Register has taken
	// none.
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
	// Waits is false for a further process whose program runs already.
	Waits bool

	// Of a container:

	Cgroups map[string]string // directories, as cgroupdir.Recorded has them
	Join    *record.Join      // nil: the stage starts no execs in it
	// Setup names the engine. Package selector adds the reason why that engine was chosen.
	Setup protocol.Setup
}

// Stdio are a process's own ends, nil where there is none. With a terminal they are all nil.
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

// Own gives the ends to the root of a user namespace, who must be able to open them by /proc. uid and gid are that
// root's on the host.
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

// Dir is the keeper's directory, as far as engines know their way in it.
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

// CRIUConfig is the file with CRIU's settings.
func (d Dir) CRIUConfig() string { return filepath.Join(string(d), "criu.conf") }

// Spawning is called by an engine before it starts processes of its own. The engine calls end when it has waited for
// these processes, or has registered them with the keeper. Until then the keeper reaps no process that it does not
// know.
type Spawning func() (end func())
