package hostpath

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/hostpath/inroot"
	"berth/internal/mountns"
)

// childName makes this process's own binary a child that does one thing with one path.
const childName = "berth-hostpath"

// patience is how long a file system may take to answer.
const patience = 5 * time.Second

// The acts of a child, each with a path and further arguments.
const (
	actResolve = "resolve"
	actCreate  = "create"
	actNode    = "node"
	actPresent = "present"
	actBelow   = "below"
	actRelabel = "relabel"
	actMount   = "mount"
	actRead    = "read"
	actPath    = "path"
)

// Before the process does anything else. It has one path to look at, and no more.
func init() {
	if len(os.Args) < 4 || os.Args[0] != childName {
		return
	}
	what, mute, path, more := os.Args[1], os.Args[2], os.Args[3], os.Args[4:]
	var a answer
	err := approach(path, strings.Split(mute, ","), os.Stdout)
	var result any
	if err == nil {
		result, err = act(what, path, more)
	}
	if err == nil {
		a.Result, err = json.Marshal(result)
	}
	if err != nil {
		a.Error, a.Kind = err.Error(), kindOf(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// tested are what the children of tests do in the place of an act.
var tested map[string]func(path string) (any, error)

func act(what, path string, more []string) (any, error) {
	if instead := tested[what]; instead != nil {
		return instead(path)
	}
	switch {
	case what == actResolve:
		return wait(path)
	case what == actCreate:
		return create(path)
	case what == actNode:
		return nodeAt(path)
	case what == actPresent:
		return present(path, more), nil
	case what == actBelow:
		return devicesBelow(path)
	case what == actRelabel && len(more) == 2:
		return nil, relabel(path, more[0], more[1] == "shared")
	case what == actMount && len(more) == 1:
		return mountRoot(more[0])
	case what == actRead && len(more) == 1:
		return readInRoot(path, more[0])
	case what == actPath && len(more) == 1:
		return inroot.NewResolver(context.Background()).Path(path, more[0]) // this child is killed at the end
	}
	return nil, fmt.Errorf("a child is asked for %q", what)
}

// stuck are those of paths that pods name, remote those of root file systems with remote layers, and written those of
// directories that Berth writes to. None keeps the others from being looked at. The latter two are where Berth's own
// mounts are, and not the node's.
var stuck, remote, written waits

func ask(what, path string, result any, alive func() bool, more ...string) error {
	return stuck.ask(what, path, result, alive, more...)
}

func (w *waits) ask(what, path string, result any, alive func() bool, more ...string) error {
	return w.during(context.Background(), what, path, result, alive, more...)
}

// during has a child do something with a path. alive is asked whenever the file system has had another span of
// patience, and says whether it answers somebody else meanwhile; nil: it has to answer within the first. The child is
// killed when the context ends, and has ended when this returns, unless its file system does not answer.
func (w *waits) during(ctx context.Context, what, path string, result any, alive func() bool, more ...string) error {
	mute, err := w.admit(path)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe",
		append([]string{what, strings.Join(mute, ","), path}, more...)...)
	cmd.Args[0] = childName
	cmd.Env = []string{}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var out output
	cmd.Stdout = &out
	started, done := make(chan *os.Process, 1), make(chan error, 1)
	onNode := mountns.OnNode
	if w != &stuck || mountns.Own(path) {
		onNode = func(f func() error) error { return f() }
	}
	go func() {
		// Pdeathsig is about the thread that starts the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		done <- onNode(func() error {
			err := cmd.Start()
			if err == nil {
				started <- cmd.Process
				err = cmd.Wait()
			}
			return err
		})
	}()
	for waiting := true; waiting; {
		select {
		case err := <-done:
			if ctx.Err() != nil && err != nil {
				return fmt.Errorf("%s %s: %w", what, path, ctx.Err())
			}
			return parse(path, out.answer(), result, err)
		case <-ctx.Done():
			waiting = false
			select {
			case <-done:
				return fmt.Errorf("%s %s: %w", what, path, ctx.Err())
			case <-time.After(patience):
			}
		case <-time.After(patience):
			waiting = alive != nil && alive()
		}
	}
	system := out.system()
	w.give(path, system, 1)
	select {
	case p := <-started:
		_ = p.Kill()
	default:
	}
	go func() {
		<-done
		w.give(path, system, -1)
	}()
	return unanswered(path)
}

func parse(path string, out []byte, result any, err error) error {
	var a answer
	if err == nil {
		err = json.Unmarshal(out, &a)
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	if a.Error != "" {
		if kind := kinds[a.Kind]; kind != nil {
			return fmt.Errorf("%s: %w", strings.TrimSuffix(a.Error, ": "+kind.Error()), kind)
		}
		return errors.New(a.Error)
	}
	return json.Unmarshal(a.Result, result)
}

// kinds are the errors that are still known as such when a child has sent them.
var kinds = map[string]error{
	"missing": fs.ErrNotExist, "invalid": errdefs.ErrInvalidArgument, "unmet": errdefs.ErrFailedPrecondition,
	"exhausted": errdefs.ErrResourceExhausted, "mute": errdefs.ErrUnavailable,
}

func kindOf(err error) string {
	for name, kind := range kinds {
		if errors.Is(err, kind) {
			return name
		}
	}
	return ""
}

// answer is the child's answer.
type answer struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
	Kind   string          `json:"kind,omitempty"` // of the error: one of kinds; empty: none of them
}
