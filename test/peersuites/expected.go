package main

// byReason are names of stories by the reason that they have in common.
type byReason map[string][]string

// names are the reasons by name.
func (b byReason) names() map[string]string {
	names := map[string]string{}
	for why, list := range b {
		for _, name := range list {
			names[name] = why
		}
	}
	return names
}

// containerdExpected are the failures of containerd's suite against Berth, by their reason.
var containerdExpected = byReason{
	"what a background process of an exec writes later is not waited for, and is no error": {
		"TestContainerDrainExecIOAfterExit",
	},
	"refused, with words of Berth's own": {
		"TestContainerSysfsStatsWithPrivilegedPod/sandbox_with_privileged=false,_and_container_with_" +
			"privileged=true,_create_container_failed",
		"TestImageVolumeBasic/fail_to_mount_non-existent_subpath",
		"TestImageVolumeBasic/fail_to_mount_absolute_subpath",
		"TestImageVolumeBasic/fail_to_mount_escaped_subpath",
		"TestImageVolumeBasic/fail_to_mount_a_symlink_file_that_escapes_subpath",
	},
	"a hostname is not heeded in the node's network, where a pod has the node's, and is not refused": {
		"TestPodHostname/host_network_pod_with_custom_hostname_should_fail",
	},
	"a limit that the kernel refuses is refused: containerd sets no limits of a pod, and tells plugins alone": {
		"TestNriUpdatePodSandbox",
	},
	"a file of an image can be mounted too": {
		"TestImageVolumeBasic/fail_to_mount_single_file_subpath",
	},
	"a container that has stopped has statistics still: of its files": {
		"TestTruncIndex",
	},
}.names()

// containerdUnsteady are the tests of containerd's suite that a busy machine may fail: they are neither expected to
// pass nor to fail.
var containerdUnsteady = byReason{
	"the beginning of a line is a record of its own when its end takes 50 ms, as a shell's that writes " +
		"byte by byte may": {
		"TestLongContainerLog",
	},
}.names()

// containerdLeftOut are the tests of containerd's suite that are not run, by the reason.
var containerdLeftOut = byReason{
	"starts containerd's own code or program beside the one that answers": {
		"TestUpgrade",
		"TestCRIImagePullTimeout",
		"TestIssue10467",
		"TestIssue10244LoopbackV2",
		"TestRunContainerWithVolatileOption",
		"TestOOMEventMonitor",
		"TestReload100Pods",
		"TestRuntimeHandlerUnpackWithSnapshotLabels",
		"TestContainerCgroupWritable",
	},
	"speaks with containerd's shim": {
		"TestFailFastWhenConnectShim",
		"TestIssue7496",
		"TestContainerTTYLeakAfterExit",
		"TestContainerIOLeakAfterStartFailed",
	},
	"needs Docker": {
		"TestImageLoad",
	},
	"needs containerd's shims, CNI plugins or runtime handler with faults built in (failpoint)": {
		"TestIssue7496_ShouldRetryShutdown",
		"TestContainerdRestartSandboxRecover",
		"TestSandboxStopWithNilCNIResult",
		"TestPodSandboxController_ShouldBackoffExitEventWhenFail",
		"TestRunPodSandboxWithSetupCNIFailure",
		"TestRunPodSandboxWithShimStartFailure",
		"TestRunPodSandboxWithShimDeleteFailure",
		"TestRunPodSandboxWithShimStartAndTeardownCNIFailure",
		"TestRunPodSandboxAndTeardownCNISlow",
	},
	"starts containerd again": {
		"TestUpdatePodSandboxWithRestart",
		"TestNriPluginContainerdRestart",
	},
	"writes through containerd's own API, of which Berth answers what reads": {
		"TestContainerdImage",
		"TestContainerdImageInOtherNamespaces",
		"TestContainerdSandboxImagePulledOutsideCRI",
		"TestContainerdRestart",
	},
	"pods of Berth have no pause image": {
		"TestContainerdSandboxImage",
	},
	"looks into files of containerd or of its CNI plugins": {
		"TestImageVolumeCheckVolatileOption",
		"TestImageVolumeSetupIfContainerdRestarts",
		"TestSandboxRemoveWithoutIPLeakage",
	},
}.names()

// crioExpected are the failures of CRI-O's suite against Berth, by their reason.
var crioExpected = byReason{
	"refused, with words of Berth's own": {
		"ctr.bats: ctr that fails to mount container storage as recursively read-only without readonly option",
		"ctr.bats: ctr that fails to mount container storage as recursively read-only without private propagation",
		"oci_artifacts.bats: should fail to mount OCI Artifact with sub path if not existing",
	},
	"a container without a log path has no log; CRI-O chooses one": {
		"ctr.bats: ctr logging",
		"ctr.bats: ctr logging [tty=true]",
		"ctr.bats: ctr log max with default value",
		"ctr.bats: ctr partial line logging",
		"logs.bats: ReopenContainerLog should succeed when the container is running",
		"logs.bats: Log file rotation should work",
	},
	"what the image lacks is found when the container starts, as with containerd": {
		"ctr.bats: ctr log cleaned up if container create failed",
		"ctr.bats: ctr create with non-existent command",
		"ctr.bats: ctr create with non-existent command [tty]",
		"ctr.bats: ctr correctly setup working directory",
		"oci_artifacts.bats: should return error when mounting artifact on file path",
	},
	"an image or an artifact that a container uses can be removed, and the container keeps its files": {
		"oci_artifacts.bats: should return error when removing image that is in use",
	},
	"an exec in a container that was created and not started is refused, as with containerd": {
		"ctr.bats: ctr hostname env",
		"ctr.bats: ctr execsync conflicting with conmon env",
		"ctr.bats: ctr has gid in supplemental groups with Merge policy",
		"ctr.bats: ctr has only specified gid in supplemental groups with Strict policy",
		"pod.bats: pod with the correct etc folder ownership",
	},
	"ExecSync gives no terminal; CRI-O gives one where the container has one": {
		"ctr.bats: ctr execsync should succeed if container has a terminal",
	},
	"a choice of CRI-O's that the CRI does not ask for": {
		"ctr.bats: privileged ctr add duplicate device as host",
		"ctr.bats: ctr with low memory configured should not be created",
		"ctr.bats: ctr has containerenv",
		"ctr.bats: ctr masked defaults set if any are set",
		"image_volume.bats: image volume user mkdir",
		"pod.bats: verify RunAsGroup in container",
	},
	"the default capabilities are those of containerd, which are more than CRI-O's": {
		"ctr.bats: ctr with default list of capabilities from crio.conf",
	},
	"runs the same pod a second time, which is refused as already there, as the CRI asks": {
		"ctr.bats: annotations passed through",
	},
	"the root file system of this machine is not shared, which the mount needs": {
		"ctr.bats: ctr that mounts container storage as shared should keep shared",
		"ctr.bats: ctr that mounts container storage as private should not be private",
	},
	"asks conmon, runc or a CNI plugin of CRI-O": {
		"ctr.bats: ctr with node level pid namespace should not leak children",
		"ctr.bats: container stops with custom SIGINT stop signal",
		"network.bats: Ensure correct CNI plugin namespace/name/container-id arguments",
		"network.bats: Clean up network if pod sandbox fails",
		"network.bats: Clean up network if pod netns gets destroyed",
		"network.bats: Network recovery after reboot with destroyed netns",
		"network.bats: CNI teardown called even with missing or invalid netns to prevent IP leaks",
		"network.bats: netns file cleanup after CRI-O restart with invalid namespace",
		"pod.bats: fail to pass pod sysctls to runtime if invalid spaces",
	},
	"CRI-O writes HOME into /etc/passwd, where a newline would make a line; Berth writes no user there": {
		"ctr.bats: ctr HOME env actual newline byte invalid",
	},
	"writes 64 MiB to /dev/shm, where a few pages less have room beside the pod's files in /etc": {
		"ctr.bats: memory limit decrease below usage should be blocked",
	},
	"status.image has the name that the client has sent beside the ID": {
		"image.bats: container status when created by image ID",
	},
	"names an image by the digest or tag of its upstream build": {
		"oci_artifacts.bats: should pull multi-architecture image",
		"image.bats: container status when created by image list canonical reference",
		"image.bats: image pull and list by tag and ID",
		"image.bats: image pull and list by digest and ID",
		"image.bats: image pull and list by manifest list digest",
		"image.bats: image pull and list by manifest list tag",
		"image.bats: image pull and list by manifest list and individual digest",
		"image.bats: image pull and list by individual and manifest list digest",
	},
	"a short name is one of docker.io, as with containerd": {
		"image.bats: short name mode enabled should fail to pull ambiguous image",
	},
	"what images use and what containers use is told apart": {
		"imagefsinfo.bats: image fs info with default settings should return matching container_filesystem " +
			"and image_filesystem",
	},
	"the node has no IPv6 range": {
		"network.bats: Check for valid pod netns CIDR",
	},
	"needs a machine with a default route, and ncat in the image": {
		"network.bats: Connect to pod hostport from the host",
	},
}.names()

// crioLeftOut are the files of CRI-O's suite that are not run, by the reason.
var crioLeftOut = byReason{
	"its stories configure or restart CRI-O, and look into its directories": {
		"artifact_additional_stores.bats",
		"cert.bats",
		"config.bats",
		"crio-check.bats",
		"crio-wipe.bats",
		"default_mounts.bats",
		"drop_infra.bats",
		"exec_cpu_affinity.bats",
		"hooks.bats",
		"image_remove.bats",
		"infra_ctr_cpuset.bats",
		"namespaced_auth_dir.bats",
		"namespaces.bats",
		"reload_config.bats",
		"reload_system.bats",
		"restore.bats",
		"tls_config.bats",
		"ctr_timeout.bats",
		"timeout.bats",
		"pod_annotations_capability.bats",
		"policy.bats",
	},
	"its stories are about programs, sockets and metrics of CRI-O's own": {
		"command.bats",
		"conmon_track.bats",
		"conmonrs.bats",
		"cri-metrics.bats",
		"ctr_pause_unpause.bats",
		"inspect.bats",
		"kata.bats",
		"metrics.bats",
		"profile.bats",
		"runtimeconfig.bats",
		"status.bats",
		"version.bats",
	},
	"its stories are about annotations and artifacts of CRI-O's own": {
		"annotation_migration.bats",
		"cpu_load_balancing.bats",
		"inject_gomaxprocs.bats",
		"irqbalance.bats",
		"oci_volumes.bats",
		"seccomp_notifier.bats",
		"seccomp_oci_artifacts.bats",
		"shm_size.bats",
		"umask_annotation.bats",
		"userns_annotation.bats",
		"workloads.bats",
	},
	"its stories configure CRI-O; Berth has tests of its own of the same": {
		"apparmor.bats",
		"cdi.bats",
		"cgroups.bats",
		"checkpoint.bats",
		"ctr_seccomp.bats",
		"ctr_userns.bats",
		"devices.bats",
		"network_ping.bats",
		"seccomp_runtime_handler.bats",
	},
	"needs NRI": {
		"nri.bats",
	},
	"runs critest, as make conformance does": {
		"critest.bats",
	},
}.names()
