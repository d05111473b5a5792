package packaging_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// staged is a small tree as make install fills it.
func staged(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for path, mode := range map[string]os.FileMode{
		"usr/bin/berthd": 0o755, "usr/lib/systemd/system/berthd.service": 0o644, "etc/berth/config.toml": 0o644,
		"usr/share/man/man8/berthd.8.gz": 0o644,
	} {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(path), mode); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// packages makes packages of a tree, with the program that make packages runs.
func packages(t *testing.T, program, root string) map[string][]byte {
	t.Helper()
	out := t.TempDir()
	cmd := exec.Command(program, "-root", root, "-out", out, "-scripts", "scripts", "-version", "1.2.3-rc.1+4.gabc",
		"-arch", "amd64", "-time", "1700000000")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	made := map[string][]byte{}
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if made[e.Name()], err = os.ReadFile(filepath.Join(out, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return made
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestPackages: the same tree makes the same bytes, files of /etc are the administrator's, and each format has all
// files and the maintainer scripts.
func TestPackages(t *testing.T) {
	program := filepath.Join(t.TempDir(), "packages")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Dir = "../tools/packages"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	first, second := packages(t, program, staged(t)), packages(t, program, staged(t))
	dir := t.TempDir()
	var deb, rpm, archive string
	for name, data := range first {
		if !bytes.Equal(data, second[name]) {
			t.Errorf("%s has other bytes the second time", name)
		}
		at := filepath.Join(dir, name)
		if err := os.WriteFile(at, data, 0o600); err != nil {
			t.Fatal(err)
		}
		switch filepath.Ext(name) {
		case ".deb":
			deb = at
		case ".rpm":
			rpm = at
		case ".gz":
			archive = at
		}
	}
	if len(first) != 4 {
		t.Fatalf("made: %v", first)
	}
	check := exec.Command("sha256sum", "-c", "SHA256SUMS")
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("SHA256SUMS: %v\n%s", err, out)
	}
	files := []string{"/etc/berth/config.toml", "/usr/bin/berthd", "/usr/lib/systemd/system/berthd.service",
		"/usr/share/man/man8/berthd.8.gz"}
	listed := map[string]string{
		"deb": output(t, "dpkg-deb", "-c", deb), "tar": output(t, "tar", "-tf", archive),
		"rpm": output(t, "rpm", "-qpl", rpm),
	}
	for format, text := range listed {
		for _, file := range files {
			if !strings.Contains(text, strings.TrimPrefix(file, "/")) {
				t.Errorf("%s has no %s:\n%s", format, file, text)
			}
		}
	}
	control := filepath.Join(dir, "control")
	output(t, "dpkg-deb", "-e", deb, control)
	conffiles, err := os.ReadFile(filepath.Join(control, "conffiles"))
	if err != nil || strings.TrimSpace(string(conffiles)) != "/etc/berth/config.toml" {
		t.Errorf("conffiles %q, %v", conffiles, err)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if info, err := os.Stat(filepath.Join(control, script)); err != nil || info.Mode().Perm()&0o111 == 0 {
			t.Errorf("%s: %v, %v", script, info, err)
		}
	}
	// A pre-release comes before its release.
	version := strings.TrimSpace(output(t, "dpkg-deb", "-f", deb, "Version"))
	if err := exec.Command("dpkg", "--compare-versions", version, "lt", "1.2.3").Run(); err != nil {
		t.Errorf("version %s is not before 1.2.3: %v", version, err)
	}
	if got := strings.Fields(output(t, "rpm", "-qpc", rpm)); !slices.Equal(got, []string{"/etc/berth/config.toml"}) {
		t.Errorf("the rpm's configuration files are %v", got)
	}
	if text := output(t, "rpm", "-qp", "--scripts", rpm); !strings.Contains(text, "systemctl reload berth-keeper") {
		t.Errorf("the rpm's scripts:\n%s", text)
	}
}
