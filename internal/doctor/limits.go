package doctor

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What a node with a hundred pods should have.
const (
	wantInstances = 512
	wantWatches   = 65536
	wantPIDs      = 32768
	wantFiles     = 65536
)

func sysctl(name string) (int64, error) {
	data, err := os.ReadFile("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// atLeast checks kernel settings against what they should be.
func atLeast(wanted ...setting) Finding {
	var have, low []string
	for _, w := range wanted {
		value, err := sysctl(w.name)
		if err != nil {
			continue // the kernel has no such thing, and so no such limit
		}
		have = append(have, fmt.Sprintf("%s = %d", w.name, value))
		if value < w.least {
			low = append(low, fmt.Sprintf("%s=%d", w.name, w.least))
		}
	}
	detail := strings.Join(have, ", ")
	if len(low) > 0 {
		return poor(detail, "Pods that watch files or start many processes may fail. Raise it: sysctl -w "+
			strings.Join(low, " ")+
			"\nand put the same into /etc/sysctl.d/90-berth.conf.")
	}
	return good(detail)
}

type setting struct {
	name  string
	least int64
}

func checkInotify(context.Context, Config) Finding {
	return atLeast(setting{"fs.inotify.max_user_instances", wantInstances},
		setting{"fs.inotify.max_user_watches", wantWatches})
}

func checkProcesses(context.Context, Config) Finding {
	return atLeast(setting{"kernel.pid_max", wantPIDs}, setting{"kernel.threads-max", wantPIDs})
}

func checkFiles(context.Context, Config) Finding {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return poor(err.Error(), "See what the shell says: ulimit -Hn")
	}
	detail := fmt.Sprintf("%d open files a process", limit.Max)
	if limit.Max < wantFiles {
		return poor(detail+" here", fmt.Sprintf("A daemon that is started from this shell can hold few pods: "+
			"ulimit -Hn %d. Its systemd unit sets its own limit.", wantFiles))
	}
	return good(detail)
}

// checkKeys looks at how much root has of its quota of keys in the kernel.
func checkKeys(context.Context, Config) Finding {
	users, err := os.ReadFile("/proc/key-users")
	if err != nil {
		return good("the kernel does not say who has keys") // it may be built without keys
	}
	return judgeKeys(string(users))
}

// judgeKeys judges the quota of root in the text of /proc/key-users, which has for each user the quotas of keys and of
// their bytes as what is used and what there is: "    0:   95 94/94 89/1000000 1841/25000000".
func judgeKeys(users string) Finding {
	for line := range strings.Lines(users) {
		var uid, all, keys, known, used, most, bytes, room int
		if n, _ := fmt.Sscanf(line, "%d: %d %d/%d %d/%d %d/%d", &uid, &all, &keys, &known, &used, &most, &bytes,
			&room); n != 8 || uid != 0 {
			continue
		}
		detail := fmt.Sprintf("root has %d of %d keys, with %d of %d bytes", used, most, bytes, room)
		if used > most/10*9 || bytes > room/10*9 {
			return poor(detail, "Containers that libcontainer or runc set up, and restored ones, do not start without room "+
				"for a session keyring. See whose keys it has: cat /proc/keys\nRaise it: sysctl -w kernel.keys.root_maxkeys and "+
				"kernel.keys.root_maxbytes. Root of a container adds keys where its pod has no seccomp profile.")
		}
		return good(detail)
	}
	return good("root has no keys")
}
