package security

import (
	"os"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node/nodetest"
)

// hasAppArmor tells whether the kernel has it on.
func hasAppArmor() bool {
	enabled, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(enabled), "Y")
}

// underProfile asks for the default profile of AppArmor, where the kernel has it.
func underProfile(c *cri.ContainerConfig) {
	if hasAppArmor() {
		c.Linux.SecurityContext.Apparmor = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	}
}

// profileHolds fails the test if a container, or an exec in it, is not under the default profile, where the kernel has one.
func profileHolds(t *testing.T, c *nodetest.Container) {
	t.Helper()
	if !hasAppArmor() {
		return
	}
	for _, process := range []string{"1", "self"} {
		if got := c.Sh("cat /proc/" + process + "/attr/current"); got != "berth-default (enforce)" {
			t.Errorf("process %s is under the profile %q", process, got)
		}
	}
}
