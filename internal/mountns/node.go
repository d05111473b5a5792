package mountns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth/internal/throwaway"
)

// nodeVariable has the number of the descriptor by which a program in the namespace has the node's.
const nodeVariable = "BERTH_NODE_MOUNTS"

// node is the node's mount namespace, of a process in Berth's own; nil: this process is not in that. private are the
// directories whose mounts are only in Berth's own.
var (
	node    *os.File
	private []string
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
	return nil
}

// Node is the node's mount namespace, where this process is in Berth's own; else nil.
func Node() *os.File { return node }

// Own tells whether a path is in a directory whose mounts are in Berth's own namespace alone.
func Own(path string) bool {
	for _, dir := range private {
		if rest, in := strings.CutPrefix(path, dir); in && (rest == "" || rest[0] == '/') {
			return true
		}
	}
	return false
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
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Setns(int(node.Fd()), unix.CLONE_NEWNS)
		}
		return errors.Join(err, f())
	})
}
