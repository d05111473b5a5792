package mountns

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"berth/internal/throwaway"
)

// nodeVariable has the number of the descriptor by which a program in the namespace has the node's.
const nodeVariable = "BERTH_NODE_MOUNTS"

// node is the node's mount namespace, of a process in Berth's own; nil: this process is not in that. root is the root
// directory there. private are the directories whose mounts are only in Berth's own.
var (
	node, root *os.File
	private    []string
)

func privateFile(pin string) string { return pin + ".private" }

// takeNode takes over what a program in the namespace was given by the one that has executed or started it.
func takeNode(pin string) error {
	value, there := os.LookupEnv(nodeVariable)
	if !there {
		return fmt.Errorf("%s is not in the environment of a program in the mount namespace %s", nodeVariable, pin)
	}
	os.Unsetenv(nodeVariable)
	fd, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("%s=%q: %w", nodeVariable, value, err)
	}
	unix.CloseOnExec(fd)
	list, err := os.ReadFile(privateFile(pin))
	if err != nil {
		return err
	}
	node, private = os.NewFile(uintptr(fd), "the node's mount namespace"), strings.Split(string(list), "\n")
	return OnNode(func() (err error) {
		root, err = os.OpenFile("/", unix.O_PATH|unix.O_DIRECTORY, 0)
		return err
	})
}

// Node is the node's mount namespace, where this process is in Berth's own; else nil.
func Node() *os.File { return node }

// Root is the root directory in the node's mount namespace, where this process is in Berth's own; else nil.
func Root() *os.File { return root }

// Own tells whether a path is in a directory whose mounts are in Berth's own namespace alone.
func Own(path string) bool {
	return slices.ContainsFunc(private, func(dir string) bool { return in(path, dir) })
}

// Pass gives the node's mount namespace to a program that is started in Berth's own and that calls Enter.
func Pass(cmd *exec.Cmd) {
	if node == nil {
		return
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, node)
	cmd.Env = append(cmd.Environ(), nodeVariable+"="+strconv.Itoa(2+len(cmd.ExtraFiles)))
}

// Inherited is the same for a program that is executed in place of this one: the descriptor that it has to be left, and
// a variable for its environment. Without a node's namespace, fd is negative.
func Inherited() (fd int, variable string) {
	if node == nil {
		return -1, ""
	}
	return int(node.Fd()), nodeVariable + "=" + strconv.Itoa(int(node.Fd()))
}

// OnNode runs f on a thread that sees the node's mounts.
func OnNode(f func() error) error {
	if node == nil {
		return f()
	}
	return throwaway.Thread(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Setns(int(node.Fd()), unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("join the node's mount namespace: %w", err)
		}
		return f()
	})
}

// Bring sees to it that what is mounted in a directory gets to the node, which has a shared mount there already. Where
// the mount below that one is not shared, the node's is not here.
func Bring(dir string) error {
	if node == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tree := -1
	var theirs *mountinfo.Info
	err := OnNode(func() (err error) {
		if theirs, err = aboveReal(dir); err != nil {
			return err
		}
		if tree, err = unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC); err != nil {
			return os.NewSyscallError("open_tree", err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if ours, err := aboveReal(dir); err != nil || group(ours) == group(theirs) {
		return err
	}
	err = unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
	return os.NewSyscallError("move_mount", err)
}

func aboveReal(path string) (*mountinfo.Info, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	return Above(real)
}
