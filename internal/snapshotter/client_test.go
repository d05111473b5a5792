package snapshotter

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// answers is a snapshotter that answers as a test says: what a real one cannot be made to do.
type answers struct {
	snapshots.UnimplementedSnapshotsServer
	mounts func(context.Context) ([]*types.Mount, error)
	infos  []*snapshots.Info
	views  []string
	taken  error // what View answers in place of a view
}

func (a *answers) Mounts(ctx context.Context, _ *snapshots.MountsRequest) (*snapshots.MountsResponse, error) {
	m, err := a.mounts(ctx)
	return &snapshots.MountsResponse{Mounts: m}, err
}

func (a *answers) View(_ context.Context, r *snapshots.ViewSnapshotRequest) (*snapshots.ViewSnapshotResponse, error) {
	a.views = append(a.views, r.Key+" of "+r.Parent)
	if a.taken != nil {
		return nil, a.taken
	}
	made := []*types.Mount{{Type: "bind", Source: "/made", Options: []string{"ro"}}}
	return &snapshots.ViewSnapshotResponse{Mounts: made}, nil
}

func (a *answers) List(_ *snapshots.ListSnapshotsRequest, s snapshots.Snapshots_ListServer) error {
	return s.Send(&snapshots.ListSnapshotsResponse{Info: a.infos})
}

func serve(t *testing.T, a *answers) *Client {
	t.Helper()
	return serveFor(t, a, 30*time.Second)
}

// serveFor waits for each answer for that long.
func serveFor(t *testing.T, a *answers, timeout time.Duration) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	snapshots.RegisterSnapshotsServer(server, a)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	c, err := New(Config{Name: "fake", Address: socket, Namespace: "of-berth", Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestOnlyDirectoriesToReadFromAreTaken of what a snapshotter says that a view is.
func TestOnlyDirectoriesToReadFromAreTaken(t *testing.T) {
	bind := func(source string, options ...string) []*types.Mount {
		return []*types.Mount{{Type: "bind", Source: source, Options: options}}
	}
	overlay := func(options ...string) []*types.Mount {
		return []*types.Mount{{Type: "overlay", Source: "overlay", Options: options}}
	}
	for name, v := range map[string]struct {
		mounts []*types.Mount
		want   []string
		wrong  string
	}{
		"a directory":          {mounts: bind("/a", "ro", "rbind"), want: []string{"/a"}},
		"several":              {mounts: overlay("index=off", `lowerdir=/b:/a\:x:/c`), want: []string{"/b", "/a:x", "/c"}},
		"none":                 {wrong: "0 mounts"},
		"two":                  {mounts: append(bind("/a"), bind("/b")...), wrong: "2 mounts"},
		"below the root":       {mounts: []*types.Mount{{Type: "bind", Target: "/etc"}}, wrong: "below the root"},
		"to be written to":     {mounts: bind("/a", "rw"), wrong: `option "rw"`},
		"an upper directory":   {mounts: overlay("lowerdir=/a:/b", "upperdir=/c"), wrong: "upperdir=/c"},
		"other marks":          {mounts: overlay("lowerdir=/a:/b", "userxattr"), wrong: "userxattr"},
		"two lists":            {mounts: overlay("lowerdir=/a", "lowerdir=/b"), wrong: "lowerdir=/b"},
		"no list":              {mounts: overlay("ro"), wrong: "0 directories"},
		"a relative path":      {mounts: overlay("lowerdir=/a:b"), wrong: `"b"`},
		"a detour":             {mounts: bind("/a/../b"), wrong: "detours"},
		"the machine's root":   {mounts: bind("/"), wrong: "detours"},
		"a directory twice":    {mounts: overlay("lowerdir=/a:/a"), wrong: "twice"},
		"a mount of a program": {mounts: []*types.Mount{{Type: "fuse.nydus-overlayfs"}}, wrong: "fuse.nydus-overlayfs"},
	} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, &answers{mounts: func(context.Context) ([]*types.Mount, error) { return v.mounts, nil }})
			dirs, err := c.Dirs(t.Context(), "view", "name")
			if v.wrong != "" {
				if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), v.wrong) {
					t.Errorf("the error is %v", err)
				}
				return
			}
			if err != nil || !slices.Equal(dirs, v.want) {
				t.Errorf("directories %q, %v", dirs, err)
			}
		})
	}
}

// TestAViewIsMadeOnce: and again if the snapshotter has lost it.
func TestAViewIsMadeOnce(t *testing.T) {
	var namespace []string
	a := &answers{mounts: func(ctx context.Context) ([]*types.Mount, error) {
		header, _ := metadata.FromIncomingContext(ctx)
		namespace = header.Get("containerd-namespace")
		return nil, status.Error(codes.NotFound, "no such view")
	}}
	dirs, err := serve(t, a).Dirs(t.Context(), "view", "name")
	if err != nil || !slices.Equal(dirs, []string{"/made"}) || !slices.Equal(a.views, []string{"view of name"}) {
		t.Errorf("directories %q of views %q, %v", dirs, a.views, err)
	}
	if !slices.Equal(namespace, []string{"of-berth"}) {
		t.Errorf("the namespace is %q", namespace)
	}
}

// TestAViewThatAnotherPullHasMadeMeanwhileIsTaken: two pulls of one image ask for the same view.
func TestAViewThatAnotherPullHasMadeMeanwhileIsTaken(t *testing.T) {
	a := &answers{taken: status.Error(codes.AlreadyExists, "there is such a view")}
	a.mounts = func(context.Context) ([]*types.Mount, error) {
		if len(a.views) == 0 {
			return nil, status.Error(codes.NotFound, "no such view")
		}
		return []*types.Mount{{Type: "bind", Source: "/theirs", Options: []string{"ro"}}}, nil
	}
	dirs, err := serve(t, a).Dirs(t.Context(), "view", "name")
	if err != nil || !slices.Equal(dirs, []string{"/theirs"}) {
		t.Errorf("directories %q, %v", dirs, err)
	}
}

// TestACallEndsAfterItsTimeout: the error says who did not answer.
func TestACallEndsAfterItsTimeout(t *testing.T) {
	c := serveFor(t, &answers{mounts: func(ctx context.Context) ([]*types.Mount, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}, 200*time.Millisecond)
	_, err := c.Dirs(t.Context(), "view", "name")
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "snapshotter fake (") ||
		!strings.Contains(err.Error(), "mounts of name: no answer within 200ms") {
		t.Errorf("the error is %v", err)
	}
}

// TestASnapshotIsFoundByItsLabelAndParent: others that a snapshotter names are not taken for it.
func TestASnapshotIsFoundByItsLabelAndParent(t *testing.T) {
	info := func(name, ref, parent string, kind snapshots.Kind) *snapshots.Info {
		return &snapshots.Info{Name: name, Parent: parent, Kind: kind, Labels: map[string]string{LabelRef: ref}}
	}
	a := &answers{infos: []*snapshots.Info{
		info("1", "other", "below", snapshots.Kind_COMMITTED), info("2", "ref", "other", snapshots.Kind_COMMITTED),
		info("3", "ref", "below", snapshots.Kind_ACTIVE),
	}}
	c := serve(t, a)
	if name, err := c.Find(t.Context(), "ref", "below"); !errdefs.IsNotFound(err) {
		t.Errorf("found %q, %v", name, err)
	}
	a.infos = append(a.infos, info("4", "ref", "below", snapshots.Kind_COMMITTED))
	if name, err := c.Find(t.Context(), "ref", "below"); err != nil || name != "4" {
		t.Errorf("found %q, %v", name, err)
	}
}

// TestLabelsAreThoseOfContainerd: and an image can add what is for the snapshotter, but not say where to read from.
func TestLabelsAreThoseOfContainerd(t *testing.T) {
	img := &Image{Ref: "registry.test/a:1", Manifest: digest.FromString("m")}
	for i := range 100 {
		img.Layers = append(img.Layers, ocispec.Descriptor{Digest: digest.FromString(fmt.Sprint(i)),
			Annotations: map[string]string{
				"containerd.io/snapshot/stargz/toc.digest": "toc", "containerd.io/snapshot/remote/urls": "http://inside/",
				"containerd.io/snapshot/cri.image-ref": "elsewhere", "containerd.io/snapshot.ref": "another", "other": "x",
			}})
	}
	got := img.Labels(1, "chain")
	layers := got["containerd.io/snapshot/cri.image-layers"]
	if !strings.HasPrefix(layers, img.Layers[1].Digest.String()+","+img.Layers[2].Digest.String()+",") ||
		len(layers) > maxLabel || len(layers) < maxLabel-200 {
		t.Errorf("layers: %s", layers)
	}
	delete(got, "containerd.io/snapshot/cri.image-layers")
	want := map[string]string{
		"containerd.io/snapshot.ref":                 "chain",
		"containerd.io/snapshot/cri.image-ref":       "registry.test/a:1",
		"containerd.io/snapshot/cri.manifest-digest": img.Manifest.String(),
		"containerd.io/snapshot/cri.layer-digest":    img.Layers[1].Digest.String(),
		"containerd.io/snapshot/stargz/toc.digest":   "toc",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("labels %v, want %v", got, want)
	}
}
