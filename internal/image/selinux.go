package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	"golang.org/x/sys/unix"
)

// labelLayers gives a directory of layers, with all that is in it, the SELinux label of what every container may read.
// New files have it from their directory. A container's own root has a label of its own by its mount, but a kernel
// before 6.8 asks for the layer's as well where a program's pages become read-only.
func labelLayers(dir string) error {
	if !selinux.GetEnabled() {
		return nil
	}
	// The policy's labels are known once one has been made.
	process, _, err := label.InitLabels(nil)
	if err != nil {
		return err
	}
	selinux.ReleaseLabel(process)
	//lint:ignore SA1019 no other call tells the policy's ro_file, and with containers' own type one that breaks out could write
	want := selinux.ROFileLabel()
	if want == "" {
		return nil
	}
	have, err := selinux.LfileLabel(dir)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil && !errors.Is(err, unix.ENODATA) {
		return err
	}
	if sameType(have, want) {
		return nil
	}
	if err := relabel(dir, want, selinux.Chcon); err != nil {
		return fmt.Errorf("SELinux label of %s: %w", dir, err)
	}
	return nil
}

// relabel labels a directory with all that is in it. The directory itself comes last: its label says that all of it is
// labelled, and chcon begins with what it is called for.
func relabel(dir, want string, chcon func(path, label string, recurse bool) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := chcon(filepath.Join(dir, e.Name()), want, true); err != nil {
			return err
		}
	}
	return chcon(dir, want, false)
}

func sameType(a, b string) bool {
	x, err := selinux.NewContext(a)
	if err != nil {
		return false
	}
	y, err := selinux.NewContext(b)
	return err == nil && x["type"] == y["type"]
}
