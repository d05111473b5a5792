package mountns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Pin is where the namespace is pinned, by the directory of the keeper, which both programs know.
func Pin(keeper string) string { return filepath.Join(keeper, "mounts", "ns") }

// Pinned tells whether there is a namespace.
func Pinned(pin string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(pin, &fs) == nil && fs.Type == unix.NSFS_MAGIC
}

// Inside tells whether this process is in the namespace that is, or was, pinned. The pin itself cannot be seen there:
// the kernel lets no namespace have a pin of itself. So its number is beside the pin, in a file.
func Inside(pin string) (bool, error) {
	number, err := os.ReadFile(numberFile(pin))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	now, err := os.Readlink("/proc/thread-self/ns/mnt")
	return now == string(number), err
}

func numberFile(pin string) string { return pin + ".number" }

// Same tells whether this process and another are in one mount namespace.
func Same(pid int) (bool, error) {
	ours, err := os.Readlink("/proc/thread-self/ns/mnt")
	if err != nil {
		return false, err
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	return ours == theirs, err
}

// Enter moves this process into the namespace that is pinned, if there is one and it is not there already: the program
// is executed again in it, with its arguments, its environment, and the descriptors that are not close-on-exec. So it
// is called before anything else. It only returns if there is nothing to do, if that has failed, or if ctx has ended,
// as by a signal to end: the program that is executed would know nothing of it.
func Enter(ctx context.Context, pin string) error {
	if inside, err := Inside(pin); err != nil || inside {
		return errors.Join(err, takeNode(pin))
	}
	if !Pinned(pin) {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	ns, err := os.Open(pin)
	if err != nil {
		return err
	}
	defer ns.Close()
	left, err := unix.Open("/proc/thread-self/ns/mnt", unix.O_RDONLY, 0) // for the program that is executed
	if err != nil {
		return &os.PathError{Op: "open", Path: "/proc/thread-self/ns/mnt", Err: err}
	}
	defer unix.Close(left)
	env := append(slices.Clip(os.Environ()), nodeVariable+"="+strconv.Itoa(left))
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	// A process with threads cannot change its mount namespace, but one of its threads can, and the kernel makes the
	// thread that executes a program the process.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("join the mount namespace %s: %w", pin, err)
	}
	if err := unix.Chdir(dir); err != nil {
		dir = "/"
	}
	signal.Reset(unix.SIGINT, unix.SIGTERM) // one that comes from now on ends this process
	if err := ctx.Err(); err != nil {
		return err
	}
	err = syscall.Exec(self, os.Args, env)
	if errors.Is(err, unix.ENOENT) { // it was replaced meanwhile
		err = syscall.Exec("/proc/self/exe", os.Args, env)
	}
	return fmt.Errorf("execute %s in the mount namespace %s: %w", self, pin, err)
}
