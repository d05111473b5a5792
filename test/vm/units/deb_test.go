package units

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// deb is the package of a version.
func deb(t *testing.T, version string) string {
	t.Helper()
	dir := os.Getenv("BERTH_VM_PACKAGES")
	if dir == "" {
		t.Skip("without packages: make vm VM_FLAGS='-suites packages'")
	}
	found, err := filepath.Glob(filepath.Join(dir, "berth_"+version+"_*.deb"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	return found[0]
}

// TestDebUnderSystemd: a pod lives through an upgrade of the package, which replaces the programs of both processes,
// and through its removal until it is installed again. The purge leaves nothing of the data. Seen to fail without the
// reload of the keeper in the package's script.
func TestDebUnderSystemd(t *testing.T) {
	first, second := deb(t, "1.0.0"), deb(t, "1.1.0")
	n := connected(t, func() { must(t, "dpkg", "-i", first) }, func() {
		must(t, "dpkg", "--purge", "berth")
		for _, path := range []string{"/var/lib/berth", "/var/lib/berth-cli", "/etc/berth/config.toml", "/usr/bin/berthd"} {
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left: %v", path, err)
			}
		}
		if err := os.RemoveAll("/etc/berth"); err != nil {
			t.Error(err)
		}
	})
	p := nodetest.RunPod(t, n)
	c, pid := counting(t, p)
	started, daemon := c.Status().StartedAt, property(t, "berthd", "MainPID")

	must(t, "dpkg", "-i", second)
	changed(t, n, "berthd", daemon)
	runs(t, "berth-keeper")
	lives(t, c, started, pid)

	if out := must(t, "dpkg", "--remove", "berth"); !strings.Contains(out, "pods are left running") {
		t.Errorf("the removal does not say that a pod runs:\n%s", out)
	}
	if out, err := exec.Command("systemctl", "is-active", "berthd", "berth-keeper").Output(); err == nil {
		t.Errorf("a service of a package that is removed is active: %s", out)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the container's process is gone: %v", err)
	}
	must(t, "dpkg", "-i", second)
	must(t, "systemctl", "enable", "--now", "berth-keeper", "berthd")
	answers(t, n)
	lives(t, c, started, pid)
	p.Remove()
	nothingLeft(t)
}

// runs waits until a service's process runs the program that is installed, not one that has been replaced.
func runs(t *testing.T, service string) {
	t.Helper()
	nodetest.Eventually(t, 30*time.Second, service+" runs its new program", func() error {
		program, err := os.Readlink("/proc/" + property(t, service, "MainPID") + "/exe")
		if want := "/usr/bin/" + service; err != nil || program != want {
			return fmt.Errorf("it runs %q (%v), not %s", program, err, want)
		}
		return nil
	})
}

// answers waits until berthd does.
func answers(t *testing.T, n *node.Node) {
	t.Helper()
	nodetest.Eventually(t, 60*time.Second, "berthd answers", func() error {
		_, err := n.Runtime.Version(nodetest.Context(t), &cri.VersionRequest{})
		return err
	})
}
