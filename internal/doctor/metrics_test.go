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
	if socket, runs := kubeletsContainerd(proc(t, "kubelet")); socket != "/run/containerd/containerd.sock" || !runs {
		t.Errorf("the default: %s", socket)
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
