// Package firewall finds out whether the node's firewall lets the packets of pods on a bridge pass. It asks the kernel
// for the chains that such packets go through, of nftables (which iptables-nft, ufw, firewalld and Docker write to) and
// of iptables-legacy with IPv4, and follows their rules for a packet that no rule was written for: it comes from the
// bridge or goes there, and has no particular port. It changes nothing.
package firewall

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
)

// Bridge is what pods are on.
type Bridge struct {
	Name string // of the interface, which need not be there
	// Gateways are the bridge's addresses with the ranges of its pods; empty: those that the interface has.
	Gateways []netip.Prefix
}

// Way is which packets of pods a chain sees.
type Way string

const (
	Out    Way = "what pods send to other hosts"
	Back   Way = "answers of other hosts to pods"
	ToNode Way = "what pods send to the node's addresses"
)

// Block is a chain of somebody else's that does not let packets of pods pass.
type Block struct {
	Way    Way
	Table  string // with its family, such as "ip filter"
	Chain  string // the base chain, such as FORWARD
	Legacy bool   // it is of iptables-legacy: nft does not show it
	// Managers are the programs that write to the table, of those that Advice knows.
	Managers []Manager
}

// Manager is a program that keeps a firewall.
type Manager string

const (
	Docker    Manager = "docker"
	UFW       Manager = "ufw"
	Firewalld Manager = "firewalld"
)

func (b Block) String() string {
	by := ""
	if b.Legacy {
		by = " (iptables-legacy)"
	}
	return fmt.Sprintf("chain %s of table %s%s", b.Chain, b.Table, by)
}

// Text says in one line which chains stop which packets.
func Text(blocks []Block) string {
	var parts []string
	for _, way := range []Way{Out, Back, ToNode} {
		var chains []string
		for _, b := range blocks {
			if b.Way == way && !slices.Contains(chains, b.String()) {
				chains = append(chains, b.String())
			}
		}
		if len(chains) > 0 {
			parts = append(parts, fmt.Sprintf("%s: %s", way, strings.Join(chains, ", ")))
		}
	}
	return strings.Join(parts, "; ")
}

// Look finds the blocks. An error says what could not be read; the blocks are then of what could.
func Look(b Bridge) ([]Block, error) {
	packets := b.packets()
	blocks, err := nftables(b, packets)
	legacy, legacyErr := legacy(packets)
	return append(blocks, legacy...), errors.Join(err, legacyErr)
}

// packets are those that stand for all others of pods.
func (b Bridge) packets() []packet {
	bridge, uplink := link{name: b.Name}, link{}
	if found, err := net.InterfaceByName(b.Name); err == nil {
		bridge.index = found.Index
	}
	gateways := b.Gateways
	if len(gateways) == 0 {
		gateways = addresses(b.Name)
	}
	var all []packet
	for _, g := range gateways {
		pod, other := g.Addr().Next(), netip.MustParseAddr("192.0.2.1") // RFC 5737: of no host
		if g.Addr().Is6() {
			other = netip.MustParseAddr("2001:db8::1")
		}
		if ways, err := netlink.RouteGet(other.AsSlice()); err == nil && len(ways) > 0 {
			if out, err := net.InterfaceByIndex(ways[0].LinkIndex); err == nil {
				uplink = link{out.Name, out.Index}
			}
		}
		all = append(all,
			packet{way: Out, hook: forward, in: bridge, out: uplink, from: pod, to: other, state: stateNew},
			packet{way: Back, hook: forward, in: uplink, out: bridge, from: other, to: pod, state: stateEstablished},
			packet{way: ToNode, hook: input, in: bridge, from: pod, to: g.Addr(), state: stateNew})
	}
	return all
}

// addresses are those of the bridge. Where it is not there, they are those that it chooses first.
func addresses(name string) (found []netip.Prefix) {
	if bridge, err := net.InterfaceByName(name); err == nil {
		if addrs, err := bridge.Addrs(); err == nil {
			for _, a := range addrs {
				if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
					found = append(found, p)
				}
			}
		}
	}
	if len(found) == 0 {
		found = []netip.Prefix{netip.MustParsePrefix("10.60.0.1/16")}
	}
	return found
}

// Advice are commands that let the pods of a bridge pass, one a line.
func Advice(blocks []Block, bridge string) string {
	var lines []string
	add := func(format string, args ...any) {
		if line := fmt.Sprintf(format, args...); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	for _, b := range blocks {
		by := func(m Manager) bool { return slices.Contains(b.Managers, m) }
		switch {
		case by(Firewalld):
			add("firewalld: firewall-cmd --permanent --zone=trusted --add-interface=%s && firewall-cmd --reload", bridge)
		case by(UFW) && b.Way == ToNode:
			add("ufw: ufw allow in on %s", bridge)
		case by(UFW) && b.Way == Out:
			add("ufw: ufw route allow in on %s", bridge)
		case by(UFW):
			add("ufw: ufw route allow out on %s", bridge)
		case by(Docker) && b.Way == Out:
			add("Docker: iptables -I DOCKER-USER -i %s -j ACCEPT", bridge)
		case by(Docker) && b.Way == Back:
			add("Docker: iptables -I DOCKER-USER -o %s -j ACCEPT", bridge)
		default:
			interfaces := map[Way]string{Out: "-i", Back: "-o", ToNode: "-i"}
			family, table, _ := strings.Cut(b.Table, " ")
			if b.Legacy {
				add("iptables-legacy -I %s %s %s -j ACCEPT", b.Chain, interfaces[b.Way], bridge)
			} else {
				names := map[Way]string{Out: "iifname", Back: "oifname", ToNode: "iifname"}
				add("nft insert rule %s %s %s %s %q accept", family, table, b.Chain, names[b.Way], bridge)
			}
		}
	}
	return strings.Join(lines, "\n")
}

// managers are the programs that a table's name and the names of its chains tell.
func managers(table string, chains []string) (found []Manager) {
	if table == "firewalld" {
		found = append(found, Firewalld)
	}
	has := func(prefix string) bool {
		return slices.ContainsFunc(chains, func(c string) bool { return strings.HasPrefix(c, prefix) })
	}
	if has("ufw-") || has("ufw6-") {
		found = append(found, UFW)
	}
	if has("DOCKER-USER") {
		found = append(found, Docker)
	}
	return found
}
