package pod

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/checkpoint"
	"berth/internal/keeper"
	"berth/internal/model"
)

// StartContainer starts a created container and returns when its own program runs. A program that cannot be started
// leaves the container exited, with the exit code that a shell would give (127 not found, 126 not executable, else 128).
func (m *Manager) StartContainer(ctx context.Context, id string) error {
	c, err := m.findContainer(id)
	if err != nil {
		return err
	}
	s := c.sandbox
	if err := s.op.sem.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("start container %s: another operation holds its pod: %w", shortID(c.id), err)
	}
	defer s.op.sem.Release(1)
	if err := c.op.sem.Acquire(ctx, exclusive); err != nil {
		return fmt.Errorf("start container %s: another operation holds it: %w", shortID(c.id), err)
	}
	defer c.op.sem.Release(exclusive)

	r, pod := c.record(), s.record()
	name := r.Config.Metadata.Name
	if r.Phase != ContainerCreated {
		return fmt.Errorf("start container %s (%s): it is %s: %w", name, shortID(c.id), r.Phase, errdefs.ErrFailedPrecondition)
	}
	if pod.Phase != SandboxReady {
		return fmt.Errorf("start container %s (%s): %w", name, shortID(c.id), errSandboxNotReady)
	}
	handler, err := m.handler(pod.Handler)
	if err != nil {
		return err
	}
	spec, err := m.spec(c)
	if err != nil {
		return fmt.Errorf("start container %s (%s): %w", name, shortID(c.id), err)
	}
	spec.Root.Path = m.rootPath(&pod, c.id) // an earlier version of Berth, which made the specification, may have mounted it elsewhere
	if err := m.claimLog(c, r.LogPath); err != nil {
		return err
	}
	if err := m.setContainer(c, func(r *ContainerRecord) { r.Phase = ContainerStarting }); err != nil {
		m.freeLog(c)
		return err
	}
	begin := time.Now()
	restore := ""
	if r.Restored != nil {
		restore = filepath.Join(r.Restored.Dir, checkpoint.ImagesDir)
		if err := m.goOnWithLog(&r); err != nil {
			m.log.Warn("the log of a restored container does not begin with the old one's", "container", shortID(c.id), "error", err)
		}
		defer m.dropCheckpoint(c)
	}
	if err := m.prepareDevices(ctx, c); err != nil {
		m.startFailed(ctx, c, err)
		return fmt.Errorf("start container %s (%s): %w", name, shortID(c.id), err)
	}
	request := &keeper.RunRequest{
		ID:            c.id,
		PodID:         s.id,
		Name:          name,
		Spec:          spec,
		RuntimePath:   handler.RuntimePath,
		RuntimeRoot:   handler.RuntimeRoot,
		SystemdCgroup: m.cfg.SystemdCgroup,
		LogPath:       r.LogPath,
		Stdin:         r.Config.Stdin,
		StdinOnce:     r.Config.StdinOnce,
		Restore:       restore,
		CRIU:          m.cfg.CRIU,
	}
	if handler.RuntimePath == "" {
		request.Setup = handler.Setup
	}
	result, err := m.cfg.Keeper.Run(ctx, request)
	if err != nil {
		m.startFailed(ctx, c, err)
		return fmt.Errorf("start container %s (%s): %w", name, shortID(c.id), err)
	}
	tracePhases(ctx, result.Phases)
	timings := []Timing{{Step: "start", Begin: begin, Took: time.Since(begin)}}
	for _, p := range result.Phases {
		timings = append(timings, Timing{Step: p.Name, Of: "start", Begin: p.Begin, Took: p.Took})
	}
	err = m.setContainer(c, func(r *ContainerRecord) {
		r.Phase = ContainerRunning
		r.PID = result.PID
		r.StartedAt = result.StartedAt
		r.Setup = result.Setup
		r.Timings = append(r.Timings[:len(r.Timings):len(r.Timings)], timings...)
		if r.Restored != nil {
			restored := *r.Restored
			restored.At = result.StartedAt
			r.Restored = &restored
		}
	})
	if err != nil {
		// A container that no record calls running must not run.
		m.startFailed(ctx, c, err)
		return err
	}
	c.mu.Lock()
	c.spec = nil
	c.mu.Unlock()
	m.tell(s, c.id, model.EventStarted)
	return nil
}

// spec is a container's specification, from memory when it was just created, else from disk.
func (m *Manager) spec(c *container) (*specs.Spec, error) {
	c.mu.Lock()
	spec := c.spec
	c.mu.Unlock()
	if spec != nil {
		return spec, nil
	}
	spec = &specs.Spec{}
	return spec, m.containers.LoadFile(c.id, specFile, spec)
}

// startFailed ends a container whose start went wrong.
func (m *Manager) startFailed(ctx context.Context, c *container, cause error) {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := m.cfg.Keeper.Delete(clean, c.id); err != nil {
		m.log.Error("remove what is left of a failed start", "container", shortID(c.id), "error", err)
	}
	code := int32(128)
	var start *keeper.StartError
	if errors.As(cause, &start) && start.ExitCode != 0 {
		code = int32(start.ExitCode)
	}
	m.finish(c, func(r *ContainerRecord) {
		r.ExitCode = code
		r.Reason = model.ReasonStartError
		r.Message = cause.Error()
		r.FinishedAt = time.Now()
	})
}

// claimLog makes the directory of a container's log and sees to it that no two running containers write one file.
func (m *Manager) claimLog(c *container, path string) error {
	if path == "" {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return noSpace(fmt.Errorf("directory of the log of container %s: %w", shortID(c.id), err))
	}
	file := logFile(path)
	m.mu.Lock()
	defer m.mu.Unlock()
	if other, taken := m.logs[file]; taken && other != c.id {
		return fmt.Errorf("start container %s: container %s writes the log %s: %w",
			shortID(c.id), shortID(other), path, errdefs.ErrFailedPrecondition)
	}
	m.logs[file], c.log = c.id, file
	return nil
}

// logFile is a log's path without links: two paths may lead to one directory. The file itself is not opened through a link.
func logFile(path string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return path
	}
	return filepath.Join(dir, filepath.Base(path))
}

func (m *Manager) freeLog(c *container) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.logs[c.log] == c.id {
		delete(m.logs, c.log)
	}
}
