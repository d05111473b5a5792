package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Controllers that limits of containers need. v1 has others for what v2 does by other means.
var (
	neededV2 = []string{"cpu", "cpuset", "memory", "pids"}
	neededV1 = []string{"cpu", "cpuset", "memory", "pids", "devices", "freezer"}
)

func checkCgroups(context.Context, Config) Finding {
	infos, err := mountinfo.GetMounts(func(info *mountinfo.Info) (skip, stop bool) {
		return info.FSType != "cgroup" && info.FSType != "cgroup2", false
	})
	if err != nil {
		return bad(err.Error(), procAdvice)
	}
	var v1, v2 []string
	for _, info := range infos {
		if info.FSType == "cgroup" {
			for option := range strings.SplitSeq(info.VFSOptions, ",") {
				v1 = append(v1, option)
			}
			continue
		}
		data, err := os.ReadFile(filepath.Join(info.Mountpoint, "cgroup.controllers"))
		if err == nil {
			v2 = append(v2, strings.Fields(string(data))...)
		}
	}
	return judgeCgroups(len(infos) > 0, v1, v2)
}

// judgeCgroups looks at the controllers of v1 (mount options among them) and of v2. Where v2 has any,
// it is what counts.
func judgeCgroups(mounted bool, v1, v2 []string) Finding {
	const how = "See which controllers the kernel has, and which are off: cat /proc/cgroups /proc/cmdline\n" +
		"On cgroup v2: boot without cgroup_disable=… and systemd.unified_cgroup_hierarchy=0. " +
		"On v1: mount them below /sys/fs/cgroup."
	if !mounted {
		return bad("nothing is mounted", "Mount cgroup v2: mount -t cgroup2 none /sys/fs/cgroup")
	}
	kind, have, needed := "v1", v1, neededV1
	if len(v2) > 0 && !slices.Contains(v1, "memory") {
		kind, have, needed = "v2", v2, neededV2
	}
	var missing []string
	for _, name := range needed {
		if !slices.Contains(have, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return bad(fmt.Sprintf("%s without %s", kind, strings.Join(missing, ", ")), how)
	}
	return good(kind + " with " + strings.Join(needed, ", "))
}
