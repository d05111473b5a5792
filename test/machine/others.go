package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"berth/test/node"
)

// mark is the environment variable by which processes of the command are known.
const mark = "BERTH_TEST_RUN"

// nodeName is the name of a node of the tests: of its directory, its bridge, its table and its cgroups.
var nodeName = regexp.MustCompile(`\bb[0-9a-f]{8}\b`)

var number = regexp.MustCompile(`-\d+$`)

// population is what runs on the machine.
type population struct {
	ours    []node.Process
	theirs  []node.Process  // those that test something too
	named   map[string]bool // nodes that theirs belong to
	network bool            // one of theirs is in our network namespace
	tmp     string          // the command's directory of temporary files
}

// populate tells processes of the command from others. Containers have none of the command's environment:
// they are of whoever the node is that they belong to.
func populate(id, tmp string) (*population, error) {
	all, err := node.Processes()
	if err != nil {
		return nil, err
	}
	p := &population{named: map[string]bool{}, tmp: tmp}
	network, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	self := map[int]bool{}
	for pid := os.Getpid(); pid > 1; {
		self[pid] = true
		i := slices.IndexFunc(all, func(p node.Process) bool { return p.PID == pid })
		if i < 0 {
			break
		}
		pid = all[i].Parent
	}
	for _, one := range all {
		text := strings.Join(slices.Concat(one.Args, one.Cgroups, []string{one.Exe}), "\n")
		env, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(one.PID), "environ"))
		switch {
		case self[one.PID] || one.State == 'Z':
		case strings.Contains("\x00"+string(env), "\x00"+mark+"="+id+"\x00"), strings.Contains(text, tmp+"/"):
			p.ours = append(p.ours, one)
		case tests(one):
			p.theirs = append(p.theirs, one)
			p.network = p.network || one.NetNS == network
			for _, name := range nodeName.FindAllString(text, -1) {
				p.named[name] = true
			}
		}
	}
	return p, nil
}

// tests: a daemon or a keeper, a binary of go test, a runtime that one of them has started, or what is in a node's
// cgroup. A go command that only builds changes nothing that is compared.
func tests(p node.Process) bool {
	name := filepath.Base(strings.TrimSuffix(p.Exe, " (deleted)"))
	runs := len(p.Args) > 1 && (p.Args[1] == "run" || p.Args[1] == "test" && !slices.Contains(p.Args, "-c"))
	return strings.HasSuffix(name, ".test") || strings.HasPrefix(name, "berth") || name == "go" && runs ||
		slices.ContainsFunc(p.Cgroups, nodeName.MatchString) || slices.ContainsFunc(p.Args, nodeName.MatchString)
}

// shared are names of things that all nodes of a machine change together: see node.Host.
var shared = regexp.MustCompile(
	`^(net/ipv4/ip_forward|net/ipv[46]/conf/(all|default|lo)/(forwarding|mc_forwarding|accept_redirects|send_redirects)|` +
		`(chain|table|set) \d+ (nat|filter|mangle)\b.*|/sys/fs/cgroup/[^/]+/k8s\.io.*|/run/berth-test-host)$`)

// temporary are files in directories that everybody uses.
var temporary = regexp.MustCompile(`^(/tmp|/var/tmp|/dev/shm)/`)

// made says whether others have made a difference, as far as that can be known.
func (p *population) made(d difference) bool {
	for _, name := range nodeName.FindAllString(d.name+" "+d.is+" "+d.was, -1) {
		if p.named[name] {
			return true
		}
	}
	// Tests without a node call what they make by the number of their process.
	if n := number.FindString(d.name); n != "" && slices.ContainsFunc(p.theirs, func(o node.Process) bool {
		return strconv.Itoa(o.PID) == n[1:]
	}) {
		return true
	}
	switch d.kind {
	case "network namespace": // one of the command has a process of it or is mounted, and both are told of
		return len(p.theirs) > 0 && !slices.ContainsFunc(p.ours, func(o node.Process) bool { return o.NetNS == d.name })
	case "loop device": // of which the content is the file's name
		return len(p.theirs) > 0 && !strings.Contains(d.was+d.is, p.tmp+"/")
	case "file", "mount":
		if temporary.MatchString(d.name) {
			return len(p.theirs) > 0
		}
	}
	return p.network && shared.MatchString(d.name)
}
