package faults

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/test/faults/tally"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestFormatsChangeUnderChurn: a berthd that writes records of another format takes a node over while pods come and go,
// the older one refuses it and is followed by the newer one, and when all pods and images are gone the older one serves
// again. Seen to fail with versions not compared, where the older one serves pods that it does not understand.
func TestFormatsChangeUnderChurn(t *testing.T) {
	future := futureDaemon(t)
	n := nodetest.Start(t, node.Options{})
	r := chance(t)
	c := count(t)
	ours := n.Programs()
	change := func(programs string) error {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		n.SetPrograms(programs)
		return n.Restart(nodetest.Context(t))
	}
	for i := range size(1, 8) {
		w := newWitness(t, nodetest.RunPod(t, n))
		if i == 0 {
			c.before(t, n)
		}
		pods := startChurn(t, n, size(3, 20))
		time.Sleep(time.Duration(200+r.Intn(800)) * time.Millisecond)
		for range 1 + r.Intn(2) {
			began := time.Now()
			if err := change(future); err != nil {
				t.Fatal(err)
			}
			answers(t, n, w)
			c.answered(time.Since(began))
			newer := newWitness(t, w.Pod)
			time.Sleep(time.Duration(r.Intn(800)) * time.Millisecond)
			began = time.Now()
			if err := change(ours); err == nil {
				t.Fatal("an older berthd serves pods whose records it does not know")
			}
			before := newer.lines(t)
			nodetest.Eventually(t, 10*time.Second, "a log goes on while no berthd is there", func() error {
				if newer.lines(t) <= before {
					return errors.New("it does not")
				}
				return nil
			})
			if err := change(future); err != nil {
				t.Fatal(err)
			}
			answers(t, n, w)
			c.answered(time.Since(began))
			newer.check(t)
		}
		pods.finish(t)
		w.check(t)
		nothingLeft(t, n)
		removeImages(t, n)
		if err := change(ours); err != nil {
			t.Fatalf("without pods and images the older berthd does not serve again: %v", err)
		}
		c.add(tally.Rounds, 1)
	}
	nothingLeft(t, n)
}

// TestAnOlderBerthdServesAfterTheRemovalOfNewerRecords: what docs/operations.md has users do before a downgrade is
// enough, on a node that began with the newer berthd, has a volume, and was told the range of its pods. The content of
// the volume stays. Pods and images are not all that has the format: the older berthd refuses the node before the
// removal of each kind of file.
func TestAnOlderBerthdServesAfterTheRemovalOfNewerRecords(t *testing.T) {
	future := futureDaemon(t)
	n := nodetest.Start(t, node.Options{OwnCIDR: true})
	ctx := nodetest.Context(t)
	ours := n.Programs()
	restart := func(programs string) error {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		n.SetPrograms(programs)
		return n.Restart(ctx)
	}
	removed := func(pattern string) int {
		t.Helper()
		paths, err := filepath.Glob(filepath.Join(n.Root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		return len(paths)
	}
	removed("cgroups/roots.json*") // as on a node that has never had another berthd
	if err := restart(future); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Runtime.UpdateRuntimeConfig(ctx, &cri.UpdateRuntimeConfigRequest{
		RuntimeConfig: &cri.RuntimeConfig{NetworkConfig: &cri.NetworkConfig{PodCidr: "198.18.77.0/24"}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := berthv1.NewVolumesClient(n.Conn).CreateVolume(ctx,
		&berthv1.CreateVolumeRequest{Name: "kept"}); err != nil {
		t.Fatal(err)
	}
	content := filepath.Join(n.Root, "volumes", "kept", "data", "file")
	if err := os.WriteFile(content, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	nodetest.RunPod(t, n).Run()
	nothingLeft(t, n)
	removeImages(t, n)
	for _, pattern := range []string{"cgroups/roots.json*", "network/bridge/node-cidrs.json*", "volumes/*/volume.json*"} {
		if err := restart(ours); err == nil {
			t.Fatalf("the older berthd serves before the removal of %s", pattern)
		}
		if removed(pattern) == 0 {
			t.Errorf("there is no %s", pattern)
		}
	}
	if err := restart(ours); err != nil {
		t.Fatal(err)
	}
	list, err := berthv1.NewVolumesClient(n.Conn).ListVolumes(ctx, &berthv1.ListVolumesRequest{})
	if err != nil || len(list.GetVolumes()) != 1 {
		t.Errorf("volumes: %v, %v", list, err)
	}
	if data, err := os.ReadFile(content); err != nil || string(data) != "content" {
		t.Errorf("the volume has %q, %v", data, err)
	}
	nodetest.Pull(t, n, node.Busybox)
	nodetest.RunPod(t, n).Run()
	nothingLeft(t, n)
}

func removeImages(t *testing.T, n *node.Node) {
	t.Helper()
	list, err := n.Images.ListImages(nodetest.Context(t), &cri.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range list.Images {
		if _, err := n.Images.RemoveImage(nodetest.Context(t),
			&cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: image.Id}}); err != nil {
			t.Fatal(err)
		}
	}
}
