package bridge

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"berth/internal/network/testhost"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// lines keeps what is logged.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// TestAFirewallThatStopsPodsIsTold: one that is there before the bridge, one that is switched on later, and one that
// lets the bridge pass. What is told is what packets find. Seen to fail with the first look alone.
func TestAFirewallThatStopsPodsIsTold(t *testing.T) {
	out := testhost.Outside(t)
	testhost.Serve(t, out, "tcp", ":80", "outside")
	drop := nftables.ChainPolicyDrop
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "filter"}
	chain := &nftables.Chain{
		Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward,
		Priority: nftables.ChainPriorityFilter, Policy: &drop,
	}
	change := func(do func(*nftables.Conn)) {
		t.Helper()
		c, err := nftables.New()
		testhost.Check(t, err)
		do(c)
		testhost.Check(t, c.Flush())
	}
	switchOn := func(c *nftables.Conn) { c.AddTable(table); c.AddChain(chain) }
	switchOff := func(c *nftables.Conn) { c.DelTable(table) }
	letPass := func(c *nftables.Conn) {
		for _, key := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(matchInterface(key, expr.CmpOpEq, "brfire"),
				&expr.Verdict{Kind: expr.VerdictAccept})})
		}
	}
	change(switchOn)
	log := &lines{}
	b := open(t, Config{Name: "brfire", StateDir: t.TempDir(), Logger: slog.New(slog.NewTextHandler(log, nil))})
	p := attach(t, b, "p")
	told := func(when string, want bool) {
		t.Helper()
		testhost.Eventually(t, when, func() error {
			warning := b.Warning()
			if strings.Contains(warning, "chain FORWARD of table ip filter") != want || (warning != "") != want {
				return fmt.Errorf("the warning is %q", warning)
			}
			return nil
		})
		if _, _, err := testhost.Ask(t, p.NetNS, "tcp", "198.51.100.2:80"); (err != nil) != want {
			t.Errorf("%s: a pod that asks a host outside gets %v", when, err)
		}
		testhost.Check(t, b.Health())
	}
	told("a firewall that was there before", true)
	change(letPass)
	told("a firewall that lets the bridge pass", false)
	change(switchOff)
	told("a firewall that is off", false)
	change(switchOn)
	t.Cleanup(func() { change(switchOff) })
	told("a firewall that was switched on later", true)
	if n := log.count("the node's firewall stops packets of pods"); n != 2 {
		t.Errorf("it was logged %d times in all", n)
	}
}
