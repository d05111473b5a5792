package poddir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/disk"
)

// request is how a container was made, for its next attempt.
type request struct {
	Number int `json:"number"` // in the order in which the containers of the pod were first made
	// Create is a CreateContainerRequest. In its binary form it keeps the fields that the CRI does not have.
	Create []byte `json:"create"`
	// Mounted are its directories below the pod's that something was mounted on: they are empty after a reboot.
	Mounted []string `json:"mounted,omitempty"`
}

func (d *Dir) requestFile(container string) string {
	return filepath.Join(d.Path, "requests", container+".json")
}

// SaveRequest keeps the request with which a container was made.
func (d *Dir) SaveRequest(container string, create *cri.CreateContainerRequest) error {
	bytes, err := proto.Marshal(create)
	if err != nil {
		return err
	}
	saved := request{Create: bytes}
	old, err := d.readRequest(container)
	switch {
	case err == nil:
		saved.Number = old.Number
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		names, err := d.requestNames()
		if err != nil {
			return err
		}
		saved.Number = len(names)
	}
	for _, m := range create.GetConfig().GetMounts() {
		if !strings.HasPrefix(m.GetHostPath(), d.Path+"/") {
			continue
		}
		mounted, err := mountinfo.Mounted(m.GetHostPath())
		if err != nil {
			return err
		}
		if mounted {
			saved.Mounted = append(saved.Mounted, m.GetHostPath())
		}
	}
	data, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	file := d.requestFile(container)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return disk.WriteFile(file, append(data, '\n'), 0o600)
}

func (d *Dir) readRequest(container string) (*request, error) {
	file := d.requestFile(container)
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	saved := &request{}
	if err := json.Unmarshal(data, saved); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return saved, nil
}

// requestNames are the names of the containers whose requests are kept.
func (d *Dir) requestNames() ([]string, error) {
	files, err := filepath.Glob(d.requestFile("*"))
	var names []string
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".json"))
	}
	return names, err
}

// Requests are the requests with which the containers of the pod were made last, in the order in which they were made
// first. There are none of a pod that others have made.
func (d *Dir) Requests() ([]*cri.CreateContainerRequest, error) {
	if d.Path == "" {
		return nil, nil
	}
	names, err := d.requestNames()
	if err != nil {
		return nil, err
	}
	var all []*request
	for _, name := range names {
		saved, err := d.readRequest(name)
		if err != nil {
			return nil, err
		}
		all = append(all, saved)
	}
	slices.SortFunc(all, func(a, b *request) int { return a.Number - b.Number })
	var requests []*cri.CreateContainerRequest
	for _, saved := range all {
		for _, path := range saved.Mounted {
			if mounted, err := mountinfo.Mounted(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			} else if !mounted {
				return nil, fmt.Errorf("its volume at %s is gone since the machine was restarted", path)
			}
		}
		create := &cri.CreateContainerRequest{}
		if err := proto.Unmarshal(saved.Create, create); err != nil {
			return nil, fmt.Errorf("the requests of pod directory %s: %w", d.Path, err)
		}
		requests = append(requests, create)
	}
	return requests, nil
}

// Repin gives an attempt of a container the sub-paths of volumes that an earlier one has. They are not looked up again:
// what they name may be another place by now.
func (d *Dir) Repin(container string, from, to int, mounts []*cri.Mount) error {
	old, target := d.subPaths(container, from), d.subPaths(container, to)
	for _, m := range mounts {
		rest, pinned := strings.CutPrefix(m.GetHostPath(), old+"/")
		if !pinned {
			continue
		}
		path := filepath.Join(target, rest)
		info, err := os.Stat(m.GetHostPath())
		if err == nil {
			err = bind(m.GetHostPath(), path, info.IsDir())
		}
		if err != nil {
			return fmt.Errorf("bind %s: %w", m.GetHostPath(), err)
		}
		m.HostPath = path
	}
	return nil
}

// ErrHeld means that a command runs the pod.
var ErrHeld = errors.New("a command runs it")

// Hold says that this command runs the pod, until release is called or the command ends, however it does. The error is
// ErrHeld while another command does.
func (d *Dir) Hold() (release func(), err error) {
	file, err := os.OpenFile(filepath.Join(d.Path, "held"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrHeld
		}
		return nil, os.NewSyscallError("flock", err)
	}
	return func() { file.Close() }, nil
}
