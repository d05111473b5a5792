package crifields

import (
	"fmt"
	"slices"
	"strings"
)

// isuladCalls are the calls of iSulad's document, in its order, with what it says of them beyond the CRI.
var isuladCalls = []struct{ name, note string }{
	{"RunPodSandbox", "no pause image is needed; names may have underscores"},
	{"StopPodSandbox", ""},
	{"RemovePodSandbox", "stops the pod first, gives back its network, and leaves no container"},
	{"PodSandboxStatus", "tells what verbose asks for"},
	{"ListPodSandbox", ""},
	{"CreateContainer", "names may have underscores; with the runtime of its pod"},
	{"StartContainer", ""},
	{"StopContainer", ""},
	{"RemoveContainer", ""},
	{"ListContainers", ""},
	{"ContainerStatus", "tells what verbose asks for"},
	{"UpdateContainerResources", ""},
	{"ExecSync", ""},
	{"Exec", "over SPDY and WebSocket"},
	{"Attach", "over SPDY and WebSocket"},
	{"ContainerStats", "for every runtime"},
	{"ListContainerStats", "for every runtime"},
	{"UpdateRuntimeConfig", "the range of addresses is taken up, where it is logged there"},
	{"Status", "follows the network's configuration"},
	{"ListImages", ""},
	{"ImageStatus", "an image that is not there is an answer without image"},
	{"PullImage", "with every field of AuthConfig"},
	{"RemoveImage", ""},
	{"ImageFsInfo", ""},
}

// isuladMessages are the structures that the document names as parameters and results. Their fields are those of
// runtime.v1alpha2.
var isuladMessages = []string{
	"DNSConfig", "PortMapping", "Mount", "Capability", "Int64Value", "UInt64Value", "LinuxSandboxSecurityContext",
	"LinuxPodSandboxConfig", "PodSandboxMetadata", "PodSandboxConfig", "PodSandboxNetworkStatus", "Namespace",
	"LinuxPodSandboxStatus", "PodSandboxStatus", "PodSandboxStateValue", "PodSandboxFilter", "PodSandbox", "KeyValue",
	"SELinuxOption", "ContainerMetadata", "ContainerStateValue", "ContainerFilter", "LinuxContainerSecurityContext",
	"LinuxContainerResources", "Image", "ImageSpec", "FilesystemIdentifier", "FilesystemUsage", "AuthConfig", "Container",
	"ContainerStatus", "ContainerStatsFilter", "ContainerStats", "ContainerAttributes", "CpuUsage",
	"MemoryUsage", "Device",
	"LinuxContainerConfig", "ContainerConfig", "NetworkConfig", "RuntimeConfig", "RuntimeCondition", "RuntimeStatus",
}

// isuladLimits are what the document warns of.
var isuladLimits = []struct {
	limit string
	here  verdict
}{
	{"an underscore in metadata breaks listing", works("TestNamesMayHaveUnderscores")},
	{"cgroup_parent cannot be set", works("TestContainersLiveUnderThePodsCgroup")},
	{"info of a verbose status is empty", works("TestVerboseStatusTellsWhatAPersonNeeds")},
	{"a pause image must be had for pods", meaningless("a pod has no process of an image")},
	{"removing a pod keeps its network unless it was stopped", works("TestAPodThatIsRemovedTakesItsContainersAlong")},
	{"removing a pod may leave containers behind", works("TestARemovalThatFailsHalfWayIsFinished")},
	{"with a log_directory every container must have a log_path", works("TestContainersOfAPodHaveALogOrNone")},
	{"the folder of a log must exist", works("TestContainersOfAPodHaveALogOrNone")},
	{"of two containers with one log the later takes it",
		works("TestTwoContainersNeverWriteOneLog").but("FailedPrecondition names the one that writes it")},
	{"run_as_username goes before run_as_user", refused("InvalidArgument for both at once, as the CRI has it", refusals)},
	{"parameters without a field come as annotations",
		works("TestAnnotationsLimitAContainerWhereTheHandlerAllowsThem").but("those of the section above")},
	{"exec without a stream, or with tty and stderr",
		refused("InvalidArgument", "TestCallsWithoutWhatTheyNeedAreRefused")},
	{"exec and attach lose data when the reader is slow", works("TestAHundredMegabytesPassThroughAnExecEachWay " +
		"TestAThousandStreamsWithSlowReadersAmongThem TestWhoDoesNotReadWhatItAttachedToIsCutOffAndTold").
		but("an attached client that falls behind by `stream.attach_backlog` is cut off and told")},
	{"exec and attach are not for binary data and files",
		works("TestAHundredMegabytesPassThroughAnExecEachWay").but("WebSocket v4 and v5, and SPDY")},
	{"UpdateContainerResources does not change oom_score_adj", works("TestAnUpdateChangesTheOOMScore")},
	{"at most 100 streams at once", works("TestAThousandStreamsWithSlowReadersAmongThem")},
	{"streams are served on 127.0.0.1:10350, by WebSocket", works("TestTheStreamingServerListensWhereItIsTold").
		but("with `stream.port = 10350`; any free port by default; SPDY, too; each address is good for one connection")},
	{"stats for one runtime alone", works("TestStatsComeForEveryHandler")},
	{"UpdateRuntimeConfig writes a log line", works("TestTheNodesRangeIsTakenUp")},
	{"Status refreshes the network; what cannot be read changes nothing",
		works("TestAStatusKeepsTheOldNetworkWhenTheNewConfigurationIsBroken")},
	{"embedded images are listed with limits", meaningless("there is no such format here: images are OCI's and Docker's")},
	{"server_address, identity_token and registry_token are not supported",
		works("TestEveryFieldOfAnAuthConfigOpensARegistry TestCredentialsOfEveryKindAreTaken")},
	{"an image whose tag has moved is called none", works("TestAnImageWhoseTagHasMovedIsListedByItsDigest")},
}

// isuladSection is what iSulad's document has: calls, structures, and limits.
func isuladSection(r *rows) error {
	r.b.WriteString(`
## iSulad

iSulad's clients speak runtime.v1alpha2, so the section on it holds for them. This one goes through iSulad's own
document: its calls, the structures that it names, and what it warns of.

### Calls of iSulad's document

| call | | state | shown by |
|---|---|---|---|
`)
	for _, c := range isuladCalls {
		v, ok := calls[c.name]
		if !ok {
			return fmt.Errorf("the list does not know the call %s", c.name)
		}
		if err := r.add(c.name, c.note, v); err != nil {
			return err
		}
	}
	r.b.WriteString(
		"\n### Structures of iSulad's document\n\nTheir fields one by one are in the section on runtime.v1alpha2.\n\n" +
			"| structure | | state | shown by |\n|---|---|---|---|\n")
	for _, name := range isuladMessages {
		v, err := ofMessage(name)
		if err != nil {
			return err
		}
		if err := r.add(name, "", v); err != nil {
			return err
		}
	}
	r.b.WriteString("\n### What iSulad's document warns of\n\n| there | | here | shown by |\n|---|---|---|---|\n")
	for _, l := range isuladLimits {
		if err := r.add(l.limit, "", l.here); err != nil {
			return err
		}
	}
	r.total()
	return nil
}

// ofMessage is a structure that works, as all the tests of its fields show.
func ofMessage(name string) (verdict, error) {
	tests := strings.Fields(responses[name])
	for _, v := range fields[name] {
		tests = append(tests, v.tests...)
	}
	slices.Sort(tests)
	tests = slices.Compact(tests)
	if len(tests) == 0 {
		return verdict{}, fmt.Errorf("no test shows the structure %s", name)
	}
	return works(strings.Join(tests, " ")), nil
}
