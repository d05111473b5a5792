package parts

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"berth/internal/model"
	"berth/internal/network"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
)

// oneNetwork gives every pod one address, and knows who has it.
type oneNetwork struct {
	network.Provider
	joined map[string]bool
}

func (n *oneNetwork) Setup(_ context.Context, pod *network.Pod) (*network.Result, error) {
	n.joined[pod.ID] = true
	return &network.Result{Interface: "eth0", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}}, nil
}

func (n *oneNetwork) Teardown(_ context.Context, pod *network.Pod) error {
	delete(n.joined, pod.ID)
	return nil
}

func (n *oneNetwork) NeedsNetNS(string) bool { return false }

func newMaker(t *testing.T, options model.NamespaceOptions) (*Maker, *oneNetwork, *record.SandboxEntry) {
	t.Helper()
	dirs := &layout.Dirs{Root: t.TempDir(), State: t.TempDir()}
	n := &oneNetwork{joined: map[string]bool{}}
	table := record.NewSandboxes(dirs.Pods(), dirs.NetNS, slog.New(slog.DiscardHandler))
	s := table.New("a", record.Sandbox{
		ID: "a", Phase: record.SandboxReady,
		Config: &model.SandboxConfig{Security: model.SandboxSecurity{Namespaces: options}},
	})
	return &Maker{Dirs: dirs, Network: n}, n, s
}

// step is the step of a start that has a name.
func step(t *testing.T, list []steps.Step, name string) steps.Step {
	t.Helper()
	for _, s := range list {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("there is no step %q", name)
	return steps.Step{}
}

// TestAPodThatCannotComeBackKeepsItsAddress for the next try, and one that could not be made gives it up. Seen to fail
// with the network torn down for both.
func TestAPodThatCannotComeBackKeepsItsAddress(t *testing.T) {
	for _, before := range []*network.Result{nil, {Interface: "eth0"}} {
		p, n, s := newMaker(t, model.NamespaceOptions{})
		join := step(t, p.Steps(s, Origin{Before: before}, Handler{}), "set up the pod's network")
		if err := join.Do(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := s.Record(); len(r.IPs) != 1 || r.IPs[0] != "10.0.0.2" || r.Interface != "eth0" {
			t.Errorf("on record are %v of %s", r.IPs, r.Interface)
		}
		if err := join.Undo(t.Context()); err != nil {
			t.Fatal(err)
		}
		if kept := n.joined["a"]; kept != (before != nil) {
			t.Errorf("had a network before: %v; has one after the undo: %v", before != nil, kept)
		}
	}
}

// TestAPodInTheNodesNetworkJoinsNone, and has no init where each container has PIDs of its own.
func TestAPodInTheNodesNetworkJoinsNone(t *testing.T) {
	p, n, s := newMaker(t, model.NamespaceOptions{Network: model.NamespaceNode, IPC: model.NamespaceNode,
		PID: model.NamespaceContainer})
	list := p.Steps(s, Origin{}, Handler{})
	for _, name := range []string{"set up the pod's network", "start the pod's init"} {
		st := step(t, list, name)
		if err := st.Do(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := st.Undo(t.Context()); err != nil {
			t.Errorf("undo of %s: %v", name, err)
		}
	}
	if len(n.joined) > 0 {
		t.Error("it was joined to the network")
	}
}

func TestAPodIsJoinedWithWhatItsRecordSays(t *testing.T) {
	p, _, s := newMaker(t, model.NamespaceOptions{})
	r := s.Record()
	if pod, err := p.JoinedPod(&r); err != nil || pod.Before != nil {
		t.Errorf("without an address it has had %+v: %v", pod.Before, err)
	}
	r.IPs, r.Interface = []string{"10.0.0.2", "no address"}, "eth0"
	pod, err := p.JoinedPod(&r)
	if len(pod.Before.IPs) != 1 || pod.Before.Interface != "eth0" || !strings.HasPrefix(pod.NetNS, p.Dirs.State) {
		t.Errorf("it is %+v, and had %+v", pod, pod.Before)
	}
	if err == nil || !strings.Contains(err.Error(), `"no address"`) {
		t.Errorf("an address that is none gave the error %v", err)
	}
}

func TestHostsHaveThePodsNameAtEachOfItsAddresses(t *testing.T) {
	got := hostsFor("web", []string{"10.0.0.2", "fd00::2"})
	if !strings.HasSuffix(got, "10.0.0.2\tweb\nfd00::2\tweb\n") || !strings.HasPrefix(got, "127.0.0.1\tlocalhost\n") {
		t.Errorf("%q", got)
	}
}
