package bridge

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"

	"berth/internal/network/testhost"
)

// awaitBridge waits until the node has the bridge, or has it no longer.
func awaitBridge(t *testing.T, name string, there bool) {
	t.Helper()
	testhost.Eventually(t, fmt.Sprintf("bridge %s is there: %v", name, there), func() error {
		if _, err := netlink.LinkByName(name); isNoLink(err) == there {
			return fmt.Errorf("it is not so: %w", errors.Join(errdefs.ErrUnavailable, err))
		}
		return nil
	})
}

// TestAnExpectedEndpointFindsTheBridge, which goes again where no endpoint comes, and is not made on a node that ends.
func TestAnExpectedEndpointFindsTheBridge(t *testing.T) {
	b := open(t, Config{Name: "brexp", StateDir: t.TempDir(), Linger: 300 * time.Millisecond})
	b.endWait = 0
	b.Expect(ctx)
	awaitBridge(t, "brexp", true)
	awaitBridge(t, "brexp", false)
	b.Expect(ctx)
	awaitBridge(t, "brexp", true)
	made, err := netlink.LinkByName("brexp")
	testhost.Check(t, err)
	attach(t, b, "pod")
	if now, err := netlink.LinkByName("brexp"); err != nil || now.Attrs().Index != made.Attrs().Index {
		t.Errorf("the bridge was made again for the endpoint: %v, %v", now, err)
	}
	testhost.Check(t, b.Detach(ctx, "pod"))
	awaitBridge(t, "brexp", false)
	testhost.Check(t, b.Close())
	b.Expect(ctx)
	b.done.Wait()
	awaitBridge(t, "brexp", false)
}

// TestAClientThatGoesMakesNoNodeUnready: that it no longer waits for its pod says nothing about the node.
func TestAClientThatGoesMakesNoNodeUnready(t *testing.T) {
	b := open(t, Config{Name: "brgone", StateDir: t.TempDir()})
	unlock, err := lockRanges(ctx, b.log) // as another berthd on the node holds it
	testhost.Check(t, err)
	gone, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := b.Attach(gone, Endpoint{ID: "pod", NetNS: testhost.Namespace(t)}); err == nil {
		t.Error("there is a range while another berthd chooses one")
	}
	unlock()
	testhost.Check(t, b.Health())
	attach(t, b, "pod")
}
