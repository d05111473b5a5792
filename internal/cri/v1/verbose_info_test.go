package v1

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri/request"
)

// TestConfigurationsComeBackAsTheirMessages: agents for containerd decode info.config into the CRI's messages. Seen to
// fail where the configuration was Berth's own, of which a mount's propagation is no number.
func TestConfigurationsComeBackAsTheirMessages(t *testing.T) {
	c := newCheck(V1{}, &api.VersionRequest{})
	asked := containerRequest().Config
	asked.Linux.SecurityContext.NamespaceOptions.UsernsOptions = fullSandbox().Linux.SecurityContext.NamespaceOptions.
		UsernsOptions
	asked.Linux.SecurityContext.SelinuxOptions = &api.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "l"}
	asked.Linux.SecurityContext.SupplementalGroupsPolicy = api.SupplementalGroupsPolicy_Strict
	asked.Linux.SecurityContext.Privileged = true
	asked.Linux.SecurityContext.ReadonlyRootfs = true
	asked.Linux.SecurityContext.Seccomp = &api.SecurityProfile{ProfileType: api.SecurityProfile_Unconfined}
	asked.Linux.SecurityContext.Apparmor = &api.SecurityProfile{ProfileType: api.SecurityProfile_Localhost,
		LocalhostRef: "name"}
	cfg := toContainerConfig(c, "config", asked)
	if err := c.Err(); err != nil {
		t.Fatal(err)
	}
	var info struct {
		PID    uint32               `json:"pid"`
		Config *api.ContainerConfig `json:"config"`
	}
	text := verboseInfo(V1{}, map[string]any{"pid": 7, "config": cfg})["info"]
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	security := asked.Linux.SecurityContext
	//lint:ignore SA1019 they are told in the fields that have taken their place
	security.SeccompProfilePath, security.ApparmorProfile = "", ""
	asked.Envs[0].Value = []byte("b=c\ufffd")
	asked.Mounts[0].MountOptions = []string{"noexec", "nosuid"}
	if !proto.Equal(info.Config, asked) || info.PID != 7 {
		t.Errorf("of the container\n%v\ncame\n%v", asked, info.Config)
	}
	for _, part := range []string{`"propagation":2`, `"envs":[{"key":"A","value":"b=c`, `"CDI_devices":`,
		`"uidMappings":`, `"host_path":"/srv"`} {
		if !strings.Contains(text, part) {
			t.Errorf("no %s in %s", part, text)
		}
	}

	pod := fullSandbox()
	podCfg := toSandboxConfig(c, "config", pod)
	if err := c.Err(); err != nil {
		t.Fatal(err)
	}
	var podInfo struct {
		Config    *api.PodSandboxConfig   `json:"config"`
		Overhead  *api.ContainerResources `json:"overhead"`
		Resources *api.ContainerResources `json:"resources"`
	}
	text = verboseInfo(V1{}, map[string]any{"config": podCfg})["info"]
	if err := json.Unmarshal([]byte(text), &podInfo); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	pod.Linux.SecurityContext.Apparmor.LocalhostRef = "p" // without the beginning that the old field has
	if !proto.Equal(podInfo.Config, pod) || !proto.Equal(podInfo.Overhead.GetLinux(), pod.Linux.Overhead) ||
		!proto.Equal(podInfo.Resources.GetLinux(), pod.Linux.Resources) {
		t.Errorf("of the pod\n%v\ncame\n%v", pod, podInfo.Config)
	}
}

// TestNoFieldOfAConfigurationIsUntold: a field that is new in the CRI has to come back too.
func TestNoFieldOfAConfigurationIsUntold(t *testing.T) {
	untold := map[protoreflect.FullName]string{
		"runtime.v1.ContainerConfig.windows": "", "runtime.v1.PodSandboxConfig.windows": "",
		"runtime.v1.LinuxContainerSecurityContext.seccomp_profile_path": "in seccomp",
		"runtime.v1.LinuxContainerSecurityContext.apparmor_profile":     "in apparmor",
		"runtime.v1.LinuxSandboxSecurityContext.seccomp_profile_path":   "in seccomp",
	}
	container, pod := &api.ContainerConfig{}, &api.PodSandboxConfig{}
	fill(container.ProtoReflect(), 4)
	fill(pod.ProtoReflect(), 4)
	container.Linux.SecurityContext.SupplementalGroupsPolicy = api.SupplementalGroupsPolicy_Strict
	pod.Linux.SecurityContext.SupplementalGroupsPolicy = api.SupplementalGroupsPolicy_Strict
	c := newCheck(V1{}, &api.VersionRequest{}) // what is wrong with the values does not matter
	for asked, told := range map[proto.Message]proto.Message{
		container: fromContainerConfig(V1{}, toContainerConfig(c, request.Path("config"), container)),
		pod:       fromSandboxConfig(toSandboxConfig(c, request.Path("config"), pod)),
	} {
		compareFields(t, asked.ProtoReflect(), told.ProtoReflect(), untold)
	}
}

// compareFields looks for fields that only the first message has.
func compareFields(t *testing.T, asked, told protoreflect.Message, untold map[protoreflect.FullName]string) {
	t.Helper()
	asked.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if _, known := untold[f.FullName()]; known {
			return true
		}
		if !told.Has(f) {
			t.Errorf("%s is not told", f.FullName())
			return true
		}
		switch {
		case f.IsMap() || f.Message() == nil:
		case f.IsList():
			compareFields(t, v.List().Get(0).Message(), told.Get(f).List().Get(0).Message(), untold)
		default:
			compareFields(t, v.Message(), told.Get(f).Message(), untold)
		}
		return true
	})
}
