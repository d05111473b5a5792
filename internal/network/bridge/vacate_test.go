package bridge

import (
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
	"berth/internal/network/testhost"
)

// TestHostPortsOfAPodWithoutANetworkAreFree: after a reboot pods are on record until somebody stops them, and another
// pod needs their ports meanwhile. Their addresses stay theirs.
func TestHostPortsOfAPodWithoutANetworkAreFree(t *testing.T) {
	b := open(t, Config{Name: "brvacate", StateDir: t.TempDir()})
	serves := func(at string, want string) {
		t.Helper()
		testhost.Eventually(t, at+" is "+want, func() error {
			if name, _, err := testhost.Ask(t, "", "tcp", at); err != nil || name != want {
				return fmt.Errorf("%q, %v", name, err)
			}
			return nil
		})
	}
	var gone []pod
	for i, ports := range [][]model.PortMapping{{tcp(8080, 80), tcp(8081, 80)}, {tcp(8082, 80)}} {
		p := attach(t, b, fmt.Sprint("gone", i), ports...)
		testhost.Unpin(p.NetNS)
		gone = append(gone, p)
	}
	lives := attach(t, b, "lives", tcp(8083, 80))
	testhost.Serve(t, lives.NetNS, "tcp", ":80", "lives")

	// One is joined at once, the other gets what was prepared.
	one := attach(t, b, "one", tcp(8080, 80))
	testhost.Serve(t, one.NetNS, "tcp", ":80", "one")
	other := prepare(t, b, "other")
	other.Pod, other.Ports = "default/other", []model.PortMapping{tcp(8082, 80)}
	_, err := b.Attach(ctx, other)
	testhost.Check(t, err)
	testhost.Serve(t, other.NetNS, "tcp", ":80", "other")
	serves("127.0.0.1:8080", "one")
	serves("127.0.0.1:8082", "other")
	if _, err := b.Attach(ctx, Endpoint{
		ID: "x", Pod: "default/x", NetNS: testhost.Namespace(t), Ports: []model.PortMapping{tcp(8083, 80)},
	}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a port of a pod that lives: %v", err)
	}

	// Who comes back has its addresses, and its ports only where nobody else has them.
	back := Endpoint{ID: "gone1", Pod: "default/gone1", NetNS: testhost.Namespace(t),
		Ports: []model.PortMapping{tcp(8082, 80)}}
	if _, err := b.Attach(ctx, back); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a port that was given to another pod: %v", err)
	}
	back.Ports = []model.PortMapping{tcp(8084, 80)}
	if addrs, err := b.Attach(ctx, back); err != nil || addrs[0] != gone[1].addrs[0] {
		t.Errorf("%v, %v, and it had %v", addrs, err, gone[1].addrs)
	}

	// The end of one that has lost its ports, and another berthd, take nothing from those who have them now.
	testhost.Check(t, b.Detach(ctx, "gone0"))
	serves("127.0.0.1:8080", "one")
	next := crash(t, b)
	defer next.Close()
	testhost.Check(t, reconcile(next, map[string]Endpoint{"one": one.Endpoint, "other": other, "lives": lives.Endpoint,
		"gone1": back}))
	for at, want := range map[string]string{"8080": "one", "8082": "other", "8083": "lives"} {
		serves("127.0.0.1:"+at, want)
	}
}
