package crifields

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"berth/api/pouch"
)

// Tests of runtime.v1alpha2.
const (
	bothWays = "TestWhatPouchContainerAddsIsTranslatedBothWays"
	byPath   = "TestWhatPouchContainerDoesNotAllowIsRefusedByPath"
	pauses   = "TestAPausedContainerIsFrozenUntilItIsUnpaused TestAPausedContainerIsStoppedAndRemoved " +
		"TestAPauseOutlivesTheDaemon TestAPauseHoldsUpNobodyElse"
	comesBack   = "TestASandboxThatStoppedByAccidentComesBack TestAStartOfASandboxThatIsCutOffIsMadeAgain"
	namedVolume = "TestANamedVolumeIsKeptUntilItIsRemoved"
	quotas      = "TestALimitHoldsAndIsSeen TestWithoutProjectQuotasTheFileSystemIsNamed TestPlans"
	throttles   = "TestBlockIOIsThrottled"
	weighed     = "TestBlockIOIsWeighedOrRefused"
	wire125     = "TestV1ReadsAndWritesTheBytesOfKubernetes125"
)

// pouchCalls are the calls that PouchContainer adds.
var pouchCalls = map[string]verdict{
	"StartPodSandbox": works(comesBack).but("brings back a sandbox whose namespaces or init are gone, " +
		"after a reboot too, with its addresses; its containers stay ended"),
	"PauseContainer":   works(pauses),
	"UnpauseContainer": works(pauses),
	"RemoveVolume":     works(namedVolume + " TestAVolumeInUseIsNotRemoved"),
}

// pouchFields are the fields that PouchContainer adds, and those of its own messages.
var pouchFields = map[string]map[string]verdict{
	"StartPodSandboxRequest":  {"pod_sandbox_id": works(comesBack)},
	"PauseContainerRequest":   {"container_id": works(pauses)},
	"UnpauseContainerRequest": {"container_id": works(pauses)},
	"RemoveVolumeRequest":     {"volume_name": works(namedVolume)},
	"Mount": {
		"name": works(namedVolume + " TestAVolumeIsFilledWhileItIsEmpty").
			but("in place of host_path: with both, InvalidArgument; a status has both"),
	},
	"LinuxContainerResources": {
		"disk_quota":   works(quotas).but("FailedPrecondition where the file system has no project quotas"),
		"blkio_weight": works(weighed).but("FailedPrecondition where the kernel has no weights"),
		"blkio_weight_device": works(weighed + " TestAWeightForADeviceWithoutBFQIsRefused " + bothWays).
			but("as blkio_weight, and where the device's I/O scheduler is not bfq"),
		"blkio_device_read_bps":   works(throttles).but("a rate of 0 is none"),
		"blkio_device_write_bps":  works(throttles),
		"blkio_device_read_IOps":  works(throttles),
		"blkio_device_write_IOps": works(throttles),
		"kernel_memory": refused("FailedPrecondition: "+
			"cgroup v2 has no such limit, and Linux 5.16 gave up that of v1, which older kernels are not asked for either; "+
			"-1 asks for no limit and is taken",
			"TestMemoryHasAReservationAndSwappiness TestWhatACgroupVersionLacksIsRefused"),
		"memory_reservation": works("TestMemoryHasAReservationAndSwappiness " +
			"TestAReservationFollowsAnUpdateOfMemoryAlone TestNoReservationIsNoneOnV2").
			but("memory.low on cgroup v2, which protects [only in few cases](#reservations-of-memory-on-cgroup-v2); " +
				"one above a new limit of memory becomes that limit"),
		"memory_swappiness": works("TestMemoryHasAReservationAndSwappiness TestWhatACgroupVersionLacksIsRefused").
			but("FailedPrecondition on cgroup v2, which has none"),
		"ulimits": works("TestUlimitsAreTheContainers").but("of a running container they cannot change, " +
			"and without CAP_SYS_RESOURCE not go above the runtime's own: FailedPrecondition"),
	},
	"WeightDevice":   {"path": works(weighed + " " + byPath), "Weight": works(weighed + " " + byPath)},
	"ThrottleDevice": {"path": works(throttles), "rate": works(throttles)},
	"Ulimit": {
		"name": works("TestUlimitsAreTheContainers " + byPath), "hard": works("TestUlimitsAreTheContainers " + byPath),
		"soft": works("TestUlimitsAreTheContainers"),
	},
	"ContainerConfig": {
		"net_priority": works("TestNetPriorityIsForTheNodesInterfaces TestTrafficHasItsPriority").but("for pods in " +
			"the node's network on cgroup v1 with net_prio; else FailedPrecondition, since the kernel has no such priority"),
		"quota_id": works("TestAnIDThatAClientChooses TestIDs " + byPath),
	},
	"ContainerStatus": {
		"volumes":   works("TestVolumesOfAnImageAreTheContainersOwn " + bothWays),
		"resources": works("TestUlimitsAreTheContainers TestBlockIOIsThrottled " + bothWays),
		"quota_id":  works("TestNoIDIsGivenTwice " + bothWays),
		"envs":      works("TestAStatusTellsTheEnvironmentAndAnImageItsVolumes " + bothWays),
	},
	"Image": {"volumes": works(bothWays)},
	"ImageSpec": {"spec_annotations": works(
		"TestAStatusTellsTheEnvironmentAndAnImageItsVolumes TestAnImageTellsTheAnnotationsOfItsPull " + bothWays).
		but("they are kept and told, those of the last pull that brought some in the image's spec, after a restart too; " +
			"none changes how an image is pulled")},
	"KeyValue":   {"key": works(bothWays), "value": works(bothWays)},
	"Int64Value": {"value": works("TestMemoryHasAReservationAndSwappiness")},
}

// responses are the tests of messages that answers are made of.
var responses = map[string]string{
	"VersionResponse":         "TestAPodLivesThroughV1alpha2 TestVersionAndStatusSayWhatANodeIs",
	"RunPodSandboxResponse":   "TestAPodLivesThroughV1alpha2",
	"PodSandboxStatus":        "TestStatesAndUsageAreTold TestAnnotationsAndLabelsComeBackAsGiven",
	"PodSandboxNetworkStatus": "TestStatesAndUsageAreTold TestPodsAreReached", "PodIP": "TestStatesAndUsageAreTold",
	"LinuxPodSandboxStatus": "TestStatesAndUsageAreTold", "Namespace": "TestStatesAndUsageAreTold",
	"PodSandboxStatusResponse": "TestVerboseStatusTellsWhatAPersonNeeds",
	"PodSandbox":               lists, "ListPodSandboxResponse": lists, "Container": lists,
	"ListContainersResponse":  lists,
	"PodSandboxStatsResponse": usage, "ListPodSandboxStatsResponse": usage, "PodSandboxStats": usage,
	"PodSandboxAttributes": usage,
	"LinuxPodSandboxStats": usage, "NetworkUsage": usage, "NetworkInterfaceUsage": usage, "ProcessUsage": usage,
	"CreateContainerResponse": "TestAPodLivesThroughV1alpha2", "ContainerResources": "TestResourcesAreOnTheCgroup",
	"ContainerStatus":         "TestAStatusSaysWhatTheContainerWasMadeOf TestStatesAndUsageAreTold",
	"ContainerStatusResponse": "TestVerboseStatusTellsWhatAPersonNeeds",
	"ExecSyncResponse":        "TestExecSyncGivesOutputAndCode", "ExecResponse": execs, "AttachResponse": attaches,
	"PortForwardResponse": "TestAPortOfAPodIsForwarded",
	"Image":               "TestAnImageIsKnownByTagDigestAndID",
	"ListImagesResponse":  "TestAnImageIsKnownByTagDigestAndID",
	"ImageStatusResponse": "TestVerboseStatusTellsWhatAPersonNeeds",
	"PullImageResponse":   "TestAnImageIsKnownByTagDigestAndID",
	"RuntimeStatus":       "TestVersionAndStatusSayWhatANodeIs", "RuntimeCondition": "TestVersionAndStatusSayWhatANodeIs",
	"StatusResponse":      "TestVersionAndStatusSayWhatANodeIs TestVerboseStatusTellsWhatAPersonNeeds",
	"ImageFsInfoResponse": "TestImageStoreSaysWhatItTakes", "FilesystemUsage": "TestImageStoreSaysWhatItTakes",
	"FilesystemIdentifier": "TestImageStoreSaysWhatItTakes", "UInt64Value": usage,
	"ContainerStatsResponse": usage, "ListContainerStatsResponse": usage, "ContainerStats": usage,
	"ContainerAttributes": usage,
	"CpuUsage":            usage, "MemoryUsage": usage,
}

// imageRefs are the fields of answers, by message, that say differently which image a container has.
var imageRefs = map[string]verdict{
	"Container": works("TestAnImageHasOneIDInEveryCall").
		but("the image's ID, by which kubelets before 1.30 know the images in use; v1's lists have the same"),
	"ContainerStatus": works("TestAnImageHasOneIDInEveryCall TestStatesAndUsageAreTold").
		but("a repository's digest, where the image has one, else its ID"),
}

// ofKubernetes is what becomes of a field that v1alpha2 has in common with v1.
func ofKubernetes(f protoreflect.FieldDescriptor) (verdict, bool) {
	if v, ok := ofField(f); ok {
		return v, true
	}
	if v, ok := imageRefs[string(f.Parent().Name())]; ok && f.Name() == "image_ref" {
		return v, true
	}
	tests, ok := responses[string(f.Parent().Name())]
	return works(tests), ok
}

// unknownToPouch are the entries of the lists that PouchContainer's messages do not have.
func unknownToPouch() []string {
	known := map[string]bool{}
	services, messages := pouch.File_pouch_proto.Services(), pouch.File_pouch_proto.Messages()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			known[string(services.Get(i).Methods().Get(j).Name())] = true
		}
	}
	for i := range messages.Len() {
		for j := range messages.Get(i).Fields().Len() {
			known[string(messages.Get(i).Name())+"."+string(messages.Get(i).Fields().Get(j).Name())] = true
		}
	}
	var out []string
	for call := range pouchCalls {
		if !known[call] {
			out = append(out, call)
		}
	}
	for message, of := range pouchFields {
		for field := range of {
			if name := message + "." + field; !known[name] {
				out = append(out, name)
			}
		}
	}
	return out
}

// golden are the messages of Kubernetes 1.25, in order, each with all its fields set, and its calls.
func golden(file string) (messages []protoreflect.Message, calls []string, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(data)) {
		name, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if strings.HasPrefix(name, "/") {
			calls = append(calls, name)
			continue
		}
		kind, err := protoregistry.GlobalTypes.FindMessageByName(
			protoreflect.FullName(strings.Replace(name, ".v1alpha2.", ".v1.", 1)))
		if err != nil {
			return nil, nil, err
		}
		wire, err := hex.DecodeString(rest)
		if err != nil {
			return nil, nil, err
		}
		m := kind.New()
		if err := proto.Unmarshal(wire, m.Interface()); err != nil {
			return nil, nil, err
		}
		messages = append(messages, m)
	}
	return messages, calls, nil
}

const pouchIntro = `## runtime.v1alpha2, with PouchContainer's extensions

RuntimeService and ImageService are those of Kubernetes 1.25: on the wire v1 is a superset of them, which
[TestV1ReadsAndWritesTheBytesOfKubernetes125](../internal/cri/v1alpha2) holds to the bytes that Kubernetes' own
types write, and v1's handlers answer. So the tests of v1 after a field are its tests;
` + "`make conformance CONFORMANCE_FLAGS='-api v1alpha2'`" + ` runs
critest through this API. The calls that v1 has added since are there, too. VersionResponse says v1alpha2.

What PouchContainer adds stands in the same messages from field 100 on; these fields are marked **Pouch**.
Through v1 they are unknown fields, and left alone. A paused container is in state 4, CONTAINER_PAUSE; v1 calls
it running, with the reason Paused. State 100 of a sandbox, SANDBOX_NOTFOUND, selects none in a filter.

Only this API uses these annotations:

| annotation | on | |
|---|---|---|
| io.kubernetes.runtime | a pod | the runtime handler, where the request names none |
| io.kubernetes.lxcfs.enabled | a pod | "true": its containers see lxcfs' files in /proc; FailedPrecondition where lxcfs is not mounted at /var/lib/lxcfs |
| io.alibaba.pouch.resources.memory-swap | a container | memory and swap together, in bytes; -1 is no limit |
| io.alibaba.pouch.resources.pids-limit | a container | how many processes it may have; -1 is no limit |

Every API uses the following annotations, where ` + "`allowed_annotations`" + ` of the pod's runtime handler names them
(none by default). On a pod the container's name follows (` + "`berth.dev/ulimits.web`" + `),
on a container nothing does; a field of the request holds against an annotation. One that is not allowed,
or that does not exist, is ignored: the log says so, and so does a verbose status, under ` + "`ignored`" + `.

| annotation | example |
|---|---|
| berth.dev/ulimits | ` + "`nofile=1024:4096,nproc=64`" + `: soft and hard limit, or one for both |
| berth.dev/blkio | ` + "`weight=500,weight=/dev/sda:300,read-bps=/dev/sda:1Mi,write-bps=…,read-iops=…,write-iops=/dev/sda:100`" + ` |
| berth.dev/memory-reservation, berth.dev/kernel-memory | ` + "`128Mi`" + `. On cgroup v2, a reservation protects [only in few cases](#reservations-of-memory-on-cgroup-v2) |
| berth.dev/memory-swappiness | ` + "`0`" + ` to ` + "`100`" + ` |
| berth.dev/pids-limit | ` + "`100`" + `; -1 is no limit |
| berth.dev/net-priority | ` + "`5`" + ` |
| berth.dev/log | ` + "`max_size=64m,max_files=3,rate=1m,burst=16m,over=drop`" + `: what ` + "`[log]`" + ` of the configuration has under these names; 0 is no limit. On a pod without the name of a container it is for all of its containers. See [Logs of containers](operations.md#logs-of-containers) |
| berth.dev/disk-quota, berth.dev/quota-id | ` + "`/=10g,/data=2g`" + `, or one size for the root file system and all volumes together; ` + "`-1`" + ` |

Tests: [TestAnnotationsLimitAContainerWhereTheHandlerAllowsThem](../test/life),
[TestEveryAnnotationIsRead](../internal/annotation). A pod that one API makes is there in the others:
[TestAPodLivesThroughV1alpha2](../test/life), [TestAPodOfV1IsStoppedAndRemovedThroughV1alpha2](../test/life).

### Reservations of memory on cgroup v2

A reservation of memory is ` + "`memory.soft_limit_in_bytes`" + ` on cgroup v1, and ` + "`memory.low`" + `
on cgroup v2, of one cgroup: that of the container, or that of a pod of 2016. On cgroup v2, the kernel protects no more
memory of a cgroup than each cgroup above it has in its own ` + "`memory.low`" + `, up to the one that is
short of memory. The cgroups above have 0 there. So a container's reservation only holds among the containers of its
pod, when the pod reaches its own memory limit. When the node is short of memory, it protects nothing, unless something
else sets ` + "`memory.low`" + ` of the cgroups above, as a kubelet with MemoryQoS may.

### Calls

| call | service | state | shown by |
|---|---|---|---|
`

func pouchSection(r *rows) error {
	messages, all, err := golden(filepath.Join(root, "internal", "cri", "v1alpha2", "testdata", "kubernetes-1.25.txt"))
	if err != nil {
		return err
	}
	r.b.WriteString(pouchIntro)
	for _, call := range all {
		service, name, _ := strings.Cut(strings.TrimPrefix(call, "/runtime.v1alpha2."), "/")
		v, ok := calls[name]
		if !ok {
			return fmt.Errorf("the list does not know the call %s", name)
		}
		if err := r.add(name, service, v); err != nil {
			return err
		}
	}
	services := pouch.File_pouch_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			name := string(services.Get(i).Methods().Get(j).Name())
			v, ok := pouchCalls[name]
			if !ok {
				return fmt.Errorf("the list does not know the call %s", name)
			}
			if err := r.add(name+" (**Pouch**)", string(services.Get(i).Name()), v); err != nil {
				return err
			}
		}
	}
	r.b.WriteString("\n### Fields\n")
	own := map[protoreflect.Name]protoreflect.MessageDescriptor{}
	list := pouch.File_pouch_proto.Messages()
	for i := range list.Len() {
		own[list.Get(i).Name()] = list.Get(i)
	}
	for _, m := range messages {
		fields, err := kubernetesRows(m)
		if err != nil {
			return err
		}
		ext := own[m.Descriptor().Name()]
		delete(own, m.Descriptor().Name())
		if err := r.message(m.Descriptor().Name(), fields, ext); err != nil {
			return err
		}
	}
	for i := range list.Len() {
		if ext := own[list.Get(i).Name()]; ext != nil {
			if err := r.message(ext.Name(), nil, ext); err != nil {
				return err
			}
		}
	}
	r.total()
	return nil
}

// kubernetesRow is a field that v1alpha2 has in common with v1.
type kubernetesRow struct {
	field   protoreflect.FieldDescriptor
	verdict verdict
}

func kubernetesRows(m protoreflect.Message) ([]kubernetesRow, error) {
	var out []kubernetesRow
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if !m.Has(f) {
			continue // v1 has it, and v1alpha2 has not
		}
		v, ok := ofKubernetes(f)
		if !ok {
			return nil, fmt.Errorf("the list does not know the field %s.%s", m.Descriptor().Name(), f.Name())
		}
		out = append(out, kubernetesRow{f, v})
	}
	return out, nil
}

// message writes the table of a message: Kubernetes' fields, and PouchContainer's (ext, which may be nil).
func (r *rows) message(name protoreflect.Name, fields []kubernetesRow, ext protoreflect.MessageDescriptor) error {
	if len(fields) == 0 && (ext == nil || ext.Fields().Len() == 0) {
		return nil
	}
	fmt.Fprintf(r.b, "\n#### %s\n\n| field | type | state | shown by |\n|---|---|---|---|\n", name)
	for _, row := range fields {
		if err := r.add(string(row.field.Name()), kindOf(row.field), row.verdict); err != nil {
			return err
		}
	}
	if ext == nil {
		return nil
	}
	taken := map[protoreflect.FieldNumber]bool{}
	for _, row := range fields {
		taken[row.field.Number()] = true
	}
	for i := range ext.Fields().Len() {
		f := ext.Fields().Get(i)
		if taken[f.Number()] {
			continue // a message that both have whole
		}
		v, ok := pouchFields[string(name)][string(f.Name())]
		if !ok {
			return fmt.Errorf("the list does not know the field %s.%s", name, f.Name())
		}
		kind := kindOf(f)
		if name == "ContainerStatus" && f.Name() == "resources" {
			kind = "LinuxContainerResources"
		}
		if err := r.add(fmt.Sprintf("%s (**Pouch**, %d)", f.Name(), f.Number()), kind, v); err != nil {
			return err
		}
	}
	return nil
}
