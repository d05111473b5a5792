// Program attacker is a program of a jail's children whose roles have been taken over: each does what the test tells
// it.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth/internal/jail/child"
	"berth/internal/jail/roles"
	"berth/internal/jail/wire"
)

func main() {
	taken := child.Roles{}
	for role := range roles.All() {
		taken[role] = attack
	}
	child.Main(taken)
}

// order is the task of all roles here.
type order struct {
	Name   string
	Number uintptr // of a system call
	Args   []uintptr
	Text   string
}

func attack(t *child.Task) (any, error) {
	var o order
	if err := t.Decode(&o); err != nil {
		return nil, err
	}
	do, ok := attacks[o.Name]
	if !ok {
		return nil, fmt.Errorf("no attack %q", o.Name)
	}
	return nil, do(t, &o)
}

// attacks return nil where they succeed.
var attacks = map[string]func(*child.Task, *order) error{
	"nothing": func(*child.Task, *order) error { return nil },
	// wait waits until the test has looked at the process.
	"wait": func(t *child.Task, _ *order) error {
		_, err := io.Copy(io.Discard, t.In[0])
		return err
	},
	"hang": func(*child.Task, *order) error {
		for {
			time.Sleep(time.Hour)
		}
	},
	"call": func(_ *child.Task, o *order) error {
		args := append(o.Args, make([]uintptr, 6-len(o.Args))...)
		if _, _, errno := unix.RawSyscall6(o.Number, args[0], args[1], args[2], args[3], args[4], args[5]); errno != 0 {
			return errno
		}
		return nil
	},
	"int80": func(*child.Task, *order) error { int80(); return nil },
	"open": func(_ *child.Task, o *order) error {
		_, err := unix.Openat(unix.AT_FDCWD, o.Text, unix.O_RDONLY, 0)
		return err
	},
	// climb goes up as far as the kernel lets it.
	"climb": func(t *child.Task, o *order) error {
		_, err := unix.Openat(int(t.Dirs[0].Fd()), "../../../../../../../../"+o.Text, unix.O_RDONLY, 0)
		return err
	},
	"create": func(t *child.Task, o *order) error {
		fd, err := unix.Openat(int(t.Dirs[0].Fd()), o.Text, unix.O_WRONLY|unix.O_CREAT, 0o600)
		if err == nil {
			unix.Close(fd)
		}
		return err
	},
	"create in the root": func(t *child.Task, o *order) error {
		return unix.Mkdirat(unix.AT_FDCWD, "/"+o.Text, 0o700)
	},
	"link": func(t *child.Task, o *order) error {
		return unix.Linkat(int(t.Dirs[0].Fd()), o.Text, int(t.Dirs[1].Fd()), o.Text, 0)
	},
	"chown": func(t *child.Task, o *order) error {
		return unix.Fchownat(int(t.Dirs[0].Fd()), o.Text, 1, 1, 0)
	},
	"trusted": func(t *child.Task, _ *order) error {
		return unix.Fsetxattr(int(t.Dirs[0].Fd()), "trusted.overlay.opaque", []byte("y"), 0)
	},
	// device makes the memory of the machine a file.
	"device": func(t *child.Task, o *order) error {
		at := int(t.Dirs[0].Fd())
		if err := unix.Mknodat(at, o.Text, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil { // zero
			return fmt.Errorf("make it: %w", err)
		}
		_, err := unix.Openat(at, o.Text, unix.O_RDONLY, 0)
		return err
	},
	"memory": func(*child.Task, *order) error {
		var all [][]byte
		for range 1 << 10 {
			all = append(all, bytes.Repeat([]byte{1}, 1<<20))
		}
		runtime.KeepAlive(all)
		return nil
	},
	"mapped memory": func(*child.Task, *order) error {
		for range 1 << 10 {
			if _, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE,
				unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
				return err
			}
		}
		return nil
	},
	"threads": func(_ *child.Task, o *order) error {
		done, started := make(chan struct{}), make(chan struct{})
		for range o.Number {
			go func() {
				runtime.LockOSThread()
				started <- struct{}{}
				<-done
			}()
			<-started
		}
		close(done)
		return nil
	},
	"descriptors": func(t *child.Task, _ *order) error {
		for range 2000 {
			if _, err := unix.Openat(int(t.Dirs[0].Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY, 0); err != nil {
				return err
			}
		}
		return nil
	},
	"huge file": func(t *child.Task, o *order) error {
		fd, err := unix.Openat(int(t.Dirs[0].Fd()), o.Text, unix.O_WRONLY|unix.O_CREAT, 0o600)
		if err != nil {
			return err
		}
		return unix.Ftruncate(fd, 1<<30)
	},
	"panic": func(_ *child.Task, o *order) error { panic(o.Text) },
	"error": func(_ *child.Task, o *order) error { return errors.New(o.Text) },
	"crash": func(_ *child.Task, o *order) error {
		os.Exit(int(o.Number))
		return nil
	},
	// say answers something else than an answer.
	"say": func(_ *child.Task, o *order) error {
		_, err := os.NewFile(wire.FDAnswer, "").Write([]byte(o.Text))
		os.Exit(0)
		return err
	},
	"talk": func(*child.Task, *order) error {
		noise := bytes.Repeat([]byte("noise\x1b[31m"), 1<<16)
		for range 1 << 10 {
			if _, err := unix.Write(int(wire.FDAnswer), noise); err != nil {
				return err
			}
		}
		return nil
	},
	"complain": func(*child.Task, *order) error {
		noise := bytes.Repeat([]byte("noise\x1b[31m"), 1<<16)
		for range 10 {
			if _, err := unix.Write(int(wire.FDStderr), noise); err != nil {
				return err
			}
		}
		os.Exit(3)
		return nil
	},
	"ask": func(t *child.Task, o *order) error {
		return child.Xattrs.Set(int(t.Dirs[0].Fd()), o.Text, []byte("y"))
	},
	// ask wrongly sends calls that no honest child sends.
	"ask wrongly": func(t *child.Task, o *order) error {
		fd := int(t.Dirs[0].Fd())
		call, err := (&wire.Call{Op: wire.SetXattr, Key: "user.x", Value: []byte("y")}).Bytes()
		if err != nil {
			return err
		}
		fds := []int{fd}
		switch o.Text {
		case "two files":
			fds = append(fds, fd)
		case "no file":
			fds = nil
		case "cut off":
			call = call[:2]
		case "unknown":
			call[0] = 200
		case "many files":
			fds = slices.Repeat(fds, 200)
		}
		var rights []byte
		if fds != nil {
			rights = unix.UnixRights(fds...)
		}
		if err := unix.Sendmsg(wire.FDCalls, call, rights, nil, 0); err != nil {
			return err
		}
		_, _, err = unix.Recvfrom(wire.FDCalls, make([]byte, 100), 0)
		if err == nil {
			time.Sleep(time.Minute) // to be killed
		}
		return err
	},
	// rewrite makes the memory writable that it was given to read.
	"rewrite": func(t *child.Task, _ *order) error {
		b, err := t.In[0].Next()
		if err != nil {
			return err
		}
		return unix.Mprotect(b[:4096], unix.PROT_READ|unix.PROT_WRITE)
	},
	// stream passes what it reads on.
	"stream": func(t *child.Task, _ *order) error {
		if _, err := t.Out[0].ReadFrom(t.In[0]); err != nil {
			return err
		}
		return t.Out[0].End()
	},
	// half sends something, and no end.
	"half": func(t *child.Task, _ *order) error {
		if _, err := t.Out[0].Write(make([]byte, 3<<20)); err != nil {
			return err
		}
		return nil
	},
	// token tells the jail of more bytes than a slot has.
	"token": func(_ *child.Task, o *order) error {
		token := uint32(o.Number)
		_, err := unix.Write(wire.FDFirst+1, (*[4]byte)(unsafe.Pointer(&token))[:])
		time.Sleep(time.Second)
		return err
	},
}
