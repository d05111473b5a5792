package pod

import (
	"context"
	"fmt"
	"time"

	"berth/internal/audit"
	"berth/internal/metrics"
	"berth/internal/pod/record"
	"berth/internal/pod/stdio"
)

// ExecSync runs a command in a container and returns its output. A command that runs longer than timeout (0: no limit)
// is killed with all processes that it has started, and the error is context.DeadlineExceeded.
func (m *Manager) ExecSync(ctx context.Context, id string, cmd []string,
	timeout time.Duration) (stdout, stderr []byte, exitCode int, err error) {
	out, errOut := stdio.Buffer{Of: &m.outputs}, stdio.Buffer{Of: &m.outputs}
	defer out.Release()
	defer errOut.Release()
	e := &execution{m: m, kind: audit.ExecSync, timeout: timeout,
		opts: ExecOptions{Cmd: cmd, Stdout: &out, Stderr: &errOut}}
	exit, err := e.run(ctx, id, metrics.ExecSync)
	if err != nil {
		return nil, nil, 0, err
	}
	if exit.TimedOut {
		return nil, nil, 0, fmt.Errorf("command %q in container %s timed out after %v: %w",
			cmd, record.ShortID(id), timeout, context.DeadlineExceeded)
	}
	if out.Cut() || errOut.Cut() {
		m.log.Warn("the output of a command is cut off: the commands of ExecSync keep as much together as they may",
			"container_id", id)
	}
	return out.Bytes(), errOut.Bytes(), exit.ExitCode, nil
}
