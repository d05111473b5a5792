package life

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// startAddress is the address at which a client starts a container with itself attached.
func startAddress(t *testing.T, c *nodetest.Container) string {
	t.Helper()
	response, err := berthv1.NewContainersClient(c.Pod.Node.Conn).Start(nodetest.Context(t),
		&berthv1.StartRequest{ContainerId: c.ID, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	return response.Url
}

// TestAContainerIsStartedOnceByThoseWhoAttach: its address serves one client, and of several addresses one starts it.
func TestAContainerIsStartedOnceByThoseWhoAttach(t *testing.T) {
	nodetest.BerthOnly(t, "the call is its own")
	p := nodetest.RunPod(t, nodetest.Shared(t))
	join := func(at string) (string, error) {
		var out bytes.Buffer
		_, err := nodetest.Stream(nodetest.Context(t), nodetest.SPDY, at, remotecommand.StreamOptions{Stdout: &out})
		return out.String(), err
	}
	for range 5 {
		c := p.Create(nodetest.Sh("echo ran"))
		const clients = 4
		var addresses [clients]string
		for i := range addresses {
			addresses[i] = startAddress(t, c)
		}
		var wait sync.WaitGroup
		var mu sync.Mutex
		served := 0
		for _, at := range addresses {
			wait.Go(func() {
				out, err := join(at)
				mu.Lock()
				defer mu.Unlock()
				if err == nil && out == "ran\n" {
					served++
				} else if err == nil || out != "" {
					t.Errorf("a client got %q, %v", out, err)
				}
			})
		}
		wait.Wait()
		if served != 1 {
			t.Errorf("%d clients have started the container", served)
		}
		if s := c.WaitExit(); s.ExitCode != 0 || c.Stdout() != "ran\n" {
			t.Errorf("it ended with %d and has said %q", s.ExitCode, c.Stdout())
		}
		if out, err := join(addresses[0]); err == nil {
			t.Errorf("an address serves a second client: %q", out)
		}
		if _, err := berthv1.NewContainersClient(p.Node.Conn).Start(nodetest.Context(t),
			&berthv1.StartRequest{ContainerId: c.ID, Stdout: true}); err == nil {
			t.Error("there is an address for a container that has ended")
		} else {
			nodetest.WantCode(t, err, codes.FailedPrecondition)
		}
	}
}

// TestAKillOfBerthdEndsASessionAndNotItsContainer: whoever has an address starts nothing by it any more, and the output
// of a container that was started is in its log, whole.
func TestAKillOfBerthdEndsASessionAndNotItsContainer(t *testing.T) {
	nodetest.BerthOnly(t, "the call is its own")
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	c := p.Create(nodetest.Sh("for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.2; done; sleep 1000"))
	restart := func() {
		t.Helper()
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	at := startAddress(t, c)
	restart()
	var out nodetest.Buffer
	options := remotecommand.StreamOptions{Stdout: &out}
	if _, err := nodetest.Stream(nodetest.Context(t), nodetest.SPDY, at, options); err == nil {
		t.Errorf("an address of a daemon that was killed works: %q", out.String())
	}
	if s := c.Status(); s.State != cri.ContainerState_CONTAINER_CREATED {
		t.Fatalf("the container is %v", s.State)
	}
	at = startAddress(t, c)
	ended := make(chan error, 1)
	go func() {
		_, err := nodetest.Stream(nodetest.Context(t), nodetest.SPDY, at, options)
		ended <- err
	}()
	for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), "3"); {
		if time.Now().After(deadline) {
			t.Fatalf("the client has seen %q", out.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
	restart()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("the session outlives its daemon")
	}
	c.WaitLog("9")
	if got := strings.Fields(c.Stdout()); strings.Join(got, "") != "123456789" {
		t.Errorf("the log has %q", got)
	}
	if s := c.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %v", s.State)
	}
	if seen := strings.Join(strings.Fields(out.String()), ""); !strings.HasPrefix("123456789", seen) {
		t.Errorf("the client has seen %q", seen)
	}
}
