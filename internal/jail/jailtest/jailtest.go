// Package jailtest gives tests a jail whose children run a program that is built for the test.
package jailtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"berth/internal/jail"
)

var shared = sync.OnceValues(func() (*jail.Jail, error) { return New("berth/cmd/berth-unpack") })

// Jail is one for all tests of a process. Tests that are not root's are skipped.
func Jail(t testing.TB) *jail.Jail {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	j, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// New builds a package, with flags of the build, as the program of a jail's children. The file is gone when New
// returns: the jail has it open.
func New(program string, flags ...string) (j *jail.Jail, err error) {
	dir, err := os.MkdirTemp("", "berth-jail-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "program")
	if err := Build(file, program, flags...); err != nil {
		return nil, err
	}
	return Of(file)
}

// Build builds a package, with flags of the build, to a file, for jails in several processes.
func Build(file, program string, flags ...string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-o", file}, flags...), program)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", program, err, out)
	}
	return nil
}

// Of is a jail whose children run the program of a file.
func Of(file string) (*jail.Jail, error) {
	j, err := jail.New(file, filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	return j, j.Check(context.Background())
}
