package devices

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/device"
	"berth/internal/device/manager"
	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/record"
)

// countedDevices knows which containers have any. Plugins refuse to prepare those of one container.
type countedDevices struct {
	Manager
	held map[string]manager.Request
	// alone are the containers that could not be made, and whether their pod had no other.
	alone map[string]bool
}

func (d *countedDevices) Allocate(_ context.Context, r manager.Request) ([]model.Edits, error) {
	d.held[r.ContainerID] = r
	return nil, nil
}

func (d *countedDevices) PreStart(_ context.Context, id string) error {
	if id == "refused" {
		return errors.New("boom")
	}
	return nil
}

func (d *countedDevices) Cancel(_, id string, alone bool) { d.alone[id] = alone }

func (d *countedDevices) Free(id string) { delete(d.held, id) }

func (d *countedDevices) Reconcile(_, containerLives func(id string) bool) {
	for id := range d.held {
		if !containerLives(id) {
			delete(d.held, id)
		}
	}
}

const ask = `[{"container":"server","limits":{"example.com/disk":1}}]`

func newContainers(x *index.Index, ids ...string) (pod record.Sandbox, list []*index.Container) {
	log := slog.New(slog.DiscardHandler)
	pods := record.NewSandboxes("/none", func(string) string { return "" }, log)
	pod = record.Sandbox{ID: "a", Config: &model.SandboxConfig{Annotations: map[string]string{device.Annotation: ask}}}
	s := index.NewSandbox(pods.New("a", pod))
	for _, id := range ids {
		phase := record.ContainerCreating
		if id == "ended" {
			phase = record.ContainerExited
		}
		c := index.NewContainer(record.NewContainers("/none", nil, log).New(id, record.Container{
			ID: id, SandboxID: "a", Phase: phase, Config: &model.ContainerConfig{},
		}), s)
		x.AdoptContainer(c)
		list = append(list, c)
	}
	return pod, list
}

// TestAPodThatAsksForDevicesIsRefusedWhereTheNodeHasNone to give, and one that asks for none is not.
func TestAPodThatAsksForDevicesIsRefusedWhereTheNodeHasNone(t *testing.T) {
	d := &Allocator{Index: index.New()}
	pod, list := newContainers(d.Index, "c")
	if err := d.Check(pod.Config); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a pod that asks: %v", err)
	}
	if _, err := d.Allocate(t.Context(), list[0], &pod); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a container of one that ran before: %v", err)
	}
	if err := d.Check(&model.SandboxConfig{}); err != nil {
		t.Errorf("a pod that asks for none: %v", err)
	}
	if err := d.Prepare(t.Context(), list[0]); err != nil {
		t.Errorf("a start: %v", err)
	}
	d.Cancel(list[0])
	d.Free(list[0])
	d.FreePod("a")
	d.Reconcile()
}

// TestDevicesOfEndedContainersMayBeGivenAway, and those that cannot be prepared are not kept.
func TestDevicesOfEndedContainersMayBeGivenAway(t *testing.T) {
	counted := &countedDevices{held: map[string]manager.Request{}}
	d := &Allocator{Manager: counted, Index: index.New()}
	pod, list := newContainers(d.Index, "c", "ended", "refused")
	for _, c := range []*index.Container{list[0], list[2]} {
		if _, err := d.Allocate(t.Context(), c, &pod); err != nil {
			t.Fatal(err)
		}
	}
	if got := counted.held["c"].Ended; !slices.Equal(got, []string{"ended"}) {
		t.Errorf("ended are %q", got)
	}
	if err := d.Prepare(t.Context(), list[0]); err != nil {
		t.Error(err)
	}
	if err := d.Prepare(t.Context(), list[2]); err == nil {
		t.Error("a container started without its devices")
	}
	if _, kept := counted.held["refused"]; kept || len(counted.held) != 1 {
		t.Errorf("kept are %v", counted.held)
	}
	d.Index.ForgetContainer(list[0])
	d.Reconcile()
	if len(counted.held) > 0 {
		t.Errorf("after the container is gone there are %v", counted.held)
	}
}

// TestACancelledContainerIsAloneWhereItsPodHasNoOther: what is reserved for the pod goes with it. Seen to fail where
// only containers with devices counted.
func TestACancelledContainerIsAloneWhereItsPodHasNoOther(t *testing.T) {
	counted := &countedDevices{alone: map[string]bool{}}
	d := &Allocator{Manager: counted, Index: index.New()}
	_, list := newContainers(d.Index, "without devices", "refused")
	d.Cancel(list[1])
	if counted.alone["refused"] {
		t.Error("the other container of the pod is not seen")
	}
	d.Index.ForgetContainer(list[1])
	d.Cancel(list[0])
	if !counted.alone["without devices"] {
		t.Error("there is another container")
	}
}
