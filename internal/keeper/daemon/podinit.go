package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/program"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
)

// podInits makes the inits of pods: the first processes of pods that share their PID namespace.
type podInits struct {
	dir, binary string // Config's

	mu   sync.Mutex
	made bool // the copy of the program
}

// podInit makes the spec that of a pod's init: the keeper's small program, or else the keeper's own, read-only in an
// empty root, under its other name.
func (p *podInits) podInit(spec *specs.Spec) error {
	path := p.binary
	if _, small := program.File(); small || spec.Linux.MountLabel != "" {
		var err error
		if path, err = p.initCopy(spec.Linux.MountLabel); err != nil {
			return fmt.Errorf("write the program of pods' inits: %w", err)
		}
	}
	spec.Process.Args = []string{protocol.ReaperProgram}
	spec.Process.Terminal = false
	proc := slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return filepath.Clean(m.Destination) == "/proc" })
	if !proc { // libcontainer needs one to drop capabilities
		spec.Mounts = append(spec.Mounts, specs.Mount{
			Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"},
		})
	}
	spec.Mounts = append(spec.Mounts, specs.Mount{
		Destination: protocol.ReaperProgram, Type: "bind", Source: path,
		Options: []string{"bind", "ro", "nosuid", "nodev", "private"},
	})
	return nil
}

// initCopy is a file of the program. It has the SELinux label of containers' files, if there is one, but for the level,
// so that any pod may execute it: what is installed keeps its own label, and with that no container can begin.
func (p *podInits) initCopy(mount string) (string, error) {
	path := filepath.Join(p.dir, "init")
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.made {
		return path, nil
	}
	file, ok := program.File()
	if !ok {
		b, err := os.ReadFile(p.binary)
		if err != nil {
			return "", err
		}
		file = string(b)
	}
	// Pods of an earlier keeper keep the file that they have.
	partial := path + ".new"
	// A process that was forked meanwhile would have the file open until it executes its own program, and nobody could
	// execute the file until then.
	syscall.ForkLock.RLock()
	err := os.WriteFile(partial, []byte(file), 0o755)
	syscall.ForkLock.RUnlock()
	if err := errors.Join(err, label.Relabel(partial, mount, true)); err != nil {
		return "", errors.Join(err, os.Remove(partial))
	}
	if err := os.Rename(partial, path); err != nil {
		return "", err
	}
	p.made = true
	return path, nil
}

// removePodInit removes the mount points that were made for podInit.
func (*podInits) removePodInit(r *record.Container) {
	// The root is a directory of berthd's that no container can write to: the paths have no links in them.
	path := filepath.Join(r.Root, protocol.ReaperProgram)
	if st, err := os.Lstat(path); err == nil && st.Mode().IsRegular() && st.Size() == 0 {
		_ = os.Remove(path)
	}
	_ = unix.Rmdir(filepath.Join(r.Root, "proc"))
}
