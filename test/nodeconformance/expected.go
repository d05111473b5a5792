package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth/test/conformance/ginkgo"
)

// expectedFailure is a spec that cannot pass.
type expectedFailure struct {
	spec    string // a part of its name
	runtime string // the one that it is about; empty: both
	lacks   string // fails only on a machine without it, of those that lacking knows; empty: on all
	failure string // a part of its message, where spec names a group of which some get past that point; empty: any
	why     string
}

// expectedFailures are checked both ways: one that passes fails the run too, unless it is of a group, and so does one
// that the suite does not have.
var expectedFailures = []expectedFailure{
	{spec: "PrivilegedPod should enable privileged commands", lacks: dummyInterfaces,
		why: "makes an interface of the kind dummy, which this kernel does not know"},
	{spec: "Kubelet when scheduling a read only busybox container should not write to root filesystem",
		why: "expects the words of busybox's shell; the image has bash, as Debian's busybox drops variables of other specs"},
	{spec: "Resize", lacks: lowerOOMScores, failure: "oom_score_adj value",
		why: "reads an OOM score below that of the runtime, which needs CAP_SYS_RESOURCE"},
	{spec: "with a critical pod - should avoid swap", lacks: cgroupV2,
		why: "reads memory.swap.max of cgroup v2 whatever there is; the other specs of swap skip on cgroup v1"},
	{spec: "Basic functionality with configuration QOS Best-effort", lacks: cgroupV2,
		why: "sets LimitedSwap, with which a kubelet does not start on cgroup v1; the specs after it are skipped then"},
	{spec: "the container runtime is temporarily down during pod termination",
		why: "stops the runtime's unit by D-Bus, of which there is none in these namespaces"},
	{spec: "ImageGarbageCollect", failure: "code = NotFound desc = pull",
		why: "when the spec is over, all images of a list are pulled, of which some cannot be built"},
	{spec: "MirrorPod when recreating a static pod it should launch successfully",
		why: "starts a server of NFS in a pod, whose image is not among those that are built"},
	{spec: "intra-pod communication: sctp", lacks: sctp, why: "opens a socket of SCTP, which this kernel does not know"},
	{spec: "ImageCredentialProvider [Feature:KubeletCredentialProviders] should be able to create pod",
		why: "pulls from a private registry of Kubernetes' own, with a program of its provider that asks for credentials"},
	{spec: "ImageID [Feature:ImageID] should be set to the manifest digest",
		why: "pulls busybox by the digest of its upstream build, which cannot be built again"},
	{spec: "Pod InPlace Resize Container burstable", lacks: cgroupV2, failure: "pod is not ready",
		why: "a container restarts with a larger quota than its pod still has, which cgroup v1 refuses, where the kubelet" +
			" has asked cAdvisor for its use in the moment of its end"},
	{spec: "should run first init container and first restartable init container together", failure: "ever started",
		why: firstToRun},
	{spec: "should start second restartable init container before third init container", failure: "started after",
		why: firstToRun},
}

const firstToRun = "compares what two processes write first, which a kubelet starts milliseconds apart: on a machine " +
	"that has more to do than processors, the second may be the first to run"

// What machines may lack: CAP_SYS_RESOURCE for the second, and for the third a hierarchy of v2 that has the
// controllers.
const (
	dummyInterfaces = "dummy interfaces"
	lowerOOMScores  = "lower OOM scores"
	cgroupV2        = "cgroup v2"
	sctp            = "SCTP"
)

// expectations are expectedFailures for a run with a runtime on a machine.
func expectations(runtime string, lacking []string) []ginkgo.Expectation {
	expected := make([]ginkgo.Expectation, 0, len(expectedFailures))
	for _, e := range expectedFailures {
		here := (e.runtime == "" || e.runtime == runtime) && (e.lacks == "" || slices.Contains(lacking, e.lacks))
		expected = append(expected, ginkgo.Expectation{Spec: e.spec, Failure: e.failure, Why: e.why, Elsewhere: !here})
	}
	return expected
}

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
	if !isCgroup2("/sys/fs/cgroup") {
		lacking = append(lacking, cgroupV2)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		lacking = append(lacking, sctp)
	} else if err := unix.Close(socket); err != nil {
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
