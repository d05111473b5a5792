// Package rootid sees to it that a root and a state directory belong together. The keeper of a state directory runs
// containers, and berthd ends those of which its root has no record. So a root that is another node's, or the directory
// below a disk that is not mounted, must not meet the keeper's containers. A root has an ID for that, and the state
// directory a copy of it.
package rootid

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
	"berth/internal/pod/layout"
	"berth/internal/state"
)

// Lister lists all containers and inits of pods that the keeper knows.
type Lister interface {
	List(context.Context) ([]keeper.Status, error)
}

// mark is the format of <root>/id/id.json and <state>/id/id.json.
type mark struct {
	ID   string `json:"id"`
	Root string `json:"root,omitempty"` // in the state directory: where the root was, for messages
}

const (
	markFile = "id.json"
	markID   = "id"
)

// Match compares the ID of a root with its copy in the state directory. If they differ, or one of them is missing or
// damaged, the root is that of the state directory if nothing runs there, or if the root has the record of something
// that runs, as on a node whose last berthd knew no IDs. Then both get the same ID. Otherwise Match changes nothing,
// and the error says what to do. The caller holds the locks of both directories, and has ended nothing yet.
func Match(ctx context.Context, dirs *layout.Dirs, k Lister, log *slog.Logger) error {
	own, err := load(dirs.Root)
	if err != nil {
		return err
	}
	copied, err := load(dirs.State)
	if err != nil {
		return err
	}
	want := mark{ID: own.ID, Root: dirs.Root}
	if own.ID != "" && copied == want {
		return nil
	}
	if own.ID == "" || own.ID != copied.ID {
		there, err := running(ctx, dirs, k)
		if err != nil {
			return err
		}
		switch known := there.recorded(dirs); {
		case !there.empty() && !known:
			return &ForeignError{State: dirs.State, Root: dirs.Root, Before: copied.Root, Containers: len(there.containers),
				Pods: len(there.pods)}
		case own.ID == "" && known:
			want.ID = copied.ID
		}
	}
	// A full disk, for example, keeps no node down: the next start tries again.
	if err := save(dirs, own, want); err != nil {
		log.Warn("write the ID of the root, by which a root without the records of running containers is refused",
			"root", dirs.Root, "error", err)
	}
	return nil
}

// load reads the ID in a directory. One that is missing, or damaged, is empty.
func load(dir string) (m mark, err error) {
	err = records(dir).LoadFile(markID, markFile, &m)
	if newer := (*state.FormatError)(nil); errors.As(err, &newer) {
		return m, err
	}
	if err != nil {
		return mark{}, nil
	}
	return m, nil
}

func records(dir string) state.Records { return state.Records{Dir: dir, File: markFile} }

// save writes the root's ID, a new one if it shall have none yet, and then the copy. A berthd that is killed between
// the two leaves a state directory without the ID, or with another one, which is as it was before.
func save(dirs *layout.Dirs, own, want mark) error {
	if want.ID == "" {
		want.ID = rand.Text()
	}
	if own.ID != want.ID {
		if err := records(dirs.Root).Save(markID, &mark{ID: want.ID}); err != nil {
			return err
		}
	}
	return records(dirs.State).Save(markID, &want)
}

// things are what runs by the keeper and the state directory, by ID.
type things struct{ containers, pods []string }

func (t *things) empty() bool { return len(t.containers)+len(t.pods) == 0 }

// recorded tells whether a root has the directory of one of them at least. IDs are random, so a root that has one is
// the right root. Others of them may have lost their records.
func (t *things) recorded(dirs *layout.Dirs) bool {
	for _, id := range t.containers { // or the init of a pod
		if exists(dirs.Container(id)) || exists(filepath.Join(dirs.Pods(), id)) {
			return true
		}
	}
	for _, id := range t.pods {
		if exists(filepath.Join(dirs.Pods(), id)) {
			return true
		}
	}
	return false
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// running finds the containers and inits of pods that the keeper has and that have not ended, and the pods whose files
// are mounted: not namespaces that were made ahead of a pod, nor what a reboot has left.
func running(ctx context.Context, dirs *layout.Dirs, k Lister) (t things, err error) {
	list, err := k.List(ctx)
	if err != nil {
		return t, fmt.Errorf("list what the keeper runs: %w", err)
	}
	for _, s := range list {
		if s.State != keeper.StateExited {
			t.containers = append(t.containers, s.ID)
		}
	}
	entries, err := os.ReadDir(dirs.StatePods())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return t, fmt.Errorf("list the state of pods: %w", err)
	}
	for _, e := range entries {
		if id := e.Name(); mountPoint(dirs.Files(id)) {
			t.pods = append(t.pods, id)
		}
	}
	return t, nil
}

// mountPoint tells whether a file system of its own is mounted at a directory.
func mountPoint(dir string) bool {
	var own, above unix.Stat_t
	return unix.Lstat(dir, &own) == nil && unix.Lstat(filepath.Dir(dir), &above) == nil && own.Dev != above.Dev
}

// ForeignError is the error for a root that has no record of anything that runs in the state directory.
type ForeignError struct {
	State, Root      string
	Before           string // the root of what runs; empty: it is not known
	Containers, Pods int    // that run; inits of pods are among the containers
}

func (e *ForeignError) Error() string {
	whose := "another root"
	if e.Before != "" && e.Before != e.Root {
		whose = "the root " + e.Before
	} else if e.Before != "" {
		whose = "what was there before"
	}
	return fmt.Sprintf("root %s has no records of what runs in state %s (containers: %d, pods: %d), which belongs to %s: "+
		"berthd would end it. Set root to the right directory and see that its disk is mounted, or give this berthd "+
		"a state of its own. If the records are gone for good, reboot the node: nothing else ends what runs",
		e.Root, e.State, e.Containers, e.Pods, whose)
}

// Unwrap gives the error its class.
func (e *ForeignError) Unwrap() error { return errdefs.ErrFailedPrecondition }
