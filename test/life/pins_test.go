package life

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node/nodetest"
)

// TestAVolumeMayHavePinsOfMountNamespacesBelowIt: snapd, for one, has them in /run, which agents of the node mount with
// all that is in it. The kernel attaches no such tree to a mount namespace that is newer than the pinned one. Since
// Linux 6.18, numbers of namespaces say that, and each processor has numbers of its own, so a few of many are refused.
//
// Seen to fail without the stage's take_again: "too many levels of symbolic links".
func TestAVolumeMayHavePinsOfMountNamespacesBelowIt(t *testing.T) {
	n := nodetest.Shared(t)
	dir := t.TempDir()
	pins, late := filepath.Join(dir, "pins"), filepath.Join(dir, "late")
	for _, m := range []struct {
		at          string
		propagation uintptr
	}{
		{dir, unix.MS_SHARED}, {pins, unix.MS_PRIVATE}, {filepath.Join(dir, "mounted"), unix.MS_PRIVATE},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(m.at, m.at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(m.at, unix.MNT_DETACH) })
		if err := unix.Mount("", m.at, "", m.propagation, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(late, 0o755); err != nil {
		t.Fatal(err)
	}
	pin := filepath.Join(pins, "pin")
	if err := os.WriteFile(pin, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(pin, unix.MNT_DETACH) })
	// It cannot be pinned on each processor, either.
	for i := 0; exec.Command("unshare", "--mount="+pin, "true").Run() != nil; i++ {
		if i == 100 {
			t.Fatal("no mount namespace can be pinned")
		}
	}
	for name, options := range map[string]*cri.NamespaceOption{
		"the node's users":       {Pid: cri.NamespaceMode_CONTAINER},
		"a shared PID namespace": {Pid: cri.NamespaceMode_POD},
		"its own users":          {Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: userNamespace(200000, 65536)},
	} {
		t.Run(name, func(t *testing.T) {
			if nodetest.Containerd() && options.UsernsOptions != nil {
				t.Skip("containerd 1.6 has no user namespaces")
			}
			p := nodetest.RunPod(t, n, podNamespaces(options))
			for range 12 {
				c := p.Run(nodetest.Mounts(&cri.Mount{HostPath: dir, ContainerPath: "/v", Readonly: true},
					&cri.Mount{HostPath: dir, ContainerPath: "/slave",
						Propagation: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}))
				if got := c.Sh("grep -c ' /v/mounted ' /proc/self/mountinfo; touch /v/x 2>/dev/null || echo ro"); got != "1\nro" {
					t.Errorf("in the container: %q", got)
				}
				if err := unix.Mount("late", late, "tmpfs", 0, ""); err != nil {
					t.Fatal(err)
				}
				if got := c.Sh("grep -c ' /slave/late ' /proc/self/mountinfo"); got != "1" {
					t.Errorf("what is mounted later: %q", got)
				}
				if err := unix.Unmount(late, 0); err != nil {
					t.Fatal(err)
				}
				c.Remove()
			}
		})
	}
}
