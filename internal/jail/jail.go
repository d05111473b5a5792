package jail

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/jail/wire"
)

// Jail starts children. Its methods are safe for concurrent use.
type Jail struct {
	program *os.File // open, so that an upgrade does not mix versions
	dir     string
	uids    atomic.Uint32

	mu      sync.Mutex
	spawner *spawner // made for the first child
	closed  bool
	alive   sync.WaitGroup
}

// Find is the path of the children's program: beside this process's own, or else in PATH.
func Find() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), wire.Program)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath(wire.Program)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside %s nor in PATH: %w", wire.Program, filepath.Base(os.Args[0]),
			errdefs.ErrFailedPrecondition)
	}
	return filepath.Abs(path)
}

// New opens the program that children run. dir is an existing directory, in which nothing is made.
func New(program, dir string) (*Jail, error) {
	fd, err := unix.Open(program, unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: %w", program, err, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: program, Err: err}
	}
	return &Jail{program: os.NewFile(uintptr(fd), program), dir: dir}, nil
}

// Close waits for children that are alive and ends the thread that they are started from.
func (j *Jail) Close() error {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.alive.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.spawner != nil {
		j.spawner.close()
		j.spawner = nil
	}
	return j.program.Close()
}

// ready returns the thread that children are started from, and makes it once.
func (j *Jail) ready() (*spawner, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, fmt.Errorf("the jail is closed: %w", errdefs.ErrUnavailable)
	}
	if j.spawner == nil {
		s, err := newSpawner(j.program, j.dir)
		if err != nil {
			// Nothing is read from an image without confinement.
			return nil, fmt.Errorf("images and archives are read by a confined child only, and this host confines none: %w: %w",
				err, errdefs.ErrFailedPrecondition)
		}
		j.spawner = s
	}
	j.alive.Add(1)
	return j.spawner, nil
}

// User IDs of children are of a range that systemd's list of them has as unused ("1879048192…2147483647"). Pods with
// user namespaces that the command line makes have IDs above it (internal/cli/launch).
const (
	FirstUID = 0x70000000
	UIDCount = 1 << 16
)

func (j *Jail) uid() uint32 { return FirstUID + j.uids.Add(1)%UIDCount }

// Check tells whether children can be started, by starting one.
func (j *Jail) Check(ctx context.Context) error {
	c, err := j.Start(ctx, Spec{Role: wire.Nothing, Memory: 16 << 20})
	if err != nil {
		return err
	}
	return c.Wait(nil)
}
