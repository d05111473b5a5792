package security

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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

// profileHolds fails the test if a container, or an exec in it, is not under the default profile, where the kernel
// has one.
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

// CVE-2021-43816 (containerd, with SELinux): a volume of the host mounted at /etc/hosts, /etc/hostname
// or /etc/resolv.conf was taken for the pod's own file of that name, and got the label of the pod: its containers could
// read and write it, whatever the policy says of it.
//
// Seen to fail with files of these names relabelled, in pod/container_create.go.
func TestCVE_2021_43816_AFileOfTheHostIsRelabelled(t *testing.T) {
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		t.Skip("this kernel has no SELinux: go run ./test/vm -lsm selinux -run-tests ./test/security -run 2021_43816")
	}
	n := nodetest.Shared(t)
	label := func(path string) string {
		t.Helper()
		value := make([]byte, 256)
		size, err := unix.Getxattr(path, "security.selinux", value)
		if err != nil {
			t.Fatalf("label of %s: %v", path, err)
		}
		return string(value[:size])
	}
	for _, name := range []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log", "/data"} {
		b := newBait(t)
		secret := filepath.Join(b.path, "secret")
		before := label(secret)
		c, err := nodetest.RunPod(t, n).TryCreate(volume(secret, name))
		if err == nil {
			_ = c.TryStart()
		}
		if after := label(secret); after != before {
			t.Errorf("a file of the host at %s had the label %s and has %s", name, before, after)
		}
	}
}
