package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"berth/test/node"
)

// tools are the built programs.
type tools struct {
	critest, crictl string
	version         string
}

const criTools = "sigs.k8s.io/cri-tools"

// buildTools builds critest and crictl into dir, from the Go module that test/tools is. Where no Go is installed,
// those that dir holds are used.
func buildTools(ctx context.Context, dir string) (*tools, error) {
	t := &tools{critest: filepath.Join(dir, "critest"), crictl: filepath.Join(dir, "crictl")}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if _, err := exec.LookPath("go"); err == nil {
		root, err := node.ModuleRoot()
		if err != nil {
			return nil, err
		}
		module := filepath.Join(root, "test", "tools")
		for _, args := range [][]string{
			{"test", "-c", "-mod=readonly", "-o", t.critest, criTools + "/cmd/critest"},
			{"build", "-mod=readonly", "-o", t.crictl, criTools + "/cmd/crictl"},
		} {
			cmd := exec.CommandContext(ctx, "go", args...)
			cmd.Dir = module
			cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
			}
		}
		out, err := toolsVersion(ctx, module)
		if err != nil {
			return nil, err
		}
		t.version = out
		return t, os.WriteFile(filepath.Join(dir, "version"), []byte(out), 0o644)
	}
	version, err := os.ReadFile(filepath.Join(dir, "version"))
	if err != nil {
		return nil, fmt.Errorf("no Go to build critest with, and none built: %w", err)
	}
	t.version = string(version)
	return t, nil
}

func toolsVersion(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-mod=readonly", "-m", "-f", "{{.Version}}", criTools)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list -m %s: %w", criTools, err)
	}
	return strings.TrimSpace(string(out)), nil
}
