package faults

import (
	"errors"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

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
