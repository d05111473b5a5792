package index

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/pod/operation"
	"berth/internal/pod/record"
	"berth/internal/rawenv"
)

// Sandbox is a pod: its record, and the lock of its operations.
type Sandbox struct {
	*record.SandboxEntry
	// op is held exclusively by run, stop and remove, and shared by what happens to a container of the pod.
	op operation.Lock
}

// NewSandbox is a pod with a record, which no operation holds.
func NewSandbox(entry *record.SandboxEntry) *Sandbox {
	return &Sandbox{SandboxEntry: entry, op: operation.New()}
}

// Making tells whether the pod is still being made, so that no client is told of it.
func (s *Sandbox) Making() bool { return s.Status().Making }

// Lock waits for the pod's operations to end, and keeps others from it. act is a verb, as in "stop".
func (s *Sandbox) Lock(ctx context.Context, act string) (release func(), err error) {
	return s.op.Exclusive(ctx, act+" pod sandbox "+record.ShortID(s.ID()))
}

// Share takes the pod's operation lock, shared with other callers of Share. It waits while an operation has the lock
// alone. act names the operation, for errors.
func (s *Sandbox) Share(ctx context.Context, act string) (release func(), err error) {
	return s.op.Shared(ctx, act+" pod sandbox "+record.ShortID(s.ID()), "it")
}

// TryShare is Share without waiting. It returns nil if an operation has the lock alone.
func (s *Sandbox) TryShare() (release func()) { return s.op.TryShared() }

// Container is a container: its record, its operation lock, and its state that is only in memory.
type Container struct {
	*record.ContainerEntry
	Sandbox *Sandbox // its pod
	// op is held exclusively by start, remove, update and the end of a container.
	op operation.Lock

	mu    sync.Mutex              // guards spec, cut and stops
	spec  *specs.Spec             // from create to start only; afterwards it is on disk
	cut   context.CancelCauseFunc // ends a checkpoint that is under way; nil: none is
	stops int                     // how many stops are under way

	exited chan struct{} // closed when the container has become exited, or is gone
	once   sync.Once     // closes it
}

// NewContainer is a container of a pod, with a record, which no operation holds.
func NewContainer(entry *record.ContainerEntry, s *Sandbox) *Container {
	return &Container{ContainerEntry: entry, Sandbox: s, op: operation.New(), exited: make(chan struct{})}
}

// Making tells whether the container, or its pod, is still being made, so that no client is told of it.
func (c *Container) Making() bool { return c.Status().Making || c.Sandbox.Making() }

// Lock waits for the container's operations to end, and keeps others from it. act is a verb, as in "start".
func (c *Container) Lock(ctx context.Context, act string) (release func(), err error) {
	return c.op.Exclusive(ctx, act+" container "+record.ShortID(c.ID()))
}

// LockPod keeps the container's pod from being stopped or removed. It comes before Lock.
func (c *Container) LockPod(ctx context.Context, act string) (release func(), err error) {
	return c.Sandbox.op.Shared(ctx, act+" container "+record.ShortID(c.ID()), "its pod")
}

// Ended wakes everybody who waits for the container's end. It may be called again.
func (c *Container) Ended() { c.once.Do(func() { close(c.exited) }) }

// Exited is closed when the container has become exited, or is gone.
func (c *Container) Exited() <-chan struct{} { return c.exited }

// specFile is a container's specification, beside its record.
const specFile = "spec.json"

// SaveSpec writes the container's specification to disk, and keeps it in memory for the start. The caller does not
// write to it any more.
func (c *Container) SaveSpec(spec *specs.Spec) error {
	if err := c.SaveFile(specFile, rawenv.Fill(spec)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spec = spec
	return nil
}

// LoadSpec is the container's specification, from memory where it was just written, else from disk.
func (c *Container) LoadSpec() (*specs.Spec, error) {
	c.mu.Lock()
	spec := c.spec
	c.mu.Unlock()
	if spec != nil {
		return spec, nil
	}
	return c.ReadSpec()
}

// ReadSpec is the container's specification as it is on disk.
func (c *Container) ReadSpec() (*specs.Spec, error) {
	spec := &rawenv.Spec{Spec: &specs.Spec{}}
	err := c.LoadFile(specFile, spec)
	return spec.Restore(), err
}

// DropSpec has the specification on disk alone, since the container runs.
func (c *Container) DropSpec() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spec = nil
}

// ErrCut ends a checkpoint whose container is to end: a stop does not wait for it.
var ErrCut = fmt.Errorf("the container is being stopped: %w", errdefs.ErrFailedPrecondition)

// SetCut says what ends the checkpoint that is under way, by the cause ErrCut; nil: none is. During a stop the
// checkpoint ends at once.
func (c *Container) SetCut(cut context.CancelCauseFunc) {
	c.mu.Lock()
	c.cut = cut
	stopping := c.stops > 0
	c.mu.Unlock()
	if cut != nil && stopping {
		cut(ErrCut)
	}
}

// Stopping says that a stop of the container begins, and returns what says that it has ended. Meanwhile no checkpoint
// is made: the one that is under way ends with ErrCut, and so do those that wait for the container.
func (c *Container) Stopping() (ended func()) {
	c.mu.Lock()
	c.stops++
	cut := c.cut
	c.mu.Unlock()
	if cut != nil {
		cut(ErrCut)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stops--
	}
}
