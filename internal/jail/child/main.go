package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/fileattr"
	"berth/internal/jail/ring"
	"berth/internal/jail/wire"
)

// Work is the function of a role. The result, which may be nil, is sent as JSON.
type Work func(*Task) (result any, err error)

// Roles are all kinds of work that a program does.
type Roles map[*wire.Role]Work

// Task holds the request and the descriptors of one child.
type Task struct {
	Dirs  []*os.File
	Files []*os.File
	In    []*ring.Reader
	Out   []*ring.Writer
	// Request is the request of the role, as JSON: see Decode.
	Request json.RawMessage
	// Xattrs are the calls on extended attributes, which the jail makes. See the variable of that name.
	Xattrs fileattr.Xattrs
	// Chown gives files their owners; nil: the role has the capability for that.
	Chown func(fd int, name string, uid, gid int) error
}

// Decode reads what the role is asked.
func (t *Task) Decode(v any) error { return wire.Decode(t.Request, v) }

// Main does the work of the role that the arguments name, and ends the process.
func Main(roles Roles) {
	if len(os.Args) == 1 || strings.HasPrefix(os.Args[1], "-") { // a person, who would be told of another version
		fmt.Fprintf(os.Stderr, "%s: berthd runs this program to parse images and archives; it has no commands and no flags\n",
			wire.Program)
		os.Exit(2)
	}
	if answer(run(roles)) != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

func run(roles Roles) (any, error) {
	arguments, err := wire.ParseArguments(os.Args)
	if err != nil {
		return nil, err
	}
	if arguments.Role == wire.Nothing.Name {
		return do(wire.Nothing, func(*Task) (any, error) { return nil, nil }, arguments)
	}
	for role, work := range roles {
		if role.Name == arguments.Role {
			return do(role, work, arguments)
		}
	}
	return nil, fmt.Errorf("%s has no role %q: %w", wire.Program, arguments.Role, errdefs.ErrFailedPrecondition)
}

func do(role *wire.Role, work Work, a *wire.Arguments) (any, error) {
	t, err := open(a)
	if err != nil {
		return nil, err
	}
	if err := confine(role, a); err != nil {
		return nil, fmt.Errorf("confine the child: %w", err)
	}
	if t.Request, err = io.ReadAll(os.NewFile(wire.FDRequest, "request")); err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	// Roles work with the numbers of descriptors: the collector must not close the files that they belong to.
	defer runtime.KeepAlive(t)
	return work(t)
}

// open takes what the jail has given.
func open(a *wire.Arguments) (*Task, error) {
	t := &Task{Xattrs: Xattrs}
	fd := uintptr(wire.FDFirst)
	next := func(name string) *os.File {
		fd++
		return os.NewFile(fd-1, name)
	}
	for range a.In {
		in, err := ring.OpenReader(next("memory"), next("ring"))
		if err != nil {
			return nil, err
		}
		t.In = append(t.In, in)
	}
	for range a.Out {
		out, err := ring.OpenWriter(next("memory"), next("ring"))
		if err != nil {
			return nil, err
		}
		t.Out = append(t.Out, out)
	}
	for range a.Files {
		t.Files = append(t.Files, next("file"))
	}
	for i := range a.Dirs {
		d, err := os.Open(wire.Dir(int(i)))
		if err != nil {
			return nil, err
		}
		t.Dirs = append(t.Dirs, d)
	}
	return t, nil
}

const (
	maxFiles = 512
	// filesPerDir are more than a role keeps open of each directory that it is given: an image may have hundreds
	// of layers.
	filesPerDir = 8
	// maxThreads is many more than Go's runtime makes for one processor. The user ID is this child's alone,
	// so no other process counts.
	maxThreads = 64
	// overhead is what Go's runtime takes beside the heap: it maps 64 MiB at a time.
	overhead = 128 << 20
	// addressSpace is what the runtime reserves and never touches.
	addressSpace = 4 << 30
)

// confine gives up what the role does not need. It comes before anything hostile is read.
func confine(role *wire.Role, a *wire.Arguments) error {
	debug.SetMemoryLimit(int64(a.Memory))
	for _, limit := range []struct {
		resource int
		value    uint64
	}{
		{unix.RLIMIT_CORE, 0}, {unix.RLIMIT_MEMLOCK, 0}, {unix.RLIMIT_MSGQUEUE, 0},
		{unix.RLIMIT_NOFILE, maxFiles + filesPerDir*a.Dirs},
		{unix.RLIMIT_NPROC, maxThreads}, {unix.RLIMIT_FSIZE, a.FileSize}, {unix.RLIMIT_DATA, a.Memory + overhead},
		{unix.RLIMIT_AS, a.Memory + addressSpace},
	} {
		if err := lower(limit.resource, limit.value); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_DUMPABLE)", err)
	}
	return load(filter(role.Filesystem))
}

// lower sets a resource limit of this process. A limit of berthd's that is lower already stays:
// without CAP_SYS_RESOURCE no process may raise it.
func lower(resource int, value uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(resource, &now); err != nil {
		return os.NewSyscallError(fmt.Sprintf("getrlimit(%d)", resource), err)
	}
	value = min(value, now.Max)
	if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value}); err != nil {
		return os.NewSyscallError(fmt.Sprintf("setrlimit(%d)", resource), err)
	}
	return nil
}

// answer tells the jail how it went.
func answer(result any, err error) error {
	a := wire.Answer{}
	if err != nil {
		a.Error = wire.NewError(err)
	} else if result != nil {
		raw, err := json.Marshal(result)
		if err != nil {
			a.Error = wire.NewError(err)
		}
		a.Result = raw
	}
	raw, err := json.Marshal(a)
	if err != nil {
		return err
	}
	f := os.NewFile(wire.FDAnswer, "answer")
	_, err = f.Write(raw)
	return errors.Join(err, f.Close())
}
