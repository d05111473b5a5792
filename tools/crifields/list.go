package crifields

// Tests that show several fields.
const (
	sandboxTranslated   = "TestASandboxIsTranslatedWhole"
	containerTranslated = "TestAContainerIsTranslatedWhole"
	refusals            = "TestWhatTheInterfaceDoesNotAllowIsRefused"
	lists               = "TestListsAreFilteredByStateLabelsAndID"
	streams             = "TestStreamsSayWhatListsSay"
	gone                = "TestWhatIsGoneIsNotFound"
	prefixes            = "TestIDPrefixesAreAccepted"
	usage               = "TestStatsSayWhatAContainerUses"
	checkpoints         = "TestACheckpointIsAskedFor TestACheckpointIsGoneOnWithInAnotherPod"
	podCheckpoints      = "TestAPodsCheckpointIsGoneOnWithInAnotherPod"
	podLimits           = "TestLimitsOfAPodAreOnItsCgroupWithTheOverhead"
	namespacesTest      = "TestNamespacesAreThePodsTheContainersOrTheNodes"
	userns              = "TestRootInAUserNamespaceIsNobodyOnTheNode TestBadUserMappingsAreRefused"
	whoRuns             = "TestWhoAContainerRunsAs"
	execs               = "TestAnExecIsStreamed"
	attaches            = "TestAttachJoinsStreams TestTwoClientsAttachToOneContainer"
	credentials         = "TestCredentialsOfEveryKindAreTaken"
	ranges              = "TestNumbersAndEnumsOutOfRangeAreRefusedByPath"
	labels              = "TestLabelsThatAreAskedFor"
)

const (
	noProcess = "a pod has no process of its image: each container has a security context of its own"
	noPause   = "the first process of a pod's shared PID namespace is Berth's, with the least rights there are"
	windows   = "InvalidArgument: this node runs Linux"
	noOptions = "InvalidArgument: there are no options"
	noPaths   = "if this list and the other one are empty, a container without a user namespace has the usual paths"
)

// calls are all calls, by name.
var calls = map[string]verdict{
	"Version":                  works("TestVersionAndStatusSayWhatANodeIs"),
	"RunPodSandbox":            works("TestHostnameHostsAndResolverAreThePods TestTenPodsStartAtOnce"),
	"StopPodSandbox":           works("TestStopAndRemoveAreIdempotent TestAStoppedPodKeepsItsContainersAsExited"),
	"RemovePodSandbox":         works("TestStopAndRemoveAreIdempotent TestAPodThatIsRemovedTakesItsContainersAlong"),
	"PodSandboxStatus":         works("TestAnnotationsAndLabelsComeBackAsGiven TestTimesAreNanosecondsInOrder"),
	"ListPodSandbox":           works(lists),
	"StreamPodSandboxes":       works(streams + " TestStreamsHaveEachItemOnceInMessagesThatEveryClientTakes"),
	"CreateContainer":          works("TestTheImagesDefaultsAreMergedWithWhatIsAskedFor"),
	"StartContainer":           works("TestAnEndHasACodeAndAReason TestAStartedContainerIsNotStartedAgain"),
	"StopContainer":            works("TestAStopGivesGraceAndThenKills TestAStopThatIsRepeatedSendsNoSecondSignal"),
	"RemoveContainer":          works("TestARemovalOfARunningContainerKillsIt"),
	"ListContainers":           works(lists),
	"StreamContainers":         works(streams),
	"ContainerStatus":          works("TestAStatusSaysWhatTheContainerWasMadeOf"),
	"UpdateContainerResources": works("TestResourcesAreOnTheCgroup"),
	"ReopenContainerLog":       works("TestALogIsReopened"),
	"ExecSync":                 works("TestExecSyncGivesOutputAndCode"),
	"Exec":                     works(execs),
	"Attach":                   works(attaches),
	"PortForward":              works("TestAPortOfAPodIsForwarded"),
	"ContainerStats":           works(usage),
	"ListContainerStats":       works(usage),
	"StreamContainerStats":     works(streams),
	"PodSandboxStats":          works(usage),
	"ListPodSandboxStats":      works(usage),
	"StreamPodSandboxStats":    works(streams),
	"UpdateRuntimeConfig":      works("TestTheNodesRangeIsTakenUp"),
	"Status":                   works("TestVersionAndStatusSayWhatANodeIs"),
	"CheckpointContainer":      works(checkpoints),
	"CheckpointPod":            works(podCheckpoints),
	"RestorePod":               works(podCheckpoints),
	"GetContainerEvents": works("TestEventsFollowTheLifeOfAPod TestEventsAreThereFromTheHeaderOnOnceEachInOrder " +
		"TestWhoIsTooSlowGetsAllUpToTheCutAndDelaysNobody"),
	"ListMetricDescriptors":     works("TestMetricsAreThoseOfCAdvisor"),
	"ListPodSandboxMetrics":     works("TestMetricsAreThoseOfCAdvisor TestARegistryTakesTheMetricsOfARealProcess"),
	"StreamPodSandboxMetrics":   works(streams),
	"RuntimeConfig":             works("TestStatusTellsOfTheNode"),
	"UpdatePodSandboxResources": works(podLimits + " TestLimitsOfACgroupThatTheClientMadeAreTheClients"),
	"ListImages":                works("TestAnImageIsKnownByTagDigestAndID"),
	"StreamImages":              works(streams),
	"ImageStatus":               works("TestAnImageIsKnownByTagDigestAndID TestAnArtifactIsAmongTheImages"),
	"PullImage": works(
		"TestTenPullsOfOneImageShareTheWork TestAnImageThatDoesNotExist TestAnArtifactIsPulledAsItsFiles"),
	"RemoveImage": works("TestAnImageInUseKeepsItsContainers"),
	"ImageFsInfo": works("TestImageStoreSaysWhatItTakes"),
}

// fields are all fields of requests, by message and field.
var fields = map[string]map[string]verdict{
	"VersionRequest": {"version": meaningless("kubelets send 0.1.0 always")},
	"StatusRequest":  {"verbose": works("TestVersionAndStatusSayWhatANodeIs TestVerboseStatusTellsWhatAPersonNeeds")},

	"RunPodSandboxRequest": {
		"config":          works(sandboxTranslated),
		"runtime_handler": works("TestARuntimeHandlerNamesAnOCIRuntime TestAnUnknownRuntimeHandler"),
	},
	"PodSandboxConfig": {
		"metadata": works("TestANameIsUniqueByNameNamespaceUIDAndAttempt"),
		"hostname": works("TestHostnameHostsAndResolverAreThePods").
			but("in the node's network a pod has the node's name"),
		"log_directory": works("TestALogIsInTheFormatOfTheCRI TestWithoutALogPathThereIsNoLog"),
		"dns_config":    works("TestHostnameHostsAndResolverAreThePods"),
		"port_mappings": works("TestPodsAreReached TestAHostPortThatIsTakenByAnotherPod"),
		"labels":        works("TestAnnotationsAndLabelsComeBackAsGiven " + lists),
		"annotations":   works("TestAnnotationsAndLabelsComeBackAsGiven TestAnnotationsPassByPattern"),
		"linux":         works(sandboxTranslated),
		"windows":       refused(windows, refusals),
	},
	"PodSandboxMetadata": {
		"name":      works("TestANameIsUniqueByNameNamespaceUIDAndAttempt"),
		"uid":       works("TestANameIsUniqueByNameNamespaceUIDAndAttempt"),
		"namespace": works("TestANameIsUniqueByNameNamespaceUIDAndAttempt"),
		"attempt":   works("TestANameIsUniqueByNameNamespaceUIDAndAttempt"),
	},
	"DNSConfig": {
		"servers": works("TestHostnameHostsAndResolverAreThePods"),
		"searches": works("TestHostnameHostsAndResolverAreThePods TestAnEmptySearchDomainIsLeftOut").
			but("an empty one is left out: kubelets 1.17 to 1.24 send one where the node's resolv.conf has \"search .\""),
		"options": works("TestHostnameHostsAndResolverAreThePods"),
	},
	"PortMapping": {
		"protocol":       works("TestPodsAreReached TestAUDPHostPortIsReached TestSCTPHostPort"),
		"container_port": works("TestPodsAreReached " + ranges),
		"host_port":      works("TestPodsAreReached TestAHostPortThatIsTakenByAnotherPod " + ranges),
		"host_ip":        works("internal/network/bridge:TestHostPorts"),
	},
	"LinuxPodSandboxConfig": {
		"cgroup_parent":    works("TestContainersLiveUnderThePodsCgroup"),
		"security_context": works(sandboxTranslated),
		"sysctls":          works("TestSysctlsAreThePods TestSysctlsStayInThePod TestAPodWithAUserNamespaceHasSysctls"),
		"overhead":         works(podLimits),
		"resources":        works(podLimits + " TestLimitsOfACgroupThatTheClientMadeAreTheClients"),
	},
	"LinuxSandboxSecurityContext": {
		"namespace_options": works(namespacesTest),
		"selinux_options": works(sandboxTranslated + " " + labels).
			but("where the host has SELinux: the label of containers that name none"),
		"run_as_user":                meaningless(noProcess),
		"run_as_group":               meaningless(noProcess),
		"readonly_rootfs":            meaningless(noProcess),
		"supplemental_groups":        meaningless(noProcess),
		"supplemental_groups_policy": meaningless(noProcess),
		"privileged":                 works("TestAPrivilegedContainerHasTheNodesPowers"),
		"seccomp":                    meaningless(noPause),
		"apparmor":                   meaningless(noPause),
		"seccomp_profile_path":       meaningless(noPause),
	},
	"NamespaceOption": {
		"network": works(namespacesTest),
		"pid": works(namespacesTest + " TestAUserNamespaceHasNoProcOfTheNodesProcesses").
			but("InvalidArgument for NODE of a container with a user namespace and without a mount of the host's /proc"),
		"ipc":       works(namespacesTest),
		"target_id": works(namespacesTest),
		"userns_options": works(userns + " TestAContainersUserNamespaceIsItsPods").
			but("a container's own is unset or equal to that of its pod, else InvalidArgument"),
	},
	"UserNamespace": {"mode": works(userns + " TestTheNodesUserNamespaceIsThatOfAPodThatAsksForIt"), "uids": works(userns),
		"gids": works(userns)},
	"IDMapping": {"host_id": works(userns), "container_id": works(userns), "length": works(userns)},
	"SELinuxOption": {
		"user":  works(sandboxTranslated + " " + labels).but("where the host has SELinux"),
		"role":  works(sandboxTranslated + " " + labels).but("where the host has SELinux"),
		"type":  works(sandboxTranslated + " " + labels).but("where the host has SELinux"),
		"level": works(sandboxTranslated + " " + labels).but("where the host has SELinux"),
	},
	"Int64Value": {"value": works(whoRuns + " " + ranges)},
	"SecurityProfile": {
		"profile_type":  works("TestSeccomp TestSeccompProfilesAreChosen"),
		"localhost_ref": works("TestSeccomp TestASeccompProfileThatDoesNotParseIsNamed TestBadInputIsRefusedByName"),
	},

	"StopPodSandboxRequest":   {"pod_sandbox_id": works("TestStopAndRemoveAreIdempotent " + prefixes)},
	"RemovePodSandboxRequest": {"pod_sandbox_id": works("TestStopAndRemoveAreIdempotent")},
	"PodSandboxStatusRequest": {
		"pod_sandbox_id": works(gone + " " + prefixes),
		"verbose":        works("TestVerboseStatusTellsWhatAPersonNeeds"),
	},
	"ListPodSandboxRequest":     {"filter": works(lists)},
	"StreamPodSandboxesRequest": {"filter": works(streams)},
	"PodSandboxFilter":          {"id": works(lists), "state": works(lists), "label_selector": works(lists)},
	"PodSandboxStateValue":      {"state": works(lists)},
	"UpdatePodSandboxResourcesRequest": {
		"pod_sandbox_id": works("TestAnUpdateOfAPodThatCannotBeIsRefused"),
		"overhead":       works(podLimits),
		"resources": works(podLimits + " TestAnUpdateOfAPodTakesWhatAKubeletsSubtractionLeaves").
			but("a negative cpu_quota or memory_limit_in_bytes is no limit, and a cpu_quota of 1 to 999 is 1000: kubelets " +
				"subtract the overhead from limits that are none"),
	},

	"CreateContainerRequest": {
		"pod_sandbox_id": works(gone + " " + containerTranslated),
		"config":         works(containerTranslated),
		"sandbox_config": works("TestAPrivilegedContainerIsAddedToAPod").
			but("only linux.security_context.privileged is read: a kubelet sets it for a privileged ephemeral container, also " +
				"in a pod that was not privileged; the rest repeats RunPodSandboxRequest.config, which the pod keeps, and " +
				"what is out of range in it is refused all the same"),
	},
	"ContainerConfig": {
		"metadata":    works("TestANameIsUniqueByNameNamespaceUIDAndAttempt"),
		"image":       works("TestAnImageIsKnownByTagDigestAndID"),
		"command":     works("TestTheImagesDefaultsAreMergedWithWhatIsAskedFor TestCommandAndArgumentsMergeAsInKubernetes"),
		"args":        works("TestTheImagesDefaultsAreMergedWithWhatIsAskedFor TestCommandAndArgumentsMergeAsInKubernetes"),
		"working_dir": works("TestTheImagesDefaultsAreMergedWithWhatIsAskedFor"),
		"envs":        works("TestEnvironmentKeepsOrderAndTheClientWins"),
		"mounts":      works("TestMountsBringHostPathsIn TestMountsReplaceOursAndParentsComeFirst"),
		"devices":     works("TestDevicesAreBroughtIn"),
		"labels":      works("TestAnnotationsAndLabelsComeBackAsGiven"),
		"annotations": works("TestAnnotationsAndLabelsComeBackAsGiven TestAnnotationsPassByPattern"),
		"log_path": works(
			"TestALogIsInTheFormatOfTheCRI TestWithoutALogPathThereIsNoLog TestLogPathStaysInThePodsDirectory"),
		"stdin":       works("TestAContainerWithoutStdinReadsNothing TestTwoClientsAttachToOneContainer"),
		"stdin_once":  works("TestStdinOnceEndsWithItsClient"),
		"tty":         works("TestATerminalIsLoggedToo"),
		"linux":       works(containerTranslated),
		"windows":     refused(windows, refusals),
		"CDI_devices": works("TestCDIDevicesAreInjected"),
		"stop_signal": works("TestAStopGivesGraceAndThenKills TestSignalsGoBothWays"),
	},
	"ContainerMetadata": {
		"name":    works("TestANameIsUniqueByNameNamespaceUIDAndAttempt"),
		"attempt": works("TestANameIsUniqueByNameNamespaceUIDAndAttempt"),
	},
	"ImageSpec": {
		"image": works("TestAnImageIsKnownByTagDigestAndID TestAReferenceThatIsNone " +
			"TestACheckpointIsGoneOnWithInAnotherPod TestAnImageCanBeACheckpoint").
			but("of a container it may be a checkpoint: an absolute path is that of an archive"),
		"annotations": works(containerTranslated).
			but("they come back in the container's status; no annotation changes how an image is pulled"),
		"user_specified_image": works("TestMetricsAreThoseOfCAdvisor " + containerTranslated).
			but("it comes back, and names the image in metrics"),
		"runtime_handler": meaningless("all runtime handlers of a node have the same images"),
		"image_ref":       works(containerTranslated).but("it comes back; the image is the one of the field image"),
	},
	"KeyValue": {
		"key": works("TestEnvironmentKeepsOrderAndTheClientWins"),
		"value": works("TestAVariableKeepsBytesThatAreNotUTF8 TestAnEngineThatCannotPassBytesRefusesThem").
			but("bytes that are not UTF-8 are refused for handlers of type oci and shim, and for setup = libcontainer"),
	},
	"Mount": {
		"container_path": works("TestMountsBringHostPathsIn TestAMountStaysInsideTheContainer"),
		"host_path": works(
			"TestMountsBringHostPathsIn TestAMissingHostPathIsMade TestAMissingHostPathIsAnErrorOfTheOlderAPIs"),
		"readonly":        works("TestMountsBringHostPathsIn"),
		"selinux_relabel": works(containerTranslated + " TestThePolicyKeepsPodsApart").but("where the host has SELinux"),
		"propagation": works(
			"TestMountsSpreadAsTheirPropagationSays TestPropagationToAndFromAMountThatIsNotSharedIsRefused"),
		"uidMappings":         works("TestRootInAUserNamespaceIsNobodyOnTheNode TestUserNamespacesAreMapped"),
		"gidMappings":         works("TestRootInAUserNamespaceIsNobodyOnTheNode TestUserNamespacesAreMapped"),
		"recursive_read_only": works("TestMountsReplaceOursAndParentsComeFirst TestSpecsRun"),
		"image":               works("TestAnImageIsAVolume TestAnArtifactIsAVolume"),
		"image_sub_path": works(
			"TestAnImageIsAVolume TestAnArtifactIsAVolume TestImageMountsAreReadOnlyAndStayInTheImage"),
		"mount_options": works("TestMountOptionsAreOnTheMount TestAWritableMountKeepsTheOptionsOfTheHosts"),
	},
	"Device": {
		"container_path": works("TestDevicesAreBroughtIn TestADeviceOfAPodWithAUserNamespaceHasAnotherPath"),
		"host_path":      works("TestDevicesAreBroughtIn TestADeviceOfAPodWithAUserNamespaceHasAnotherPath"),
		"permissions":    works("TestDevicesComeWithTheirRules"),
	},
	"CDIDevice":            {"name": works("TestCDIDevicesAreInjected")},
	"LinuxContainerConfig": {"resources": works("TestResourcesAreOnTheCgroup"), "security_context": works(whoRuns)},
	"LinuxContainerResources": {
		"cpu_period": works("TestResourcesAreOnTheCgroup " + ranges),
		"cpu_quota":  works("TestResourcesAreOnTheCgroup " + ranges),
		"cpu_shares": works("TestResourcesAreOnTheCgroup " + ranges),
		"memory_limit_in_bytes": works(
			"TestResourcesAreOnTheCgroup TestAContainerThatTakesTooMuchMemoryIsOOMKilled " + ranges),
		"oom_score_adj": works("TestResourcesAreOnTheCgroup TestOOMScoresAreWhatMayBeGiven " + ranges).
			but("of a container; a pod as a whole has none"),
		"cpuset_cpus":     works("TestResourcesAreOnTheCgroup"),
		"cpuset_mems":     works("TestTheOtherLimitsAreOnTheCgroupToo"),
		"hugepage_limits": works("TestTheOtherLimitsAreOnTheCgroupToo TestResourcesOfBothVersions"),
		"unified": works("TestUnifiedResourcesAreWrittenOnV2AndRefusedOnV1").
			but("FailedPrecondition on cgroup v1"),
		"memory_swap_limit_in_bytes": works("TestTheOtherLimitsAreOnTheCgroupToo TestResourcesOfBothVersions " + ranges),
	},
	"HugepageLimit": {
		"page_size": works("TestTheOtherLimitsAreOnTheCgroupToo TestResourcesOfBothVersions"),
		"limit":     works("TestTheOtherLimitsAreOnTheCgroupToo TestResourcesOfBothVersions"),
	},
	"LinuxContainerSecurityContext": {
		"capabilities":               works("TestCapabilitiesAreTheDefaultOnesAndWhatIsAskedFor"),
		"privileged":                 works("TestAPrivilegedContainerHasTheNodesPowers"),
		"namespace_options":          works(namespacesTest),
		"selinux_options":            works(containerTranslated + " " + labels).but("where the host has SELinux"),
		"run_as_user":                works(whoRuns),
		"run_as_group":               works(whoRuns),
		"run_as_username":            works(whoRuns + " TestAnUnknownUserIsRefused"),
		"readonly_rootfs":            works("TestTheRootFileSystemIsReadOnlyWhereAskedFor"),
		"supplemental_groups":        works(whoRuns + " TestUsersAreResolvedInTheImage"),
		"supplemental_groups_policy": works("TestUsersAreResolvedInTheImage"),
		"no_new_privs":               works("TestNoNewPrivilegesHolds"),
		"masked_paths":               works("TestPathsAreMaskedAndReadOnly").but(noPaths),
		"readonly_paths":             works("TestPathsAreMaskedAndReadOnly").but(noPaths),
		"seccomp":                    works("TestSeccomp"),
		"apparmor": works("TestBadInputIsRefusedByName").
			but("where the host has AppArmor; FailedPrecondition for a named profile where it has not"),
		"apparmor_profile":     works(containerTranslated).but("as apparmor, where that is unset"),
		"seccomp_profile_path": works(containerTranslated).but("as seccomp, where that is unset"),
	},
	"Capability": {
		"add_capabilities":         works("TestCapabilitiesAreTheDefaultOnesAndWhatIsAskedFor"),
		"drop_capabilities":        works("TestCapabilitiesAreTheDefaultOnesAndWhatIsAskedFor"),
		"add_ambient_capabilities": works("TestCapabilitiesAreTheDefaultsChanged"),
	},

	"StartContainerRequest": {"container_id": works(gone)},
	"StopContainerRequest": {"container_id": works(gone),
		"timeout": works("TestAStopGivesGraceAndThenKills " + ranges)},
	"RemoveContainerRequest":  {"container_id": works("TestStopAndRemoveAreIdempotent")},
	"ListContainersRequest":   {"filter": works(lists)},
	"StreamContainersRequest": {"filter": works(streams + " TestStreamsFilterAsListsDo")},
	"ContainerFilter": {"id": works(lists), "state": works(lists), "pod_sandbox_id": works(lists),
		"label_selector": works(lists)},
	"ContainerStateValue": {"state": works(lists)},
	"ContainerStatusRequest": {"container_id": works(gone + " " + prefixes),
		"verbose": works("TestVerboseStatusTellsWhatAPersonNeeds")},
	"ReopenContainerLogRequest": {"container_id": works("TestALogIsReopened TestALogIsRotatedUnderLoadWithoutALostLine")},
	"UpdateContainerResourcesRequest": {
		"container_id": works("TestAnUpdateOfWhatIsGoneIsNotFound"),
		"linux":        works("TestResourcesAreOnTheCgroup TestAnUpdateOfACreatedContainerHoldsOnceItRuns"),
		"windows":      refused(windows, ranges),
		"annotations":  meaningless("they are for plugins' own resources; the CRI names none"),
	},
	"ExecSyncRequest": {
		"container_id": works("TestExecSyncInWhatDoesNotRunIsRefused"),
		"cmd":          works("TestExecSyncGivesOutputAndCode"),
		"timeout":      works("TestExecSyncEndsItsCommandAtTheTimeout " + ranges),
	},
	"ExecRequest": {
		"container_id": works(execs),
		"cmd":          works(execs),
		"tty":          works("TestAnExecHasATerminalThatIsResized"),
		"stdin":        works(execs),
		"stdout":       works(execs),
		"stderr":       works(execs).but("not together with tty, which has one output"),
	},
	"AttachRequest": {
		"container_id": works(attaches + " TestStreamsAreForWhatRuns"),
		"stdin":        works(attaches),
		"tty": works("TestAnAttachHasTheTerminalOfItsContainer TestTerminalsAreResized").
			but("InvalidArgument where it is not that of ContainerConfig"),
		"stdout": works(attaches),
		"stderr": works(attaches),
	},
	"PortForwardRequest": {
		"pod_sandbox_id": works("TestAPortOfAPodIsForwarded"),
		"port": works("TestPortsAreForwardedInWebSocketChannels " + ranges).
			but("SPDY clients name ports stream by stream"),
	},

	"ContainerStatsRequest":       {"container_id": works(usage)},
	"ListContainerStatsRequest":   {"filter": works(usage)},
	"StreamContainerStatsRequest": {"filter": works(streams)},
	"ContainerStatsFilter": {"id": works(lists + " " + usage), "pod_sandbox_id": works(usage),
		"label_selector": works(usage)},
	"PodSandboxStatsRequest":       {"pod_sandbox_id": works(usage)},
	"ListPodSandboxStatsRequest":   {"filter": works(usage)},
	"StreamPodSandboxStatsRequest": {"filter": works(streams)},
	"PodSandboxStatsFilter":        {"id": works(lists + " " + usage), "label_selector": works(usage)},

	"UpdateRuntimeConfigRequest": {"runtime_config": works("TestTheNodesRangeIsTakenUp")},
	"RuntimeConfig":              {"network_config": works("TestTheNodesRangeIsTakenUp")},
	"NetworkConfig":              {"pod_cidr": works("TestTheNodesRangeIsTakenUp TestBadRangesAreRefused")},

	"CheckpointContainerRequest": {
		"container_id": works(checkpoints),
		"location":     works(checkpoints + " TestWhatCannotBeWrittenDownIsRefused"),
		"timeout":      works("TestACheckpointThatIsCutOffLeavesTheContainerAlive"),
	},

	"CheckpointPodRequest": {
		"pod_sandbox_id": works(podCheckpoints),
		"output_path":    works(podCheckpoints + " TestAPodsCheckpointThatCannotBeIsRefused"),
		"container_ids":  works(podCheckpoints + " TestAllContainersStandStillForAPodsCheckpoint"),
		"options":        refused(noOptions, "TestAPodsCheckpointThatCannotBeIsRefused"),
	},
	"RestorePodRequest": {
		"checkpoint_path":   works(podCheckpoints + " TestAPodThatDoesNotFitItsCheckpointIsRefused"),
		"config":            works(podCheckpoints),
		"runtime_handler":   works("TestAPodIsRestoredWithAllItsContainers TestAPodThatDoesNotFitItsCheckpointIsRefused"),
		"options":           refused(noOptions, "TestAPodThatDoesNotFitItsCheckpointIsRefused"),
		"container_configs": works(podCheckpoints + " TestAPodThatDoesNotFitItsCheckpointIsRefused"),
	},

	"ListImagesRequest":   {"filter": works("TestImages TestAnImageIsKnownByTagDigestAndID")},
	"StreamImagesRequest": {"filter": works(streams + " TestImages")},
	"ImageFilter":         {"image": works("TestImages")},
	"ImageStatusRequest": {"image": works("TestAnImageIsKnownByTagDigestAndID TestAnImageHasOneIDInEveryCall"),
		"verbose": works("TestVerboseStatusTellsWhatAPersonNeeds")},
	"PullImageRequest": {
		"image":          works("TestAReferenceThatIsNone TestAnImageThatDoesNotExist"),
		"auth":           works("TestAWrongPassword"),
		"sandbox_config": meaningless("images are the node's, not a pod's"),
	},
	"AuthConfig": {
		"username":       works(credentials),
		"password":       works(credentials),
		"auth":           works(credentials),
		"server_address": works("TestCredentialsForAnotherHostAreNotSent"),
		"identity_token": works(credentials),
		"registry_token": works(credentials),
	},
	"RemoveImageRequest": {"image": works("TestAnImageInUseKeepsItsContainers")},
}
