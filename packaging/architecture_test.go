package packaging_test

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestTheOtherArchitecture builds the programs for the architecture that this machine is not of, looks at them as at
// its own, and runs them in QEMU. Seen to fail without the architecture's branch protection in build.sh, and with
// GOARCH unset there.
func TestTheOtherArchitecture(t *testing.T) {
	if testing.Short() {
		t.Skip("the build takes minutes")
	}
	other, gnu := "arm64", "aarch64"
	if runtime.GOARCH == "arm64" {
		other, gnu = "amd64", "x86_64"
	}
	qemu := "qemu-" + gnu + "-static"
	for _, program := range []string{qemu, gnu + "-linux-gnu-gcc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	dir := recorded(t, other)
	hardened(t, dir, other)
	compiled(t, dir, other)
	for line, want := range map[string]string{
		"berthd --version": "1.2.3", "berth --version": "1.2.3", "berth-keeper --version": "1.2.3",
		"berth --help": "Run and manage pods on this machine", "berthd config dump": `root = "/var/lib/berth"`,
		"berthd config default": "[network]",
	} {
		args := strings.Fields(line)
		out := output(t, qemu, append([]string{filepath.Join(dir, args[0])}, args[1:]...)...)
		if !strings.Contains(out, want) {
			t.Errorf("%s prints no %q:\n%s", line, want, out)
		}
	}
	out, err := exec.Command(qemu, filepath.Join(dir, "berth-unpack")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "berthd runs this program") {
		t.Errorf("berth-unpack: %v\n%s", err, out)
	}
}
