// Program taken is berth-unpack in which one child has been taken over by what it reads: the build says which (-X
// main.attack).
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	checkpoint "berth/internal/checkpoint/archive"
	"berth/internal/compression"
	"berth/internal/image/unpack"
	"berth/internal/image/variant"
	"berth/internal/jail/child"
	"berth/internal/jail/roles"
	"berth/internal/jail/wire"
)

var attack string

func main() {
	all := roles.All()
	honest := all[variant.MakeRole]
	takeOver := func(role *wire.Role, work child.Work) { all[role] = work }
	switch attack {
	case "decompress-hangs":
		takeOver(compression.Role, hang)
	case "decompress-crumbs":
		takeOver(compression.Role, func(t *child.Task) (any, error) {
			for {
				slot, err := t.Out[0].Slot()
				if err != nil {
					return nil, err
				}
				slot[0] = 0
				if err := t.Out[0].Commit(1); err != nil {
					return nil, err
				}
				time.Sleep(time.Millisecond)
			}
		})
	case "decompress-lies":
		takeOver(compression.Role, func(t *child.Task) (any, error) {
			if _, err := io.Copy(io.Discard, t.In[0]); err != nil {
				return nil, err
			}
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			if err := errors.Join(w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "other"}), w.Close()); err != nil {
				return nil, err
			}
			if _, err := t.Out[0].Write(b.Bytes()); err != nil {
				return nil, err
			}
			return nil, t.Out[0].End()
		})
	case "unpack-hangs":
		takeOver(unpack.Role, hang)
	case "unpack-hangs-at-the-end":
		takeOver(unpack.Role, func(t *child.Task) (any, error) {
			if _, err := io.Copy(io.Discard, t.In[0]); err != nil {
				return nil, err
			}
			return hang(t)
		})
	case "unpack-lies":
		takeOver(unpack.Role, func(t *child.Task) (any, error) {
			_, err := io.Copy(io.Discard, t.In[0])
			return &unpack.Result{Bytes: 1 << 62, Inodes: 1 << 62}, err
		})
	case "unpack-fills":
		takeOver(unpack.Role, func(t *child.Task) (any, error) { return nil, fill(int(t.Dirs[0].Fd())) })
	case "unpack-marks-its-program":
		takeOver(unpack.Role, func(*child.Task) (any, error) {
			fd, err := unix.Openat(unix.AT_FDCWD, "/"+wire.Program, unix.O_RDONLY, 0)
			if err != nil {
				return nil, err
			}
			return nil, child.Xattrs.Set(fd, "trusted.x", []byte("y"))
		})
	case "unpack-marks-a-pipe":
		takeOver(unpack.Role, func(*child.Task) (any, error) {
			return nil, child.Xattrs.Set(wire.FDAnswer, "trusted.x", []byte("y"))
		})
	case "unpack-redirects":
		takeOver(unpack.Role, func(t *child.Task) (any, error) {
			return nil, child.Xattrs.Set(int(t.Dirs[0].Fd()), "trusted.overlay.redirect", []byte("/etc"))
		})
	case "unpack-labels":
		takeOver(unpack.Role, func(t *child.Task) (any, error) {
			return nil, child.Xattrs.Set(int(t.Dirs[0].Fd()), "security.selinux", []byte("system_u:object_r:shadow_t:s0"))
		})
	case "checkpoint-plants":
		takeOver(checkpoint.UnpackRole, func(t *child.Task) (any, error) {
			return nil, unix.Symlinkat("/etc/shadow", int(t.Dirs[0].Fd()), checkpoint.ConfigFile)
		})
	case "plan-hangs":
		takeOver(variant.PlanRole, hang)
	case "plan-lies":
		takeOver(variant.PlanRole, func(*child.Task) (any, error) {
			return &variant.Placement{Needed: true, Places: []variant.Place{{}, {Name: []byte("../out")}}, At: []int{1}}, nil
		})
	case "plan-writes":
		takeOver(variant.PlanRole, func(t *child.Task) (any, error) {
			for i, d := range t.Dirs {
				if fd, err := unix.Openat(int(d.Fd()), "planted", unix.O_WRONLY|unix.O_CREAT, 0o755); err == nil {
					unix.Close(fd)
					return nil, fmt.Errorf("wrote into directory %d", i)
				}
				if err := unix.Fchmod(int(d.Fd()), 0o777); err == nil {
					return nil, fmt.Errorf("changed directory %d", i)
				}
			}
			return nil, errors.New("could not write")
		})
	case "make-takes-home":
		takeOver(variant.MakeRole, func(t *child.Task) (any, error) {
			if err := takeHome(int(t.Dirs[0].Fd())); err != nil {
				return nil, err
			}
			return honest(t)
		})
	case "make-leads-elsewhere":
		takeOver(variant.MakeRole, func(t *child.Task) (any, error) {
			return &variant.Result{}, unix.Symlinkat("/etc", int(t.Dirs[0].Fd()), "variant")
		})
	}
	child.Main(all)
}

func hang(*child.Task) (any, error) {
	for {
		time.Sleep(time.Hour)
	}
}

// fill writes files, each within the limit of one.
func fill(at int) error {
	chunk := make([]byte, 1<<20)
	for i := 0; ; i++ {
		fd, err := unix.Openat(at, fmt.Sprint(i), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		if _, err := unix.Write(fd, chunk); err != nil {
			return err
		}
		unix.Close(fd)
		if i >= 64 { // the test's disk is not to be filled
			i = 0
		}
	}
}

// takeHome tries to become another layer: to change what says which layer this is, and where it is found.
// What works is an error.
func takeHome(home int) error {
	for what, do := range map[string]func() error{
		"moved fs": func() error { return unix.Renameat2(home, "fs", home, "away", 0) },
		"exchanged fs": func() error {
			return errors.Join(unix.Mkdirat(home, "junk", 0o755), unix.Renameat2(home, "junk", home, "fs", unix.RENAME_EXCHANGE))
		},
		"moved over fs": func() error {
			_ = unix.Mkdirat(home, "junk", 0o755)
			return unix.Renameat2(home, "junk", home, "fs", 0)
		},
		"moved record":   func() error { return unix.Renameat2(home, "layer.json", home, "away", 0) },
		"removed record": func() error { return unix.Unlinkat(home, "layer.json", 0) },
		"linked record":  func() error { return unix.Linkat(home, "layer.json", home, "second", 0) },
		"replaced record": func() error {
			fd, err := unix.Openat(home, "other", unix.O_WRONLY|unix.O_CREAT, 0o600)
			if err != nil {
				return err
			}
			unix.Close(fd)
			return unix.Renameat2(home, "other", home, "layer.json", 0)
		},
		"wrote record": func() error {
			fd, err := unix.Openat(home, "layer.json", unix.O_WRONLY|unix.O_APPEND, 0)
			if err == nil {
				unix.Close(fd)
			}
			return err
		},
		"changed record": func() error { return unix.Fchmodat(home, "layer.json", 0o777, 0) },
		"owned record":   func() error { return unix.Fchownat(home, "layer.json", 1, 1, 0) },
	} {
		if err := do(); err == nil {
			return errors.New(what)
		}
	}
	return nil
}
