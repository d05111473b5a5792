package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	commands["calls"] = calls
	commands["devices"] = devices
	commands["writable"] = writable
}

// calls makes system calls that reach parts of the kernel in which holes were found, and says which are let
// through to there.
func calls([]string) error {
	var ring [120]byte
	for name, call := range map[string]func() error{
		"socket AF_ALG":   func() error { return socket(unix.AF_ALG) },
		"socket AF_VSOCK": func() error { return socket(unix.AF_VSOCK) },
		"unshare user":    func() error { return errno(unix.SYS_UNSHARE, unix.CLONE_NEWUSER) },
		"io_uring_setup":  func() error { return errno(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&ring))) },
		// KEYCTL_GET_KEYRING_ID of the session's
		"keyctl":            func() error { return errno(unix.SYS_KEYCTL, 0, ^uintptr(2), 0) },
		"add_key":           func() error { return errno(unix.SYS_ADD_KEY) },
		"bpf":               func() error { return errno(unix.SYS_BPF, 0) },
		"userfaultfd":       func() error { return errno(unix.SYS_USERFAULTFD) },
		"open_by_handle_at": func() error { return errno(unix.SYS_OPEN_BY_HANDLE_AT, ^uintptr(0)) },
		"mount":             func() error { return errno(unix.SYS_MOUNT) },
		"fsopen":            func() error { return errno(unix.SYS_FSOPEN) },
		"kexec_load":        func() error { return errno(unix.SYS_KEXEC_LOAD) },
		"init_module":       func() error { return errno(unix.SYS_INIT_MODULE) },
	} {
		if err := call(); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EACCES) {
			fmt.Println("LET THROUGH", name, "with", err)
		}
	}
	return nil
}

func socket(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func errno(call uintptr, args ...uintptr) error {
	var a [3]uintptr
	copy(a[:], args)
	if _, _, e := unix.Syscall(call, a[0], a[1], a[2]); e != 0 {
		return e
	}
	return nil
}

// devices DIR makes a node in DIR for each device number of the arguments ("b:8:0"), and reads what it can.
func devices(args []string) error {
	for i, number := range args[1:] {
		var kind rune
		var major, minor uint32
		if _, err := fmt.Sscanf(number, "%c:%d:%d", &kind, &major, &minor); err != nil {
			return err
		}
		mode := uint32(unix.S_IFCHR)
		if kind == 'b' {
			mode = unix.S_IFBLK
		}
		path := filepath.Join(args[0], fmt.Sprint("node", i))
		if err := unix.Mknod(path, mode|0o666, int(unix.Mkdev(major, minor))); err != nil {
			fmt.Println("not made", number, err)
			continue
		}
		for _, flags := range []int{unix.O_RDONLY, unix.O_WRONLY} {
			if fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
				unix.Close(fd)
				fmt.Println("OPENED", number)
			}
		}
		if err := unix.Unlink(path); err != nil {
			return err
		}
	}
	return nil
}

// writable DIR... names the files below directories that it can open for writing, and the directories
// in which it can make one.
func writable(dirs []string) error {
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Type()&fs.ModeSymlink != 0 {
				return nil
			}
			if d.IsDir() {
				if name := filepath.Join(path, "intruder"); unix.Mkdir(name, 0o755) == nil {
					fmt.Println("MADE", name)
					_ = unix.Rmdir(name)
				}
				return nil
			}
			if fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
				unix.Close(fd)
				fmt.Println("OPENED", path)
			}
			return nil
		})
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}
