package main

// containerdExpected are the failures of containerd's suite against Berth, with the reason of each.
var containerdExpected = map[string]string{
	"TestContainerDrainExecIOAfterExit": "what a background process of an exec writes later is not waited for, and is no error",
	"TestContainerSysfsStatsWithPrivilegedPod/sandbox_with_privileged=false,_and_container_with_privileged=true,_create_container_failed": otherWords,
	"TestPodHostname/host_network_pod_with_custom_hostname_should_fail":                                                                   "",
	"TestTruncIndex": "a container that has stopped has statistics still: of its files",
}

const (
	otherWords  = "refused, with words of Berth's own"
	failpoints  = "needs containerd's shims, CNI plugins or runtime handler with faults built in (failpoint)"
	shims       = "speaks with containerd's shim"
	embedded    = "starts containerd's own code or program beside the one that answers"
	nri         = "needs NRI"
	docker      = "needs Docker"
	imageStore  = "writes through containerd's own API, of which Berth answers what reads"
	snapshotter = "looks into files of containerd or of its CNI plugins"
	pauseImage  = "pods of Berth have no pause image"
)

// containerdLeftOut are the tests of containerd's suite that are not run, with the reason of each.
var containerdLeftOut = map[string]string{
	"TestUpgrade":                                             embedded,
	"TestCRIImagePullTimeout":                                 embedded,
	"TestIssue10467":                                          embedded,
	"TestIssue10244LoopbackV2":                                embedded,
	"TestFailFastWhenConnectShim":                             shims,
	"TestIssue7496":                                           shims,
	"TestContainerTTYLeakAfterExit":                           shims,
	"TestImageLoad":                                           docker,
	"TestIssue7496_ShouldRetryShutdown":                       failpoints,
	"TestContainerdRestartSandboxRecover":                     failpoints,
	"TestSandboxStopWithNilCNIResult":                         failpoints,
	"TestPodSandboxController_ShouldBackoffExitEventWhenFail": failpoints,
	"TestRunPodSandboxWithSetupCNIFailure":                    failpoints,
	"TestRunPodSandboxWithShimStartFailure":                   failpoints,
	"TestRunPodSandboxWithShimDeleteFailure":                  failpoints,
	"TestRunPodSandboxWithShimStartAndTeardownCNIFailure":     failpoints,
	"TestRunPodSandboxAndTeardownCNISlow":                     failpoints,
	"TestNriPluginNetworkingSynchronization":                  nri,
	"TestNriPluginNetworkingLifecycle":                        nri,
	"TestNriPluginSetup":                                      nri,
	"TestNriPluginSynchronization":                            nri,
	"TestNriMountInjection":                                   nri,
	"TestNriEnvironmentInjection":                             nri,
	"TestNriAnnotationInjection":                              nri,
	"TestNriLinuxDeviceInjection":                             nri,
	"TestNriLinuxCpusetAdjustment":                            nri,
	"TestNriLinuxMemsetAdjustment":                            nri,
	"TestNriLinuxCpusetAdjustmentUpdate":                      nri,
	"TestNriLinuxMemsetAdjustmentUpdate":                      nri,
	"TestNriUpdatePodSandbox":                                 nri,
	"TestUpdatePodSandboxWithRestart":                         nri,
	"TestNriPluginContainerdRestart":                          nri,
	"TestRunContainerWithVolatileOption":                      embedded,
	"TestOOMEventMonitor":                                     embedded,
	"TestReload100Pods":                                       embedded,
	"TestRuntimeHandlerUnpackWithSnapshotLabels":              embedded,
	"TestContainerCgroupWritable":                             embedded,
	"TestContainerIOLeakAfterStartFailed":                     shims,
	"TestContainerdImage":                                     imageStore,
	"TestContainerdImageInOtherNamespaces":                    imageStore,
	"TestContainerdSandboxImagePulledOutsideCRI":              imageStore,
	"TestContainerdRestart":                                   imageStore,
	"TestContainerdSandboxImage":                              pauseImage,
	"TestImageVolumeCheckVolatileOption":                      snapshotter,
	"TestImageVolumeSetupIfContainerdRestarts":                snapshotter,
	"TestSandboxRemoveWithoutIPLeakage":                       snapshotter,
}

// containerdUnsteady are the tests of containerd's suite that a busy machine may fail, with the reason of each: they are neither
// expected to pass nor to fail.
var containerdUnsteady = map[string]string{
	"TestLongContainerLog": "the beginning of a line is a record of its own when its end takes 50 ms, as a shell's that writes byte by byte may",
}

const (
	configures = "its stories configure or restart CRI-O, and look into its directories"
	programs   = "its stories are about programs, sockets and metrics of CRI-O's own"
	extensions = "its stories are about annotations and artifacts of CRI-O's own"
	elsewhere  = "its stories configure CRI-O; Berth has tests of the same in test/life"
)

// crioLeftOut are the files of CRI-O's suite that are not run, with the reason of each.
var crioLeftOut = map[string]string{
	"artifact_additional_stores.bats": configures,
	"cert.bats":                       configures,
	"config.bats":                     configures,
	"crio-check.bats":                 configures,
	"crio-wipe.bats":                  configures,
	"default_mounts.bats":             configures,
	"drop_infra.bats":                 configures,
	"exec_cpu_affinity.bats":          configures,
	"hooks.bats":                      configures,
	"image_remove.bats":               configures,
	"infra_ctr_cpuset.bats":           configures,
	"namespaced_auth_dir.bats":        configures,
	"namespaces.bats":                 configures,
	"reload_config.bats":              configures,
	"reload_system.bats":              configures,
	"restore.bats":                    configures,
	"tls_config.bats":                 configures,
	"ctr_timeout.bats":                configures,
	"timeout.bats":                    configures,
	"pod_annotations_capability.bats": configures,
	"policy.bats":                     configures,
	"command.bats":                    programs,
	"conmon_track.bats":               programs,
	"conmonrs.bats":                   programs,
	"cri-metrics.bats":                programs,
	"ctr_pause_unpause.bats":          programs,
	"inspect.bats":                    programs,
	"kata.bats":                       programs,
	"metrics.bats":                    programs,
	"profile.bats":                    programs,
	"runtimeconfig.bats":              programs,
	"status.bats":                     programs,
	"version.bats":                    programs,
	"annotation_migration.bats":       extensions,
	"cpu_load_balancing.bats":         extensions,
	"inject_gomaxprocs.bats":          extensions,
	"irqbalance.bats":                 extensions,
	"oci_artifacts.bats":              extensions,
	"oci_volumes.bats":                extensions,
	"seccomp_notifier.bats":           extensions,
	"seccomp_oci_artifacts.bats":      extensions,
	"shm_size.bats":                   extensions,
	"umask_annotation.bats":           extensions,
	"userns_annotation.bats":          extensions,
	"workloads.bats":                  extensions,
	"apparmor.bats":                   elsewhere,
	"cdi.bats":                        elsewhere,
	"cgroups.bats":                    elsewhere,
	"checkpoint.bats":                 elsewhere,
	"ctr_seccomp.bats":                elsewhere,
	"ctr_userns.bats":                 elsewhere,
	"devices.bats":                    elsewhere,
	"network_ping.bats":               elsewhere,
	"seccomp_runtime_handler.bats":    elsewhere,
	"nri.bats":                        nri,
	"critest.bats":                    "runs critest, as make conformance does",
}

const (
	noLog     = "a container without a log path has no log; CRI-O chooses one"
	atStart   = "what the image lacks is found when the container starts, as with containerd"
	created   = "an exec in a container that was created and not started is refused, as with containerd"
	upstream  = "names an image by the digest or tag of its upstream build"
	ownChoice = "a choice of CRI-O's that the CRI does not ask for"
	asksRunc  = "asks conmon, runc or a CNI plugin of CRI-O"
	notShared = "the root file system of this machine is not shared, which the mount needs"
)

// crioExpected are the failures of CRI-O's suite against Berth, with the reason of each.
var crioExpected = map[string]string{
	"ctr.bats: ctr logging":                                                                                                  noLog,
	"ctr.bats: ctr logging [tty=true]":                                                                                       noLog,
	"ctr.bats: ctr log max with default value":                                                                               noLog,
	"ctr.bats: ctr partial line logging":                                                                                     noLog,
	"ctr.bats: ctr log cleaned up if container create failed":                                                                atStart,
	"ctr.bats: ctr create with non-existent command":                                                                         atStart,
	"ctr.bats: ctr create with non-existent command [tty]":                                                                   atStart,
	"ctr.bats: ctr correctly setup working directory":                                                                        atStart,
	"ctr.bats: ctr hostname env":                                                                                             created,
	"ctr.bats: ctr execsync conflicting with conmon env":                                                                     created,
	"ctr.bats: ctr has gid in supplemental groups with Merge policy":                                                         created,
	"ctr.bats: ctr has only specified gid in supplemental groups with Strict policy":                                         created,
	"ctr.bats: ctr execsync should succeed if container has a terminal":                                                      "ExecSync gives no terminal; CRI-O gives one where the container has one",
	"ctr.bats: privileged ctr add duplicate device as host":                                                                  ownChoice,
	"ctr.bats: ctr with default list of capabilities from crio.conf":                                                         "the default capabilities are those of containerd, which are more than CRI-O's",
	"ctr.bats: ctr with low memory configured should not be created":                                                         ownChoice,
	"ctr.bats: privileged ctr -- check for rw mounts":                                                                        "looks for a field of CRI-O's verbose status",
	"ctr.bats: annotations passed through":                                                                                   "runs the same pod a second time, which is refused as already there, as the CRI asks",
	"ctr.bats: ctr that mounts container storage as shared should keep shared":                                               notShared,
	"ctr.bats: ctr that mounts container storage as private should not be private":                                           notShared,
	"ctr.bats: ctr has containerenv":                                                                                         ownChoice,
	"ctr.bats: ctr with node level pid namespace should not leak children":                                                   asksRunc,
	"ctr.bats: ctr HOME env actual newline byte invalid":                                                                     "CRI-O writes HOME into /etc/passwd, where a newline would make a line; Berth writes no user there",
	"ctr.bats: ctr masked defaults set if any are set":                                                                       ownChoice,
	"ctr.bats: container stops with custom SIGINT stop signal":                                                               asksRunc,
	"ctr.bats: memory limit decrease below usage should be blocked":                                                          "looks at usage in a cgroup where the pod's tmpfs is not counted",
	"image.bats: container status when created by image ID":                                                                  "status.image has the name that the client has sent beside the ID",
	"image.bats: container status when created by image list canonical reference":                                            upstream,
	"image.bats: image pull and list by tag and ID":                                                                          upstream,
	"image.bats: image pull and list by digest and ID":                                                                       upstream,
	"image.bats: image pull and list by manifest list digest":                                                                upstream,
	"image.bats: image pull and list by manifest list tag":                                                                   upstream,
	"image.bats: image pull and list by manifest list and individual digest":                                                 upstream,
	"image.bats: image pull and list by individual and manifest list digest":                                                 upstream,
	"image.bats: short name mode enabled should fail to pull ambiguous image":                                                "a short name is one of docker.io, as with containerd",
	"image_volume.bats: image volume user mkdir":                                                                             ownChoice,
	"imagefsinfo.bats: image fs info with default settings should return matching container_filesystem and image_filesystem": "what images use and what containers use is told apart",
	"logs.bats: ReopenContainerLog should succeed when the container is running":                                             noLog,
	"logs.bats: Log file rotation should work":                                                                               noLog,
	"network.bats: Check for valid pod netns CIDR":                                                                           "the node has no IPv6 range",
	"network.bats: Ensure correct CNI plugin namespace/name/container-id arguments":                                          asksRunc,
	"network.bats: Connect to pod hostport from the host":                                                                    "needs a machine with a default route, and ncat in the image",
	"network.bats: Clean up network if pod sandbox fails":                                                                    asksRunc,
	"network.bats: Clean up network if pod netns gets destroyed":                                                             asksRunc,
	"network.bats: Network recovery after reboot with destroyed netns":                                                       asksRunc,
	"network.bats: CNI teardown called even with missing or invalid netns to prevent IP leaks":                               asksRunc,
	"network.bats: netns file cleanup after CRI-O restart with invalid namespace":                                            asksRunc,
	"pod.bats: fail to pass pod sysctls to runtime if invalid spaces":                                                        asksRunc,
	"pod.bats: pod with the correct etc folder ownership":                                                                    created,
	"pod.bats: verify RunAsGroup in container":                                                                               ownChoice,
}
