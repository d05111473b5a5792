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
