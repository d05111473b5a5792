package pod

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"berth/internal/device"
	"berth/internal/model"
	"berth/internal/pod/index"
	"berth/internal/pod/operation"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
	"berth/internal/pod/storage"
	"berth/internal/rootfs"
)

// creations is a node with one pod.
type creations struct {
	*memoryNode
	pod *index.Sandbox
}

func newCreations(t *testing.T) *creations {
	t.Helper()
	f := &creations{memoryNode: newMemoryNode(t)}
	var err error
	f.pod, err = f.index.AddSandbox(f.pods, record.Sandbox{
		ID: record.NewID(), Phase: record.SandboxReady, CgroupParent: testCgroup + "/pod",
		Config: &model.SandboxConfig{
			Metadata:    model.SandboxMetadata{Name: "web"},
			Annotations: map[string]string{device.Annotation: `[{"container":"server","limits":{"example.com/disk":1}}]`},
			Security: model.SandboxSecurity{Namespaces: model.NamespaceOptions{Network: model.NamespaceNode,
				IPC: model.NamespaceNode}},
		},
	}, operation.New())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *creations) creation() *creation {
	return &creation{m: f.Manager, sandbox: f.pod, pod: f.pod.Record(), id: record.NewID(), cfg: serverConfig()}
}

// left is all that a container holds.
func (f *creations) left(t *testing.T) []string {
	t.Helper()
	all := slices.DeleteFunc(f.memoryNode.left(), func(thing string) bool { return thing == "pod "+f.pod.ID() })
	again := record.Container{ID: record.NewID(), SandboxID: f.pod.ID(), Config: &model.ContainerConfig{
		Metadata: model.ContainerMetadata{Name: "server"},
	}}
	if _, err := f.index.AddContainer(f.containers, again, f.pod, operation.New()); err != nil {
		all = append(all, fmt.Sprintf("its name: %v", err))
	}
	return all
}

// TestACreationThatFailsLeavesNothing, whichever step fails, before it has done anything or after it has done all, and
// where the record of the created container cannot be written.
func TestACreationThatFailsLeavesNothing(t *testing.T) {
	boom := errors.New("boom")
	list := (&creation{m: &Manager{storage: &storage.Store{}}}).steps()
	for i := range len(list) + 1 {
		for _, late := range []bool{false, true} {
			name := "the created container's record"
			if i < len(list) {
				name = fmt.Sprintf("%d %s, late %v", i, list[i].Name, late)
			}
			t.Run(name, func(t *testing.T) {
				f := newCreations(t)
				cr := f.creation()
				if err := cr.check(); err != nil {
					t.Fatal(err)
				}
				list, finish := cr.steps(), cr.finish
				if i < len(list) {
					do := list[i].Do
					list[i].Do = func(ctx context.Context) error {
						if late {
							if err := do(ctx); err != nil {
								t.Error(err)
							}
						}
						return boom
					}
				} else {
					finish = func([]steps.Timing) error { return boom }
				}
				undone, err := steps.Run(t.Context(), f.log, list, finish)
				cr.unlock()
				if !errors.Is(err, boom) || !undone {
					t.Errorf("error %v, undone %v", err, undone)
				}
				if left := f.left(t); len(left) > 0 {
					t.Errorf("left are %q", left)
				}
			})
		}
	}
}

// TestAMountThatIsBusyOnceIsUndoneAgain before the container is forgotten.
func TestAMountThatIsBusyOnceIsUndoneAgain(t *testing.T) {
	f := newCreations(t)
	cr := f.creation()
	if err := cr.check(); err != nil {
		t.Fatal(err)
	}
	undone, err := steps.Run(t.Context(), f.log, cr.steps(), func([]steps.Timing) error {
		f.host.fail(fault{at: 1})
		return errors.New("boom")
	})
	cr.unlock()
	if err == nil || undone {
		t.Errorf("error %v, undone %v", err, undone)
	}
	if left := f.left(t); len(left) > 0 {
		t.Errorf("left are %q", left)
	}
}

func TestACreatedContainerIsOnRecord(t *testing.T) {
	f := newCreations(t)
	cr := f.creation()
	id, err := f.CreateContainer(t.Context(), f.pod.ID(), cr.cfg)
	if err != nil {
		t.Fatal(err)
	}
	loaded, broken, _, err := f.containers.Load()
	if err != nil || len(broken) > 0 {
		t.Fatalf("%v, %v", broken, err)
	}
	r := loaded[id].Record()
	if r.Phase != record.ContainerCreated || r.Process == nil || len(r.Timings) == 0 ||
		!slices.Equal(r.ImageVolumes, []string{"/declared"}) {
		t.Errorf("on record is %+v", r)
	}
	for _, thing := range []string{
		"mount " + f.dirs.Rootfs(new(f.pod.Record()), id), "mount " + rootfs.Path(f.dirs.Image(id, 0)),
		"devices of " + id, "image of " + id, "volume of " + id, "quota of " + id,
	} {
		if !f.host.has(thing) {
			t.Errorf("there is no %s, but %q", thing, f.host.left())
		}
	}
	if err := f.RemoveContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := f.left(t); len(left) > 0 {
		t.Errorf("after its removal: %q", left)
	}
}
