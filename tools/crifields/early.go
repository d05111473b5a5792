package crifields

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/reflect/protoreflect"

	early "berth/api/runtime/v1alpha1"
)

// Tests of the interface of July 2016.
const (
	earlyLife      = "TestThe2016LifeOfAPod"
	earlyPod       = "TestAPodOf2016IsTranslatedWhole"
	earlyContainer = "TestAContainerOf2016IsTranslatedWhole"
	earlyAsked     = "TestThe2016ContainerIsMadeAsItIsAskedFor"
	earlyWorld     = "TestThe2016PodSaysItsNameServersPortsAndNamespaces"
	earlyLimits    = "TestThe2016LimitsOfAPodAreOnItsCgroup"
	earlyNames     = "TestThe2016NameIsOfOneLivePod"
	earlyLists     = "TestThe2016ListsAreFiltered"
	earlyImages    = "TestThe2016ImagesComeAndGo"
	earlyExec      = "TestThe2016ExecIsAStreamOfBothSides"
	earlyInput     = "TestThe2016ContainersInputIsKeptOpen"
	earlyAuth      = "TestEveryFieldOfAnAuthConfigOpensARegistry TestCredentialsOf2016GoToTheStore"
	earlyShared    = "TestPodsAreSharedByTheAPIsOf2016AndOfNow TestAPodOf2016IsPausedAndStoppedThroughV1alpha2"
	earlyBadPods   = "TestWhatAPodOf2016CannotBeIsRefused"
	earlyBad       = "TestWhatAContainerOf2016CannotBeIsRefused"
	earlyNeeds     = "TestCallsOf2016WithoutWhatTheyNeedAreRefused"
	earlyWords     = "TestAStatusOf2016SaysWhatItHasWordsFor"
)

const repeats = "the pod's configuration, repeated; it is checked, and says nothing new"

// earlyCalls are the calls of the CRI of July 2016.
var earlyCalls = map[string]verdict{
	"Version":          works(earlyLife).but("0.1.0, and v1alpha1 as the interface's own version"),
	"CreatePodSandbox": works(earlyLife + " " + earlyShared).but("leaves the pod ready: no other call starts it"),
	"StopPodSandbox":   works(earlyLife).but("kills what runs; a pod that is gone is stopped"),
	"DeletePodSandbox": works(earlyLife + " TestThe2016PodThatIsDeletedTakesWhatRunsAlong").
		but("a pod that is gone is deleted"),
	"PodSandboxStatus": works(earlyLife + " " + earlyWorld),
	"ListPodSandbox":   works(earlyLists),
	"CreateContainer":  works(earlyLife + " " + earlyAsked),
	"StartContainer": works(earlyLife).but(
		"a container starts once; a restart is a new container, which may have the name of one that has ended"),
	"StopContainer":   works(earlyLife),
	"RemoveContainer": works(earlyLife).but("kills it first; one that is gone is removed"),
	"ListContainers":  works(earlyLists),
	"ContainerStatus": works(earlyLife + " " + earlyWords),
	"Exec": works(earlyExec + " TestThe2016ExecHasATerminal TestThe2016ExecEndsWithItsClient " +
		"TestThe2016ExecHoldsBackWhoIsAheadAndLosesNothing").but("ends with OK for exit code 0; " +
		"else with ABORTED, whose message names the code, and a google.rpc.ErrorInfo (reason EXIT_CODE) has it as exit_code"),
	"ListImages":  works(earlyImages),
	"ImageStatus": works(earlyImages),
	"PullImage":   works(earlyImages + " " + earlyAuth),
	"RemoveImage": works(earlyImages).but("an image that is gone is removed"),
}

// earlyFields are all fields of the CRI of July 2016.
var earlyFields = map[string]map[string]verdict{
	"VersionRequest":  {"version": meaningless("kubelets send 0.1.0 always")},
	"VersionResponse": of(works(earlyLife), "version", "runtime_name", "runtime_version", "runtime_api_version"),
	"DNSOption":       of(works(earlyWorld+" "+earlyBadPods), "servers", "searches"),
	"PortMapping": {
		"name":           meaningless("a word for people, which nothing in the interface tells again"),
		"protocol":       works(earlyPod + " " + earlyBadPods).but("unset: TCP"),
		"container_port": works(earlyWorld + " " + earlyBadPods),
		"host_port":      works(earlyWorld + " " + earlyBadPods),
		"host_ip":        works(earlyWorld + " " + earlyBadPods),
	},
	"Mount": {
		"name":            works(earlyAsked).but("comes back in the status"),
		"container_path":  works(earlyAsked + " " + earlyBad),
		"host_path":       works(earlyAsked + " " + earlyBad),
		"readonly":        works(earlyAsked),
		"selinux_relabel": works(earlyContainer + "").but("where the host has SELinux"),
	},
	"ResourceRequirements": {
		"limits": works(earlyLimits + " " + earlyBadPods).
			but("cores as CPU time in a period of 100 ms, 0.01 at least; bytes, whole; 0 is none"),
		"requests": works(earlyLimits + " " + earlyBadPods).
			but("cores as a weight, 1024 each; bytes as a soft limit, on cgroup v2 memory.low, which protects " +
				"[only in few cases](#reservations-of-memory-on-cgroup-v2); unset: limits"),
	},
	"PodSandboxResources": of(works(earlyLimits), "cpu", "memory"),
	"NamespaceOption":     of(works(earlyWorld), "host_network", "host_pid", "host_ipc"),
	"LinuxPodSandboxConfig": {
		"cgroup_parent": works(earlyLimits + " " + earlyBadPods).
			but("the pod's own cgroup is below it; with the systemd driver it is a slice"),
		"namespace_options": works(earlyWorld).but("each container has a PID namespace of its own unless host_pid is set"),
	},
	"PodSandboxConfig": {
		"name": works(earlyNames + " " + earlyBadPods).
			but("unique among the pods that have not stopped: AlreadyExists names the one that has it"),
		"hostname":      works(earlyWorld + " " + earlyBadPods),
		"log_directory": works(earlyLife + " " + earlyBadPods),
		"dns_options":   works(earlyWorld),
		"port_mappings": works(earlyWorld),
		"resources":     works(earlyLimits),
		"labels": works(earlyLife + " TestThe2016PodOfAKubeletHasTheMetadataOfItsLabels " + earlyBadPods).
			but("a kubelet's labels are the metadata that other APIs tell"),
		"annotations": works(earlyLife + " " + earlyBadPods),
		"linux":       works(earlyWorld),
	},
	"CreatePodSandboxRequest":  {"config": works(earlyLife + " " + earlyBadPods)},
	"CreatePodSandboxResponse": of(works(earlyLife), "pod_sandbox_id"),
	"StopPodSandboxRequest":    of(works(earlyLife+" "+earlyNeeds), "pod_sandbox_id"),
	"DeletePodSandboxRequest":  of(works(earlyLife+" "+earlyNeeds), "pod_sandbox_id"),
	"PodSandboxStatusRequest":  of(works(earlyLife+" "+earlyNeeds), "pod_sandbox_id"),
	"PodSandboxNetworkStatus":  of(works(earlyLife), "ip"),
	"Namespace": {"network": works(earlyWorld).
		but("unset in the node's network, and once the pod has stopped"), "options": works(earlyWorld)},
	"LinuxPodSandboxStatus": of(works(earlyWorld), "namespaces"),
	"PodSandboxStatus": {
		"id": works(earlyLife), "state": works(earlyLife), "network": works(earlyLife), "linux": works(earlyWorld),
		"name":       works(earlyLife + " " + earlyShared).but("of a pod of another API: namespace/name/uid/attempt"),
		"created_at": works(earlyLife).but("nanoseconds, as later versions say; this one names no unit"),
		"labels":     works(earlyLife), "annotations": works(earlyLife),
	},
	"PodSandboxStatusResponse": of(works(earlyLife), "status"),
	"PodSandboxFilter":         of(works(earlyLists), "name", "id", "state", "label_selector"),
	"ListPodSandboxRequest":    of(works(earlyLists), "filter"),
	"PodSandbox":               of(works(earlyLists), "id", "name", "state", "created_at", "labels"),
	"ListPodSandboxResponse":   of(works(earlyLists), "items"),
	"ImageSpec":                {"image": works(earlyImages + " " + earlyNeeds).but("a reference, or an image's ID")},
	"KeyValue":                 of(works(earlyAsked+" "+earlyBad), "key", "value"),
	"LinuxContainerResources": of(works(earlyLimits+" "+earlyBad),
		"cpu_period", "cpu_quota", "cpu_shares", "memory_limit_in_bytes", "oom_score_adj"),
	"SELinuxOption": of(works(earlyContainer+"").but("where the host has SELinux"),
		"user", "role", "type", "level"),
	"Capability": of(works(earlyAsked+" "+earlyBad), "add_capabilities", "drop_capabilities"),
	"LinuxContainerConfig": {"resources": works(earlyLimits), "capabilities": works(earlyAsked),
		"selinux_options": works(earlyContainer), "user": works(earlyAsked)},
	"LinuxUser": {
		"uid":             works(earlyAsked + " " + earlyBad).but("0 that is set is root; unset, it is the image's user"),
		"gid":             works(earlyAsked + " " + earlyBad).but("without uid: InvalidArgument"),
		"additional_gids": works(earlyAsked + " " + earlyBad),
	},
	"ContainerConfig": {
		"name":            works(earlyNames + " " + earlyBad).but("unique among the pod's containers that have not ended"),
		"image":           works(earlyAsked + " " + earlyBad),
		"command":         works(earlyAsked + " " + earlyBad),
		"args":            works(earlyAsked + " " + earlyBad),
		"working_dir":     works(earlyAsked + " " + earlyBad),
		"envs":            works(earlyAsked),
		"mounts":          works(earlyAsked),
		"labels":          works(earlyLife + " TestThe2016PodOfAKubeletHasTheMetadataOfItsLabels " + earlyBad),
		"annotations":     works(earlyLife + " " + earlyBad),
		"privileged":      works(earlyAsked).but("in any pod that this API has made"),
		"readonly_rootfs": works(earlyAsked),
		"log_path":        works(earlyLife + " " + earlyBad).but("folders on the way are made; unset: no log"),
		"stdin":           works(earlyInput),
		"stdin_once":      works(earlyInput),
		"tty":             works(earlyInput),
		"linux":           works(earlyAsked),
	},
	"CreateContainerRequest": {"pod_sandbox_id": works(earlyLife + " " + earlyNeeds),
		"config": works(earlyLife + " " + earlyBad), "sandbox_config": works(earlyNames + " " + earlyBad).but(repeats)},
	"CreateContainerResponse": of(works(earlyLife), "container_id"),
	"StartContainerRequest":   of(works(earlyLife+" "+earlyNeeds), "container_id"),
	"StopContainerRequest": {"container_id": works(earlyLife + " " + earlyNeeds),
		"timeout": works(earlyLife + " " + earlyBad).but("0 or unset: SIGKILL at once")},
	"RemoveContainerRequest": of(works(earlyLife+" "+earlyNeeds), "container_id"),
	"ContainerFilter":        of(works(earlyLists), "name", "id", "state", "pod_sandbox_id", "label_selector"),
	"ListContainersRequest":  of(works(earlyLists), "filter"),
	"Container":              of(works(earlyLists), "id", "name", "image", "image_ref", "state", "labels"),
	"ListContainersResponse": of(works(earlyLists), "containers"),
	"ContainerStatusRequest": of(works(earlyLife+" "+earlyNeeds), "container_id"),
	"ContainerStatus": {
		"id": works(earlyLife), "name": works(earlyLife + " " + earlyShared), "created_at": works(earlyLife),
		"started_at":  works(earlyLife),
		"finished_at": works(earlyLife), "image": works(earlyLife), "labels": works(earlyLife),
		"annotations": works(earlyLife), "mounts": works(earlyAsked),
		"state":     works(earlyLife + " " + earlyWords).but("a paused container is RUNNING"),
		"exit_code": works(earlyLife + " " + earlyWords).but("set once it has ended"),
		"image_ref": works(earlyLife).but("the image's ID"),
		"reason":    works(earlyLife + " " + earlyWords).but("with the message that later versions have a field for"),
	},
	"ContainerStatusResponse": of(works(earlyLife), "status"),
	"ExecRequest": {
		"container_id": works(earlyExec).but("in the first message; later ones leave it, cmd and tty out or repeat them"),
		"cmd":          works(earlyExec),
		"tty":          works("TestThe2016ExecHasATerminal " + earlyExec),
		"stdin": works(earlyExec + " TestThe2016ExecHoldsBackWhoIsAheadAndLosesNothing").
			but("until the client closes its side; a terminal stays open then"),
	},
	"ExecResponse": {"stdout": works(earlyExec),
		"stderr": works(earlyExec + " TestThe2016ExecHasATerminal").but("none with a terminal")},
	"ImageFilter":         of(works(earlyImages), "image"),
	"ListImagesRequest":   of(works(earlyImages), "filter"),
	"Image":               of(works(earlyImages), "id", "repo_tags", "repo_digests", "size"),
	"ListImagesResponse":  of(works(earlyImages), "images"),
	"ImageStatusRequest":  of(works(earlyImages+" "+earlyNeeds), "image"),
	"ImageStatusResponse": of(works(earlyImages), "image"),
	"AuthConfig": of(works(earlyAuth),
		"username", "password", "auth", "server_address", "identity_token", "registry_token"),
	"PullImageRequest": {"image": works(earlyImages + " " + earlyNeeds), "auth": works(earlyAuth),
		"sandbox_config": works(earlyImages).but(repeats)},
	"RemoveImageRequest": of(works(earlyImages+" "+earlyNeeds), "image"),
}

// of is one verdict on several fields.
func of(v verdict, names ...string) map[string]verdict {
	out := make(map[string]verdict, len(names))
	for _, name := range names {
		out[name] = v
	}
	return out
}

// earlySection is the interface of July 2016, every call and every field, those of answers included.
func earlySection(r *rows) error {
	r.b.WriteString(`
## runtime (v1alpha1), July 2016

gRPC package runtime, in proto2: runtime.RuntimeService and runtime.ImageService. The bytes of a message of each kind
are held by [TestTheWireOf2016](../internal/cri/v1alpha1) and [TestBytesOf2016AreUnderstood](../internal/cri/v1alpha1).
What is not UTF-8, a NUL byte in a string and an enum's value that the interface does not name get InvalidArgument
with the field's path ([` + earlyBadPods + `](../internal/cri/v1alpha1)).

Where this interface has a name, others have metadata. A pod that is made here has the metadata of the labels
io.kubernetes.pod.name, .namespace and .uid; without them its name, the namespace default, and a UID
that pods of one name share; the attempt is the next one that is free. A pod that is made elsewhere is called
namespace/name/uid/attempt here, and a container by its name.

### Calls of 2016

| call | answer | state | shown by |
|---|---|---|---|
`)
	file := early.File_runtime_v1alpha1_runtime_proto
	for i := range file.Services().Len() {
		methods := file.Services().Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			v, ok := earlyCalls[string(m.Name())]
			if !ok {
				return fmt.Errorf("the list of 2016 does not know the call %s", m.Name())
			}
			kind := "one"
			if m.IsStreamingServer() {
				kind = "stream, of a stream"
			}
			if err := r.add(string(m.Name()), kind, v); err != nil {
				return err
			}
		}
	}
	r.b.WriteString("\n### Fields of 2016\n")
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		if m.Fields().Len() == 0 {
			continue
		}
		fmt.Fprintf(r.b, "\n#### %s of 2016\n\n| field | type | state | shown by |\n|---|---|---|---|\n", m.Name())
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			v, ok := earlyFields[string(m.Name())][string(f.Name())]
			if !ok {
				return fmt.Errorf("the list of 2016 does not know the field %s.%s", m.Name(), f.Name())
			}
			if err := r.add(string(f.Name()), kindOf(f), v); err != nil {
				return err
			}
		}
	}
	r.total()
	return nil
}

// unknownToEarly are the entries of the lists that the interface of 2016 does not have.
func unknownToEarly() (out []string) {
	file := early.File_runtime_v1alpha1_runtime_proto
	known := map[string]bool{}
	for i := range file.Services().Len() {
		methods := file.Services().Get(i).Methods()
		for j := range methods.Len() {
			known[string(methods.Get(j).Name())] = true
		}
	}
	for call := range earlyCalls {
		if !known[call] {
			out = append(out, call)
		}
	}
	for message, of := range earlyFields {
		m := file.Messages().ByName(protoreflect.Name(message))
		for field := range of {
			if m == nil || m.Fields().ByName(protoreflect.Name(field)) == nil {
				out = append(out, message+"."+field)
			}
		}
	}
	slices.Sort(out)
	return out
}
