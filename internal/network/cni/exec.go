package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"berth/internal/firstbytes"
	"berth/internal/metrics"
)

// executor runs plugins. Against libcni's own it ends a plugin with all of its children when the context ends,
// so that one that hangs does not hold its caller, and it puts what a plugin writes to stderr in the error and the log.
type executor struct {
	version.PluginDecoder
	log     *slog.Logger
	metrics *metrics.Set
}

func (e *executor) FindInPath(plugin string, paths []string) (string, error) {
	if strings.ContainsRune(plugin, filepath.Separator) {
		return "", fmt.Errorf("plugin %q: a plugin's type is a file name", plugin)
	}
	return invoke.FindInPath(plugin, paths)
}

func (e *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	begin := time.Now()
	out, err := e.patiently(ctx, path, stdin, environ)
	e.metrics.CNI(filepath.Base(path), command(environ), time.Since(begin), err)
	return out, err
}

// command is what a plugin is asked to do: ADD, DEL, CHECK, GC, STATUS, VERSION.
func command(environ []string) string {
	const name = "CNI_COMMAND="
	for _, e := range slices.Backward(environ) { // the last one holds
		if value, ok := strings.CutPrefix(e, name); ok {
			return value
		}
	}
	return ""
}

// patiently tries again where a plugin is just being installed.
func (e *executor) patiently(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	for try := 0; ; try++ {
		out, err := e.run(ctx, path, stdin, environ)
		if errors.Is(err, syscall.ETXTBSY) && try < 5 { // the plugin is just being installed
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
				continue
			}
		}
		return out, err
	}
}

const (
	// maxResult bounds what a plugin may say. A result has some kilobytes.
	maxResult = 4 << 20
	// maxSaid is how much of what a plugin writes to stderr is kept.
	maxSaid = 2048
)

func (e *executor) run(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	stdout, stderr := firstbytes.Buffer{Left: maxResult}, firstbytes.Buffer{Left: maxSaid}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), &stdout, &stderr
	firstbytes.Group(cmd)
	err := cmd.Run()
	said := strings.TrimSpace(stderr.String())
	if stdout.Over && ctx.Err() == nil {
		return nil, fmt.Errorf("plugin %s has written more than %d bytes", filepath.Base(path), maxResult)
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil {
		if said != "" {
			e.log.Info("a CNI plugin has written to stderr", "plugin", filepath.Base(path), "stderr", said)
		}
		return stdout.Bytes(), nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("plugin %s was ended: %w", filepath.Base(path), context.Cause(ctx))
	}
	var refused types.Error
	if json.Unmarshal(stdout.Bytes(), &refused) == nil && refused.Msg != "" {
		return nil, &refused
	}
	return nil, fmt.Errorf("plugin %s: %w %s", filepath.Base(path), err, said)
}
