package migration

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheOldRuntimeIsMasked: a kubelet whose unit wants containerd starts one that is disabled. So the commands that
// are printed mask it, the unit is named among what somebody has to look at, and the way back begins with the opposite.
// Seen to fail where the commands disabled containerd.
func TestTheOldRuntimeIsMasked(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	unit := filepath.Join(root, "etc/systemd/system/kubelet.service")
	if err := os.MkdirAll(filepath.Dir(unit), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(unit, []byte("[Unit]\nWants=containerd.service\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "config.toml")
	if err := os.WriteFile(file, []byte("version = 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	run := func(edit func(*Migration)) string {
		t.Helper()
		var out bytes.Buffer
		m := &Migration{Runtime: Containerd, File: file, Dir: dir, NoImages: true, System: root, Out: &out}
		edit(m)
		// What is wrong with the machine of the test does not count.
		if _, err := m.Run(t.Context()); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		return out.String()
	}
	const note = "/etc/systemd/system/kubelet.service: Wants=containerd.service"
	if out := run(func(m *Migration) { m.DryRun = true }); !strings.Contains(out, note) {
		t.Errorf("a dry run does not name the unit:\n%s", out)
	}
	out := run(func(*Migration) {})
	if !strings.Contains(out, note) || !strings.Contains(out, "\n  systemctl mask --now containerd\n") {
		t.Errorf("the unit is not named, or containerd not masked:\n%s", out)
	}
	report, err := os.ReadFile(filepath.Join(dir, "migrate/containerd.txt"))
	if err != nil || !strings.Contains(string(report), note) {
		t.Errorf("the report: %s, %v", report, err)
	}
	out = run(func(m *Migration) { m.Revert = true })
	if !strings.Contains(out, "\n  systemctl unmask containerd\n  systemctl enable --now containerd\n") {
		t.Errorf("the way back:\n%s", out)
	}
}

// TestTheWayBackHasTheSocketOfBefore: the record of the migration knows what a file had that the operator was told to
// change, also if the migration ran again since. Seen to fail where the migration did not keep it.
func TestTheWayBackHasTheSocketOfBefore(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	flags := filepath.Join(root, "var/lib/kubelet/kubeadm-flags.env")
	if err := os.MkdirAll(filepath.Dir(flags), 0o755); err != nil {
		t.Fatal(err)
	}
	has := func(socket string) {
		t.Helper()
		if err := os.WriteFile(flags, []byte("A=\"--container-runtime-endpoint="+socket+"\"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run := func(edit func(*Migration)) string {
		t.Helper()
		var out bytes.Buffer
		m := &Migration{Runtime: Containerd, File: filepath.Join(root, "none.toml"), Dir: dir, NoImages: true, System: root,
			Out: &out}
		edit(m)
		if _, err := m.Run(t.Context()); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		return out.String()
	}
	const old, berth = "unix:///var/run/containerd/containerd.sock", "unix:///run/berth/berth.sock"
	const path = " /var/lib/kubelet/kubeadm-flags.env\n"
	has(old)
	if out := run(func(m *Migration) { m.DryRun = true }); !strings.Contains(out, "kubeadm-flags.env: "+old) {
		t.Errorf("a dry run does not name the file:\n%s", out)
	}
	if out := run(func(*Migration) {}); !strings.Contains(out, "\n  sed -i 's#"+old+"#"+berth+"#g'"+path) {
		t.Errorf("the way there:\n%s", out)
	}
	has(berth)
	run(func(*Migration) {})
	out := run(func(m *Migration) { m.Revert = true })
	for _, want := range []string{"\n  sed -i 's#" + berth + "#" + old + "#g'" + path, "cri-socket=" + old + " "} {
		if !strings.Contains(out, want) {
			t.Errorf("the way back has no %q:\n%s", want, out)
		}
	}
}
