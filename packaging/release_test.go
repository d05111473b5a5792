package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAReleaseIsOfATag: a commit without a tag and a tree with changes are refused, before anything in dist/ is
// removed. The source is that of the tag, and both architectures get the tag's version. In place of the script that
// makes packages is one that writes down its arguments. Seen to fail with the script's refusals taken out, one by one.
func TestAReleaseIsOfATag(t *testing.T) {
	tree := t.TempDir()
	scripts := filepath.Join(tree, "packaging")
	if err := os.Mkdir(scripts, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"version.sh", "release.sh"} {
		output(t, "cp", name, scripts)
	}
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(tree, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("packaging/dist.sh", "#!/bin/sh -e\necho $VERSION $* >dist/packages\ncd dist && sha256sum * >../sums\n"+
		"mv ../sums SHA256SUMS\n", 0o755)
	write(".gitignore", "/dist/\n", 0o644)
	environment := append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_CEILING_DIRECTORIES="+filepath.Dir(tree), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a")
	run := func(name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = tree, environment
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(name string, args ...string) string {
		t.Helper()
		out, err := run(name, args...)
		if err != nil {
			t.Fatalf("%s %v: %v\n%s", name, args, err, out)
		}
		return out
	}
	refused := func(why string) {
		t.Helper()
		if out, err := run("packaging/release.sh", "amd64", "arm64"); err == nil || !strings.Contains(out, why) {
			t.Errorf("not refused with %q: %v\n%s", why, err, out)
		}
		if _, err := os.Stat(filepath.Join(tree, "dist", "earlier")); err != nil {
			t.Error(err)
		}
	}
	must("mkdir", "dist")
	write("dist/earlier", "", 0o644)
	refused("no tag of a version")
	must("git", "init", "--quiet")
	must("git", "add", ".")
	must("git", "commit", "--quiet", "--message", "a")
	refused("no tag of a version")
	must("git", "tag", "v1.2.3")
	must("git", "commit", "--quiet", "--allow-empty", "--message", "b")
	refused("no tag of a version")
	must("git", "tag", "v1.2.4")
	write(".gitignore", "/dist/\n\n", 0o644)
	refused("not committed")
	must("git", "checkout", ".gitignore")

	out := must("packaging/release.sh", "amd64", "arm64")
	for _, line := range []string{"git verify-tag v1.2.4", "gpg --armor --detach-sign SHA256SUMS"} {
		if !strings.Contains(out, line) {
			t.Errorf("it does not say %q:\n%s", line, out)
		}
	}
	if got := strings.TrimSpace(must("cat", "dist/packages")); got != "1.2.4 amd64 arm64" {
		t.Errorf("packages are made of %q", got)
	}
	if got := must("ls", "dist"); got != "SHA256SUMS\nberth-1.2.4.tar.gz\npackages\n" {
		t.Errorf("dist/ has:\n%s", got)
	}
	if got := must("tar", "-tf", "dist/berth-1.2.4.tar.gz"); !strings.Contains(got, "berth-1.2.4/packaging/release.sh\n") {
		t.Errorf("the source has:\n%s", got)
	}
}
