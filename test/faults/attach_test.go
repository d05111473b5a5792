package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// A client that is attached gets its output through the keeper. One whose keeper is killed is told so: it has not seen
// all of it, and must not take that for the container's end. Seen to fail with Detach's ErrNotFound passed over.
func TestAnAttachWhoseKeeperIsKilledSaysSo(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	for _, transport := range []nodetest.Transport{nodetest.SPDY, nodetest.WebSocket} {
		response, err := n.Runtime.Attach(nodetest.Context(t), &cri.AttachRequest{ContainerId: w.ID, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		var got nodetest.Buffer
		ended := make(chan error, 1)
		go func() {
			_, err := nodetest.Stream(nodetest.Context(t), transport, response.Url, remotecommand.StreamOptions{Stdout: &got})
			ended <- err
		}()
		nodetest.Eventually(t, 10*time.Second, "the client gets output", func() error {
			if !strings.Contains(got.String(), "line ") {
				return fmt.Errorf("it has %q", got.String())
			}
			return nil
		})
		w.killKeeper(t, n)
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "the keeper that copied the output has ended") {
			t.Errorf("%s: the attach ended with %v", transport, err)
		}
	}
	w.check(t)
	nothingLeft(t, n)
}
