package pod

import (
	"context"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/pod/operation"
	"berth/internal/pod/record"
)

// sandbox is a pod: its record, and the lock of its operations.
type sandbox struct {
	*record.SandboxEntry
	id string
	// op is held exclusively by run, stop and remove, and shared by what happens to a container of the pod.
	op operation.Lock
}

func newSandbox(id string, entry *record.SandboxEntry) *sandbox {
	return &sandbox{SandboxEntry: entry, id: id, op: operation.New()}
}

// hold waits for the pod's operations to end, and keeps others from it. act is a verb, as in "stop".
func (s *sandbox) hold(ctx context.Context, act string) (release func(), err error) {
	return s.op.Exclusive(ctx, act+" pod sandbox "+record.ShortID(s.id))
}

// container is a container: its record, the lock of its operations, and what is known of it in memory alone.
type container struct {
	*record.ContainerEntry
	id      string
	sandbox *sandbox
	// op is held exclusively by start, remove, update and the end of a container.
	op operation.Lock

	mu   sync.Mutex              // guards spec and cut
	spec *specs.Spec             // from create to start only; afterwards it is on disk
	cut  context.CancelCauseFunc // ends a checkpoint that is under way; nil: none is

	exited chan struct{} // closed when the container has become exited, or is gone
	once   sync.Once
}

func newContainer(id string, entry *record.ContainerEntry, s *sandbox) *container {
	return &container{ContainerEntry: entry, id: id, sandbox: s, op: operation.New(), exited: make(chan struct{})}
}

// hold waits for the container's operations to end, and keeps others from it. act is a verb, as in "start".
func (c *container) hold(ctx context.Context, act string) (release func(), err error) {
	return c.op.Exclusive(ctx, act+" container "+record.ShortID(c.id))
}

// holdPod keeps the container's pod from being stopped or removed.
func (c *container) holdPod(ctx context.Context, act string) (release func(), err error) {
	return c.sandbox.op.Shared(ctx, act+" container "+record.ShortID(c.id), "its pod")
}

// ended wakes everybody who waits for the container's end.
func (c *container) ended() { c.once.Do(func() { close(c.exited) }) }
