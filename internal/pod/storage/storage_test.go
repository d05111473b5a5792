package storage

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/image"
	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/quota"
	"berth/internal/rootfs"
)

// plainRootfs has a directory for each mount.
type plainRootfs struct{ mounted map[string]rootfs.Options }

func (p *plainRootfs) Mount(_ context.Context, o rootfs.Options) (string, error) {
	if o.At == "" {
		o.At = rootfs.Path(o.Dir)
	}
	p.mounted[o.At] = o
	return o.At, os.MkdirAll(o.At, 0o700)
}

func (p *plainRootfs) Unmount(dir string, at ...string) error {
	for _, point := range append(at, rootfs.Path(dir)) {
		delete(p.mounted, point)
	}
	return nil
}

func (p *plainRootfs) Mounts(...string) ([]string, error) {
	return slices.Collect(maps.Keys(p.mounted)), nil
}

// anyImages has each image that it is asked for but one, and knows who holds any.
type anyImages struct{ held map[string][]string }

func (s *anyImages) Get(_ context.Context, name string) (*model.Image, error) {
	if name == "missing" {
		return nil, errdefs.ErrNotFound
	}
	return &model.Image{ID: "sha256:" + name}, nil
}

func (s *anyImages) AddReference(imageID, holder string) (*image.Layers, error) {
	s.held[holder] = append(s.held[holder], imageID)
	return &image.Layers{Dirs: []string{"/layer"}}, nil
}

func (s *anyImages) Release(holder string) { delete(s.held, holder) }

type fixture struct {
	*Store
	rootfs *plainRootfs
	images *anyImages
	table  *record.Containers
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		rootfs: &plainRootfs{mounted: map[string]rootfs.Options{}},
		images: &anyImages{held: map[string][]string{}},
	}
	f.Store = &Store{
		Dirs: &layout.Dirs{Root: t.TempDir(), State: t.TempDir()}, Images: f.images, Rootfs: f.rootfs,
		Names: func(ids []string) []string { return ids },
	}
	f.table = record.NewContainers(f.Dirs.Containers(), nil, slog.New(slog.DiscardHandler))
	return f
}

func (f *fixture) container(mounts ...model.Mount) *record.ContainerEntry {
	return f.table.New("c", record.Container{
		ID: "c", SandboxID: "a", Phase: record.ContainerCreating, ImageID: "sha256:web",
		Config: &model.ContainerConfig{Mounts: mounts},
	})
}

func sandbox(user *model.UserNamespace) *record.Sandbox {
	r := &record.Sandbox{ID: "a", Config: &model.SandboxConfig{}}
	r.Config.Security.Namespaces.User = user
	return r
}

// TestWhatIsMountedForAContainerIsUnmounted, with and without a user namespace of its pod.
func TestWhatIsMountedForAContainerIsUnmounted(t *testing.T) {
	for _, user := range []*model.UserNamespace{nil, {Mode: model.NamespacePod}} {
		f := newFixture(t)
		c := f.container(model.Mount{ContainerPath: "/data", Image: &model.ImageSpec{Image: "files"}},
			model.Mount{ContainerPath: "/host", HostPath: "/etc"})
		root, err := f.MountRoot(t.Context(), sandbox(user), "c", ocispec.Label{}, &image.Layers{})
		if err != nil {
			t.Fatal(err)
		}
		at, err := f.MountImages(t.Context(), c, sandbox(user))
		if err != nil {
			t.Fatal(err)
		}
		if len(f.rootfs.mounted) != 2 || len(at) != 1 || !f.rootfs.mounted[at["/data"].Path].Readonly {
			t.Errorf("mounted are %v, and images at %v", f.rootfs.mounted, at)
		}
		if got := c.Record().VolumeImages; !slices.Equal(got, []string{"sha256:files"}) || len(f.images.held["c"]) != 1 {
			t.Errorf("on record are %q, held is %v", got, f.images.held)
		}
		if err := f.UnmountContainer(c, sandbox(user)); err != nil {
			t.Fatal(err)
		}
		if len(f.rootfs.mounted) > 0 {
			t.Errorf("still mounted are %v", f.rootfs.mounted)
		}
		if _, err := os.Stat(root); user != nil && !os.IsNotExist(err) {
			t.Errorf("the mount point %s in the pod's directory is there: %v", root, err)
		}
	}
}

// TestACreatedContainerHasItsRootAfterAReboot, and not a second one where the node was not down.
func TestACreatedContainerHasItsRootAfterAReboot(t *testing.T) {
	f := newFixture(t)
	c := f.container(model.Mount{ContainerPath: "/data", Image: &model.ImageSpec{Image: "files"}})
	pod := sandbox(nil)
	root, image := f.Dirs.Rootfs(pod, "c"), rootfs.Path(f.Dirs.Image("c", 0))
	if err := f.RemountRoot(t.Context(), c, pod, map[string]bool{root: true, image: true}); err != nil {
		t.Fatal(err)
	}
	if len(f.rootfs.mounted) > 0 {
		t.Errorf("mounted again are %v", f.rootfs.mounted)
	}
	if err := f.RemountRoot(t.Context(), c, pod, nil); err != nil {
		t.Fatal(err)
	}
	if len(f.rootfs.mounted) != 2 || !slices.Equal(f.images.held["c"], []string{"sha256:web", "sha256:files"}) {
		t.Errorf("mounted are %v, held are %v", f.rootfs.mounted, f.images.held)
	}
}

// TestOnlyWhatIsBelowADirectoryIsUnmounted: the names of others may begin with its name.
func TestOnlyWhatIsBelowADirectoryIsUnmounted(t *testing.T) {
	f := newFixture(t)
	points := []string{"/x/c", "/x/c/rootfs", "/x/c2/rootfs", "/x"}
	for _, p := range points {
		f.rootfs.mounted[p] = rootfs.Options{}
	}
	if err := f.UnmountBelow("/x/c", points); err != nil {
		t.Fatal(err)
	}
	if left := slices.Sorted(maps.Keys(f.rootfs.mounted)); !slices.Equal(left, []string{"/x", "/x/c2/rootfs"}) {
		t.Errorf("left are %q", left)
	}
}

// TestAnImageThatIsMissingIsNamedByItsMount, as an API maps it to the field of its request.
func TestAnImageThatIsMissingIsNamedByItsMount(t *testing.T) {
	f := newFixture(t)
	c := f.container(model.Mount{}, model.Mount{ContainerPath: "/data", Image: &model.ImageSpec{Image: "missing"}})
	_, err := f.MountImages(t.Context(), c, sandbox(nil))
	var field *model.FieldError
	if !errdefs.IsNotFound(err) || !errors.As(err, &field) || !strings.HasSuffix(string(field.Field), "[1].image") {
		t.Errorf("%v", err)
	}
}

// TestADeclaredVolumeGivesWayToAMount at the same place, wherever links of the image lead.
func TestADeclaredVolumeGivesWayToAMount(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "var"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../run", filepath.Join(root, "var/run")); err != nil {
		t.Fatal(err)
	}
	cfg := &model.ContainerConfig{Mounts: []model.Mount{{ContainerPath: "/run/x"}, {ContainerPath: "/cache/"}}}
	declared := []string{"/cache", "/data", "/etc/hosts", "/proc/x", "/var/run/x", "/var/run/y", "/run/y"}
	own, err := OwnVolumes(t.Context(), declared, root, cfg)
	if want := []string{"/data", "/var/run/y"}; err != nil || !slices.Equal(own, want) {
		t.Errorf("%q and not %q (%v)", own, want, err)
	}
	if _, err := OwnVolumes(t.Context(), []string{"/"}, root, cfg); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the root as a volume: %v", err)
	}
}

// TestLinksOfAnImageDoNotMakeDeclaredVolumesSlow: the paths of all together have a limit, and nobody waits for them who
// has gone. Seen to fail where each path was resolved by itself.
func TestLinksOfAnImageDoNotMakeDeclaredVolumesSlow(t *testing.T) {
	root, deep := t.TempDir(), strings.Repeat("/d", 200)
	err := os.MkdirAll(filepath.Join(root, deep), 0o700)
	for i := range 50 {
		link := filepath.Join(root, deep, "k"+strconv.Itoa(i))
		err = errors.Join(err, os.Symlink(deep+"/k"+strconv.Itoa(i+1), link))
	}
	if err != nil {
		t.Fatal(err)
	}
	var declared []string
	for i := range 20 {
		declared = append(declared, deep+"/k0/v"+strconv.Itoa(i))
	}
	if _, err := OwnVolumes(t.Context(), declared[:1], root, &model.ContainerConfig{}); err != nil {
		t.Errorf("one volume: %v", err)
	}
	if _, err := OwnVolumes(t.Context(), declared, root, &model.ContainerConfig{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("all volumes: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OwnVolumes(ctx, declared, root, &model.ContainerConfig{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestAVolumeIsNothingElseToo(t *testing.T) {
	for name, mount := range map[string]model.Mount{
		"a host path": {Volume: "data", HostPath: "/x"},
		"an image":    {Volume: "data", Image: &model.ImageSpec{Image: "files"}},
		"no name":     {Volume: "../x"},
	} {
		if err := CheckVolumes(&model.ContainerConfig{Mounts: []model.Mount{mount}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := CheckVolumes(&model.ContainerConfig{Mounts: []model.Mount{{Volume: "data"}, {HostPath: "/x"}}}); err != nil {
		t.Error(err)
	}
}

// TestHoldersOfAQuotaAreNamed where an error knows them by their IDs.
func TestHoldersOfAQuotaAreNamed(t *testing.T) {
	f := newFixture(t)
	f.Names = func([]string) []string { return []string{"server of pod default/web"} }
	held := &quota.HeldError{Holders: []string{"c"}}
	if got := f.nameHolders(held).Error(); !strings.Contains(got, "server of pod default/web") {
		t.Errorf("%s", got)
	}
	if held.Holders[0] != "c" {
		t.Errorf("the error itself was changed: %v", held.Holders)
	}
}

// noting is a ledger that only notes what it is asked for.
type noting struct {
	Quotas
	wants  []quota.Want
	marked []string
}

func (l *noting) Take(_ context.Context, _ string, w quota.Want) (*quota.Grant, error) {
	l.wants = append(l.wants, w)
	return &quota.Grant{ID: quota.MinID, Limit: w.Limit}, nil
}

func (l *noting) Mark(_ context.Context, _ uint32, dirs ...string) error {
	l.marked = append(l.marked, dirs...)
	return nil
}

// TestAHandlersQuotaHoldsInTheVolumesOfAnImage: the directory of such a volume bears the ID of the root file system
// from the beginning. Seen to fail when the container's mounts were only looked at for limits of its own.
func TestAHandlersQuotaHoldsInTheVolumesOfAnImage(t *testing.T) {
	f, ledger := newFixture(t), &noting{}
	f.Quotas = ledger
	c := f.container()
	if err := c.Update(record.Draft, func(r *record.Container) { r.ImageVolumes = []string{"/data"} }); err != nil {
		t.Fatal(err)
	}
	limits, err := f.TakeQuotas(t.Context(), c, quota.ID{}, 9<<20)
	if err != nil {
		t.Fatal(err)
	}
	volume := f.Dirs.ImageVolume("c", 0)
	want := append(rootfs.WritableDirs(f.Dirs.Container("c")), volume)
	if len(ledger.wants) != 1 || ledger.wants[0].Limit != 9<<20 || !slices.Equal(ledger.wants[0].Dirs, want) {
		t.Errorf("taken is %+v, want one limit for %q", ledger.wants, want)
	}
	err = limits.Prepare(ledger)(t.Context(), "/data", volume)
	if err != nil || !slices.Equal(ledger.marked, []string{volume}) {
		t.Errorf("marked before it is filled: %q, %v", ledger.marked, err)
	}
}
