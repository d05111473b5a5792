package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/device"
	"berth/internal/device/manager"
	"berth/internal/image"
	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/network"
	"berth/internal/pod/devices"
	"berth/internal/pod/index"
	"berth/internal/pod/operation"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
	"berth/internal/pod/storage"
	"berth/internal/rootfs"
)

// quietKeeper runs nothing, and tells nothing.
type quietKeeper struct{ Keeper }

func (quietKeeper) List(context.Context) ([]keeper.Status, error) { return nil, nil }
func (quietKeeper) Delete(context.Context, string) error          { return nil }
func (quietKeeper) Watch(ctx context.Context, _ func(keeper.Event)) error {
	<-ctx.Done()
	return ctx.Err()
}

// quietNetwork has no pods.
type quietNetwork struct{ network.Provider }

func (quietNetwork) Collect(context.Context) error { return nil }

func (quietNetwork) Reconcile(context.Context, []*network.Pod) (map[string]error, error) {
	return nil, nil
}

// oneImage is an image store that has each image that it is asked for, and knows who holds any.
type oneImage struct {
	Images
	dir string

	mu   sync.Mutex
	held map[string]int // by holder
}

func (s *oneImage) Get(context.Context, string) (*model.Image, error) {
	cfg := imagespec.ImageConfig{Cmd: []string{"/bin/true"}}
	if mayChown() {
		cfg.Volumes = map[string]struct{}{"/declared": {}}
	}
	return &model.Image{ID: "sha256:1", Config: cfg}, nil
}

// mayChown tells whether the test can make volumes, which belong to root.
func mayChown() bool { return os.Geteuid() == 0 }

func (s *oneImage) AddReference(_, holder string) (*image.Layers, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[holder]++
	return &image.Layers{Dirs: []string{s.dir}}, nil
}

func (s *oneImage) Release(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, holder)
}

func (s *oneImage) Collect(context.Context) error { return nil }

// plainRootfs has a directory for each mount.
type plainRootfs struct {
	mu      sync.Mutex
	mounted map[string]bool
	// refuse is how many times Unmount fails.
	refuse int
}

func (p *plainRootfs) Mount(_ context.Context, o rootfs.Options) (string, error) {
	at := o.At
	if at == "" {
		at = rootfs.Path(o.Dir)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mounted[at] = true
	return at, os.MkdirAll(filepath.Join(at, "etc"), 0o700)
}

func (p *plainRootfs) Unmount(dir string, at ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse > 0 {
		p.refuse--
		return errors.New("busy")
	}
	for _, point := range append(at, rootfs.Path(dir)) {
		delete(p.mounted, point)
	}
	return nil
}

// countedDevices knows which containers have any.
type countedDevices struct {
	devices.Manager
	mu   sync.Mutex
	held map[string]bool
}

func (d *countedDevices) Allocate(_ context.Context, r manager.Request) ([]model.Edits, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.held[r.ContainerID] = true
	return nil, nil
}

func (d *countedDevices) Cancel(_, containerID string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.held, containerID)
}

func (*countedDevices) Free(string)                         {}
func (*countedDevices) FreePod(string)                      {}
func (*countedDevices) Reconcile(_, _ func(id string) bool) {}

// creations is a Manager whose containers are created without root, with one pod.
type creations struct {
	*Manager
	images  *oneImage
	rootfs  *plainRootfs
	devices *countedDevices
	pod     *index.Sandbox
}

func newCreations(t *testing.T) *creations {
	t.Helper()
	dir := t.TempDir()
	f := &creations{
		images:  &oneImage{dir: t.TempDir(), held: map[string]int{}},
		rootfs:  &plainRootfs{mounted: map[string]bool{}},
		devices: &countedDevices{held: map[string]bool{}},
	}
	var err error
	f.Manager, err = New(t.Context(), Config{
		Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state"), CgroupRoot: "/berth-create-test",
		Handlers: map[string]Handler{"runc": {Name: "runc"}}, Default: "runc",
		Keeper: quietKeeper{}, Network: quietNetwork{}, Images: f.images, Rootfs: f.rootfs, Devices: f.devices,
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	f.pod, err = f.index.AddSandbox(f.pods, record.Sandbox{
		ID: record.NewID(), Phase: record.SandboxReady, CgroupParent: "/berth-create-test/pod",
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
	cfg := &model.ContainerConfig{
		Metadata: model.ContainerMetadata{Name: "server"},
		Image:    model.ImageSpec{Image: "web:1"},
		Mounts:   []model.Mount{{ContainerPath: "/image", Image: &model.ImageSpec{Image: "files:1"}}},
	}
	if mayChown() {
		cfg.Mounts = append(cfg.Mounts, model.Mount{ContainerPath: "/named", Volume: "data"})
	}
	return &creation{m: f.Manager, sandbox: f.pod, pod: f.pod.Record(), id: record.NewID(), cfg: cfg}
}

// left is all that a container holds.
func (f *creations) left(t *testing.T, id string) []string {
	t.Helper()
	var all []string
	if f.images.held[id] > 0 {
		all = append(all, "layers of images")
	}
	for _, at := range slices.Sorted(maps.Keys(f.rootfs.mounted)) {
		all = append(all, "a mount at "+at)
	}
	if f.devices.held[id] {
		all = append(all, "devices")
	}
	if len(f.storage.Quotas.Held(id)) > 0 {
		all = append(all, "disk quotas")
	}
	if err := f.storage.Volumes.Remove(t.Context(), "data"); err != nil && f.hasVolume("data") {
		all = append(all, fmt.Sprintf("a volume: %v", err))
	}
	if _, err := os.Lstat(f.containers.Path(id)); !errors.Is(err, os.ErrNotExist) {
		all = append(all, "its directory")
	}
	if _, c := f.index.ByID(id); c != nil {
		all = append(all, "its place in the index")
	}
	again := record.Container{ID: record.NewID(), SandboxID: f.pod.ID(), Config: &model.ContainerConfig{
		Metadata: model.ContainerMetadata{Name: "server"},
	}}
	if _, err := f.index.AddContainer(f.containers, again, f.pod, operation.New()); err != nil {
		all = append(all, fmt.Sprintf("its name: %v", err))
	}
	return all
}

func (f *creations) hasVolume(name string) bool {
	_, err := f.storage.Volumes.Get(name)
	return err == nil
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
				if left := f.left(t, cr.id); len(left) > 0 {
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
		f.rootfs.refuse = 1
		return errors.New("boom")
	})
	cr.unlock()
	if err == nil || undone {
		t.Errorf("error %v, undone %v", err, undone)
	}
	if left := f.left(t, cr.id); len(left) > 0 {
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
		mayChown() && !slices.Equal(r.ImageVolumes, []string{"/declared"}) {
		t.Errorf("on record is %+v", r)
	}
	if len(f.rootfs.mounted) != 2 || !f.devices.held[id] || f.images.held[id] == 0 {
		t.Errorf("mounts %v, devices %v, images %v", f.rootfs.mounted, f.devices.held, f.images.held)
	}
	if err := f.RemoveContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	f.devices.Cancel("", id) // Free is the real manager's
	if left := f.left(t, id); len(left) > 0 {
		t.Errorf("after its removal: %q", left)
	}
}
