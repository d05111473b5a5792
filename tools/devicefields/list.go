package devicefields

// Tests that show several things.
const (
	refused    = "TestARegistrationThatCannotBeIsRefused"
	gives      = "TestAllocateGivesNodesAndRefusesWhatIsGone"
	inside     = "TestWhatAPluginAnswersIsInTheContainer TestTheAnswersPartsReachTheContainer"
	garbage    = "TestWhatFailsLeavesNothingAllocated"
	preference = "TestThePluginsPreferenceIsFollowedAndChecked TestNUMANodesComeFromSysfs"
	plan       = "TestOneAllocateForAPodsContainers"
	numa       = "TestDevicesAreAlignedByNUMANode TestNUMANodesComeFromSysfs"
	health     = "TestHealthAndInventoryFollowThePlugin TestNodesComeAndGoWithinASecond"
	kubelet    = "TestAKubeletHandsOutPlainDevicesAndCDIDevices"
	sample     = "TestTheSampleDevicePluginOfKubernetes"
	prestart   = "TestPreStartIsToldWhereItIsAskedFor TestEachStartIsToldToThePlugin"
)

const (
	never     = "never"
	notNeeded = "leaves it empty"
)

// list is every call by its name, and every field by its message and name.
var list = map[string]row{
	"Register": {"takes the plugin in, and calls it back only afterwards; refuses what the fields below say",
		"registers each resource, and again when the socket comes back, when nobody has answered, " +
			"and when nobody watches for ten seconds; ends with the reason where it is refused",
		refused + " TestAPluginThatServesOnlyOnceItIsRegistered TestItRegistersAgainWhenTheKubeletComesBack " +
			"TestAPluginThatWatchesItsOwnSocketRegistersAgain TestARefusedRegistrationEndsThePlugin " +
			"TestAKubeletThatDoesNotAnswerIsWaitedFor TestItRegistersAgainWhereNobodyWatches " + sample + " " + kubelet},
	"GetDevicePluginOptions": {"asks once after each registration, for as long as a call may take: the plugin may begin " +
		"to serve late. An answer counts more than what the registration said. If the plugin does not have this call, the " +
		"options of its registration hold",
		"answers as it registers, since kubelets ask then; other calls wait until the registration is taken",
		"TestTheServiceStartsWithTheKubeletsWord TestAPluginThatServesOnlyOnceItIsRegistered " +
			"TestThePluginsOptionsAreItsLastWord " + gives},
	"ListAndWatch": {"follows the stream for as long as the plugin lives. " +
		"When it ends, the devices are unhealthy at once and forgotten after five minutes. Containers live on, and those " +
		"for which devices are allocated are created and started",
		"sends all devices at first and after each change",
		health + " TestAPluginThatIsAwayHurtsNobodyWhoHasItsDevices TestAPluginThatGoesAwayHasTimeToReturn " +
			"TestAPluginThatDoesNotReturnIsForgotten TestAPluginThatDiesLeavesItsContainersAlone " +
			"TestHealthThatChangesAHundredTimesASecond " + kubelet},
	"GetPreferredAllocation": {"asks where the plugin offers it and there is a choice. An answer that holds " +
		"what is not available, or not what must be included, refuses the container; an empty one is no preference",
		"keeps to one NUMA node, gives no container one device twice, and takes those that fewest share",
		preference + " TestSharesOfOneDeviceGoToDifferentContainers"},
	"Allocate": {"makes one call for all containers of a pod, once the devices are on record. " +
		"An error, an answer that cannot be, or none in time refuses the container, and nothing stays allocated",
		"looks once more whether the devices are there, and answers with nodes or CDI names",
		plan + " TestRecordsOutliveTheManager TestAllocationsOutliveAKill TestAFailedAllocationLeavesNothing " +
			"TestAPluginThatHangsHurtsOnlyItsPod TestAPluginThatDiesInTheMiddleOfAnAllocation " + gives + " " + sample},
	"PreStartContainer": {"calls before each start of a container that holds devices, where the plugin asks for it. " +
		"An error, or that such a plugin is away, ends the container with StartError and frees its devices",
		"has nothing to do, and does not ask for it", prestart + " " + gives},

	"DevicePluginOptions.pre_start_required": {"decides on PreStartContainer",
		"false", prestart + " " + gives},
	"DevicePluginOptions.get_preferred_allocation_available": {"decides on GetPreferredAllocation",
		"true", preference + " " + gives},

	"RegisterRequest.version": {"refuses others than v1beta1 with InvalidArgument", "v1beta1", refused + " " + gives},
	"RegisterRequest.endpoint": {
		"a socket below the directory, links followed only inside it; what leaves it, and kubelet.sock, is InvalidArgument",
		"berth- and the resource's name, or a hash of a long one",
		refused + " TestALinkOutOfTheDirectoryIsNotFollowed TestItRegistersAgainWhenTheKubeletComesBack"},
	"RegisterRequest.resource_name": {
		"a qualified name with a domain that is not Kubernetes' own, else InvalidArgument. One that another plugin " +
			"has that answers is AlreadyExists; the same endpoint, or one whose plugin is dead, takes its place over",
		"as the file says, checked in the same way",
		refused + " TestNamesOfExtendedResources TestAPluginThatRegistersAgainTakesItsPlaceOver TestWhatToOfferIsChecked"},
	"RegisterRequest.options": {"hold until GetDevicePluginOptions answers", "as GetDevicePluginOptions",
		"TestThePluginsOptionsAreItsLastWord " + preference + " " + gives},

	"ListAndWatchResponse.devices": {"replaces what it had; 10,000 are no trouble",
		"all, those that went away as unhealthy", health + " TestTenThousandDevices"},
	"TopologyInfo.nodes": {"containers get devices of few nodes, over all their resources together",
		"from sysfs: the nearest device above the node's own that has one", numa},
	"NUMANode.ID": {"as it is", "numa_node of sysfs; -1 is none", numa + " " + health},
	"Device.ID": {"unique, not empty, at most 1024 bytes, as kubelets do not hold plugins to 63; " +
		"what is not is left out, and `berth devices` says so",
		"the path without /dev/, the names of a group joined by +, or the name in the CDI kind; " +
			"at most 63 bytes, a long one ends with its hash; :: and a number where it is shared",
		"TestAPluginThatSendsGarbage TestSharesOfOneDeviceGoToDifferentContainers TestNodesComeAndGoWithinASecond"},
	"Device.health": {"Healthy is healthy, all else is not; only what is healthy is allocated",
		"whether the device node is there; of a group or a CDI device, all of its nodes",
		health + " TestAPluginThatSendsGarbage TestDevicesOfACDIKind"},
	"Device.topology": {"see TopologyInfo", "left out where there is no NUMA node", numa},

	"PreStartContainerRequest.devices_ids": {"all of the resource that the container holds", "not read",
		prestart + " " + gives},

	"PreferredAllocationRequest.container_requests": {
		"one container a call: what one gets is not there for the next", "answers any number", preference},
	"ContainerPreferredAllocationRequest.available_deviceIDs": {
		"healthy ones that are free, and those that must be included", "chooses from them alone", preference},
	"ContainerPreferredAllocationRequest.must_include_deviceIDs": {
		"what an init container of the pod hands on, and what the container had before it was made again",
		"are in the answer", preference + " TestAContainerHasItsDevicesBackAfterARestart"},
	"ContainerPreferredAllocationRequest.allocation_size": {"what the container asks for",
		"as many are in the answer; more than there are is InvalidArgument",
		preference + " TestSharesOfOneDeviceGoToDifferentContainers"},
	"PreferredAllocationResponse.container_responses": {
		"one, or none for no preference; more refuses the container", "one for each request", preference},
	"ContainerPreferredAllocationResponse.deviceIDs": {"checked: available, each once, " +
		"no more than asked for, with what must be included; fewer are filled up", "see the call", preference},

	"AllocateRequest.container_requests": {"the pod's containers that ask for the resource, " +
		"in the order in which they are made", "answers any number", plan + " " + gives},
	"ContainerAllocateRequest.devices_ids": {"what was chosen; an init container's may be there again for one after it",
		"one that it does not have is NotFound, an unhealthy one FailedPrecondition", plan + " " + gives},
	"CDIDevice.name": {
		"a fully qualified name, injected as all CDI devices are; what is none refuses the container",
		"the device of the kind", inside + " " + garbage + " TestDevicesOfACDIKind " + sample},
	"AllocateResponse.container_responses": {"as many as were asked for, in that order; else the container is refused",
		"one for each request", garbage + " " + plan},
	"ContainerAllocateResponse.envs": {"the container's, unless it sets them itself; " +
		"two plugins that disagree refuse it", notNeeded, inside + " TestEditsOfOthersAreAddedInOnePlace " + gives},
	"ContainerAllocateResponse.mounts": {"bind mounts of the container; two at one path refuse it", notNeeded,
		inside + " TestEditsOfOthersAreAddedInOnePlace " + sample},
	"ContainerAllocateResponse.devices": {"device nodes of the container, and what its cgroup allows", "the nodes",
		inside + " " + gives + " " + kubelet},
	"ContainerAllocateResponse.annotations": {"of the OCI spec; keys that begin with cdi.k8s.io/ name CDI devices",
		notNeeded, inside + " TestEditsOfOthersAreAddedInOnePlace"},
	"ContainerAllocateResponse.cdi_devices": {"see CDIDevice", "of a resource with cdi",
		inside + " TestDevicesOfACDIKind " + kubelet},
	"Mount.container_path": {"absolute, else the container is refused", never, inside + " " + garbage},
	"Mount.host_path": {"absolute and there, else the container is refused", never,
		inside + " " + garbage},
	"Mount.read_only":           {"as it says", never, inside},
	"DeviceSpec.container_path": {"absolute; empty is the host path", "the host path", inside + " " + gives},
	"DeviceSpec.host_path": {
		"a device node, a link to one or a directory of them; what is not there refuses the container", "the node's path",
		inside + " " + garbage + " TestAFailedAllocationLeavesNothing " + gives},
	"DeviceSpec.permissions": {"of r, w and m, for the container's cgroup; empty is all three, " +
		"others refuse the container", "as the file says, rw by default", inside + " " + garbage + " " + gives},
}
