package node

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
)

// Host is what nodes change on the machine itself and leave behind: the chains of the portmap plugin in the tables
// of iptables, the switches for forwarding, which a bridge needs, and containerd's own cgroup.
//
// IMPORTANT: nothing on the machine may begin to use any of it between ReadHost and Restore, but what is stopped
// by then.
type Host struct {
	Tables, Chains map[string]bool
	Switches       map[string]string // contents of files of /proc/sys
	Cgroups        map[string]bool
}

// forwarding are the switches.
var forwarding = []string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"}

// containerdCgroup is where containerd keeps what names no parent.
const containerdCgroup = "k8s.io"

func tableKey(t *nftables.Table) string { return fmt.Sprint(t.Family, " ", t.Name) }

func chainKey(c *nftables.Chain) string { return tableKey(c.Table) + " " + c.Name }

// ReadHost notes what there is now.
func ReadHost() (*Host, error) {
	h := &Host{Tables: map[string]bool{}, Chains: map[string]bool{}, Switches: map[string]string{},
		Cgroups: map[string]bool{}}
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		h.Tables[tableKey(t)] = true
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, err
	}
	for _, c := range chains {
		h.Chains[chainKey(c)] = true
	}
	for _, path := range forwarding {
		if value, err := os.ReadFile(path); err == nil {
			h.Switches[path] = string(value)
		}
	}
	found, err := containerdCgroups()
	for _, path := range found {
		h.Cgroups[path] = true
	}
	return h, err
}

// Restore removes what was not there when the host was read, as far as it is of the kinds above and nobody uses it.
func (h *Host) Restore() error {
	errs := []error{h.restoreTables()}
	found, err := containerdCgroups()
	errs = append(errs, err)
	for _, path := range found {
		if !h.Cgroups[path] {
			errs = append(errs, removeEmpty(path))
		}
	}
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return errors.Join(append(errs, err)...)
	}
	for _, link := range links {
		if link.Type() == "bridge" {
			return errors.Join(errs...) // somebody's pods need the node to forward
		}
	}
	for path, value := range h.Switches {
		if now, err := os.ReadFile(path); err == nil && string(now) != value {
			errs = append(errs, os.WriteFile(path, []byte(value), 0))
		}
	}
	return errors.Join(errs...)
}

// restoreTables removes chains of CNI plugins, and tables that are empty without.
func (h *Host) restoreTables() error {
	err := removeChains(
		func(c *nftables.Chain, _ []*nftables.Rule) bool { return !h.Chains[chainKey(c)] },
		func(t *nftables.Table) bool { return !h.Tables[tableKey(t)] })
	return errors.Join(err, h.removeEmptyTables())
}

// removeEmptyTables removes what is left of the tables of iptables, which makes one when it is only asked.
func (h *Host) removeEmptyTables() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return err
	}
	used := map[string]bool{}
	for _, c := range chains {
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return err
		}
		used[tableKey(c.Table)] = used[tableKey(c.Table)] || len(rules) > 0 || c.Hooknum == nil
	}
	for _, t := range tables {
		ip := t.Family == nftables.TableFamilyIPv4 || t.Family == nftables.TableFamilyIPv6
		if ip && slices.Contains([]string{"nat", "filter", "mangle"}, t.Name) && !h.Tables[tableKey(t)] &&
			!used[tableKey(t)] {
			conn.DelTable(t)
		}
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove empty tables of iptables: %w", err)
	}
	return nil
}

// removeMasquerading removes the chains by which a CNI plugin hides the node's pods behind the machine's address.
// The plugin itself leaves them where the pod's namespace went before its network.
func (n *Node) removeMasquerading() error {
	network := n.PodCIDR.Masked().Addr().AsSlice()[:n.PodCIDR.Bits()/8]
	return removeChains(func(_ *nftables.Chain, rules []*nftables.Rule) bool {
		for _, rule := range rules {
			for _, e := range rule.Exprs {
				if c, ok := e.(*expr.Cmp); ok && bytes.HasPrefix(c.Data, network) {
					return true
				}
			}
		}
		return false
	}, func(*nftables.Table) bool { return false })
}

// removeChains removes those chains of CNI plugins that are ours, with the rules that lead to them, and of the tables
// that they leave empty those that are ours.
func removeChains(ours func(*nftables.Chain, []*nftables.Rule) bool, table func(*nftables.Table) bool) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	all, err := conn.ListChains()
	if err != nil {
		return err
	}
	rules, gone := map[string][]*nftables.Rule{}, map[string]*nftables.Chain{}
	for _, c := range all {
		if rules[chainKey(c)], err = conn.GetRules(c.Table, c); err != nil {
			return err
		}
		if strings.HasPrefix(c.Name, "CNI-") && ours(c, rules[chainKey(c)]) {
			gone[chainKey(c)] = c
		}
	}
	if len(gone) == 0 {
		return nil
	}
	used := map[string]bool{} // tables with something of others
	for _, c := range all {
		if gone[chainKey(c)] != nil {
			conn.FlushChain(c)
			continue
		}
		for _, rule := range rules[chainKey(c)] {
			leads := false
			for _, e := range rule.Exprs {
				if v, ok := e.(*expr.Verdict); ok && v.Chain != "" && gone[tableKey(c.Table)+" "+v.Chain] != nil {
					leads = true
				}
			}
			if !leads {
				used[tableKey(c.Table)] = true
			} else if err := conn.DelRule(rule); err != nil {
				return err
			}
		}
	}
	emptied := map[string]*nftables.Table{}
	for _, c := range gone {
		conn.DelChain(c)
		if !used[tableKey(c.Table)] && table(c.Table) {
			emptied[tableKey(c.Table)] = c.Table
		}
	}
	for _, t := range emptied {
		conn.DelTable(t)
	}
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("remove the chains of CNI plugins: %w", err)
	}
	return nil
}

// containerdCgroups lists containerd's own cgroup in every hierarchy where it is.
func containerdCgroups() ([]string, error) {
	roots, err := CgroupMounts()
	var found []string
	for _, root := range roots {
		path := filepath.Join(root, containerdCgroup)
		if _, err := os.Stat(path); err == nil {
			found = append(found, path)
		}
	}
	return found, err
}

// removeEmpty removes a tree of cgroups without processes; one that has some stays.
func removeEmpty(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := syscall.Rmdir(dirs[i]); err != nil && err != syscall.EBUSY && err != syscall.ENOENT {
			return fmt.Errorf("remove cgroup %s: %w", dirs[i], err)
		}
	}
	return nil
}
