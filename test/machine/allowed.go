package main

import (
	"os"
	"regexp"
	"strings"
)

// allowed are differences that tests make and that nobody has to undo.
var allowed = []struct {
	kind   string
	name   *regexp.Regexp
	reason string
}{
	{"module", regexp.MustCompile(
		`^(bridge|stp|llc|br_netfilter|veth|dummy|tun|overlay|loop|quota_.*|xfs|libcrc32c|fuse|sctp|inet_diag|.*_diag|` +
			`nf_.*|nft_.*|nfnetlink.*|xt_.*|x_tables|ip_tables|ip6_tables|iptable_.*|ip6table_.*|crc32c.*)$`),
		"the kernel loads it when a test uses what it has, and others may use it by the time that the test ends"},
	{"device", regexp.MustCompile(`^/dev/(loop\d+|loop-control|fuse|net|net/tun|mapper|mapper/control)$`),
		"the kernel makes it when a test uses it, or with its module"},
	{"file", regexp.MustCompile(`^/run/criu\.kdat(\.tmp)?$`), "criu keeps what it has found out about the kernel"},
	{"file", regexp.MustCompile(`^/run/(runc|crun)$`),
		"an empty directory that the runtime makes whatever directory it is told to use"},
	{"file", regexp.MustCompile(`^/run/mount$`), "an empty directory that mount(8) makes when first used"},
	{"file", regexp.MustCompile(`^/run/xtables\.lock$`), "the lock of iptables, which stays"},
	{"file", regexp.MustCompile(`^/run/netns$`), "an empty directory that iproute2 and containerd make when first used"},
	{"mount", regexp.MustCompile(`^/run/netns: `), "they mount it over itself"},
}

// leftover are the cgroups that the tests of internal/keeper/client remove where a run of theirs was killed before.
var leftover = regexp.MustCompile(`^/sys/fs/cgroup(/[^/]+)?/berth-test-\d+-\d+(/|$)`)

// why is the reason for which a difference is allowed; empty: it is not. Only what was not there before is, and what an
// earlier run of the tests had left.
func why(d difference) string {
	if d.was != "" {
		if d.kind == "cgroup" && d.is == "" && leftover.MatchString(d.name) {
			return "tests remove what an earlier run of theirs left that was killed"
		}
		return ""
	}
	for _, a := range allowed {
		if a.kind != d.kind || !a.name.MatchString(d.name) {
			continue
		}
		// A directory is allowed as long as nothing is in it.
		if entries, err := os.ReadDir(d.name); err == nil && strings.HasPrefix(d.is, "directory") &&
			len(entries) > 0 && d.kind == "file" {
			return ""
		}
		return a.reason
	}
	return ""
}
