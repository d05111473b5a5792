package pod

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
)

// TestCallsAtOnceKeepTheirOrder: clients that start, update, stop and remove the containers of one pod at once, and
// give up in between, are told the life of each container in its order. Nothing runs in a pod whose stop has been
// answered, and nothing is left in the end. Seen to fail when a container whose start came during its removal was not
// killed first.
func TestCallsAtOnceKeepTheirOrder(t *testing.T) {
	for seed := range uint64(20) {
		n := newMemoryNode(t)
		n.host.beforeCall = func() { time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond) } // others come between
		r := &rush{n: n, t: t, seed: seed, told: make(chan struct{})}
		r.run()
		_ = n.Close()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// rush is many clients that call at once.
type rush struct {
	n    *memoryNode
	t    *testing.T
	seed uint64
	pod  string

	mu         sync.Mutex // guards what follows
	containers []string

	last map[string]model.ContainerEventType // of each container and of the pod
	told chan struct{}                       // closed when the pod is deleted
}

func (r *rush) run() {
	t, n := r.t, r.n
	events := n.events.Follow(t.Context())
	go r.follow(events)
	var err error
	if r.pod, err = n.RunSandbox(t.Context(), podConfig(), ""); err != nil {
		t.Fatal(err)
	}
	var clients sync.WaitGroup
	for client := range uint64(6) {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(r.seed, client))
			for range 12 {
				r.call(random)
			}
		})
	}
	clients.Wait()
	if err := n.RemoveSandbox(t.Context(), r.pod); err != nil {
		t.Error(err)
	}
	<-r.told
	n.wantNothing("the end")
}

// call is one call of a client, which may give up.
func (r *rush) call(random *rand.Rand) {
	n := r.n
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	if random.IntN(4) == 0 {
		after := time.Duration(random.IntN(2000)) * time.Microsecond
		time.AfterFunc(after, cancel)
	}
	r.mu.Lock()
	id := "none"
	if len(r.containers) > 0 {
		id = r.containers[max(0, len(r.containers)-1-random.IntN(2))] // others are mostly gone
	}
	r.mu.Unlock()
	var err error
	var what string
	switch pick := random.IntN(24); {
	case pick < 5:
		what = "create"
		cfg := serverConfig()
		cfg.Metadata.Name = []string{"a", "b"}[random.IntN(2)]
		cfg.Mounts = nil
		var made string
		if made, err = n.CreateContainer(ctx, r.pod, cfg); err == nil {
			r.mu.Lock()
			r.containers = append(r.containers, made)
			r.mu.Unlock()
		}
	case pick < 12:
		what, err = "start", n.StartContainer(ctx, id)
	case pick < 14:
		what, err = "stop", n.StopContainer(ctx, id, time.Duration(random.IntN(2))*time.Minute)
	case pick < 18:
		size := []string{"20m", "30m"}[random.IntN(2)]
		what, err = "update", n.UpdateContainerResources(ctx, id,
			&model.Resources{MemoryLimit: 1 << 30, DiskQuota: map[string]string{"/": size}}, nil)
	case pick < 20:
		what, err = "remove", n.RemoveContainer(ctx, id)
	case pick < 21:
		what, err = "pause", n.PauseContainer(ctx, id)
	case pick < 22:
		what, err = "unpause", n.UnpauseContainer(ctx, id)
	case pick < 23:
		what = "status"
		_, err = n.ContainerStatus(ctx, id)
	default:
		what = "stop pod"
		if random.IntN(8) > 0 {
			return
		}
		if err = n.StopSandbox(ctx, r.pod); err == nil {
			n.host.mu.Lock()
			for id, c := range n.host.running {
				if c.status.State == keeper.StateRunning && id != r.pod {
					r.t.Errorf("container %s runs after the stop of its pod", id)
				}
			}
			n.host.mu.Unlock()
		}
	}
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) && !errdefs.IsAlreadyExists(err) &&
		!errors.Is(err, context.Canceled) {
		r.t.Errorf("%s: %v", what, err)
	}
}

// follow checks the order of events.
func (r *rush) follow(events <-chan model.ContainerEvent) {
	defer close(r.told)
	r.last = map[string]model.ContainerEventType{}
	may := map[model.ContainerEventType][]model.ContainerEventType{
		"":                 {model.EventCreated},
		model.EventCreated: {model.EventStarted, model.EventStopped, model.EventDeleted},
		model.EventStarted: {model.EventStopped},
		model.EventStopped: {model.EventDeleted},
	}
	for e := range events {
		if !slices.Contains(may[r.last[e.ContainerID]], e.Type) {
			r.t.Errorf("%s: %s came after %s", e.ContainerID, e.Type, r.last[e.ContainerID])
		}
		r.last[e.ContainerID] = e.Type
		if e.ContainerID == e.SandboxID && e.Type == model.EventDeleted {
			return
		}
	}
}
