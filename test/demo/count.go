package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"

	"berth/test/node"
)

// traces are what a runtime could leave on a machine, by kind.
type traces map[string][]string

// kinds are the kinds of traces, in the order in which they are shown.
var kinds = []string{"processes", "mounts", "network namespaces", "interfaces", "nftables tables", "cgroups"}

// survey lists what of each kind there is on the machine now.
func survey() (traces, error) {
	all := traces{}
	processes, err := node.Processes()
	if err != nil {
		return nil, err
	}
	for _, p := range processes {
		if len(p.Args) > 0 && p.State != 'Z' { // neither threads of the kernel nor what has ended
			all["processes"] = append(all["processes"], fmt.Sprintf("%d %s", p.PID, strings.Join(p.Args, " ")))
		}
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	for _, m := range mounts {
		all["mounts"] = append(all["mounts"], fmt.Sprintf("%s (%s)", m.Mountpoint, m.FSType))
		if m.FSType == "nsfs" {
			all["network namespaces"] = append(all["network namespaces"], m.Mountpoint)
		}
	}
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, err
	}
	for _, link := range links {
		all["interfaces"] = append(all["interfaces"], link.Attrs().Name)
	}
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, err
	}
	for _, table := range tables {
		all["nftables tables"] = append(all["nftables tables"], fmt.Sprintf("%d %s", table.Family, table.Name))
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		if entry.IsDir() {
			all["cgroups"] = append(all["cgroups"], path)
		}
		return nil
	})
	return all, err
}

// count compares the machine with what it was, as far as this node is concerned: others may work on it meanwhile.
func (d *demo) count(before traces) error {
	var left traces
	var total int
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		now, err := survey()
		if err != nil {
			return err
		}
		left, total = d.ours(before, now)
		if total == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, kind := range kinds {
		say(fmt.Sprintf("%-20s %d", kind, len(left[kind])))
	}
	found, err := d.node.Leftovers()
	if err != nil {
		return err
	}
	say(fmt.Sprintf("%-20s %d", "files of pods", len(found.Addresses)+len(found.Directories)))
	// Sockets of programs that have ended lie in the temporary directory, which goes now.
	found.Sockets = nil
	dir := d.node.Dir
	if total+found.Count() == 0 {
		if err := d.node.Stop(); err != nil {
			return err
		}
		d.node, d.registry = nil, nil
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is still there", dir)
		}
		say(fmt.Sprintf("%-20s %d", "directories", 0))
		return nil
	}
	var all []string
	for _, kind := range kinds {
		for _, item := range left[kind] {
			all = append(all, kind+": "+item)
		}
	}
	return fmt.Errorf("something is left:\n%s\n%s", strings.Join(all, "\n"), found.String())
}

// ours is what is new and bears the node's name, its directory or its bridge.
func (d *demo) ours(before, now traces) (traces, int) {
	left, total := traces{}, 0
	for kind, items := range now {
		sort.Strings(before[kind])
		for _, item := range items {
			at := sort.SearchStrings(before[kind], item)
			if at < len(before[kind]) && before[kind][at] == item {
				continue
			}
			// The directory of network namespaces stays a mount, as /run/netns does.
			if strings.Contains(item, d.node.Name) && !strings.HasPrefix(item, d.node.NetNSDir+" ") {
				left[kind] = append(left[kind], item)
				total++
			}
		}
	}
	return left, total
}
