package cgroup

import (
	"os"
	"path"
	"strconv"
	"strings"
)

// Unit is the service unit of systemd that a process belongs to; empty: it belongs to none.
func Unit(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return ""
	}
	return unit(string(text))
}

// unit finds the unit in a file cgroup of proc(5), in the hierarchy of version 2 or in systemd's own of version 1.
func unit(text string) string {
	for line := range strings.Lines(text) {
		number, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, at, _ := strings.Cut(rest, ":")
		if controllers != "name=systemd" && (number != "0" || controllers != "") {
			continue
		}
		for ; at != "/" && at != "." && at != ""; at = path.Dir(at) { // it may have cgroups of its own
			if strings.HasSuffix(at, ".service") {
				return path.Base(at)
			}
		}
	}
	return ""
}
