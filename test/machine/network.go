package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"

	"berth/test/node"
)

// networkNamespaces are those that a process is in or that are mounted.
func networkNamespaces() (map[string]string, error) {
	out := map[string]string{}
	all, err := node.Processes()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if p.NetNS != "" && p.State != 'Z' {
			out[p.NetNS] = there
		}
	}
	infos, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("nsfs"))
	for _, m := range infos {
		if strings.HasPrefix(m.Root, "net:") {
			out[m.Root] = "mounted at " + m.Mountpoint
		}
	}
	return out, err
}

// complete asks netlink again while what it lists changes.
func complete[T any](list func() ([]T, error)) ([]T, error) {
	for range 20 {
		all, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	return list()
}

// linkNames are the names of interfaces by their numbers, which are others each time that an interface is made.
func linkNames() (map[int]string, []netlink.Link, error) {
	links, err := complete(netlink.LinkList)
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	return names, links, err
}

func interfaces() (map[string]string, error) {
	names, links, err := linkNames()
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, l := range links {
		a := l.Attrs()
		out[a.Name] = fmt.Sprintf("%s, %s, mtu %d, master %q, promiscuity %d", l.Type(), a.Flags, a.MTU,
			names[a.MasterIndex], a.Promisc)
	}
	return out, nil
}

func addresses() (map[string]string, error) {
	names, _, err := linkNames()
	if err != nil {
		return nil, err
	}
	list, err := complete(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	var all []string
	for _, a := range list {
		all = append(all, fmt.Sprintf("%s of %s", a.IPNet, names[a.LinkIndex]))
	}
	return lines(all), err
}

func routes() (map[string]string, error) {
	names, _, err := linkNames()
	if err != nil {
		return nil, err
	}
	list, err := complete(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, err
	}
	var all []string
	for _, r := range list {
		if r.Flags&0x200 == 0 { // RTM_F_CLONED: the kernel's cache
			all = append(all, fmt.Sprintf("to %v by %v, interface %s, from %v", r.Dst, r.Gw, names[r.LinkIndex], r.Src))
		}
	}
	rules, err := complete(func() ([]netlink.Rule, error) { return netlink.RuleList(netlink.FAMILY_ALL) })
	for _, r := range rules {
		all = append(all, "rule "+r.String())
	}
	return lines(all), err
}

// netfilter are the tables of nftables with their chains and rules, and those of iptables' own that the kernel has.
func netfilter() (map[string]string, error) {
	out := map[string]string{}
	for _, name := range []string{"ip_tables_names", "ip6_tables_names", "arp_tables_names"} {
		text, err := os.ReadFile(filepath.Join("/proc/net", name))
		if err != nil {
			continue // the kernel has none of this kind
		}
		for table := range strings.FieldsSeq(string(text)) {
			out["iptables "+strings.TrimSuffix(name, "_tables_names")+" "+table] = there
		}
	}
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		out[fmt.Sprintf("table %d %s", t.Family, t.Name)] = there
		sets, err := conn.GetSets(t)
		if err != nil {
			continue // it has gone
		}
		for _, s := range sets {
			out[fmt.Sprintf("set %d %s %s", t.Family, t.Name, s.Name)] = there
		}
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, err
	}
	for _, c := range chains {
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			continue
		}
		sum := sha256.New()
		for _, r := range rules {
			for _, e := range r.Exprs {
				if _, counts := e.(*expr.Counter); !counts {
					fmt.Fprintf(sum, "%T %+v\n", e, e)
				}
			}
		}
		out[fmt.Sprintf("chain %d %s %s", c.Table.Family, c.Table.Name, c.Name)] = fmt.Sprintf("%d rules (%x)",
			len(rules), sum.Sum(nil)[:4])
	}
	return out, nil
}
