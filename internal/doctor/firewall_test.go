package doctor

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAFirewallThatStopsPodsIsPoor: on a node without CNI, and with the bridge that the daemon has. Seen to fail with
// the tables of nftables counted alone, as before, and with the name of the daemon's bridge left out of overlay.
func TestAFirewallThatStopsPodsIsPoor(t *testing.T) {
	if !isRoot() {
		t.Skip("a network namespace needs root")
	}
	look := func(rules, bridge string) (f Finding) {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with this function
			err := unix.Unshare(unix.CLONE_NEWNET)
			if err == nil && rules != "" {
				cmd := exec.Command("nft", "-f", "-")
				cmd.Stdin = strings.NewReader(rules)
				err = cmd.Run()
			}
			if err == nil {
				f = checkNetwork(t.Context(), (&Daemon{CNI: CNI{Bridge: bridge}}).overlay(Config{}))
			}
			done <- err
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return f
	}
	if f := look("", ""); f.Level != Good {
		t.Errorf("without a firewall: %+v", f)
	}
	if _, err := exec.LookPath("nft"); err != nil {
		t.Skip("there is no program nft")
	}
	const drops = "add table ip filter\n" +
		"add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }\n"
	if f := look(drops+"add chain ip filter DOCKER-USER\n", ""); f.Level != Poor ||
		!strings.Contains(f.Detail, "chain FORWARD of table ip filter") ||
		!strings.Contains(f.Advice, "iptables -I DOCKER-USER -i berth0 -j ACCEPT") {
		t.Errorf("with Docker's: %+v", f)
	}
	passes := "add rule ip filter FORWARD iifname pods0 accept\nadd rule ip filter FORWARD oifname pods0 accept\n"
	if f := look(drops+passes, "pods0"); f.Level != Good {
		t.Errorf("with one that lets the bridge pass: %+v", f)
	}
	if f := look(drops+passes, ""); f.Level != Poor {
		t.Errorf("with one that lets another bridge pass: %+v", f)
	}
}
