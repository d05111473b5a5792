package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/sys/mountinfo"
)

// critest runs the suite once. An error means that it gave no report.
func critest(ctx context.Context, s settings, tools *tools, t *target, temporary, results string,
	r run) (*report, error) {
	file := filepath.Join(results, strings.NewReplacer(", ", "-", " ", "-").Replace(r.name))
	if err := os.Remove(file + ".json"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	args := []string{
		"-runtime-endpoint", t.address,
		"-test.timeout", "0",
		"-ginkgo.timeout", s.limit.String(),
		"-ginkgo.no-color",
		"-ginkgo.v",
		"-ginkgo.seed", strconv.FormatInt(s.seed+r.seed, 10),
		"-ginkgo.json-report", file + ".json",
	}
	if r.websocket {
		args = append(args, "-websocket-exec", "-websocket-attach", "-websocket-portforward")
	}
	if r.nri && t.nri != "" {
		args = append(args, "-nri-socket", t.nri)
	}
	if r.skip != "" {
		args = append(args, "-ginkgo.skip", r.skip)
	}
	if focus := cmp.Or(r.focus, s.focus); focus != "" {
		args = append(args, "-ginkgo.focus", focus)
	}
	if s.handler != "" {
		args = append(args, "-runtime-handler", s.handler)
	}
	log, err := os.Create(file + ".log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, tools.critest, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute // it removes the pods of the spec that it was at
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
	cmd.Stdout = log
	if s.verbose {
		cmd.Stdout = io.MultiWriter(log, os.Stdout)
	}
	cmd.Stderr = cmd.Stdout
	runErr := cmd.Run() // a failed spec is an error too; the report tells
	report, err := readReport(file+".json", r)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("critest (%s.log): %w", file, err), runErr)
	}
	return report, nil
}

// pods lists the pods of a runtime by crictl.
func (t *tools) pods(ctx context.Context, address string) ([]string, error) {
	cmd := exec.CommandContext(ctx, t.crictl, "--runtime-endpoint", address, "pods", "-q")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("crictl pods: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// sweepTemporary removes critest's temporary directory. Specs that fail may leave mounts in it.
func sweepTemporary(dir string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		if err := syscall.Unmount(mounts[i].Mountpoint, syscall.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", mounts[i].Mountpoint, err)
		}
	}
	return os.RemoveAll(dir)
}
