package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/faults/disk"
	"berth/test/faults/tally"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// outage is a node whose root is on a disk whose power is cut, and what it has promised.
type outage struct {
	*node.Node
	fs     *disk.Mounted
	bootID string // a file with the boot's ID, as berthd sees it
	pool   []*stored

	mu       sync.Mutex           // guards what follows
	moving   []*stored            // images that movingTag was published for, and that are or may be on the node
	has      map[string]bool      // tags of images, by what was acknowledged last
	busy     map[string]bool      // a call for the tag is under way, or has failed: nothing is promised
	removed  map[string]bool      // pods whose removal was acknowledged
	acked    map[string]time.Time // when tags were pulled since the last boot
	at       time.Time            // of the last cut
	lost     time.Duration        // the longest that an image that was lost had been there
	outcomes map[string]int       // for the table
}

// movingTag is a tag that moves: each pull of it brings another image.
const movingTag = "moving:1"

// stored is an image of the pool, with what its layer holds.
type stored struct {
	ref    string
	id     string
	diffID string
	files  map[string]string
}

// newOutage starts a node on a file system of a kind.
func newOutage(t *testing.T, kind string) *outage {
	t.Helper()
	nodetest.Root(t)
	o := &outage{
		fs:  &disk.Mounted{Disk: disk.New(512 << 20), Kind: kind, Dir: t.TempDir()},
		has: map[string]bool{}, busy: map[string]bool{}, removed: map[string]bool{}, acked: map[string]time.Time{},
		outcomes: map[string]int{},
	}
	if err := o.fs.Make(); err != nil {
		t.Skipf("this machine has no such disk: %v", err)
	}
	if err := o.fs.Mount(); err != nil {
		t.Skipf("this machine has no such disk: %v", err)
	}
	t.Cleanup(func() {
		if err := o.fs.Unmount(10 * time.Second); err != nil {
			t.Error(err)
		}
	})
	o.bootID = filepath.Join(t.TempDir(), "boot_id")
	o.newBoot(t)
	o.Node = nodetest.Start(t, node.Options{Root: filepath.Join(o.fs.At(), "root"), Binaries: o.programs(t)})
	for i := range 4 {
		s, err := o.push(fmt.Sprintf("stored:%d", i), int64(i))
		if err != nil {
			t.Fatal(err)
		}
		o.pool = append(o.pool, s)
	}
	first, err := o.push(movingTag, int64(len(o.pool)))
	if err != nil {
		t.Fatal(err)
	}
	o.moving = []*stored{first}
	return o
}

func (o *outage) newBoot(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(o.bootID, []byte(uuid.NewString()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// programs is a directory with a berthd that sees another boot of the machine: in a mount namespace in which that file
// alone is another.
func (o *outage) programs(t *testing.T) string {
	t.Helper()
	real, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := fmt.Sprintf(`#!/bin/sh
exec unshare --mount --propagation unchanged sh -c '
mount --make-rprivate /proc && mount --bind %s /proc/sys/kernel/random/boot_id && exec %s/berthd "$@"' sh "$@"
`, o.bootID, real)
	err = os.WriteFile(filepath.Join(dir, "berthd"), []byte(script), 0o755)
	for _, name := range []string{"berth-keeper", "berth-unpack", "berth"} {
		err = errors.Join(err, os.Symlink(filepath.Join(real, name), filepath.Join(dir, name)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// push publishes an image whose files are those of a seed.
func (o *outage) push(name string, seed int64) (*stored, error) {
	r := rand.New(rand.NewSource(seed))
	files := map[string]string{}
	for n := range 30 {
		data := make([]byte, r.Intn(40<<10))
		r.Read(data)
		files[fmt.Sprintf("data/%d/%d", n%5, n)] = string(data)
	}
	image, err := registrytest.Image(registrytest.WithFiles(files))
	if err != nil {
		return nil, err
	}
	layers, err := image.Layers()
	if err != nil {
		return nil, err
	}
	diffID, err := layers[0].DiffID()
	if err != nil {
		return nil, err
	}
	id, err := image.ConfigName()
	if err != nil {
		return nil, err
	}
	s := &stored{ref: node.RegistryHost + "/" + name, id: id.String(), diffID: diffID.String(), files: files}
	return s, o.Registry.Push(name, image)
}

// work pulls and removes images, and has pods come and go, until the context ends. What was acknowledged is noted.
func (o *outage) work(ctx context.Context, seed int64) *sync.WaitGroup {
	var wg sync.WaitGroup
	for half := range 2 {
		r := rand.New(rand.NewSource(seed + int64(half)))
		wg.Go(func() {
			for ctx.Err() == nil {
				o.change(ctx, o.pool[2*half+r.Intn(2)])
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			o.podLife(ctx)
		}
	})
	r := rand.New(rand.NewSource(seed + 2))
	wg.Go(func() {
		for ctx.Err() == nil {
			o.move(ctx, r.Int63())
		}
	})
	return &wg
}

// change pulls an image, or removes it.
func (o *outage) change(ctx context.Context, s *stored) {
	o.mu.Lock()
	has := o.has[s.ref]
	o.busy[s.ref] = true
	o.mu.Unlock()
	var err error
	image := &cri.ImageSpec{Image: s.ref}
	if has {
		_, err = o.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: image})
	} else {
		_, err = o.Images.PullImage(ctx, &cri.PullImageRequest{Image: image})
	}
	if err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if ctx.Err() == nil {
		o.has[s.ref], o.busy[s.ref], o.acked[s.ref] = !has, false, time.Now()
		o.outcomes[map[bool]string{true: "removals of images", false: "pulls"}[has]]++
	}
}

// move publishes a new image under the tag that moves, and pulls it.
func (o *outage) move(ctx context.Context, seed int64) {
	s, err := o.push(movingTag, seed)
	if err != nil {
		return
	}
	o.mu.Lock()
	o.moving = append(o.moving, s)
	o.mu.Unlock()
	if _, err := o.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: s.ref}}); err == nil {
		o.note(ctx, func() { o.outcomes["pulls of a tag that moves"]++ })
	}
}

// podLife is a pod with a container, from run to removal.
func (o *outage) podLife(ctx context.Context) {
	config := nodetest.PodConfig(o.Node)
	made, err := o.Runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return
	}
	p := &nodetest.Pod{Node: o.Node, ID: made.PodSandboxId, Config: config}
	request := &cri.CreateContainerRequest{PodSandboxId: p.ID, Config: p.ContainerConfig(), SandboxConfig: config}
	c, err := o.Runtime.CreateContainer(ctx, request)
	if err != nil {
		return
	}
	if _, err := o.Runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: c.ContainerId}); err != nil {
		return
	}
	o.note(ctx, func() { o.outcomes["starts"]++ })
	if _, err := o.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.ID}); err != nil {
		return
	}
	o.note(ctx, func() { o.removed[p.ID] = true; o.outcomes["removals of pods"]++ })
}

// note notes what was acknowledged before the power was cut.
func (o *outage) note(ctx context.Context, change func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if ctx.Err() == nil {
		change()
	}
}

// cut has the power fail at a random moment of the work, often in the middle of a writing back, and starts the node
// again.
func (o *outage) cut(t *testing.T, r *rand.Rand) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := o.work(ctx, r.Int63())
	time.Sleep(time.Duration(r.Intn(500)) * time.Millisecond)
	o.mu.Lock()
	cancel()
	o.mu.Unlock()
	if writes := r.Intn(80); r.Intn(3) > 0 {
		o.fs.Disk.CutAfter(writes, r)
		if root, err := os.Open(o.Root); err == nil {
			_ = unix.Syncfs(int(root.Fd()))
			root.Close()
		}
	}
	o.fs.Disk.Cut(r)
	o.at = time.Now()
	done.Wait()
	if err := o.Reboot(); err != nil {
		t.Fatal(err)
	}
	if err := o.fs.Unmount(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := o.fs.Mount(); err != nil {
		t.Fatal(err)
	}
	o.newBoot(t)
	if err := o.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
}

// layerDirs are the directories of layers that berthd counts as whole, by diff ID, and the number of all.
func (o *outage) layerDirs(t *testing.T) (byID map[string]string, all int) {
	t.Helper()
	byID = map[string]string{}
	dirs, err := filepath.Glob(filepath.Join(o.Root, "images", "layers", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		record, err := os.ReadFile(filepath.Join(dir, "layer.json"))
		if err != nil {
			continue
		}
		for _, s := range slices.Concat(o.pool, o.moving) {
			if strings.Contains(string(record), s.diffID) {
				byID[s.diffID] = filepath.Join(dir, "fs")
			}
		}
	}
	return byID, len(dirs)
}

// whole compares an image's layer with what was pushed.
func (s *stored) whole(dir string) error {
	for name, want := range s.files {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if string(got) != want {
			return fmt.Errorf("%s is not as it was pulled", name)
		}
	}
	return nil
}

// check holds the node to its word after a power cut.
func (o *outage) check(t *testing.T) {
	t.Helper()
	o.checkImages(t)
	ctx := nodetest.Context(t)
	pods, err := o.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if p.State != cri.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("pod %s of before the cut is %v", p.Id, p.State)
		}
		if o.removed[p.Id] {
			o.outcomes["pods whose removal was lost"]++
		}
	}
	list, err := o.Runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Containers {
		if c.State == cri.ContainerState_CONTAINER_RUNNING || c.State == cri.ContainerState_CONTAINER_UNKNOWN {
			t.Errorf("container %s of before the cut is %v", c.Id, c.State)
		}
	}
	nothingLeft(t, o.Node)
	o.removed = map[string]bool{}
	p := nodetest.RunPod(t, o.Node)
	if got := p.Output("echo runs"); got != "runs\n" {
		t.Errorf("a container says %q", got)
	}
	p.Remove()
}

func (o *outage) checkImages(t *testing.T) {
	t.Helper()
	present, counts := 0, count(t)
	var told []*stored
	for _, s := range o.pool {
		r, err := o.Images.ImageStatus(nodetest.Context(t), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: s.ref}})
		if err != nil {
			t.Fatal(err)
		}
		there := r.Image != nil
		switch {
		case o.busy[s.ref], there == o.has[s.ref]:
		case there:
			t.Errorf("%s is there again, whose removal was acknowledged", s.ref)
		case !o.acked[s.ref].IsZero():
			o.outcomes["images whose pull was lost"]++
			o.lost = max(o.lost, o.at.Sub(o.acked[s.ref]))
		default:
			counts.add(tally.Pulls, 1)
			counts.add(tally.PullsWrong, 1)
			t.Errorf("%s is lost, which was there at an earlier boot", s.ref)
		}
		if there {
			present++
			counts.add(tally.Pulls, 1)
			told = append(told, s)
		}
		o.has[s.ref], o.busy[s.ref] = there, false
		delete(o.acked, s.ref)
	}
	present, told = present+1, append(told, o.checkMoving(t)...)
	var dirs map[string]string
	nodetest.Eventually(t, time.Minute, "the layers that nothing needs are gone", func() error {
		var all int
		if dirs, all = o.layerDirs(t); all > present+2 { // busybox, and the empty one
			return fmt.Errorf("%d directories of layers are there for %d images", all, present)
		}
		return nil
	})
	for _, s := range told {
		if err := s.whole(dirs[s.diffID]); err != nil {
			counts.add(tally.PullsWrong, 1)
			t.Errorf("%s is not whole: %v", s.ref, err)
		}
	}
}

// checkMoving checks that one of the images that had the tag that moves has it, and is whole. It removes the others.
func (o *outage) checkMoving(t *testing.T) (holder []*stored) {
	t.Helper()
	ctx := nodetest.Context(t)
	list, err := o.Images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	others := 0
	for _, s := range o.moving {
		i := slices.IndexFunc(list.Images, func(image *cri.Image) bool { return image.Id == s.id })
		switch {
		case i < 0:
		case slices.Contains(list.Images[i].RepoTags, s.ref):
			holder = append(holder, s)
		default:
			others++
			image := &cri.ImageSpec{Image: s.id}
			if _, err := o.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: image}); err != nil {
				t.Error(err)
			}
		}
	}
	if len(holder) != 1 {
		t.Fatalf("%d images have the tag that moves; there are %d others that had it", len(holder), others)
	}
	o.moving = holder
	return holder
}

// TestPowerCuts: the disk has lost, torn or reordered what was not flushed. BERTH_POWER says how many cuts there are
// for each file system. berthd becomes ready, images that are told are whole, and so are all that an earlier boot
// has told; one whose pull was acknowledged in the moment before may be gone. A tag that moves is that of one of the
// images that had it. Removed images are gone; removed pods are gone, or NOTREADY. Nothing is left of them. Seen to
// fail where a layer counts after a boot without a sync, and where a lost image took its tag along.
func TestPowerCuts(t *testing.T) {
	cuts := int(number(t, "BERTH_POWER", 2))
	r := chance(t)
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			o := newOutage(t, kind)
			nodetest.Pull(t, o.Node, node.Busybox)
			nodetest.Pull(t, o.Node, o.moving[0].ref)
			o.settle(t)
			for i := range cuts {
				seed := r.Int63()
				if !t.Run(fmt.Sprintf("cut %d of seed %d", i+1, seed), func(t *testing.T) {
					count(t).add(tally.Rounds, 1)
					o.cut(t, rand.New(rand.NewSource(seed)))
					o.check(t)
				}) {
					break
				}
			}
			t.Logf("%d cuts, %+v, %v; the last lost pull was %v old", cuts, o.fs.Disk.Count(), o.outcomes, o.lost)
		})
	}
}

// settle waits until berthd has recorded that all layers are on the disk.
func (o *outage) settle(t *testing.T) {
	t.Helper()
	nodetest.Eventually(t, 20*time.Second, "the images are on the disk", func() error {
		found, err := filepath.Glob(filepath.Join(o.Root, "images", "layers", "*", "synced"))
		if err != nil || len(found) < 2 {
			return fmt.Errorf("%v, %v", found, err)
		}
		return nil
	})
}
