package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	kubeversion "k8s.io/apimachinery/pkg/util/version"
)

// TestTheVersionIsSemantic: of any tree, for a kubelet's parser. Seen to fail with `git describe --always` in place
// of the script's parts, and without the check of what is given.
func TestTheVersionIsSemantic(t *testing.T) {
	tree := t.TempDir()
	at := filepath.Join(tree, "packaging", "version.sh")
	script, err := os.ReadFile("version.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, script, 0o755); err != nil {
		t.Fatal(err)
	}
	// Neither the machine's configuration of Git nor the repository that this test is in counts.
	environment := append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_CEILING_DIRECTORIES="+filepath.Dir(tree), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a", "GIT_COMMITTER_NAME=a",
		"GIT_COMMITTER_EMAIL=a")
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir, cmd.Env = tree, environment
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	commit := func() string {
		t.Helper()
		git("add", ".")
		git("commit", "--quiet", "--allow-empty", "--message", "a")
		return git("rev-parse", "--short", "HEAD")
	}
	says := func(want string, args ...string) {
		t.Helper()
		cmd := exec.Command(at, args...)
		cmd.Env = environment
		out, err := cmd.Output()
		got := strings.TrimSuffix(string(out), "\n")
		if err != nil || got != want {
			t.Errorf("%v: %q, want %q (%v)", args, got, want, err)
		}
		if _, err := kubeversion.ParseSemantic(got); err != nil {
			t.Error(err)
		}
	}
	says("0.1.0-dev") // no repository
	git("init", "--quiet")
	says("0.1.0-dev") // no commit
	says("0.1.0-dev+" + commit())
	git("tag", "nightly")
	git("tag", "v1.2.3.4")
	says("0.1.0-dev+" + git("rev-parse", "--short", "HEAD"))
	git("tag", "--delete", "v1.2.3.4")
	if err := os.WriteFile(at, append(script, '\n'), 0o755); err != nil {
		t.Fatal(err)
	}
	says("0.1.0-dev+" + git("rev-parse", "--short", "HEAD") + ".dirty")
	commit()
	git("tag", "v1.2.3")
	says("1.2.3")
	commit()
	says("1.2.3+2.g" + commit())
	if err := os.WriteFile(at, script, 0o755); err != nil {
		t.Fatal(err)
	}
	says("1.2.3+2.g" + git("rev-parse", "--short", "HEAD") + ".dirty")
	commit()
	git("tag", "--message", "a", "v2.0.0-rc.1") // annotated
	says("2.0.0-rc.1")
	if err := os.WriteFile(at, append(script, '\n'), 0o755); err != nil {
		t.Fatal(err)
	}
	says("2.0.0-rc.1+dirty")

	says("3.4.5", "v3.4.5")
	says("3.4.5-beta.2+x", "3.4.5-beta.2+x")
	for _, given := range []string{"e5245e0", "1.2", "v1.2.03", "1.2.3-", "1.2.3 4", "latest"} {
		if out, err := exec.Command(at, given).Output(); err == nil {
			t.Errorf("%s gives %s", given, out)
		}
	}
}
