package main

import (
	"context"
	"os"
	"path/filepath"

	"berth/test/vm/wire"
)

// runDebs packs what is in bin/ as two versions, and has the guest install one and upgrade to the other.
func runDebs(ctx context.Context, s *session) ([]*result, error) {
	work, err := os.MkdirTemp("", "berth-debs-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	tree, program := filepath.Join(work, "tree"), filepath.Join(work, "packages")
	if err := command(ctx, "make", "-C", s.root, "install", "PREFIX=/usr", "DESTDIR="+tree,
		"BIN="+filepath.Join(s.machine.dir, "share", "bin")); err != nil {
		return nil, err
	}
	err = command(ctx, "go", "-C", filepath.Join(s.root, "tools", "packages"), "build", "-o", program, ".")
	if err != nil {
		return nil, err
	}
	for _, version := range []string{"1.0.0", "1.1.0"} {
		err := command(ctx, program, "-root", tree, "-out", filepath.Join(s.machine.dir, "share", "packages"),
			"-scripts", filepath.Join(s.root, "packaging", "scripts"), "-version", version, "-arch", s.guest.name,
			"-c-libraries", "libseccomp-dev=0 musl-dev=0 libc6-dev=0")
		if err != nil {
			return nil, err
		}
	}
	return s.runPackages(ctx, []string{"./test/vm/units"}, wire.Command{
		Args: []string{"-test.run", "^TestDebUnderSystemd$"},
		Env:  []string{"BERTH_VM_PACKAGES=" + filepath.Join(wire.Share, "packages")},
	})
}
