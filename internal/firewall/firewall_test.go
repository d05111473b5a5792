package firewall

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"berth/internal/network/testhost"

	"github.com/vishvananda/netlink"
)

func TestMain(m *testing.M) { testhost.Main(m) }

var pods = Bridge{Name: "berth0", Gateways: []netip.Prefix{
	netip.MustParsePrefix("10.60.0.1/16"), netip.MustParsePrefix("fd00:60::1/64"),
}}

// run runs a script of a shell, with the rules of the host as they were before put back after the test.
func run(t *testing.T, script string) {
	t.Helper()
	for _, program := range []string{"nft", "iptables", "iptables-legacy"} {
		if _, err := exec.LookPath(program); err != nil && strings.Contains(script, program+" ") {
			t.Skipf("there is no program %s", program)
		}
	}
	t.Cleanup(func() {
		clean := "nft flush ruleset"
		if strings.Contains(script, "iptables-legacy ") {
			clean += "; for c in INPUT FORWARD; do iptables-legacy -P $c ACCEPT; done; iptables-legacy -F; iptables-legacy -X"
		}
		if out, err := exec.Command("sh", "-c", clean).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

const (
	// docker is what Docker makes with iptables, as far as packets of other bridges get.
	docker = `
		I -P FORWARD DROP
		I -N DOCKER-USER; I -N DOCKER-FORWARD; I -N DOCKER-CT; I -N DOCKER
		I -A FORWARD -j DOCKER-USER
		I -A DOCKER-USER -j RETURN
		I -A FORWARD -j DOCKER-FORWARD
		I -A DOCKER-FORWARD -j DOCKER-CT
		I -A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
		I -A DOCKER-FORWARD -i docker0 -j ACCEPT
		I -A DOCKER-FORWARD -o docker0 -j DOCKER
		I -A DOCKER ! -i docker0 -o docker0 -j DROP
		`
	// ufw is what ufw makes, as far as packets of no rule get.
	ufw = `
		I -P FORWARD DROP; I -P INPUT DROP
		I -N ufw-before-forward; I -N ufw-user-forward; I -N ufw-before-input; I -N ufw-user-input
		I -A FORWARD -j ufw-before-forward
		I -A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
		I -A ufw-before-forward -p icmp -j ACCEPT
		I -A ufw-before-forward -j ufw-user-forward
		I -A INPUT -j ufw-before-input
		I -A ufw-before-input -i lo -j ACCEPT
		I -A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
		I -A ufw-before-input -j ufw-user-input
		I -A ufw-user-input -p tcp --dport 22 -j ACCEPT
		`
)

// firewalld has the chains that firewalld makes with nftables, with so much more for zones.
func firewalld(zones string) string {
	return `
		table inet firewalld {
			chain filter_FORWARD {
				type filter hook forward priority filter + 10; policy accept;
				ct state vmap { established : accept, related : accept }
				ct status dnat accept
				iifname "lo" accept
				ct state invalid drop
				ip6 daddr { ::/96, ::ffff:0.0.0.0/96, 2002:a00::/24 } reject with icmpv6 addr-unreachable
				jump filter_FORWARD_ZONES
				reject with icmpx admin-prohibited
			}
			chain filter_INPUT {
				type filter hook input priority filter + 10; policy accept;
				ct state { established, related } accept
				iifname "lo" accept
				jump filter_INPUT_ZONES
				reject with icmpx admin-prohibited
			}
			chain filter_IN_trusted { accept; }
			chain filter_FWD_trusted { accept; }
			chain filter_IN_public {
				tcp dport 22 ct state { new, untracked } accept
				meta l4proto { icmp, ipv6-icmp } accept
			}
			chain filter_FWD_public { meta l4proto { icmp, ipv6-icmp } accept; }
			chain filter_INPUT_ZONES { ` + strings.ReplaceAll(zones, "KIND", "IN") + ` goto filter_IN_public; }
			chain filter_FORWARD_ZONES { ` + strings.ReplaceAll(zones, "KIND", "FWD") + ` goto filter_FWD_public; }
		}`
}

func iptables(rules string) string {
	return "I() { iptables -w \"$@\"; }\n" + rules
}

func iptablesLegacy(rules string) string {
	return "I() { iptables-legacy -w \"$@\"; }\n" + rules
}

func nftScript(rules string) string {
	return "nft -f - <<'END'\n" + strings.ReplaceAll(rules, "} }", "}\n}") + "\nEND\n"
}

// TestWhichFirewallsStopPods looks at firewalls as programs make them, before and after their administrator has let
// the bridge pass. Seen to fail with the policies of chains alone, and with interfaces, addresses, states, intervals of
// sets and returns from chains left out, one at a time.
func TestWhichFirewallsStopPods(t *testing.T) {
	const nothing = ""
	out := func(chain string) string { return string(Out) + ": " + chain }
	back := func(chain string) string { return string(Back) + ": " + chain }
	node := func(chain string) string { return string(ToNode) + ": " + chain }
	const ipForward, ipInput = "chain FORWARD of table ip filter", "chain INPUT of table ip filter"
	for _, c := range []struct{ name, script, want, advice string }{
		{"nothing", ":", nothing, ""},
		{"docker", iptables(docker), out(ipForward) + "; " + back(ipForward),
			"Docker: iptables -I DOCKER-USER -i berth0 -j ACCEPT\nDocker: iptables -I DOCKER-USER -o berth0 -j ACCEPT"},
		{"docker that lets the bridge pass", iptables(docker +
			"I -I DOCKER-USER -i berth0 -j ACCEPT; I -I DOCKER-USER -o berth0 -m comment --comment x -j ACCEPT"), nothing, ""},
		{"docker that lets the range pass", iptables(docker +
			"I -I DOCKER-USER -s 10.60.0.0/16 -j ACCEPT; I -I DOCKER-USER -d 10.48.0.0/12 -j ACCEPT"), nothing, ""},
		{"docker that lets another range pass", iptables(docker + "I -I DOCKER-USER -s 10.61.0.0/16 -j ACCEPT"),
			out(ipForward) + "; " + back(ipForward), ""},
		{"docker with iptables-legacy", iptablesLegacy(docker),
			out(ipForward+" (iptables-legacy)") + "; " + back(ipForward+" (iptables-legacy)"),
			"Docker: iptables -I DOCKER-USER -i berth0 -j ACCEPT\nDocker: iptables -I DOCKER-USER -o berth0 -j ACCEPT"},
		{"docker with iptables-legacy that lets the bridge pass", iptablesLegacy(docker +
			"I -I DOCKER-USER -i berth0 -j ACCEPT; I -I DOCKER-USER -o berth+ -m comment --comment x -j ACCEPT"), nothing, ""},
		{"docker with iptables-legacy, and rules after its own", iptablesLegacy(docker +
			"I -A FORWARD -i berth0 -j ACCEPT; I -A FORWARD -o berth0 -j ACCEPT"), nothing, ""},
		{"ufw", iptables(ufw), out(ipForward) + "; " + node(ipInput),
			"ufw: ufw route allow in on berth0\nufw: ufw allow in on berth0"},
		{"ufw that lets the bridge pass", iptables(ufw +
			"I -A ufw-user-forward -i berth0 -j ACCEPT; I -A ufw-user-input -i berth0 -j ACCEPT"), nothing, ""},
		{"ufw with iptables-legacy", iptablesLegacy(ufw),
			out(ipForward+" (iptables-legacy)") + "; " + node(ipInput+" (iptables-legacy)"), ""},
		{"firewalld", nftScript(firewalld("")), out("chain filter_FORWARD of table inet firewalld") + "; " +
			node("chain filter_INPUT of table inet firewalld"),
			"firewalld: firewall-cmd --permanent --zone=trusted --add-interface=berth0 && firewall-cmd --reload"},
		{"firewalld with the bridge in the zone trusted",
			nftScript(firewalld(`iifname "berth0" goto filter_KIND_trusted;`)), nothing, ""},
		{"a last rule that rejects", nftScript(`table inet mine { chain passing {
			type filter hook forward priority 0;
			ct state established,related accept
			tcp dport 80 accept
			limit rate 1/second log
			counter reject with tcp reset
		} }`), out("chain passing of table inet mine"), ""},
		{"a last rule that drops", nftScript(`table inet mine { chain passing {
			type filter hook forward priority 0;
			ct state established,related accept
			tcp dport 80 accept
			limit rate 1/second accept
			counter log drop
		} }`), out("chain passing of table inet mine"), `nft insert rule inet mine passing iifname "berth0" accept`},
		{"interfaces that are named in a set", nftScript(`table inet mine {
			set trusted { type ifname; elements = { "lo", "berth0" }; }
			chain inp {
				type filter hook input priority 0; policy drop;
				iifname @trusted accept
			}
			chain passing {
				type filter hook forward priority 0; policy drop;
				ct state vmap { established : accept, related : accept, invalid : drop }
				iifname { "docker0", "berth0" } oifname != "wg0" accept
			} }`), nothing, ""},
		{"sets that do not name the bridge", nftScript(`table inet mine {
			set trusted { type ifname; elements = { "lo", "eth9" }; }
			chain inp {
				type filter hook input priority 0; policy drop;
				iifname @trusted accept
			}
			chain passing {
				type filter hook forward priority 0; policy drop;
				ct state vmap { established : accept, related : accept, invalid : drop }
				iifname != "berth0" accept
				ip saddr { 10.0.0.0-10.59.255.255, 10.61.0.0/16 } accept
			} }`), out("chain passing of table inet mine") + "; " + node("chain inp of table inet mine"), ""},
		{"ranges of addresses", nftScript(`table ip mine { chain passing {
				type filter hook forward priority 0; policy drop;
				ip saddr { 10.0.0.0-10.59.0.1, 10.60.0.0/14 } accept
				ip daddr 10.60.0.0-10.60.255.255 accept
			} }`), nothing, ""},
		{"IPv6 alone", nftScript(`table ip6 mine { chain passing { type filter hook forward priority 0; policy drop; } }`),
			out("chain passing of table ip6 mine") + "; " + back("chain passing of table ip6 mine"), ""},
		{"Berth's own table", nftScript(`table inet berth-berth0 { chain passing {
			type filter hook forward priority 0; policy drop; } }`), nothing, ""},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			run(t, c.script)
			blocks, err := Look(pods)
			testhost.Check(t, err)
			if got := Text(blocks); got != c.want {
				t.Errorf("\n got %q\nwant %q", got, c.want)
			}
			if got := Advice(blocks, pods.Name); c.advice != "" && got != c.advice {
				t.Errorf("advice\n got %q\nwant %q", got, c.advice)
			}
		})
	}
}

// TestTheAdviceIsRight follows the advice for tables of nobody that it knows, of nftables and of iptables-legacy.
func TestTheAdviceIsRight(t *testing.T) {
	for _, script := range []string{
		nftScript(`table inet mine {
			chain passing { type filter hook forward priority 0; policy drop; }
			chain inp { type filter hook input priority 0; reject; }
		}`),
		iptablesLegacy("I -P FORWARD DROP; I -A INPUT -p tcp --dport 22 -j ACCEPT; I -A INPUT -j REJECT"),
	} {
		run(t, script)
		blocks, err := Look(pods)
		testhost.Check(t, err)
		if len(blocks) < 3 {
			t.Errorf("found %v", blocks)
		}
		run(t, Advice(blocks, pods.Name))
		if blocks, err := Look(pods); err != nil || len(blocks) > 0 {
			t.Errorf("%q is not enough: %v, %v", Advice(blocks, pods.Name), blocks, err)
		}
		testhost.Check(t, exec.Command("nft", "flush", "ruleset").Run())
	}
}

// TestTheBridgesAddressesAreFound: who does not know the ranges of pods, as a command, gets them of the interface.
func TestTheBridgesAddressesAreFound(t *testing.T) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "berth0"
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	testhost.Check(t, netlink.LinkAdd(bridge))
	t.Cleanup(func() { _ = netlink.LinkDel(bridge) })
	addr, err := netlink.ParseAddr("10.99.0.1/24")
	testhost.Check(t, err)
	testhost.Check(t, netlink.AddrAdd(bridge, addr))
	for source, want := range map[string]int{"10.99.0.0/24": 1, "10.60.0.0/16": 2} {
		run(t, nftScript(`flush ruleset
			table ip mine { chain passing {
				type filter hook forward priority 0; policy drop;
				ip saddr `+source+` accept
			} }`))
		if blocks, err := Look(Bridge{Name: "berth0"}); err != nil || len(blocks) != want {
			t.Errorf("with %s let through: %v, %v", source, blocks, err)
		}
	}
}

func BenchmarkLook(b *testing.B) {
	script := "table inet many { chain passing { type filter hook forward priority 0; policy drop;\n"
	for i := range 5000 {
		script += fmt.Sprintf("ip daddr 192.0.%d.%d tcp dport 80 counter accept\n", i/256, i%256)
	}
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script + "}\n}")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	b.Cleanup(func() { _ = exec.Command("nft", "flush", "ruleset").Run() })
	for b.Loop() {
		if _, err := Look(pods); err != nil {
			b.Fatal(err)
		}
	}
}
