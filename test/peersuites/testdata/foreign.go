package integration

// This file is added to containerd's package of integration tests, in place of functions that speak with containerd
// itself or that name things as no kubelet does.

import (
	"strings"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	criconfig "github.com/containerd/containerd/v2/internal/cri/config"
	"github.com/containerd/containerd/v2/internal/cri/util"
)

// CRIConfig is what the tests need of a configuration: the longest line of a log, which all runtimes have in common.
func CRIConfig() (*criconfig.Config, error) {
	config := &criconfig.Config{}
	config.MaxContainerLogLineSize = 16 * 1024
	return config, nil
}

// named is a name without what no name in Kubernetes has: some tests give pods their own name, with spaces and slashes.
func named(name string) string {
	return strings.NewReplacer(" ", "-", "/", "-", "(", "", ")", "").Replace(name)
}

// Randomize makes a name unique.
func Randomize(name string) string { return named(name) + "-" + util.GenerateID() }

// PodSandboxConfig is containerd's.
func PodSandboxConfig(name, namespace string, opts ...PodSandboxOpts) *runtime.PodSandboxConfig {
	return containerdsPodSandboxConfig(named(name), namespace, opts...)
}

// supportsRuncIDMap says that mounts with mapped IDs work, whatever the runc of the machine can do.
func supportsRuncIDMap() error { return nil }

// waitForTraps gives the shell of a container the time to read its script.
func waitForTraps() { time.Sleep(time.Second) }
