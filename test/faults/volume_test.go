package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/internal/quota"
	"berth/internal/quota/quotatest"
	"berth/internal/registrytest"
	"berth/test/faults/tally"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// files is how many files the image of these tests has at /data, which it declares as a volume.
const files = 1000

// pushFull gives a node's registry an image with much to fill volumes with.
func pushFull(t *testing.T, n *node.Node) string {
	t.Helper()
	busybox, err := registrytest.Busybox()
	if err != nil {
		t.Fatal(err)
	}
	image, err := registrytest.Image(registrytest.Layer(busybox...),
		registrytest.Layer(registrytest.Random(1, "data", files, 4<<10)...),
		registrytest.Env("PATH=/bin"), registrytest.Cmd("sleep", "3600"), registrytest.Volumes("/data"))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Registry.Push("full:1", image); err != nil {
		t.Fatal(err)
	}
	ref := node.RegistryHost + "/full:1"
	nodetest.Pull(t, n, ref)
	return ref
}

// createNamed makes a container with the volume of a name at /data.
func createNamed(ctx context.Context, p *nodetest.Pod, ref, name string) (string, error) {
	mount := &cri.Mount{ContainerPath: "/data"}
	ext, err := proto.Marshal(&pouch.Mount{Name: name})
	if err != nil {
		return "", err
	}
	mount.ProtoReflect().SetUnknown(ext)
	config := p.ContainerConfig(nodetest.Mounts(mount), func(c *cri.ContainerConfig) { c.Image.Image = ref })
	made, err := nodetest.DialV1alpha2(p.Node).CreateContainer(ctx,
		&cri.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config})
	return made.GetContainerId(), err
}

func TestKillingTheDaemonWhileItFillsVolumesLeavesWholeOnesOrNone(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	r := chance(t)
	ref := pushFull(t, n)
	d := nodetest.DialV1alpha2(n)
	p := nodetest.RunPod(t, n)
	kills := int(number(t, "BERTH_VOLUME_KILLS", 25))
	if testing.Short() {
		kills = min(kills, 5)
	}
	whole := 0
	for i := range kills {
		name := fmt.Sprintf("v%d", i)
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			_, _ = createNamed(ctx, p, ref, name)
			if i%3 == 0 { // a removal is killed, too
				_, _ = d.Volumes.RemoveVolume(ctx, &pouch.RemoveVolumeRequest{VolumeName: name})
			}
		}()
		time.Sleep(time.Duration(r.Intn(400)) * time.Millisecond)
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		count(t).add(tally.Rounds, 1)
		<-done // before the daemon is back: what the client does next is no part of this
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(n.Root, "volumes", name)
		entries, err := os.ReadDir(filepath.Join(dir, "data"))
		switch {
		case os.IsNotExist(err):
			if _, err := os.Lstat(dir); err == nil {
				t.Fatalf("kill %d: %s is there without its content", i+1, dir)
			}
		case err != nil:
			t.Fatal(err)
		case len(entries) != files:
			t.Fatalf("kill %d: the volume has %d files of %d", i+1, len(entries), files)
		default:
			whole++
		}
		if _, err := os.Lstat(filepath.Join(dir, "filling")); err == nil {
			t.Fatalf("kill %d: a half filled directory is left", i+1)
		}
		// What is there serves; what is not is made.
		id, err := createNamed(nodetest.Context(t), p, ref, name)
		if err != nil {
			t.Fatal(err)
		}
		_, err = d.Volumes.RemoveVolume(nodetest.Context(t), &pouch.RemoveVolumeRequest{VolumeName: name})
		if status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("kill %d: a volume in use is removed: %v", i+1, err)
		}
		if entries, err = os.ReadDir(filepath.Join(dir, "data")); err != nil || len(entries) != files {
			t.Fatalf("kill %d: afterwards the volume has %d files, %v", i+1, len(entries), err)
		}
		for _, c := range containers(t, n, p.ID) {
			if _, err := d.RemoveContainer(nodetest.Context(t), &cri.RemoveContainerRequest{ContainerId: c}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Volumes.RemoveVolume(nodetest.Context(t), &pouch.RemoveVolumeRequest{VolumeName: name}); err != nil {
			t.Fatalf("kill %d: container %s is gone: %v", i+1, id, err)
		}
	}
	t.Logf("%d kills, after %d of them the volume was whole", kills, whole)
	left, err := os.ReadDir(filepath.Join(n.Root, "volumes"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	p.Remove()
	nothingLeft(t, n)
}

// containers are the IDs of a pod's.
func containers(t *testing.T, n *node.Node, pod string) (ids []string) {
	t.Helper()
	list, err := n.Runtime.ListContainers(nodetest.Context(t),
		&cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: pod}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.Containers {
		ids = append(ids, c.Id)
	}
	return ids
}

func TestKillingTheDaemonWhileItFillsAnImagesVolumesLeavesNothing(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	r := chance(t)
	ref := pushFull(t, n)
	p := nodetest.RunPod(t, n)
	for range 15 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			config := p.ContainerConfig(func(c *cri.ContainerConfig) { c.Image.Image = ref })
			_, _ = n.Runtime.CreateContainer(ctx,
				&cri.CreateContainerRequest{PodSandboxId: p.ID, Config: config, SandboxConfig: p.Config})
		}()
		time.Sleep(time.Duration(r.Intn(400)) * time.Millisecond)
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		count(t).add(tally.Rounds, 1)
		<-done
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		for _, id := range containers(t, n, p.ID) { // created in time: it is whole
			entries, err := os.ReadDir(filepath.Join(n.Root, "containers", id, "volumes/0"))
			if err != nil || len(entries) != files {
				t.Errorf("a container was created with %d files of %d, %v", len(entries), files, err)
			}
		}
	}
	p.Remove()
	nothingLeft(t, n)
}

func TestKillingTheDaemonLeavesNoDiskQuota(t *testing.T) {
	for _, kind := range []string{"ext4", "xfs"} {
		t.Run(kind, func(t *testing.T) {
			n := nodetest.Start(t, node.Options{
				Root:   filepath.Join(quotatest.Mount(t, kind, "prjquota"), "root"),
				Tables: "[runtimes.limited]\ntype = \"builtin\"\ndisk_quota = \"9m\"\n",
			})
			r := chance(t)
			nodetest.Pull(t, n, node.Busybox)
			p := nodetest.RunPodHandler(t, n, "limited")
			for i := range 12 {
				done := make(chan struct{})
				go func() {
					defer close(done)
					ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
					defer cancel()
					made, err := n.Runtime.CreateContainer(ctx,
						&cri.CreateContainerRequest{PodSandboxId: p.ID, Config: p.ContainerConfig(), SandboxConfig: p.Config})
					if err == nil && i%2 == 0 {
						_, _ = n.Runtime.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: made.ContainerId})
					}
				}()
				time.Sleep(time.Duration(r.Intn(500)) * time.Millisecond)
				if err := n.Kill(); err != nil {
					t.Fatal(err)
				}
				count(t).add(tally.Rounds, 1)
				<-done
				if err := n.Restart(nodetest.Context(t)); err != nil {
					t.Fatal(err)
				}
			}
			records, err := os.ReadDir(filepath.Join(n.Root, "quotas"))
			if live := len(containers(t, n, p.ID)); err != nil || len(records) < live {
				t.Errorf("%d containers have %d quotas, %v", live, len(records), err)
			}
			p.Remove()
			nodetest.Eventually(t, 30*time.Second, "all IDs are free", func() error {
				if left, err := os.ReadDir(filepath.Join(n.Root, "quotas")); err != nil || len(left) > 0 {
					return fmt.Errorf("%v, %v", left, err)
				}
				for id := uint32(quota.MinID); id < quota.MinID+30; id++ {
					if used, err := quota.Read(n.Root, id); err != nil || used != (quota.Usage{}) {
						return fmt.Errorf("project %d has %+v, %v", id, used, err)
					}
				}
				return nil
			})
			nothingLeft(t, n)
		})
	}
}

func TestANamedVolumeOutlivesAReboot(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	ref := pushFull(t, n)
	p := nodetest.RunPod(t, n)
	id, err := createNamed(nodetest.Context(t), p, ref, "kept")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Runtime.StartContainer(nodetest.Context(t), &cri.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	r, err := n.Runtime.ExecSync(nodetest.Context(t),
		&cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "echo kept >/data/new"}, Timeout: 10})
	if err != nil || r.ExitCode != 0 {
		t.Fatal(r, err)
	}
	if err := n.Reboot(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(n.Root, "volumes/kept/data/new")); err != nil || string(data) != "kept\n" {
		t.Errorf("it holds %q, %v", data, err)
	}
	remove := func() error {
		_, err := nodetest.DialV1alpha2(n).Volumes.RemoveVolume(nodetest.Context(t),
			&pouch.RemoveVolumeRequest{VolumeName: "kept"})
		return err
	}
	nodetest.WantCode(t, remove(), codes.FailedPrecondition) // the container's record is there
	p.Remove()
	if err := remove(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, n)
}
