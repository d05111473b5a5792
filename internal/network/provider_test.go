package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"berth/internal/model"
	"berth/internal/network/testhost"

	"github.com/containerd/errdefs"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

var ctx = context.Background()

const plugins = "/usr/lib/cni"

func TestMain(m *testing.M) { testhost.Main(m) }

type node struct {
	Provider
	t             *testing.T
	confs, ipam   string
	bin           string // for plugins that a test writes
	log           string // of those
	cfg           Config
	interfacesWas map[string]bool
}

func newNode(t *testing.T) *node {
	n := &node{t: t, confs: t.TempDir(), ipam: t.TempDir(), bin: t.TempDir(), interfacesWas: interfaces(t)}
	n.log = filepath.Join(n.bin, "log")
	n.cfg = Config{
		CNIConfDir: n.confs, CNIBinDirs: []string{n.bin, plugins}, StateDir: t.TempDir(), Bridge: "brnode",
		Logger: testhost.Logger(),
	}
	n.open()
	t.Cleanup(func() {
		if err := n.reconcile(); err != nil {
			t.Error(err)
		}
		n.Close()
		for name := range interfaces(t) {
			if strings.HasPrefix(name, "cni-") || strings.HasPrefix(name, "bwp") { // plugins leave those
				l, err := netlink.LinkByName(name)
				testhost.Check(t, err)
				testhost.Check(t, netlink.LinkDel(l))
			}
		}
		// The kernel removes the pairs of a namespace that is gone in the background.
		testhost.Eventually(t, "no interface is left", func() error {
			for name := range interfaces(t) {
				if !n.interfacesWas[name] {
					return fmt.Errorf("interface %s is", name)
				}
			}
			return nil
		})
		n.nothingReserved()
		for _, dir := range []string{"cni", "cni-cache/results", "bridge/endpoints"} {
			if left, _ := os.ReadDir(filepath.Join(n.cfg.StateDir, dir)); len(left) > 0 {
				t.Errorf("%s: %v is left", dir, left)
			}
		}
	})
	return n
}

func (n *node) open() {
	p, err := New(n.cfg)
	testhost.Check(n.t, err)
	n.Provider = p
}

// reconcile is Reconcile where no pod is lost, and Collect.
func (n *node) reconcile(live ...*Pod) error {
	lost, err := n.Reconcile(ctx, live)
	err = errors.Join(err, n.Collect(ctx))
	for id, why := range lost {
		err = errors.Join(err, fmt.Errorf("%s is lost: %w", id, why))
	}
	return err
}

func (n *node) nothingReserved() {
	n.t.Helper()
	left, _ := filepath.Glob(filepath.Join(n.ipam, "*", "[0-9]*"))
	if len(left) > 0 {
		n.t.Errorf("addresses are left: %v", left)
	}
}

func interfaces(t *testing.T) map[string]bool {
	all, err := net.Interfaces()
	testhost.Check(t, err)
	names := map[string]bool{}
	for _, i := range all {
		names[i.Name] = true
	}
	return names
}

// conf writes a configuration in one go, as installers do. An empty text removes it.
func (n *node) conf(file, text string) {
	n.t.Helper()
	path := filepath.Join(n.confs, file)
	if text == "" {
		testhost.Check(n.t, os.Remove(path))
		n.awaitNews()
		return
	}
	testhost.Check(n.t, os.WriteFile(path+".tmp", []byte(text), 0o600))
	testhost.Check(n.t, os.Rename(path+".tmp", path))
	n.awaitNews()
}

// awaitNews waits until the news of a change has come.
func (n *node) awaitNews() { time.Sleep(50 * time.Millisecond) }

// script writes a plugin that keeps a log of its commands and then does what body says.
func (n *node) script(name, body string) {
	n.t.Helper()
	text := fmt.Sprintf("#!/bin/sh\nconf=$(cat)\necho $CNI_COMMAND $CNI_CONTAINERID >>%s\n"+
		"[ $CNI_COMMAND = VERSION ] && echo '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.0.0\","+
		"\"1.1.0\"]}' && exit 0\n%s\n",
		n.log, body)
	testhost.Check(n.t, os.WriteFile(filepath.Join(n.bin, name), []byte(text), 0o700))
}

func (n *node) commands() string {
	data, _ := os.ReadFile(n.log)
	os.Remove(n.log)
	return strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", ", ")
}

func (n *node) bridgeConf(name, subnet, more string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %[1]q, "plugins": [
		{"type": "bridge", "bridge": "cni-%[1]s", "isGateway": true, "ipMasq": true, "hairpinMode": true,
		 "ipam": {"type": "host-local", "dataDir": %[2]q, "ranges": [[{"subnet": %[3]q}]],
		  "routes": [{"dst": "0.0.0.0/0"}]}}%[4]s]}`,
		name, n.ipam, subnet, more)
}

func (n *node) pod(id string, ports ...model.PortMapping) *Pod {
	return &Pod{ID: id, Name: id, Namespace: "default", UID: "uid-" + id, NetNS: testhost.Namespace(n.t), Ports: ports}
}

func (n *node) setup(p *Pod) *Result {
	n.t.Helper()
	r, err := n.Setup(ctx, p)
	testhost.Check(n.t, err)
	return r
}

// A cluster's CNI plugin is installed by a pod with the node's network, after other pods have been asked for. The
// built-in bridge must not take those where the configuration says so.
func TestWithoutConfigurationThereIsNoNetworkWhereCNIIsRequired(t *testing.T) {
	n := newNode(t)
	n.Close()
	n.cfg.RequireCNI = true
	n.open()
	missing := func() {
		t.Helper()
		if s := n.Status(ctx); s.Ready || s.Reason != ReasonNoCNI || !strings.Contains(s.Message, n.confs) {
			t.Fatalf("%+v", s)
		}
	}
	missing()
	p := n.pod("p")
	if _, err := n.Setup(ctx, p); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "require_cni") {
		t.Errorf("%v", err)
	}
	testhost.Check(t, n.SetPodCIDR(ctx, "10.66.0.0/24"))
	n.conf("10-test.conflist", n.bridgeConf("late", "10.67.0.0/24", ""))
	if s := n.Status(ctx); !s.Ready {
		t.Fatalf("%+v", s)
	}
	if r := n.setup(p); !strings.HasPrefix(r.IPs[0].String(), "10.67.") {
		t.Errorf("%v", r.IPs)
	}
	testhost.Check(t, n.Teardown(ctx, p))
	n.conf("10-test.conflist", "")
	missing()
}

// The first pods of a node are asked for before its kubelet has a range for them. The bridge must not give them
// addresses of its own choice where the configuration says so; a berthd that starts again knows the range.
func TestWithoutARangeThereIsNoNetworkWhereOneIsRequired(t *testing.T) {
	n := newNode(t)
	n.Close()
	n.cfg.RequirePodCIDR = true
	n.open()
	if s := n.Status(ctx); s.Ready || s.Reason != ReasonNoPodCIDR {
		t.Fatalf("%+v", s)
	}
	p := n.pod("p")
	if _, err := n.Setup(ctx, p); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "require_pod_cidr") {
		t.Errorf("%v", err)
	}
	testhost.Check(t, n.SetPodCIDR(ctx, "10.66.0.0/24"))
	for range 2 {
		if s := n.Status(ctx); !s.Ready {
			t.Fatalf("%+v", s)
		}
		if r := n.setup(p); !strings.HasPrefix(r.IPs[0].String(), "10.66.") {
			t.Errorf("%v", r.IPs)
		}
		testhost.Check(t, n.Teardown(ctx, p))
		n.Close()
		n.open()
	}
	// A CNI configuration does not need it.
	n.Close()
	n.cfg.StateDir = t.TempDir()
	n.conf("10-test.conflist", n.bridgeConf("early", "10.67.0.0/24", ""))
	n.open()
	if s := n.Status(ctx); !s.Ready {
		t.Errorf("with CNI: %+v", s)
	}
	n.conf("10-test.conflist", "")
}

// TestTheRangeOfTheNodeOutlivesARestartWithPlugins where the built-in bridge cannot take it, because a pod of before
// the plugins has an address of another one, or the configuration names one. Seen to fail where only the bridge
// recorded it.
func TestTheRangeOfTheNodeOutlivesARestartWithPlugins(t *testing.T) {
	configured := netip.MustParsePrefix("10.69.0.0/24")
	for name, prefixes := range map[string][]netip.Prefix{"a pod on the bridge": nil, "a configured range": {configured}} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.Close()
			n.cfg.PodCIDRs = prefixes
			n.open()
			early := n.pod("early")
			n.setup(early)
			n.conf("10-test.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "test", "plugins": [
				{"type": "bridge", "bridge": "cni-test", "isGateway": true, "capabilities": {"ipRanges": true},
				 "ipam": {"type": "host-local", "dataDir": %q}}]}`, n.ipam))
			record := filepath.Join(n.cfg.StateDir, "bridge", "node-cidrs.json.spare")
			testhost.Check(t, os.Mkdir(record, 0o700)) // so that it cannot be written
			if err := n.SetPodCIDR(ctx, "10.66.0.0/24"); err == nil {
				t.Error("a range that could not be recorded was accepted")
			}
			testhost.Check(t, os.Remove(record))
			testhost.Check(t, n.SetPodCIDR(ctx, "10.66.0.0/24"))
			testhost.Check(t, n.Close())
			n.open()
			testhost.Check(t, n.reconcile(early))
			late := n.pod("late")
			if r := n.setup(late); !strings.HasPrefix(r.IPs[0].String(), "10.66.") {
				t.Errorf("the pod has %v", r.IPs)
			}
			testhost.Check(t, n.Teardown(ctx, late))
			testhost.Check(t, n.Teardown(ctx, early))
		})
	}
}

func TestWithoutConfigurationTheBridgeServes(t *testing.T) {
	n := newNode(t)
	if s := n.Status(ctx); !s.Ready {
		t.Fatal(s)
	}
	p := n.pod("p")
	r := n.setup(p)
	if len(r.IPs) != 2 || !r.IPs[0].Is4() || r.Interface != "eth0" || r.CNI != nil {
		t.Errorf("%+v", r)
	}
	testhost.Check(t, n.Teardown(ctx, p))
	testhost.Check(t, n.Teardown(ctx, p))
}

// TestAReadyNetworkSaysWhatTheFirewallStops: pods are not kept away. Seen to fail with the warning left out of Status.
func TestAReadyNetworkSaysWhatTheFirewallStops(t *testing.T) {
	drop := nftables.ChainPolicyDrop
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "closed"}
	c, err := nftables.New()
	testhost.Check(t, err)
	c.AddChain(&nftables.Chain{
		Name: "all", Table: c.AddTable(table), Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter, Policy: &drop,
	})
	testhost.Check(t, c.Flush())
	t.Cleanup(func() {
		c.DelTable(table)
		testhost.Check(t, c.Flush())
	})
	n := newNode(t)
	n.setup(n.pod("p"))
	testhost.Eventually(t, "the status names the chain", func() error {
		if s := n.Status(ctx); !s.Ready || !strings.Contains(s.Message, "chain all of table inet closed") {
			return fmt.Errorf("the status is %+v", s)
		}
		return nil
	})
}

func TestCNIPluginsServe(t *testing.T) {
	n := newNode(t)
	n.conf("10-test.conflist", n.bridgeConf("test", "10.66.0.0/24",
		`, {"type": "portmap", "capabilities": {"portMappings": true}},
		   {"type": "bandwidth", "capabilities": {"bandwidth": true}}`))
	if s := n.Status(ctx); !s.Ready {
		t.Fatal(s)
	}
	p := n.pod("p", model.PortMapping{HostPort: 8080, ContainerPort: 80})
	p.Annotations = map[string]string{"kubernetes.io/ingress-bandwidth": "10M"}
	r, err := n.Setup(ctx, p)
	if err != nil && (strings.Contains(err.Error(), "iptables") || strings.Contains(err.Error(), "qdisc")) {
		t.Skip(err)
	}
	testhost.Check(t, err)
	if len(r.IPs) != 1 || !strings.HasPrefix(r.IPs[0].String(), "10.66.0.") || !json.Valid(r.CNI) {
		t.Errorf("%+v", r)
	}
	testhost.Serve(t, p.NetNS, "tcp", ":80", "p")
	for _, addr := range []string{r.IPs[0].String() + ":80", "10.66.0.1:8080", "127.0.0.1:8080"} {
		if name, _, err := testhost.Ask(t, "", "tcp", addr); name != "p" {
			t.Errorf("%s: %q, %v", addr, name, err)
		}
	}
	if _, err := netlink.LinkByName("brnode"); err == nil {
		t.Error("the built-in bridge was made too")
	}
	testhost.Unpin(p.NetNS) // as after a reboot
	testhost.Check(t, n.Teardown(ctx, &Pod{ID: "p"}))
	testhost.Check(t, n.Teardown(ctx, p))
	n.nothingReserved()
}

func TestAPluginThatFailsLeavesNothing(t *testing.T) {
	n := newNode(t)
	n.script("refuse", `[ $CNI_COMMAND = ADD ] && echo '{"code": 111, "msg": "no more fish"}' && exit 1; exit 0`)
	n.conf("10-test.conflist", n.bridgeConf("test", "10.66.0.0/24", `, {"type": "refuse"}`))
	_, err := n.Setup(ctx, n.pod("p"))
	if err == nil || !strings.Contains(err.Error(), "no more fish") || !strings.Contains(err.Error(), "default/p") {
		t.Errorf("got %v", err)
	}
	if got := n.commands(); got != "ADD p, DEL p" {
		t.Errorf("commands: %s", got)
	}
	n.nothingReserved()
}

// TestAPluginThatWritesWithoutEndTakesNoMemory: 300 MB of it took a gigabyte.
func TestAPluginThatWritesWithoutEndTakesNoMemory(t *testing.T) {
	n := newNode(t)
	n.script("flood", `[ $CNI_COMMAND = ADD ] && head -c 100000000 /dev/zero && head -c 100000000 /dev/zero >&2; exit 0`)
	n.conf("10-test.conflist", n.bridgeConf("test", "10.66.0.0/24", `, {"type": "flood"}`))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := n.Setup(ctx, n.pod("p"))
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "plugin flood has written more than 4194304 bytes") {
		t.Errorf("got %v", err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 40<<20 {
		t.Errorf("it took %d bytes of memory", took)
	}
	n.nothingReserved()
}

func TestAPluginThatHangsIsEnded(t *testing.T) {
	n := newNode(t)
	n.script("hang", `[ $CNI_COMMAND = ADD ] && sleep 600; exit 0`)
	n.conf("10-test.conflist", n.bridgeConf("test", "10.66.0.0/24", `, {"type": "hang"}`))
	short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := n.Setup(short, n.pod("p")); !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	n.nothingReserved()
}

// TestANamespaceIsNeededUntilPluginsHaveTakenThePodOut, and not by the built-in bridge, which keeps the addresses of a
// pod that is set up again.
func TestANamespaceIsNeededUntilPluginsHaveTakenThePodOut(t *testing.T) {
	n := newNode(t)
	onBridge := n.pod("onbridge")
	was := n.setup(onBridge)
	testhost.Check(t, n.Leave(ctx, onBridge.ID))
	if n.NeedsNetNS(onBridge.ID) {
		t.Error("the bridge needs the namespace")
	}
	onBridge.Before = was
	n.setup(onBridge) // which fails if the addresses are others
	n.script("busy", `echo "NETNS=$CNI_NETNS" >>`+n.log+`
[ $CNI_COMMAND = ADD ] && echo "$conf" | sed 's/.*"prevResult"://; s/,"type":.*//'
[ $CNI_COMMAND = DEL ] && [ ! -e `+n.bin+`/free ] && echo '{"code": 11, "msg": "try again"}' && exit 1; exit 0`)
	n.conf("10-test.conflist", n.bridgeConf("test", "10.66.0.0/24", `, {"type": "busy"}`))
	pod := n.pod("p")
	n.setup(pod)
	for what, end := range map[string]func() error{
		"Teardown": func() error { return n.Teardown(ctx, pod) },
		"Leave":    func() error { return n.Leave(ctx, pod.ID) },
	} {
		if err := end(); err == nil || !strings.Contains(err.Error(), "try again") {
			t.Errorf("%s: %v", what, err)
		}
		if !n.NeedsNetNS(pod.ID) {
			t.Errorf("the plugins do not need the namespace after %s failed", what)
		}
	}
	n.commands()
	testhost.Check(t, os.WriteFile(filepath.Join(n.bin, "free"), nil, 0o600))
	testhost.Check(t, n.Leave(ctx, pod.ID))
	if got := n.commands(); got != "DEL p, NETNS="+pod.NetNS {
		t.Errorf("commands: %s", got)
	}
	if n.NeedsNetNS(pod.ID) {
		t.Error("the plugins need the namespace after they have taken the pod out")
	}
	testhost.Check(t, n.Teardown(ctx, onBridge))
}

// TestAPodThatPluginsHaveNeverJoinedIsForgotten though they fail, and one that they have joined is not: a program that
// does nothing stands for a plugin that nobody has any more. Seen to fail with Teardown in the place of Forget, and
// with Forget for both.
func TestAPodThatPluginsHaveNeverJoinedIsForgotten(t *testing.T) {
	n := newNode(t)
	n.script("gone", `[ $CNI_COMMAND = ADD ] && [ $CNI_CONTAINERID = joined ] &&
echo "$conf" | sed 's/.*"prevResult"://; s/,"type":.*//' && exit 0; echo '{"code": 11, "msg": "no server"}'; exit 1`)
	n.conf("10-test.conflist", n.bridgeConf("test", "10.66.0.0/24", `, {"type": "gone"}`))
	never, joined := n.pod("never"), n.pod("joined")
	if _, err := n.Setup(ctx, never); err == nil || !strings.Contains(err.Error(), "no server") {
		t.Errorf("set-up: %v", err)
	}
	n.setup(joined)
	testhost.Check(t, n.Close())
	n.open()
	testhost.Check(t, n.reconcile(never, joined))
	for what, end := range map[string]func() error{
		"the undo of the set-up": func() error { return n.Teardown(ctx, never) },
		"a call that is cancelled": func() error {
			cancelled, cancel := context.WithCancel(ctx)
			cancel()
			return n.Forget(cancelled, never)
		},
		"the removal of one that was joined": func() error { return n.Forget(ctx, joined) },
	} {
		if err := end(); err == nil || !n.NeedsNetNS("never") || !n.NeedsNetNS("joined") {
			t.Errorf("%s: %v; kept are the networks of never: %v, joined: %v", what, err, n.NeedsNetNS("never"),
				n.NeedsNetNS("joined"))
		}
	}
	if err := n.Forget(ctx, never); err != nil || n.NeedsNetNS("never") {
		t.Errorf("the removal of one that was not joined: %v; its network is kept: %v", err, n.NeedsNetNS("never"))
	}
	testhost.Check(t, os.WriteFile(filepath.Join(n.bin, "gone"), []byte("#!/bin/sh\nexit 0\n"), 0o700))
	testhost.Check(t, n.Forget(ctx, joined))
	// The plugin before it was not asked for the pod that is forgotten.
	testhost.Check(t, os.Remove(filepath.Join(n.ipam, "test", "10.66.0.2")))
}

func TestAPodIsTornDownByWhatSetItUp(t *testing.T) {
	n := newNode(t)
	onBridge := n.pod("onbridge")
	n.setup(onBridge)
	n.script("first", `[ $CNI_COMMAND = ADD ] && echo "$conf" | sed 's/.*"prevResult"://; s/,"type":.*//'; exit 0`)
	n.conf("10-test.conflist", n.bridgeConf("one", "10.66.0.0/24", `, {"type": "first"}`))
	one := n.pod("one")
	n.setup(one)
	n.conf("10-test.conflist", n.bridgeConf("two", "10.67.0.0/24", ""))
	two := n.pod("two")
	if r := n.setup(two); !strings.HasPrefix(r.IPs[0].String(), "10.67.") {
		t.Errorf("the new configuration is not used: %v", r.IPs)
	}
	n.commands()
	// The daemon starts again in between.
	testhost.Check(t, n.Close())
	n.open()
	testhost.Check(t, n.reconcile(onBridge, one, two))
	testhost.Check(t, n.Teardown(ctx, one))
	if got := n.commands(); got != "DEL one" {
		t.Errorf("commands: %s", got)
	}
	testhost.Check(t, n.Teardown(ctx, onBridge))
	testhost.Check(t, n.Teardown(ctx, two))
}

// The record of a pod that plugins have joined, and what libcni keeps of their answer, are spoilt while the daemon
// is away: the pod is taken out by the same plugins, with the same answer. Seen to fail without Restore,
// where no plugin was told of the pod's end.
func TestSpoiltRecordsOfPluginsAreMadeAnew(t *testing.T) {
	spoil := map[string]func(path string) error{
		"flipped": func(path string) error {
			data, err := os.ReadFile(path)
			if err == nil {
				data[len(data)-len(data)/3] ^= 1
				err = os.WriteFile(path, data, 0o600)
			}
			return err
		},
		"cut":     func(path string) error { return os.Truncate(path, 20) },
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"deleted": os.Remove,
	}
	n := newNode(t)
	n.script("asks", `[ $CNI_COMMAND = ADD ] && echo "$conf" | sed 's/.*"prevResult"://; s/,"type":.*//'
[ $CNI_COMMAND = DEL ] && echo "$conf" | grep -o '10.66.0.[0-9]*/24' >>`+n.bin+`/prev; exit 0`)
	n.conf("10-test.conflist", n.bridgeConf("test", "10.66.0.0/24", `, {"type": "asks"}`))
	for kind, damage := range spoil {
		for _, file := range []string{"cni/p.json", "cni-cache/results/test-p-eth0"} {
			t.Run(kind+" "+filepath.Base(file), func(t *testing.T) {
				p := n.pod("p")
				p.Before = n.setup(p)
				ip := p.Before.IPs[0].String()
				testhost.Check(t, n.Close())
				testhost.Check(t, damage(filepath.Join(n.cfg.StateDir, file)))
				n.open()
				n.commands()
				testhost.Check(t, n.reconcile(p))
				if got := n.commands(); got != "" {
					t.Errorf("commands: %s", got)
				}
				testhost.Check(t, n.Teardown(ctx, p))
				if got := n.commands(); got != "DEL p" {
					t.Errorf("commands: %s", got)
				}
				if prev, _ := os.ReadFile(n.bin + "/prev"); !strings.Contains(string(prev), ip+"/24") {
					t.Errorf("the plugin was told of %q, not of %s", prev, ip)
				}
				os.Remove(n.bin + "/prev")
				n.nothingReserved()
			})
		}
	}
}

func TestABrokenConfigurationKeepsTheOldNetwork(t *testing.T) {
	n := newNode(t)
	n.conf("10-test.conflist", n.bridgeConf("test", "10.66.0.0/24", ""))
	testhost.Check(t, n.Teardown(ctx, n.pod("warm")))
	if s := n.Status(ctx); !s.Ready || s.Message != "" {
		t.Fatal(s)
	}
	n.conf("10-test.conflist", `{"name": "test", "plug`)
	if s := n.Status(ctx); !s.Ready || !strings.Contains(s.Message, "10-test.conflist") {
		t.Errorf("%+v", s)
	}
	p := n.pod("p")
	if r := n.setup(p); !strings.HasPrefix(r.IPs[0].String(), "10.66.") {
		t.Errorf("%v", r.IPs)
	}
	// A later file that is valid comes into force, and the broken one is still named.
	n.conf("20-test.conflist", n.bridgeConf("later", "10.67.0.0/24", ""))
	q := n.pod("q")
	if r := n.setup(q); !strings.HasPrefix(r.IPs[0].String(), "10.67.") {
		t.Errorf("%v", r.IPs)
	}
	if s := n.Status(ctx); !s.Ready || !strings.Contains(s.Message, "10-test.conflist") {
		t.Errorf("%+v", s)
	}
	testhost.Check(t, n.Teardown(ctx, p))
	testhost.Check(t, n.Teardown(ctx, q))
	// With the last file gone the bridge serves.
	n.conf("10-test.conflist", "")
	n.conf("20-test.conflist", "")
	r := n.pod("r")
	if got := n.setup(r); got.CNI != nil {
		t.Errorf("%+v", got)
	}
	testhost.Check(t, n.Teardown(ctx, r))
}

func TestOnlyBrokenConfigurationsAreNoNetwork(t *testing.T) {
	n := newNode(t)
	n.conf("10-test.conflist", `{"cniVersion": "1.0.0", "name": "test", "plugins": [{"type": "not-installed"}]}`)
	s := n.Status(ctx)
	if s.Ready || s.Reason != ReasonCNIConfiguration || !strings.Contains(s.Message, "not-installed") {
		t.Errorf("%+v", s)
	}
	if _, err := n.Setup(ctx, n.pod("p")); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	n.conf("10-test.conflist", "")
	if s := n.Status(ctx); !s.Ready {
		t.Errorf("%+v", s)
	}
}

func TestTheNetworkThatIsNamedIsTaken(t *testing.T) {
	n := newNode(t)
	n.Close()
	n.cfg.CNINetwork = "named"
	n.open()
	n.conf("10-test.conflist", n.bridgeConf("first", "10.66.0.0/24", ""))
	if s := n.Status(ctx); s.Ready || !strings.Contains(s.Message, `"named"`) || !strings.Contains(s.Message, `"first"`) {
		t.Errorf("without a file of the network: %+v", s)
	}
	n.conf("20-test.conflist", n.bridgeConf("named", "10.67.0.0/24", ""))
	p := n.pod("p")
	if r := n.setup(p); !strings.HasPrefix(r.IPs[0].String(), "10.67.") {
		t.Errorf("%v", r.IPs)
	}
	testhost.Check(t, n.Teardown(ctx, p))
	n.conf("10-test.conflist", "")
	n.conf("20-test.conflist", "")
}

func TestADirectoryThatAppearsIsSeen(t *testing.T) {
	n := newNode(t)
	n.Close()
	n.confs = filepath.Join(n.confs, "etc", "net.d")
	n.cfg.CNIConfDir = n.confs
	n.open()
	if s := n.Status(ctx); !s.Ready {
		t.Fatal(s)
	}
	testhost.Check(t, os.MkdirAll(n.confs, 0o700))
	n.awaitNews()
	n.conf("10-test.conf", fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "single", "type": "bridge", "bridge": "cni-single",
		"isGateway": true, "ipam": {"type": "host-local", "dataDir": %q, "subnet": "10.68.0.0/24"}}`, n.ipam))
	p := n.pod("p")
	if r := n.setup(p); !strings.HasPrefix(r.IPs[0].String(), "10.68.") {
		t.Errorf("%v", r.IPs)
	}
	testhost.Check(t, n.Teardown(ctx, p))
}

func TestStatusAndGarbageCollectionOfCNI11(t *testing.T) {
	n := newNode(t)
	n.script("modern", `case $CNI_COMMAND in
STATUS) [ -e `+n.bin+`/ill ] && echo '{"code": 50, "msg": "the fabric is down"}' && exit 1;;
ADD) echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],
	"ips":[{"address":"10.9.8.7/24","interface":0}]}';;
esac; exit 0`)
	n.conf("10-test.conflist", `{"cniVersion": "1.1.0", "name": "modern", "plugins": [{"type": "modern"}]}`)
	testhost.Check(t, os.WriteFile(filepath.Join(n.bin, "ill"), nil, 0o600))
	if s := n.Status(ctx); s.Ready || s.Reason != ReasonCNIPlugin || !strings.Contains(s.Message, "the fabric is down") {
		t.Errorf("%+v", s)
	}
	keep, gone := n.pod("keep"), n.pod("gone")
	n.setup(keep)
	n.setup(gone)
	n.commands()
	testhost.Check(t, n.reconcile(keep))
	if got := n.commands(); got != "DEL gone, GC" {
		t.Errorf("commands: %s", got)
	}
	testhost.Check(t, n.Teardown(ctx, keep))
}

// A plugin's GC is told of the pods that are being set up too, and those that come later wait for it. Seen to fail
// without the wait: the plugin takes the address of a pod that it was not told of.
func TestPodsThatComeWhilePluginsCollectAreKept(t *testing.T) {
	n := newNode(t)
	// It holds a file for each pod, and collects those that it is not told of, at its leisure.
	n.script("slow", `case $CNI_COMMAND in
ADD) touch `+n.bin+`/held.$CNI_CONTAINERID
	echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],
	"ips":[{"address":"10.9.8.7/24","interface":0}]}';;
DEL) rm -f `+n.bin+`/held.$CNI_CONTAINERID;;
GC) touch `+n.bin+`/collects; sleep 0.5
	for f in `+n.bin+`/held.*; do case $conf in *'"containerID":"'${f##*/held.}'"'*) ;; *) rm $f;; esac; done;;
esac; exit 0`)
	n.conf("10-test.conflist", `{"cniVersion": "1.1.0", "name": "slow", "plugins": [{"type": "slow"}]}`)
	before, stray := n.pod("before"), filepath.Join(n.bin, "held.stray")
	n.setup(before)
	testhost.Check(t, os.WriteFile(stray, nil, 0o600))
	if _, err := n.Reconcile(ctx, []*Pod{before}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- n.Collect(ctx) }()
	testhost.Eventually(t, "the plugin collects", func() error {
		_, err := os.Stat(filepath.Join(n.bin, "collects"))
		return err
	})
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := n.Setup(short, n.pod("hurried")); !errdefs.IsDeadlineExceeded(err) ||
		!strings.Contains(err.Error(), "collect") {
		t.Errorf("a pod that cannot wait: %v", err)
	}
	meanwhile := n.pod("meanwhile")
	n.setup(meanwhile)
	testhost.Check(t, <-done)
	for _, p := range []*Pod{before, meanwhile} {
		if _, err := os.Stat(filepath.Join(n.bin, "held."+p.ID)); err != nil {
			t.Error(err)
		}
		testhost.Check(t, n.Teardown(ctx, p))
	}
	if _, err := os.Stat(stray); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is of no pod is left: %v", err)
	}
}

// A plugin that hangs keeps nobody: the pods that are gone are tried again, all at once, and its GC is not.
func TestAPluginThatHangsIsNotWaitedForAtAStart(t *testing.T) {
	n := newNode(t)
	hangs := filepath.Join(n.bin, "hangs")
	n.script("hang", `case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"x"}],
	"ips":[{"address":"10.9.8.7/24","interface":0}]}';;
*) [ ! -e `+hangs+` ] || sleep 600;;
esac; exit 0`)
	n.conf("10-test.conflist", `{"cniVersion": "1.1.0", "name": "hang", "plugins": [{"type": "hang"}]}`)
	keep := n.pod("keep")
	n.setup(keep)
	for i := range 5 {
		n.setup(n.pod(fmt.Sprint("gone", i)))
	}
	testhost.Check(t, n.Close())
	n.open()
	testhost.Check(t, os.WriteFile(hangs, nil, 0o600))
	began := time.Now()
	if _, err := n.Reconcile(ctx, []*Pod{keep}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	n.commands()
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := n.Collect(short); !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("a plugin that hangs: %v", err)
	}
	if got := strings.Count(n.commands(), "DEL gone"); got != 5 {
		t.Errorf("%d of 5 pods were tried", got)
	}
	testhost.Check(t, os.Remove(hangs))
	testhost.Check(t, n.Collect(ctx))
	if got := n.commands(); strings.Count(got, "DEL gone") != 5 || strings.Count(got, "GC") != 1 {
		t.Errorf("commands: %s", got)
	}
	testhost.Check(t, n.Collect(ctx))
	if got := n.commands(); got != "" {
		t.Errorf("commands when all is done: %s", got)
	}
	testhost.Check(t, n.Teardown(ctx, keep))
}

func TestBadPodsAreRefused(t *testing.T) {
	n := newNode(t)
	for _, p := range []*Pod{
		{ID: "", NetNS: "/x"},
		{ID: "../up", NetNS: "/x"},
		{ID: "p"},
		{ID: "p", NetNS: "/x", Ports: []model.PortMapping{{HostPort: 70000, ContainerPort: 1}}},
	} {
		if _, err := n.Setup(ctx, p); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	for _, cidr := range []string{"x", "10.0.0.0/33", "10.0.0.1/24", "10.0.0.0/24,10.1.0.0/24"} {
		if err := n.SetPodCIDR(ctx, cidr); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", cidr, err)
		}
	}
	testhost.Check(t, n.SetPodCIDR(ctx, ""))
	testhost.Check(t, n.SetPodCIDR(ctx, "10.244.7.0/24, fd00:10:244:7::/64"))
	p := n.pod("p")
	if r := n.setup(p); r.IPs[0].String() != "10.244.7.2" || r.IPs[1].String() != "fd00:10:244:7::2" {
		t.Errorf("%v", r.IPs)
	}
	testhost.Check(t, n.Teardown(ctx, p))
}
