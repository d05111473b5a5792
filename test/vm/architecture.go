package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// architecture is a kind of machine that a guest may be, by Go's name, which is also Debian's.
type architecture struct {
	name     string
	kernel   string   // the package of Debian's cloud kernel
	emulator string   // of the machine
	machine  []string // flags of the emulator
	console  string   // the serial port, as the kernel names it
	// programs runs single programs of this architecture on a host of another one, while the root image is made. magic
	// and mask say how such a program begins, in the words of the kernel's binfmt_misc.
	programs, magic, mask string
}

var architectures = []architecture{
	{
		name: "amd64", kernel: "linux-image-cloud-amd64", emulator: "qemu-system-x86_64", console: "ttyS0",
		machine:  []string{"-machine", "q35", "-cpu", "max,la57=off"},
		programs: "qemu-x86_64-static",
		magic:    `\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\x3e\x00`,
		mask:     `\xff\xff\xff\xff\xff\xfe\xfe\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff`,
	},
	{
		name: "arm64", kernel: "linux-image-cloud-arm64", emulator: "qemu-system-aarch64", console: "ttyAMA0",
		// The algorithm that the architecture has for signed pointers is slow to emulate.
		machine:  []string{"-machine", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on"},
		programs: "qemu-aarch64-static",
		magic:    `\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00`,
		mask:     `\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff`,
	},
}

func architectureNamed(name string) (architecture, error) {
	i := slices.IndexFunc(architectures, func(a architecture) bool { return a.name == name })
	if i < 0 {
		return architecture{}, fmt.Errorf("unknown architecture %q: amd64 or arm64", name)
	}
	return architectures[i], nil
}

// foreign says that the host cannot run its programs itself.
func (a architecture) foreign() bool { return a.name != runtime.GOARCH }

// environment is what the Go command needs to build for it.
func (a architecture) environment() []string {
	if !a.foreign() {
		return nil
	}
	return []string{"GOARCH=" + a.name, "CGO_ENABLED=0"}
}

// register has the host's kernel run programs of this architecture by an emulator until unregister is called, unless
// it does so already. The emulator is opened now, so that it also serves programs in a chroot.
func (a architecture) register(ctx context.Context) (unregister func() error, err error) {
	nothing := func() error { return nil }
	if !a.foreign() {
		return nothing, nil
	}
	dir, err := os.MkdirTemp("", "berth-binfmt-")
	if err != nil {
		return nil, err
	}
	if err := unix.Mount("binfmt_misc", dir, "binfmt_misc", 0, ""); err != nil {
		return nil, errors.Join(fmt.Errorf("mount binfmt_misc: %w", err), os.Remove(dir))
	}
	unmount := func() error { return errors.Join(unix.Unmount(dir, 0), os.Remove(dir)) }
	name := "berth-vm-" + a.name
	entries, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, errors.Join(err, unmount())
	}
	for _, entry := range entries {
		if text, err := os.ReadFile(entry); err == nil && strings.Contains(string(text), a.programs) &&
			filepath.Base(entry) != name {
			return unmount, nil
		}
	}
	program := filepath.Join("/usr/bin", a.programs)
	if _, err := os.Stat(program); err != nil {
		return nil, errors.Join(fmt.Errorf("%w (Debian: qemu-user-static)", err), unmount())
	}
	remove := func() error {
		err := write(filepath.Join(dir, name), "-1")
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	// One of an earlier run that was killed.
	err = remove()
	if err == nil {
		err = write(filepath.Join(dir, "register"), fmt.Sprintf(":%s:M::%s:%s:%s:F", name, a.magic, a.mask, program))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("have the kernel run programs of %s: %w", a.name, err), unmount())
	}
	return func() error { return errors.Join(remove(), unmount()) }, ctx.Err()
}

// write writes to a file that is there: the kernel refuses to make any.
func write(file, text string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// build builds Berth's programs for it.
func (a architecture) build(ctx context.Context, root, dir string) error {
	if !a.foreign() { // a copy: the next build must not change them under the tests
		return command(ctx, "cp", "-r", filepath.Join(root, "bin"), dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return command(ctx, "env", "GOARCH="+a.name, filepath.Join(root, "packaging", "build.sh"), dir)
}
