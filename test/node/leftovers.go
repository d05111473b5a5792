package node

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
)

// Leftovers are the traces of a node on the machine, by kind. While daemon and keeper run, they, their sockets
// and their log do not count, nor does what holds images: no pod of the node may be left then.
type Leftovers struct {
	Processes   []string
	Mounts      []string // in this mount namespace; pinned namespaces are among them
	Interfaces  []string // the bridge, and veths on it
	Rules       []string // nftables tables, chains, sets and rules that name the node's bridge, range or pods
	Addresses   []string // records of addresses given to pods
	Cgroups     []string // of pods, in every hierarchy
	Directories []string // files and directories of pods
	Sockets     []string // of a node that has been stopped
}

// Count is how many traces there are.
func (l Leftovers) Count() int {
	n := 0
	for _, list := range l.lists() {
		n += len(list.items)
	}
	return n
}

type traces struct {
	kind  string
	items []string
}

func (l Leftovers) lists() []traces {
	return []traces{
		{"processes", l.Processes}, {"mounts", l.Mounts}, {"interfaces", l.Interfaces}, {"nftables", l.Rules},
		{"addresses", l.Addresses}, {"cgroups", l.Cgroups}, {"directories", l.Directories}, {"sockets", l.Sockets},
	}
}

// String names every trace, a line each.
func (l Leftovers) String() string {
	var b strings.Builder
	for _, list := range l.lists() {
		for _, item := range list.items {
			fmt.Fprintf(&b, "%s: %s\n", list.kind, item)
		}
	}
	return b.String()
}

// Settled counts Leftovers until there are none, for at most wait, and returns the last count: what is removed in the
// background has that long. So have the parts of pods that the daemon has made ahead, and the bridge, which stay for
// some seconds after the last pod.
func (n *Node) Settled(wait time.Duration) (Leftovers, error) { return settled(wait, n.Leftovers) }

// Retire ends the daemon with SIGTERM, and counts what is left then beside the keeper, until there is nothing, for at
// most wait. It takes less time than Settled: at its end the daemon removes at once what it has made ahead. What it
// has left of a pod stays. Before that, the daemon may remove the directories that it has put aside for that.
func (n *Node) Retire(wait time.Duration) (Leftovers, error) {
	_, err := settled(wait, func() (l Leftovers, err error) {
		l.Directories, err = filepath.Glob(filepath.Join(n.Root, "trash", "*"))
		return l, err
	})
	if err == nil {
		err = n.Terminate()
	}
	if err != nil {
		return Leftovers{}, err
	}
	return settled(wait, func() (Leftovers, error) { return n.leftovers(true) })
}

func settled(wait time.Duration, count func() (Leftovers, error)) (Leftovers, error) {
	for deadline := time.Now().Add(Patience(wait)); ; time.Sleep(20 * time.Millisecond) {
		left, err := count()
		if err != nil || left.Count() == 0 || time.Now().After(deadline) {
			return left, err
		}
	}
}

// Leftovers looks for every trace that the node's pods have left on the machine, and, once the node is stopped,
// that the node itself has.
func (n *Node) Leftovers() (Leftovers, error) { return n.leftovers(n.PID() != 0) }

func (n *Node) leftovers(running bool) (Leftovers, error) {
	var l Leftovers
	var err error
	if l.Processes, err = n.processes(running); err != nil {
		return l, err
	}
	if l.Mounts, err = n.mounted(); err != nil {
		return l, err
	}
	if l.Interfaces, err = n.interfaces(running); err != nil {
		return l, err
	}
	if l.Rules, err = n.rules(); err != nil {
		return l, err
	}
	if l.Cgroups, err = n.cgroups(running); err != nil {
		return l, err
	}
	l.Addresses, l.Directories, l.Sockets, err = n.files(running)
	return l, err
}

// processes lists those of the node's programs and those in its cgroups. What serves a running node does not count.
func (n *Node) processes(running bool) ([]string, error) {
	all, err := Processes()
	if err != nil {
		return nil, err
	}
	exempt := map[int]bool{os.Getpid(): true}
	if running {
		exempt[n.PID()] = true
		if pid, ok := n.KeeperPID(); ok {
			exempt[pid] = true
		}
	}
	var found []string
	for _, p := range all {
		plugin := len(p.Args) > 0 && strings.HasPrefix(p.Args[0], n.NRIPlugins+"/") // berthd starts and ends it
		if !exempt[p.PID] && !(running && plugin) && n.owns(p) {
			found = append(found, p.String())
		}
	}
	return found, nil
}

// owns says whether a process is of this node: a program started with one of its paths, or a member of its cgroups.
func (n *Node) owns(p Process) bool {
	for _, cgroup := range p.Cgroups {
		if n.keepCgroups {
			break
		}
		if cgroup == n.CgroupRoot || strings.HasPrefix(cgroup, n.CgroupRoot+"/") {
			return true
		}
	}
	for _, arg := range p.Args {
		if strings.Contains(arg, n.Dir+"/") {
			return true
		}
	}
	return false
}

// mounted lists the mounts that lie in the node's directories: those of this mount namespace, and of the keeper's.
func (n *Node) mounted() ([]string, error) {
	own := map[string]bool{n.Root: true, filepath.Join(n.State, "pods"): true} // in a mount namespace of Berth's own
	for _, path := range n.mounts {
		own[path] = true
	}
	processes := []int{os.Getpid()}
	if pid, there := n.KeeperPID(); there {
		processes = append(processes, pid)
	}
	found := map[string]bool{}
	for _, pid := range processes {
		f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid))
		if errors.Is(err, fs.ErrNotExist) { // the keeper has ended
			continue
		}
		if err != nil {
			return nil, err
		}
		infos, err := mountinfo.GetMountsFromReader(f, func(info *mountinfo.Info) (skip, stop bool) {
			return own[info.Mountpoint] || !n.inside(info.Mountpoint), false
		})
		f.Close()
		if err != nil {
			return nil, err
		}
		for _, info := range infos {
			found[fmt.Sprintf("%s (%s)", info.Mountpoint, info.FSType)] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

func (n *Node) inside(path string) bool {
	for _, dir := range []string{n.Dir, n.Root, n.State} {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// interfaces lists what is on the bridge, and of a stopped node the bridge as well.
func (n *Node) interfaces(running bool) ([]string, error) {
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // the list changed while it was read
		links, err = netlink.LinkList()
	}
	if err != nil {
		return nil, err
	}
	bridge := -1
	var found []string
	for _, link := range links {
		if link.Attrs().Name == n.Bridge {
			bridge = link.Attrs().Index
			if !running {
				found = append(found, n.Bridge)
			}
		}
	}
	for _, link := range links {
		attrs := link.Attrs()
		if (bridge > 0 && attrs.MasterIndex == bridge) || strings.Contains(attrs.Alias, n.Name) {
			if attrs.Index != bridge {
				found = append(found, attrs.Name)
			}
		}
	}
	return found, nil
}

// podID is the name of a pod, a container or a namespace in a path.
var podID = regexp.MustCompile(`[0-9a-f]{32,64}`)

// files lists address records, files that bear the ID of a pod or container, and the sockets of a stopped node.
func (n *Node) files(running bool) (addresses, directories, sockets []string, err error) {
	for _, top := range []string{n.Root, n.State, filepath.Join(n.Dir, "ipam")} {
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			}
			relative := strings.TrimPrefix(path, top+"/")
			first, _, _ := strings.Cut(relative, "/")
			switch name := entry.Name(); {
			case first == "images" || first == "volumes" || n.Containerd && strings.HasPrefix(first, "io.containerd."):
				return fs.SkipDir
			case first == "quotas" && relative != first:
				directories = append(directories, path)
				return fs.SkipDir
			case net.ParseIP(name) != nil || first == "network" && podID.MatchString(name):
				addresses = append(addresses, path)
			case podID.MatchString(name):
				directories = append(directories, path)
				if entry.IsDir() {
					return fs.SkipDir
				}
			case entry.Type() == fs.ModeSocket && !running:
				sockets = append(sockets, path)
			}
			return nil
		})
		if err != nil {
			return nil, nil, nil, err
		}
	}
	if _, err := os.Lstat(n.Socket); err == nil && !running {
		sockets = append(sockets, n.Socket)
	}
	return addresses, directories, sockets, nil
}

// cgroups lists the cgroups below the node's own, in every hierarchy of v1 and in v2, and of a stopped node
// that one as well. What a running node marks it with as its own does not count.
func (n *Node) cgroups(running bool) ([]string, error) {
	roots, err := CgroupMounts()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, root := range roots {
		top := filepath.Join(root, n.CgroupRoot)
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			}
			if entry.IsDir() && !(running && (path == top || path == filepath.Join(top, "berthd.lock"))) {
				found = append(found, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// CgroupMounts lists the mount points of all cgroup hierarchies, one each.
func CgroupMounts() ([]string, error) {
	infos, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
		return !strings.HasPrefix(info.Mountpoint, "/sys/fs/cgroup") ||
			info.FSType != "cgroup" && info.FSType != "cgroup2", false
	})
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var roots []string
	for _, info := range infos {
		if !seen[info.Mountpoint] {
			seen[info.Mountpoint] = true
			roots = append(roots, info.Mountpoint)
		}
	}
	sort.Strings(roots)
	return roots, nil
}

// rules lists the nftables tables and rules of the node: those that name its bridge.
func (n *Node) rules() ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, err
	}
	var found []string
	for _, table := range tables {
		if strings.Contains(table.Name, n.Bridge) {
			found = append(found, fmt.Sprintf("table %v %s", table.Family, table.Name))
		}
	}
	return found, nil
}

// sweep removes by force what a stopped node has left: only a suite that has failed needs it.
func (n *Node) sweep() error {
	var errs []error
	all, err := Processes()
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.PID != os.Getpid() && p.State != 'Z' && n.owns(p) {
			errs = append(errs, kill(p.PID, Patience(30*time.Second)))
		}
	}
	for range 8 { // a mount may lie under another
		infos, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
			return !n.inside(info.Mountpoint), false
		})
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if len(infos) == 0 {
			break
		}
		for i := len(infos) - 1; i >= 0; i-- {
			_ = syscall.Unmount(infos[i].Mountpoint, syscall.MNT_DETACH)
		}
	}
	if link, err := netlink.LinkByName(n.Bridge); err == nil {
		errs = append(errs, netlink.LinkDel(link))
	}
	if conn, err := nftables.New(); err == nil {
		if tables, err := conn.ListTables(); err == nil {
			for _, table := range tables {
				if strings.Contains(table.Name, n.Bridge) {
					conn.DelTable(table)
				}
			}
			errs = append(errs, conn.Flush())
		}
	}
	roots, err := CgroupMounts()
	errs = append(errs, err)
	for _, root := range roots {
		if !n.keepCgroups {
			errs = append(errs, removeCgroup(filepath.Join(root, n.CgroupRoot)))
		}
	}
	return errors.Join(errs...)
}

// removeCgroup removes a cgroup and those below it. A process that was just killed may hold it a moment longer.
func removeCgroup(top string) error {
	var dirs []string
	_ = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for i := len(dirs) - 1; i >= 0; i-- {
		err := syscall.Rmdir(dirs[i])
		for end := time.Now().Add(Patience(30 * time.Second)); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
			err = syscall.Rmdir(dirs[i])
		}
		if err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("remove cgroup %s: %w", dirs[i], err)
		}
	}
	return nil
}
