package plugin

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/cdi"
	"berth/internal/device"
)

// maxID is the longest ID that is given to a device, in bytes: what the protocol says.
const maxID = 63

// shareMark is between a device and its number, where it is shared.
const shareMark = "::"

// unit is what a container gets whole: a node, several, or a CDI device.
type unit struct {
	id      string
	nodes   []string // on the host; of a CDI device those that show its health
	cdi     string   // qualified name
	healthy bool
	numa    []int64
}

// inventory is the units of a resource. It remembers those that have gone, which are unhealthy: a kubelet whose pods
// hold them is told so.
type inventory struct {
	*Resource
	registry *cdi.Registry
	sys      string // where sysfs is
	seen     map[string]unit
	problems []string // of CDI files
}

// scan looks at what there is now, sorted by ID.
func (v *inventory) scan() []unit {
	now := map[string]unit{}
	add := func(u unit, name string) {
		u.id = shortened(name)
		u.numa = v.numa(u.nodes)
		now[u.id] = u
	}
	for _, pattern := range v.Nodes {
		if !isPattern(pattern) {
			add(unit{nodes: []string{pattern}, healthy: isDevice(pattern)}, strings.TrimPrefix(pattern, "/dev/"))
			continue
		}
		matches, _ := filepath.Glob(pattern)
		for _, path := range matches {
			if isDevice(path) {
				add(unit{nodes: []string{path}, healthy: true}, strings.TrimPrefix(path, "/dev/"))
			}
		}
	}
	for _, group := range v.Groups {
		u := unit{healthy: true}
		var names []string
		for _, pattern := range group {
			matches := []string{pattern}
			if isPattern(pattern) {
				matches, _ = filepath.Glob(pattern)
				matches = slices.DeleteFunc(matches, func(path string) bool { return !isDevice(path) })
			}
			if len(matches) == 0 || !isDevice(matches[0]) {
				u.healthy = false
			}
			u.nodes = append(u.nodes, matches...)
			names = append(names, strings.TrimPrefix(pattern, "/dev/"))
		}
		add(u, strings.Join(names, "+"))
	}
	if v.CDI != "" {
		devices, problems := v.registry.Devices(v.CDI)
		v.problems = problems
		for _, d := range devices {
			if d.Name == "all" {
				continue // all the others once more
			}
			missing := slices.ContainsFunc(d.Nodes, func(path string) bool { return !exists(path) })
			add(unit{nodes: d.Nodes, cdi: v.CDI + "=" + d.Name, healthy: !missing}, d.Name)
		}
	}
	for id, u := range v.seen {
		if _, there := now[id]; !there {
			u.healthy = false
			now[id] = u
		}
	}
	v.seen = now
	return slices.SortedFunc(maps.Values(now), func(a, b unit) int { return strings.Compare(a.id, b.id) })
}

// shortened is a name as an ID: one that is too long ends with its hash.
func shortened(name string) string {
	const room = maxID - len(shareMark+"10000")
	if len(name) <= room {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	hash := "-" + hex.EncodeToString(sum[:6])
	return name[:room-len(hash)] + hash
}

func isPattern(path string) bool { return strings.ContainsAny(path, `*?[\`) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// isDevice tells whether a device node is at a path, or at the end of its links.
func isDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeDevice != 0
}

// numa are the NUMA nodes of device nodes, as sysfs knows them, sorted.
func (v *inventory) numa(nodes []string) []int64 {
	var out []int64
	for _, path := range nodes {
		if node, ok := v.numaOf(path); ok && !slices.Contains(out, node) {
			out = append(out, node)
		}
	}
	slices.Sort(out)
	return out
}

// numaOf is found at the nearest device above the node's own that has one: a controller, a PCI function.
func (v *inventory) numaOf(path string) (int64, bool) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0, false
	}
	kind := "char"
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		kind = "block"
	}
	link := filepath.Join(v.sys, "dev", kind, fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	dir, err := filepath.EvalSymlinks(link)
	if err != nil {
		return 0, false
	}
	top, err := filepath.EvalSymlinks(filepath.Join(v.sys, "devices"))
	if err != nil {
		return 0, false
	}
	for ; strings.HasPrefix(dir, top+"/"); dir = filepath.Dir(dir) {
		for _, file := range []string{"numa_node", "device/numa_node"} {
			text, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				continue
			}
			if node, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && node >= 0 {
				return node, true
			}
		}
	}
	return 0, false
}

// offer is the list that a kubelet is sent: each unit as often as it is shared.
func (v *inventory) offer(units []unit) []*pluginapi.Device {
	var out []*pluginapi.Device
	for _, u := range units {
		health := pluginapi.Unhealthy
		if u.healthy {
			health = pluginapi.Healthy
		}
		var topology *pluginapi.TopologyInfo
		for _, node := range u.numa {
			if topology == nil {
				topology = &pluginapi.TopologyInfo{}
			}
			topology.Nodes = append(topology.Nodes, &pluginapi.NUMANode{ID: node})
		}
		for _, id := range v.shares(u.id) {
			out = append(out, &pluginapi.Device{ID: id, Health: health, Topology: topology})
		}
	}
	return out
}

// shares are the IDs that a unit is offered under.
func (v *inventory) shares(id string) []string {
	if v.Share == 1 {
		return []string{id}
	}
	out := make([]string, v.Share)
	for i := range out {
		out[i] = id + shareMark + strconv.Itoa(i)
	}
	return out
}

// unitOf is the unit that an ID stands for.
func (v *inventory) unitOf(id string) string {
	if i := strings.LastIndex(id, shareMark); i >= 0 && v.Share > 1 {
		return id[:i]
	}
	return id
}

// prefer chooses n of the available IDs: of different units as far as there are enough, those that fewest share first,
// and on one NUMA node.
func (v *inventory) prefer(units []unit, available, must []string, n int) []string {
	numa := map[string][]int64{}
	for _, u := range units {
		numa[u.id] = u.numa
	}
	of := map[string][]string{}
	for _, id := range available {
		of[v.unitOf(id)] = append(of[v.unitOf(id)], id)
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		if len(of[a]) != len(of[b]) {
			return len(of[b]) - len(of[a])
		}
		return strings.Compare(a, b)
	})
	one := func(id string) device.Device { return device.Device{ID: id, Healthy: true, NUMA: numa[v.unitOf(id)]} }
	var apart, all []device.Device
	taken := map[string]bool{}
	for _, id := range must {
		apart = append(apart, one(id))
		taken[v.unitOf(id)] = true
	}
	for _, name := range names {
		if !taken[name] {
			apart = append(apart, one(of[name][0]))
		}
		for _, id := range of[name] {
			all = append(all, one(id))
		}
	}
	if picked := device.Pick(apart, must, n, nil); picked != nil {
		return picked
	}
	ids := make([]string, len(apart))
	for i, d := range apart {
		ids[i] = d.ID
	}
	return device.Pick(all, ids, n, nil)
}
