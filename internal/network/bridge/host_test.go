package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/model"
	"berth/internal/network/testhost"

	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) { testhost.Main(m) }

func open(t testing.TB, cfg Config) *Bridge {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = testhost.Logger()
	}
	cfg.Background = true // as a node has it
	b, err := Open(cfg)
	testhost.Check(t, err)
	t.Cleanup(func() {
		if err := reconcile(b, nil); err != nil {
			t.Error(err)
		}
		b.Close()
		nothingLeft(t, cfg)
	})
	return b
}

// reconcile is Reconcile where no endpoint is lost.
func reconcile(b *Bridge, live map[string]Endpoint) error {
	lost, err := b.Reconcile(context.Background(), live)
	for id, why := range lost {
		err = errors.Join(err, fmt.Errorf("%s is lost: %w", id, why))
	}
	return err
}

func nothingLeft(t testing.TB, cfg Config) {
	t.Helper()
	// The kernel removes the pairs of a namespace that is gone in the background.
	testhost.Eventually(t, "no interface is left", func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Attrs().Name == cfg.Name || strings.HasPrefix(l.Attrs().Name, vethPrefix(cfg.Name)) {
				return fmt.Errorf("interface %s is", l.Attrs().Name)
			}
		}
		return nil
	})
	if there, err := (ruleset{bridge: cfg.Name}).there(); err != nil || there {
		t.Errorf("a table is left (%v)", err)
	}
	left, _ := filepath.Glob(filepath.Join(cfg.StateDir, "endpoints", "*"))
	more, _ := filepath.Glob(filepath.Join(cfg.StateDir, "network*"))
	if left = append(left, more...); len(left) > 0 {
		t.Errorf("records are left: %v", left)
	}
}

// pod is an attached endpoint.
type pod struct {
	Endpoint
	addrs []netip.Addr
}

func (p pod) v4() string { return p.addrs[0].String() }
func (p pod) v6() string { return p.addrs[1].String() }

func attach(t testing.TB, b *Bridge, id string, ports ...model.PortMapping) pod {
	t.Helper()
	e := Endpoint{ID: id, Pod: "default/" + id, NetNS: testhost.Namespace(t), Ports: ports}
	addrs, err := b.Attach(context.Background(), e)
	testhost.Check(t, err)
	return pod{e, addrs}
}

func tcp(host, container int32) model.PortMapping {
	return model.PortMapping{Protocol: model.TCP, HostPort: host, ContainerPort: container}
}

func udp(host, container int32) model.PortMapping {
	return model.PortMapping{Protocol: model.UDP, HostPort: host, ContainerPort: container}
}
