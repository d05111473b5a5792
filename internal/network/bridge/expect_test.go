package bridge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	b := open(t, Config{Name: "brexp", StateDir: t.TempDir(), Linger: 3 * time.Second})
	b.endWait = 0
	b.Expect(ctx)
	awaitBridge(t, "brexp", true)
	awaitBridge(t, "brexp", false)
	e := Endpoint{ID: "pod", Pod: "default/pod", NetNS: testhost.Namespace(t)} // which takes a while
	b.Expect(ctx)
	awaitBridge(t, "brexp", true)
	made, err := netlink.LinkByName("brexp")
	testhost.Check(t, err)
	_, err = b.Attach(ctx, e)
	testhost.Check(t, err)
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

// cutOff begins to make the bridge, as Expect does, for a client that is gone, and returns it once a build was cut off.
// That its first address of IPv6 is complete before the client's end is looked at is rare, but on a busy machine.
func cutOff(t *testing.T, cfg Config) *Bridge {
	t.Helper()
	gone, cancel := context.WithCancel(ctx)
	cancel()
	b := open(t, cfg)
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		if err := b.enter(gone); err != nil {
			if _, err := netlink.LinkByName(cfg.Name); err != nil {
				t.Fatalf("the build was cut off before it had made anything: %v", err)
			}
			return b
		}
		b.leave()
		testhost.Check(t, b.Purge())
	}
	t.Fatal("no build was cut off")
	return nil
}

// TestABridgeThatIsHalfBuiltGoesAgain, after a while and when the daemon ends. Seen to fail where only a whole bridge
// was removed.
func TestABridgeThatIsHalfBuiltGoesAgain(t *testing.T) {
	network := func(cfg Config) string { return filepath.Join(cfg.StateDir, networkFile) }
	t.Run("after a while", func(t *testing.T) {
		cfg := Config{Name: "brhalf", StateDir: t.TempDir(), Linger: 3 * time.Second}
		b := cutOff(t, cfg)
		awaitBridge(t, cfg.Name, false)
		testhost.Eventually(t, "the choice of the range is forgotten", func() error {
			if _, err := os.Stat(network(cfg)); !os.IsNotExist(err) {
				return fmt.Errorf("%s is there: %w", network(cfg), errors.Join(errdefs.ErrUnavailable, err))
			}
			return nil
		})
		testhost.Check(t, b.Health())
		attach(t, b, "pod")
	})
	t.Run("with the daemon", func(t *testing.T) {
		cfg := Config{Name: "brhalf", StateDir: t.TempDir(), Linger: time.Hour}
		b := cutOff(t, cfg)
		testhost.Check(t, b.Close())
		if _, err := netlink.LinkByName(cfg.Name); !isNoLink(err) {
			t.Errorf("the bridge after Close: %v", err)
		}
		if _, err := os.Stat(network(cfg)); !os.IsNotExist(err) {
			t.Errorf("%s after Close: %v", network(cfg), err)
		}
	})
}

// TestTheEndOfAHalfBuiltBridgeLeavesTheNodeUnready: what has kept the bridge from being built is still there.
func TestTheEndOfAHalfBuiltBridgeLeavesTheNodeUnready(t *testing.T) {
	cfg := Config{Name: "brbad", StateDir: t.TempDir(), Linger: 10 * time.Millisecond}
	b := open(t, cfg)
	other := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: cfg.Name}} // in the bridge's place
	testhost.Check(t, netlink.LinkAdd(other))
	if _, err := b.Attach(ctx, Endpoint{ID: "pod", NetNS: testhost.Namespace(t)}); err == nil {
		t.Error("there is a bridge in place of another interface")
	}
	testhost.Eventually(t, "the rest is removed", func() error {
		b.segment.Lock()
		defer b.segment.Unlock()
		if b.segment.remains {
			return errdefs.ErrUnavailable
		}
		return nil
	})
	if b.Health() == nil {
		t.Error("the node is ready, and no pod can have a network")
	}
	testhost.Check(t, netlink.LinkDel(other))
	b.check(ctx)
	testhost.Check(t, b.Health())
	b.wake()
	awaitBridge(t, cfg.Name, false)
}
