package life

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	containerd "github.com/containerd/containerd/api/types"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/hostpath/mutetest"
	"berth/internal/registrytest"
	programs "berth/test/kubernetes"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// stargz is a stargz snapshotter: a real one, of the published libraries.
type stargz struct {
	t        *testing.T
	program  string
	root     string // its own directory
	socket   string
	registry string // its name and address
	process  *exec.Cmd
	pushed   v1.Image // the last one
	forward  []string // the CRI image service that it serves, and whose it is
}

func newStargz(t *testing.T) *stargz {
	t.Helper()
	nodetest.BerthOnly(t, "its configuration is its own")
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("needs FUSE: ", err)
	}
	program, err := programs.Stargz.Build(nodetest.Building(t))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "stargz-") // short: it has sockets
	if err != nil {
		t.Fatal(err)
	}
	s := &stargz{t: t, program: program, root: dir, socket: filepath.Join(dir, "s.sock")}
	t.Cleanup(func() {
		s.kill()
		for _, m := range s.mounts() {
			_ = unix.Unmount(m, unix.MNT_DETACH)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// tables are berthd's configuration of it.
func (s *stargz) tables() string {
	return fmt.Sprintf("[snapshotter]\nname = \"stargz\"\naddress = %q\ntimeout = \"5m\"\n", s.socket)
}

// serve starts it for a node, whose registry it reads from.
func (s *stargz) serve(n *node.Node) {
	s.t.Helper()
	s.registry = node.RegistryHost + "=" + n.Registry.Addr()
	s.start()
}

func (s *stargz) start() {
	s.t.Helper()
	args := append([]string{"serve", filepath.Join(s.root, "d"), s.socket, s.registry}, s.forward...)
	s.process = exec.Command(s.program, args...)
	log, err := os.OpenFile(filepath.Join(s.root, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.process.Stdout, s.process.Stderr = log, log
	if err := s.process.Start(); err != nil {
		s.t.Fatal(err)
	}
	nodetest.Eventually(s.t, 5*time.Second, "the snapshotter serves", func() error {
		_, err := s.list()
		return err
	})
}

func (s *stargz) kill() {
	if s.process == nil {
		return
	}
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
	s.process = nil
	if s.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(s.root, "log"))
		s.t.Logf("log of the snapshotter:\n%s", log)
	}
}

// list are the names of its snapshots.
func (s *stargz) list() ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	list, err := snapshots.NewSnapshotsClient(conn).List(ctx, &snapshots.ListSnapshotsRequest{})
	if err != nil {
		return nil, err
	}
	var names []string
	for {
		page, err := list.Recv()
		if err == io.EOF || err != nil && strings.HasSuffix(err.Error(), "not found") { // it has never had one
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		for _, info := range page.Info {
			names = append(names, info.Name)
		}
	}
}

// mounts are its FUSE mounts.
func (s *stargz) mounts() (at []string) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); strings.HasPrefix(fields[4], s.root) {
			at = append(at, fields[4])
		}
	}
	return at
}

// has waits until the snapshotter has so many snapshots, and no mounts if that is none.
func (s *stargz) has(want int) {
	s.t.Helper()
	nodetest.Eventually(s.t, 10*time.Second, fmt.Sprintf("the snapshotter has %d snapshots", want), func() error {
		names, err := s.list()
		if err == nil && len(names) != want {
			err = fmt.Errorf("it has %d: %v", len(names), names)
		}
		if m := s.mounts(); err == nil && want == 0 && len(m) > 0 {
			err = fmt.Errorf("mounts: %v", m)
		}
		return err
	})
}

// lazyLayer is a layer in the format eStargz.
type lazyLayer struct {
	v1.Layer // unset
	packed   []byte
	toc      string
	diffID   v1.Hash
}

// layer makes an eStargz layer of entries.
func (s *stargz) layer(entries ...registrytest.Entry) *lazyLayer {
	s.t.Helper()
	tar, err := registrytest.Tar(entries...)
	if err != nil {
		s.t.Fatal(err)
	}
	from, to := filepath.Join(s.root, "tar"), filepath.Join(s.root, "layer")
	if err := os.WriteFile(from, tar, 0o600); err != nil {
		s.t.Fatal(err)
	}
	out, err := exec.Command(s.program, "convert", from, to).Output()
	if err != nil {
		s.t.Fatal(err)
	}
	l := &lazyLayer{}
	var diffID string
	if _, err := fmt.Sscan(string(out), &l.toc, &diffID); err != nil {
		s.t.Fatal(err)
	}
	if l.diffID, err = v1.NewHash(diffID); err != nil {
		s.t.Fatal(err)
	}
	if l.packed, err = os.ReadFile(to); err != nil {
		s.t.Fatal(err)
	}
	return l
}

func (l *lazyLayer) Digest() (v1.Hash, error) {
	sum := sha256.Sum256(l.packed)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}, nil
}
func (l *lazyLayer) DiffID() (v1.Hash, error)            { return l.diffID, nil }
func (l *lazyLayer) Size() (int64, error)                { return int64(len(l.packed)), nil }
func (l *lazyLayer) MediaType() (types.MediaType, error) { return types.OCILayer, nil }
func (l *lazyLayer) Compressed() (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(l.packed)), nil
}

// Descriptor has the digest of the table of contents, by which the snapshotter verifies what it reads.
func (l *lazyLayer) Descriptor() (*v1.Descriptor, error) {
	digest, _ := l.Digest()
	return &v1.Descriptor{
		MediaType: types.OCILayer, Digest: digest, Size: int64(len(l.packed)),
		Annotations: map[string]string{"containerd.io/snapshot/stargz/toc.digest": l.toc},
	}, nil
}

// sent is how much of the layer a registry has sent.
func (l *lazyLayer) sent(r *registrytest.Registry) int64 {
	digest, _ := l.Digest()
	return r.Sent(digest.String())
}

// lazyBusybox is a layer with busybox.
func (s *stargz) lazyBusybox() *lazyLayer {
	entries, err := registrytest.Busybox()
	if err != nil {
		s.t.Fatal(err)
	}
	return s.layer(entries...)
}

// push pushes an image, and returns its name.
func (s *stargz) push(n *node.Node, name string, layers ...registrytest.ImageOption) string {
	s.t.Helper()
	img, err := registrytest.Image(layers...)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := n.Registry.Push(name, img); err != nil {
		s.t.Fatal(err)
	}
	s.pushed = img
	return node.RegistryHost + "/" + name
}

func ofImage(ref string) nodetest.ContainerEdit {
	return func(c *cri.ContainerConfig) { c.Image.Image = ref }
}

func removeImage(t *testing.T, n *node.Node, ref string) {
	t.Helper()
	if _, err := n.Images.RemoveImage(nodetest.Context(t), &cri.RemoveImageRequest{
		Image: &cri.ImageSpec{Image: ref},
	}); err != nil {
		t.Fatal(err)
	}
}

// TestAPodStartsBeforeItsImageIsDownloaded: with a snapshotter, and its container outlives a kill of berthd.
func TestAPodStartsBeforeItsImageIsDownloaded(t *testing.T) {
	s := newStargz(t)
	n := nodetest.Start(t, node.Options{Tables: s.tables()})
	s.serve(n)
	big := registrytest.Random(7, "data", 4, 4<<20)
	base, lazy := s.lazyBusybox(), s.layer(append(big, registrytest.File("last", 0o640, "end\n").Owned(3, 4))...)
	ref := s.push(n, "lazy:1", registrytest.ReadyLayer(base), registrytest.ReadyLayer(lazy))
	nodetest.Pull(t, n, ref)
	p := nodetest.RunPod(t, n)
	c := p.Run(ofImage(ref))
	if got := c.Sh("cat /last; stat -c '%a %u:%g' /last; whoami; echo mine > /data/mine; ls /data | wc -l"); got !=
		"end\n640 3:4\nroot\n5" {
		t.Errorf("the container reads %q", got)
	}
	if sent, size := lazy.sent(n.Registry), int64(len(lazy.packed)); sent == 0 || sent > size/4 {
		t.Errorf("the registry has sent %d of the %d bytes of the layer", sent, size)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	for _, e := range big {
		sum.Write(e.Body)
	}
	if got, want := c.Sh("rm /data/mine; cat $(ls -d /data/*) | sha256sum | cut -d' ' -f1"),
		hex.EncodeToString(sum.Sum(nil)); got != want {
		t.Errorf("the files of the layer have the digest %s, want %s", got, want)
	}
	second := p.Run(ofImage(ref), func(c *cri.ContainerConfig) { c.Metadata.Name = "second" })
	if got := second.Sh("cat /last"); got != "end" {
		t.Errorf("a container after the restart reads %q", got)
	}
	volume := p.Run(nodetest.Mounts(&cri.Mount{
		ContainerPath: "/image", Image: &cri.ImageSpec{Image: ref}, Readonly: true,
	}))
	if got := volume.Sh("cat /image/last"); got != "end" {
		t.Errorf("a container that mounts the image reads %q", got)
	}
	s.has(3) // two layers, and a view
	out, err := commandLine(t, n, "save", "-o", filepath.Join(t.TempDir(), "x.tar"), ref).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "is not on the node: the snapshotter stargz reads it") {
		t.Errorf("save: %v: %s", err, out)
	}
	removeImage(t, n, ref)
	s.has(3) // containers need them
	p.Remove()
	s.has(0)
}

// TestLayersThatASnapshotterDoesNotHaveAreUnpacked: above those that it has, which they can change. Seen to fail when
// the layer without its parent directories was kept above remote ones: its directory had the mode 0755.
func TestLayersThatASnapshotterDoesNotHaveAreUnpacked(t *testing.T) {
	s := newStargz(t)
	n := nodetest.Start(t, node.Options{Tables: s.tables()})
	s.serve(n)
	base := s.lazyBusybox()
	lazy := s.layer(append(registrytest.Random(8, "data", 1, 8<<20), registrytest.Dir("d", 0o700),
		registrytest.File("d/old", 0o644, "old"), registrytest.Dir("o", 0o755), registrytest.File("o/old", 0o644, "old"))...)
	stack := []registrytest.ImageOption{registrytest.ReadyLayer(base), registrytest.ReadyLayer(lazy)}
	whole := s.push(n, "mixed:1", append(stack[:2:2], registrytest.Layer(registrytest.Dir("d", 0o700),
		registrytest.Whiteout("d/old"), registrytest.File("d/new", 0o644, "new"), registrytest.Dir("o", 0o755),
		registrytest.Opaque("o")))...)
	implied := s.push(n, "implied:1", append(stack[:2:2], registrytest.Layer(registrytest.File("d/new", 0o644, "new")))...)
	declared := s.push(n, "volumes:1", append(stack[:2:2], registrytest.Volumes("/d"))...)
	p := nodetest.RunPod(t, n)
	for _, v := range []struct {
		name, ref, want string
		remote          bool
	}{
		{"whiteouts", whole, "700 new 0", true},
		{"attributes of directories below", implied, "700 new old 1", false},
		{"declared volumes", declared, "700 old 1", false},
	} {
		t.Run(v.name, func(t *testing.T) {
			before := lazy.sent(n.Registry)
			nodetest.Pull(t, n, v.ref)
			c := p.Run(ofImage(v.ref), func(c *cri.ContainerConfig) { c.Metadata.Name = strings.Fields(v.name)[0] })
			got := c.Sh("echo $(stat -c %a /d; ls /d; ls /o | wc -l)")
			if got != v.want {
				t.Errorf("the container reads %q, want %q", got, v.want)
			}
			if all := lazy.sent(n.Registry)-before >= int64(len(lazy.packed)); all == v.remote {
				t.Errorf("downloaded as a whole: %v", all)
			}
			c.Stop(0)
			c.Remove()
			removeImage(t, n, v.ref)
			s.has(0)
		})
	}
}

// TestAnImageCannotClaimTheRemoteLayersOfAnother by their diff IDs, which nobody verifies. Seen to fail when layers
// were found by their chain IDs, as in containerd.
func TestAnImageCannotClaimTheRemoteLayersOfAnother(t *testing.T) {
	s := newStargz(t)
	n := nodetest.Start(t, node.Options{Tables: s.tables()})
	s.serve(n)
	base := registrytest.ReadyLayer(s.lazyBusybox())
	good := s.layer(registrytest.File("whose", 0o644, "good"))
	evil := s.layer(registrytest.File("whose", 0o644, "evil"))
	evil.diffID = good.diffID
	p := nodetest.RunPod(t, n)
	for _, v := range []struct {
		name  string
		layer *lazyLayer
	}{{"evil", evil}, {"good", good}} {
		ref := s.push(n, v.name+":1", base, registrytest.ReadyLayer(v.layer), registrytest.Label("is", v.name))
		nodetest.Pull(t, n, ref)
		if got := p.Run(ofImage(ref)).Sh("cat /whose"); got != v.name {
			t.Errorf("a container of the %s image reads %q", v.name, got)
		}
	}
	s.has(5) // three layers, of which one is shared, and two views
}

// TestAForeignRepositorysRemoteLayersAreNotThoseOfAnImage whose configuration it has, whichever is pulled first. A
// container that runs on them goes on. Seen to fail where an image that is on the node kept its remote layers: the
// container of the good image read "evil".
func TestAForeignRepositorysRemoteLayersAreNotThoseOfAnImage(t *testing.T) {
	s := newStargz(t)
	n := nodetest.Start(t, node.Options{Tables: s.tables()})
	s.serve(n)
	base := registrytest.ReadyLayer(s.lazyBusybox())
	layers := map[string]*lazyLayer{}
	for _, name := range []string{"good", "evil"} {
		layers[name] = s.layer(registrytest.File("whose", 0o644, name), registrytest.File("later", 0o644, name))
	}
	layers["evil"].diffID = layers["good"].diffID
	refs, ids := map[string]string{}, map[string]string{}
	for name, layer := range layers {
		refs[name] = s.push(n, name+"/x:1", base, registrytest.ReadyLayer(layer))
		config, err := s.pushed.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		ids[name] = config.String()
	}
	if ids["good"] != ids["evil"] {
		t.Fatalf("the images are %v: this tests nothing", ids)
	}
	named := func(name string) nodetest.ContainerEdit {
		return func(c *cri.ContainerConfig) { c.Metadata.Name, c.Image.Image = name, refs[name] }
	}
	reads := func(c *nodetest.Container, file, want string) {
		t.Helper()
		if got := c.Sh("cat /" + file); got != want {
			t.Errorf("a container reads %q in %s, want %q", got, file, want)
		}
	}

	nodetest.Pull(t, n, refs["evil"])
	p := nodetest.RunPod(t, n)
	evil := p.Run(named("evil"))
	reads(evil, "whose", "evil")
	nodetest.Pull(t, n, refs["good"])
	reads(p.Run(named("good")), "whose", "good")
	reads(evil, "later", "evil")
	p.Remove()
	s.has(0)
	removeImage(t, n, refs["good"])

	nodetest.Pull(t, n, refs["good"])
	_, err := n.Images.PullImage(nodetest.Context(t), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: refs["evil"]}})
	nodetest.WantCode(t, err, codes.InvalidArgument)
	p = nodetest.RunPod(t, n)
	reads(p.Run(named("good")), "whose", "good")
	s.has(3) // two layers, and a view
	p.Remove()
	removeImage(t, n, refs["good"])
	s.has(0)
}

// TestASnapshotterThatIsKilledHurtsOnlyItsImages: what needs it says so, and its snapshots are removed when it is back.
func TestASnapshotterThatIsKilledHurtsOnlyItsImages(t *testing.T) {
	s := newStargz(t)
	n := nodetest.Start(t, node.Options{Tables: s.tables()})
	s.serve(n)
	ref := s.push(n, "lazy:1", registrytest.ReadyLayer(s.lazyBusybox()))
	nodetest.Pull(t, n, node.Busybox)
	nodetest.Pull(t, n, ref)
	lazy := nodetest.RunPod(t, n)
	lazy.Run(ofImage(ref))
	s.kill()
	if got := nodetest.RunPod(t, n).Run().Sh("echo on"); got != "on" {
		t.Errorf("another pod says %q", got)
	}
	says := func(err error) {
		t.Helper()
		nodetest.WantCode(t, err, codes.Unavailable)
		if text := status.Convert(err).Message(); !strings.Contains(text, "snapshotter stargz ("+s.socket+")") {
			t.Errorf("the error is %q", text)
		}
	}
	_, err := lazy.TryCreate(ofImage(ref), func(c *cri.ContainerConfig) { c.Metadata.Name = "second" })
	says(err)
	other := s.push(n, "other:1", registrytest.ReadyLayer(s.layer(registrytest.File("x", 0o644, "x"))))
	_, err = n.Images.PullImage(nodetest.Context(t), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: other}})
	says(err)
	lazy.Remove()
	removeImage(t, n, ref)
	s.start()
	s.has(0)
}

// TestAKilledBerthdLeavesNoSnapshots of a pull that was under way.
func TestAKilledBerthdLeavesNoSnapshots(t *testing.T) {
	s := newStargz(t)
	n := nodetest.Start(t, node.Options{Tables: s.tables()})
	s.serve(n)
	base := s.lazyBusybox()
	ref := s.push(n, "stalled:1", registrytest.ReadyLayer(base),
		registrytest.Layer(registrytest.Random(9, "d", 1, 4<<20)...))
	layers, err := s.pushed.Layers()
	if err != nil {
		t.Fatal(err)
	}
	top, err := layers[1].Digest()
	if err != nil {
		t.Fatal(err)
	}
	n.Registry.SetFaults(registrytest.Faults{Path: top.Hex, StallAfter: 1 << 20})
	ended := make(chan error, 1)
	go func() {
		_, err := n.Images.PullImage(context.Background(), &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
		ended <- err
	}()
	s.has(2)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the pull says that it has ended")
	}
	n.Registry.SetFaults(registrytest.Faults{})
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	nodetest.Pull(t, n, ref) // it goes on with the snapshot
	s.has(2)
	if got := nodetest.RunPod(t, n).Run(ofImage(ref)).Sh("ls /d | wc -l"); got != "1" {
		t.Errorf("the container sees %s files", got)
	}
	if err := n.RemoveAll(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	removeImage(t, n, ref)
	s.has(0)
}

// TestASnapshotterThatHangsHurtsOnlyItsImages: whoever needs it learns that it does not answer, and nobody else waits
// for it, however long that takes.
func TestASnapshotterThatHangsHurtsOnlyItsImages(t *testing.T) {
	t.Run("who needs it is told", func(t *testing.T) {
		snapshotterHangs(t, "10s", func(n *node.Node, create func() error, _ func()) {
			err := create()
			nodetest.WantCode(t, err, codes.Unavailable)
			if text := status.Convert(err).Message(); !strings.Contains(text, "no answer within 10s") {
				t.Errorf("the error is %q", text)
			}
		})
	})
	t.Run("others do not wait", func(t *testing.T) {
		snapshotterHangs(t, "10m", func(n *node.Node, create func() error, goOn func()) {
			created := make(chan error, 1)
			go func() { created <- create() }()
			time.Sleep(time.Second) // it asks the snapshotter
			if got := nodetest.RunPod(t, n).Run().Sh("echo on"); got != "on" {
				t.Errorf("another pod says %q", got)
			}
			select {
			case err := <-created:
				t.Errorf("it does not hang: %v", err)
				created <- err
			default:
			}
			goOn()
			if err := <-created; err != nil {
				t.Errorf("once the snapshotter goes on: %v", err)
			}
		})
	})
}

// snapshotterHangs is called with a node whose snapshotter hangs and may do so for limit. create makes a container that
// needs the snapshotter, and goOn ends the hanging.
func snapshotterHangs(t *testing.T, limit string, do func(n *node.Node, create func() error, goOn func())) {
	t.Helper()
	s := newStargz(t)
	n := nodetest.Start(t, node.Options{Tables: strings.Replace(s.tables(), "5m", limit, 1)})
	s.serve(n)
	ref := s.push(n, "lazy:1", registrytest.ReadyLayer(s.lazyBusybox()))
	nodetest.Pull(t, n, node.Busybox)
	nodetest.Pull(t, n, ref)
	p := nodetest.RunPod(t, n)
	signal := func(sig unix.Signal) {
		t.Helper()
		if err := unix.Kill(s.process.Process.Pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(unix.SIGSTOP)
	t.Cleanup(func() {
		if s.process != nil {
			signal(unix.SIGCONT)
		}
	})
	do(n, func() error {
		_, err := p.TryCreate(ofImage(ref))
		return err
	}, func() { signal(unix.SIGCONT) })
	p.Remove()
	removeImage(t, n, ref)
	signal(unix.SIGCONT)
	s.has(0)
}

// mute is a snapshotter whose one layer is a file system that stops answering: what stargz-snapshotter cannot be made
// to do.
type mute struct {
	snapshots.UnimplementedSnapshotsServer
	dir  string
	info *snapshots.Info
}

func (m *mute) Prepare(
	_ context.Context, r *snapshots.PrepareSnapshotRequest,
) (*snapshots.PrepareSnapshotResponse, error) {
	m.info = &snapshots.Info{Name: "layer", Parent: r.Parent, Labels: r.Labels, Kind: snapshots.Kind_COMMITTED}
	return nil, status.Error(codes.AlreadyExists, "it is mounted")
}

func (m *mute) List(_ *snapshots.ListSnapshotsRequest, s snapshots.Snapshots_ListServer) error {
	return s.Send(&snapshots.ListSnapshotsResponse{Info: []*snapshots.Info{m.info}})
}

func (m *mute) Mounts(context.Context, *snapshots.MountsRequest) (*snapshots.MountsResponse, error) {
	return &snapshots.MountsResponse{Mounts: []*containerd.Mount{{Type: "bind", Source: m.dir}}}, nil
}

func (m *mute) Remove(context.Context, *snapshots.RemoveSnapshotRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

// TestALayerThatDoesNotAnswerHoldsUpOnlyItsContainers: berthd looks at it by a child, so it can be killed and started
// again. Seen to fail when berthd mounted the layer itself: its process stayed after the kill.
func TestALayerThatDoesNotAnswerHoldsUpOnlyItsContainers(t *testing.T) {
	nodetest.BerthOnly(t, "its configuration is its own")
	fs := mutetest.Mount(t, t.TempDir())
	dir, err := os.MkdirTemp("", "mute-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	snapshots.RegisterSnapshotsServer(server, &mute{dir: fs.Dir})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	n := nodetest.Start(t, node.Options{Tables: fmt.Sprintf("[snapshotter]\nname = \"mute\"\naddress = %q\n", l.Addr())})
	img, err := registrytest.Image(registrytest.WithFiles(map[string]string{"a": "a"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Registry.Push("mute:1", img); err != nil {
		t.Fatal(err)
	}
	ref := node.RegistryHost + "/mute:1"
	nodetest.Pull(t, n, ref)
	p := nodetest.RunPod(t, n)
	fs.Mute()
	create := func() error {
		ctx, cancel := context.WithTimeout(nodetest.Context(t), time.Second)
		defer cancel()
		_, err := n.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
			PodSandboxId: p.ID, Config: p.ContainerConfig(ofImage(ref)), SandboxConfig: p.Config,
		})
		return err
	}
	nodetest.WantCode(t, create(), codes.DeadlineExceeded)
	begin := time.Now()
	nodetest.RunPod(t, n).Stop()
	if took := time.Since(begin); took > 40*time.Second {
		t.Errorf("another pod took %v", took)
	}
	begin = time.Now()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 40*time.Second {
		t.Errorf("the restart took %v", took)
	}
	fs.End()
	p.Remove()
	removeImage(t, n, ref)
}

// TestFilesOfALayerThatDoNotComeHoldUpOnlyTheirContainer: and the call that waits for them ends with its caller.
func TestFilesOfALayerThatDoNotComeHoldUpOnlyTheirContainer(t *testing.T) {
	s := newStargz(t)
	n := nodetest.Start(t, node.Options{Tables: s.tables()})
	s.serve(n)
	nodetest.Pull(t, n, node.Busybox)
	// The file is far from what the snapshotter has read when it mounts the layer.
	data := registrytest.Random(3, "data", 2, 8<<20)
	users := s.layer(data[0], data[1], registrytest.Dir("etc", 0o755),
		registrytest.File("etc/passwd", 0o644, "root:x:0:0::/home/of/root:/bin/sh\n"), data[2])
	ref := s.push(n, "silent:1", registrytest.ReadyLayer(s.lazyBusybox()), registrytest.ReadyLayer(users))
	nodetest.Pull(t, n, ref)
	p := nodetest.RunPod(t, n)
	digest, _ := users.Digest()
	n.Registry.SetFaults(registrytest.Faults{Path: digest.Hex, StallAfter: 1, Times: 1000})
	ctx, cancel := context.WithTimeout(nodetest.Context(t), time.Second)
	defer cancel()
	_, err := n.Runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: p.ID, Config: p.ContainerConfig(ofImage(ref)), SandboxConfig: p.Config,
	})
	nodetest.WantCode(t, err, codes.DeadlineExceeded)
	begin := time.Now()
	if got := nodetest.RunPod(t, n).Run().Sh("echo on"); got != "on" || time.Since(begin) > 40*time.Second {
		t.Errorf("another pod says %q after %v", got, time.Since(begin))
	}
	begin = time.Now()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 40*time.Second {
		t.Errorf("the restart took %v", took)
	}
	s.kill() // with it ends what waits for it
	for _, m := range s.mounts() {
		_ = unix.Unmount(m, unix.MNT_DETACH|unix.MNT_FORCE)
	}
	n.Registry.SetFaults(registrytest.Faults{})
	s.start()
	c := p.Run(ofImage(ref), func(c *cri.ContainerConfig) { c.Metadata.Attempt++ })
	if got := c.Sh("echo $HOME"); got != "/home/of/root" {
		t.Errorf("a container of the image says %q", got)
	}
	p.Remove()
	removeImage(t, n, ref)
	s.has(0)
}

// TestASnapshotterGetsTheCredentialsOfPulls by the CRI image service that it serves in front of Berth's.
func TestASnapshotterGetsTheCredentialsOfPulls(t *testing.T) {
	s := newStargz(t)
	registry, err := registrytest.New(registrytest.WithBasicAuth("ann", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	n := nodetest.Start(t, node.Options{Tables: s.tables(), Registry: registry})
	front := filepath.Join(s.root, "cri.sock")
	s.forward = []string{front, strings.TrimPrefix(n.Address, "unix://")}
	s.serve(n)
	lazy := s.layer(registrytest.Random(5, "data", 1, 4<<20)...)
	ref := s.push(n, "private:1", registrytest.ReadyLayer(s.lazyBusybox()), registrytest.ReadyLayer(lazy))
	conn, err := grpc.NewClient("unix:"+front, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	images := cri.NewImageServiceClient(conn)
	nodetest.Eventually(t, 3*time.Second, "the snapshotter has found Berth", func() error {
		_, err := images.ImageFsInfo(nodetest.Context(t), &cri.ImageFsInfoRequest{})
		return err
	})
	pulled, err := images.PullImage(nodetest.Context(t), &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: ref}, Auth: &cri.AuthConfig{Username: "ann", Password: "secret"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if sent, size := lazy.sent(registry), int64(len(lazy.packed)); sent == 0 || sent > size/2 {
		t.Errorf("the registry has sent %d of the %d bytes of the layer", sent, size)
	}
	image, err := images.ImageStatus(nodetest.Context(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil || image.Image.GetId() != pulled.ImageRef || image.Image.Size < uint64(len(lazy.packed)) {
		t.Errorf("the image is %+v, %v", image, err)
	}
	removeImage(t, n, ref)
	s.has(0)
	s.kill() // its arguments have the node's directory, which nothing is left of
}

// TestAUserNamespaceOnRemoteLayers is refused with the reason, since the kernel does not map owners there.
func TestAUserNamespaceOnRemoteLayers(t *testing.T) {
	s := newStargz(t)
	n := nodetest.Start(t, node.Options{Tables: s.tables()})
	s.serve(n)
	ref := s.push(n, "lazy:1", registrytest.ReadyLayer(s.lazyBusybox()))
	nodetest.Pull(t, n, ref)
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{UsernsOptions: userNamespace(200000, 65536)}))
	_, err := p.TryCreate(ofImage(ref))
	nodetest.WantCode(t, err, codes.FailedPrecondition)
	if text := status.Convert(err).Message(); !strings.Contains(text, "user namespace (hostUsers: false)") {
		t.Errorf("the error is %q", text)
	}
	p.Remove()
	removeImage(t, n, ref)
	s.has(0)
}
