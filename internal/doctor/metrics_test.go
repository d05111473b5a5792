package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAKubeletsCAdvisorHasToFindBerth where it looks for containerd.
func TestAKubeletsCAdvisorHasToFindBerth(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "containerd.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const berth = "v2.3.4+berth.1"
	flag := []string{"/usr/bin/kubelet", "--containerd=" + socket}
	for name, tc := range map[string]struct {
		command []string
		version string
		err     error
		level   Level
		detail  string
	}{
		"no kubelet":    {command: []string{"/usr/bin/containerd"}, level: Good, detail: "no kubelet"},
		"Berth answers": {command: flag, version: berth, level: Good, detail: socket},
		"a flag of two words": {command: []string{"kubelet", "--v", "2", "--containerd", socket}, version: berth,
			level: Good, detail: socket},
		"another flag": {command: []string{"kubelet", "--containerd-namespace=x", "--containerd=" + socket}, version: berth,
			level: Good, detail: socket},
		"containerd answers": {command: flag, version: "1.7.1", level: Poor, detail: "containerd 1.7.1"},
		"nobody answers":     {command: flag, err: errors.New("refused"), level: Poor, detail: "refused"},
		"nothing is there":   {command: []string{"kubelet", "--containerd=/nonexistent"}, level: Poor, detail: "nothing is"},
		"the CRI is asked instead": {command: []string{"kubelet", "--containerd=/nonexistent",
			"--feature-gates=A=true,PodAndContainerStatsFromCRI=true"}, level: Good, detail: "over the CRI"},
		"a gate that is off": {command: []string{"kubelet", "--containerd=/nonexistent",
			"--feature-gates=PodAndContainerStatsFromCRI=false,A=true"}, level: Poor, detail: "nothing is"},
	} {
		t.Run(name, func(t *testing.T) {
			f := checkMetrics(t.Context(), Config{
				Socket: "/run/berth/berth.sock", Proc: proc(t, tc.command...),
				ContainerdVersion: func(context.Context, string) (string, error) { return tc.version, tc.err },
			})
			advised := strings.Contains(f.Advice, "restart the kubelet")
			if f.Level != tc.level || !strings.Contains(f.Detail, tc.detail) || advised != (tc.level == Poor) {
				t.Errorf("%+v", f)
			}
		})
	}
	if k, runs := findKubelet(proc(t, "kubelet")); k.containerd() != "/run/containerd/containerd.sock" || !runs {
		t.Errorf("the default: %s", k.containerd())
	}
}

// TestTheGateIsReadFromTheKubeletsFile with its comments left out.
func TestTheGateIsReadFromTheKubeletsFile(t *testing.T) {
	for text, want := range map[string]bool{
		"featureGates:\n  PodAndContainerStatsFromCRI: true\n":             true,
		`{"featureGates": {"PodAndContainerStatsFromCRI": true}}`:          true,
		"featureGates:\n  PodAndContainerStatsFromCRI: false\n":            false,
		"featureGates:\n#  PodAndContainerStatsFromCRI: true\n  A: true\n": false,
		"": false,
	} {
		dir := proc(t, "kubelet", "--config=/k.yaml")
		if err := os.Mkdir(filepath.Join(dir, "7", "root"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "7", "root", "k.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if k, _ := findKubelet(dir); k.statsFromCRI(dir) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

// TestTheKubeletOfK3sIsAPartOfIt: the process of k3s replaces its command line by a title of two words.
func TestTheKubeletOfK3sIsAPartOfIt(t *testing.T) {
	for title, unit := range map[string]string{
		"/usr/local/bin/k3s server": "k3s", "/usr/local/bin/k3s agent": "k3s-agent",
	} {
		cfg := Config{
			Socket: "/run/berth/berth.sock", Proc: proc(t, title, "", "", ""), Daemon: &Daemon{CgroupDriver: "systemd"},
			ContainerdVersion: func(context.Context, string) (string, error) { return "1.7.1", nil },
		}
		f := checkMetrics(t.Context(), cfg)
		if f.Level != Poor || !strings.HasSuffix(f.Advice, "systemctl restart "+unit) ||
			!strings.Contains(f.Advice, "start "+unit+" with --kubelet-arg=containerd=/run/berth/berth.sock") {
			t.Errorf("metrics of %s: %+v", title, f)
		}
		if f := checkKubelet(t.Context(), cfg); f.Level != Good || !strings.Contains(f.Detail, unit+" runs a kubelet") {
			t.Errorf("cgroups of %s: %+v", title, f)
		}
	}
	for _, command := range [][]string{{"/usr/local/bin/k3s", "kubectl", "get", "pods"}, {"/usr/local/bin/k3s init"}} {
		if _, runs := findKubelet(proc(t, command...)); runs {
			t.Errorf("%q is taken for a kubelet", command)
		}
	}
}

// proc is a directory of processes with one that has this command line.
func proc(t *testing.T, command ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "7"), 0o700); err != nil {
		t.Fatal(err)
	}
	line := []byte(strings.Join(command, "\x00") + "\x00")
	if err := os.WriteFile(filepath.Join(dir, "7", "cmdline"), line, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
