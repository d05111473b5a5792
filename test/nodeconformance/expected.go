package main

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
)

// expectedFailure is a spec that cannot pass.
type expectedFailure struct {
	spec    string // a part of its name
	runtime string // the one that it is about; empty: both
	lacks   string // fails only on a machine without it, of those that lacking knows; empty: on all
	failure string // a part of its message, where spec names a group of which some get past that point; empty: any
	why     string
}

// expectedFailures are checked both ways: one that passes fails the run too, unless it is of a group.
var expectedFailures = []expectedFailure{
	{spec: "PrivilegedPod [NodeConformance] should enable privileged commands", lacks: dummyInterfaces,
		why: "makes an interface of the kind dummy, which this kernel does not know"},
	{spec: "Kubelet when scheduling a read only busybox container should not write to root filesystem",
		why: "expects the words of busybox's shell; the image has bash, as Debian's busybox drops variables of other specs"},
	{spec: "Resize", lacks: lowerOOMScores, failure: "oom_score_adj value",
		why: "reads an OOM score below that of the runtime, which needs CAP_SYS_RESOURCE"},
}

// What machines may lack: CAP_SYS_RESOURCE for the second.
const (
	dummyInterfaces = "dummy interfaces"
	lowerOOMScores  = "lower OOM scores"
)

const lackingFile = "lacking.json"

// noteLacking writes down what this machine lacks. It may make and remove interfaces, so it is called inside.
func noteLacking(results string) error {
	lacking := []string{}
	dummy := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "dummy"}}
	if err := netlink.LinkAdd(dummy); err != nil {
		lacking = append(lacking, dummyInterfaces)
	} else if err := netlink.LinkDel(dummy); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1"), 0); err != nil {
		lacking = append(lacking, lowerOOMScores)
	} else if err := os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0); err != nil {
		return err
	}
	data, err := json.Marshal(lacking)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(results, lackingFile), data, 0o644)
}

func readLacking(results string) (lacking []string, err error) {
	data, err := os.ReadFile(filepath.Join(results, lackingFile))
	if err != nil {
		return nil, err
	}
	return lacking, json.Unmarshal(data, &lacking)
}
