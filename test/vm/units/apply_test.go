package units

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestAShutdownStopsThePodsOfTheService: systemd says "stopping" here because its shutdown.target is active, without
// what that takes with it. The pod of berth-apply.service ends by its hook and by SIGTERM then, where a stop of the
// service at any other time leaves it alone.
func TestAShutdownStopsThePodsOfTheService(t *testing.T) {
	installed(t)
	const manifests, dropIn = "/etc/berth/manifests", "/run/systemd/system/shutdown.target.d/test.conf"
	out := t.TempDir()
	log := func() string {
		data, _ := os.ReadFile(filepath.Join(out, "log"))
		return string(data)
	}
	t.Cleanup(func() {
		_, _ = exec.Command("systemctl", "stop", "shutdown.target").CombinedOutput()
		_, _ = exec.Command("systemctl", "stop", "berth-apply").CombinedOutput()
		must(t, "sh", "-c", "grep -o ' /var/lib/berth-cli/[^ ]*' /proc/mounts | xargs -r umount") // files of the pod
		if err := os.RemoveAll("/var/lib/berth-cli"); err != nil {
			t.Error(err)
		}
		must(t, "systemctl", "daemon-reload")
	})
	write(t, dropIn, "[Unit]\nRefuseManualStart=no\nRefuseManualStop=no\n")
	write(t, filepath.Join(manifests, "pod.yaml"), strings.NewReplacer("IMAGE", node.Busybox, "OUT", out).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: orderly}
spec:
  terminationGracePeriodSeconds: 200
  volumes: [{name: out, hostPath: {path: OUT}}]
  containers:
  - name: c
    image: IMAGE
    volumeMounts: [{name: out, mountPath: /out}]
    lifecycle: {preStop: {exec: {command: [sh, -c, "echo hook >>/out/log"]}}}
    command:
    - sh
    - -c
    - |
      trap 'sleep 100; echo end >>/out/log; exit 0' TERM
      echo begin >>/out/log
      while sleep 0.1; do :; done
`))
	must(t, "systemctl", "daemon-reload")
	must(t, "systemctl", "start", "berth-apply")
	nodetest.Eventually(t, 2*time.Minute, "the pod has begun", func() error {
		if log() != "begin\n" {
			return fmt.Errorf("the log: %q", log())
		}
		return nil
	})
	// At a shutdown, systemd stops what conflicts with its target, without an order that would help.
	for line := range strings.Lines(must(t, "systemctl", "list-units", "--plain", "--no-legend", "berth*.slice",
		"*.scope")) {
		unit, _, _ := strings.Cut(line, " ")
		if in := property(t, unit, "Slice"); !strings.HasPrefix(unit, "berth") && !strings.HasPrefix(in, "berth") {
			continue
		}
		if conflicts := property(t, unit, "Conflicts"); strings.Contains(conflicts, "shutdown.target") {
			t.Errorf("a shutdown stops %s", unit)
		}
	}
	must(t, "systemctl", "restart", "berth-apply")
	must(t, "systemctl", "stop", "berth-apply")
	must(t, "systemctl", "start", "berth-apply")
	if log() != "begin\n" {
		t.Errorf("without a shutdown: %q", log())
	}
	must(t, "systemctl", "start", "--job-mode=ignore-dependencies", "shutdown.target")
	if state, _ := exec.Command("systemctl", "is-system-running").Output(); string(state) != "stopping\n" {
		t.Fatalf("the system is %q", state)
	}
	begin := time.Now()
	must(t, "systemctl", "stop", "berth-apply")
	if took := time.Since(begin); log() != "begin\nhook\nend\n" || took < 95*time.Second {
		t.Errorf("after %v: %q\n%s", took, log(), must(t, "journalctl", "-u", "berth-apply", "--no-pager"))
	}
	if result := property(t, "berth-apply", "Result"); result != "success" {
		t.Errorf("the unit's result is %q", result)
	}
}
