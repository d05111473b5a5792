package dockerauth

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"berth/internal/model"
)

// write makes a config.json with a mode.
func write(t *testing.T, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// helper makes a program docker-credential-NAME that $PATH leads to.
func helper(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, program(name)), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func find(t *testing.T, f *File, image string) (*model.Auth, error) {
	t.Helper()
	ref, err := reference.ParseDockerRef(image)
	if err != nil {
		t.Fatal(err)
	}
	return f.Find(t.Context(), ref)
}

func TestTheLongestPathThatLeadsToAnImageCounts(t *testing.T) {
	f, err := Read(write(t, `{"auths": {"r.example": {"auth": "all"}, "r.example/team": {"auth": "team"},
		"r.example/team/app": {"auth": "app"}, "https://v.example/v1/": {"auth": "v"}, "index.docker.io": {"auth": "hub"}}}`,
		0o600))
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{
		"r.example/a": "all", "r.example/team/b": "team", "r.example/teams/b": "all", "r.example/team/app": "app",
		"r.example/team/app/x": "app", "v.example/a/b": "v", "busybox": "hub",
	} {
		if auth, err := find(t, f, image); err != nil || auth == nil || auth.Auth != want {
			t.Errorf("%s: %v, %v", image, auth, err)
		}
	}
	if auth, err := find(t, f, "other.example/a"); auth != nil || err != nil {
		t.Error(auth, err)
	}
}

// TestOfSeveralSpellingsTheSameCountsEachTime: seen to fail, within a few tries, where the order of a map decided.
func TestOfSeveralSpellingsTheSameCountsEachTime(t *testing.T) {
	path := write(t, `{
		"auths": {
			"docker.io": {"auth": "plain"}, "https://index.docker.io/v1/": {"auth": "login"}, "index.docker.io": {"auth": "x"},
			"https://r.example": {"auth": "url"}, "r.example": {"auth": "login"}, "http://r.example/v2/": {"auth": "x"},
			"https://r.example/team": {"auth": "url"}, "r.example/team": {"auth": "plain"},
			"https://u.example/v2/": {"auth": "v2"}, "https://u.example": {"auth": "url"},
			"kept.example": {}, "https://kept.example": {"auth": "url"}},
		"credHelpers": {"https://h.example": "a", "h.example": "b", "http://h.example/v1/": "a",
			"e.example": "", "https://e.example": "b"}}`, 0o600)
	for range 30 {
		f, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		for image, want := range map[string]string{
			"busybox": "login", "r.example/a": "login", "r.example/team/a": "plain", "u.example/a": "url",
			"kept.example/a": "url",
		} {
			if auth, err := find(t, f, image); err != nil || auth == nil || auth.Auth != want {
				t.Fatalf("%s: %v, %v, want %q", image, auth, err, want)
			}
		}
		if f.helperOf("h.example") != "b" || f.helperOf("e.example") != "b" {
			t.Fatalf("helpers %v", f.credHelpers)
		}
	}
}

// TestHelpersAreAsked: with the name of the registry on standard input, credHelpers before auths and credsStore after.
func TestHelpersAreAsked(t *testing.T) {
	helper(t, "cloud", `read s; [ "$1" = get ] && echo "{\"ServerURL\":\"$s\",\"Username\":\"u\",\"Secret\":\"for $s\"}"`)
	helper(t, "token", `echo '{"Username":"<token>","Secret":"refresh"}'`)
	helper(t, "empty", `echo "credentials not found in native keychain"; exit 1`)
	f, err := Read(write(t, `{
		"auths": {"c.example": {"auth": "no"}, "plain.example": {"auth": "file"}, "kept.example": {}},
		"credHelpers": {"c.example": "cloud", "t.example": "token", "e.example": "empty"}, "credsStore": "cloud"}`, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]model.Auth{
		"c.example/a":     {Username: "u", Password: "for c.example"},
		"t.example/a":     {IdentityToken: "refresh"},
		"plain.example/a": {Auth: "file"},
		"kept.example/a":  {Username: "u", Password: "for kept.example"},
		"busybox":         {Username: "u", Password: "for https://index.docker.io/v1/"},
	} {
		if auth, err := find(t, f, image); err != nil || auth == nil || *auth != want {
			t.Errorf("%s: %v, %v", image, auth, err)
		}
	}
	if auth, err := find(t, f, "e.example/a"); auth != nil || err != nil {
		t.Error(auth, err)
	}
}

// TestAHelperThatFailsTellsNothing: neither what it prints nor what it writes to standard error is in the error, and
// what it has started does not hold the pull up. Seen to fail with a buffer that kept all of the output, which was more
// than the limit.
func TestAHelperThatFailsTellsNothing(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		kind   func(error) bool
	}{
		"fails":    {"echo hunter2; echo hunter2 >&2; exit 3", errdefs.IsUnavailable},
		"text":     {"echo hunter2", errdefs.IsFailedPrecondition},
		"nameless": {`echo '{"Secret":"hunter2"}'`, errdefs.IsFailedPrecondition},
		"endless":  {"while :; do echo hunter2hunter2hunter2; done | head -c 300000", errdefs.IsFailedPrecondition},
		"slow":     {"echo hunter2; sleep 600 & sleep 600", errdefs.IsUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			helper(t, name, c.script)
			f, err := Read(write(t, fmt.Sprintf(`{"credsStore": %q}`, name), 0o600))
			if err != nil {
				t.Fatal(err)
			}
			if name == "slow" {
				f.timeout = 300 * time.Millisecond
			}
			start := time.Now()
			auth, err := find(t, f, "r.example/a")
			if auth != nil || !c.kind(err) || strings.Contains(fmt.Sprint(err), "hunter2") {
				t.Errorf("%v, %v", auth, err)
			}
			if !strings.Contains(fmt.Sprint(err), "r.example") || !strings.Contains(fmt.Sprint(err), program(name)) {
				t.Errorf("the error names neither registry nor program: %v", err)
			}
			if limit := "more than 262144 bytes"; name == "endless" && !strings.Contains(fmt.Sprint(err), limit) {
				t.Errorf("the error does not say that it printed %s: %v", limit, err)
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("it took %s", took)
			}
		})
	}
	f, err := Read(write(t, `{"credsStore": "nowhere"}`, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := find(t, f, "r.example/a"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a helper that is not there: %v", err)
	}
	if err := f.CheckHelpers(); err == nil || !strings.Contains(err.Error(), program("nowhere")) {
		t.Errorf("a helper that is not there: %v", err)
	}
}

func TestAHelperIsNoPath(t *testing.T) {
	for _, name := range []string{"../../tmp/x", "a/b", "-x", "a b"} {
		if _, err := Read(write(t, fmt.Sprintf(`{"credHelpers": {"r.example": %q}}`, name), 0o600)); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
}

// TestOthersMayNotWriteTheNodesFile: it names programs that run as root. That others may read it is told once.
func TestOthersMayNotWriteTheNodesFile(t *testing.T) {
	const content = `{"auths": {"r.example": {"auth": "one"}}}`
	ref, _ := reference.ParseDockerRef("r.example/a")
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		path := write(t, content, mode)
		if _, err := NewNode(path, slog.Default()).Find(t.Context(), ref); !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%#o: %v", mode, err)
		}
		if Check(path) == nil {
			t.Errorf("%#o: the check finds nothing", mode)
		}
	}
	path := write(t, content, 0o644)
	var log strings.Builder
	n := NewNode(path, slog.New(slog.NewTextHandler(&log, nil)))
	for range 3 {
		if auth, err := n.Find(t.Context(), ref); err != nil || auth == nil || auth.Auth != "one" {
			t.Fatal(auth, err)
		}
	}
	if told := strings.Count(log.String(), path); told != 1 || strings.Contains(log.String(), "auth=one") {
		t.Errorf("told %d times:\n%s", told, log.String())
	}
	if err := Check(path); err == nil || !strings.Contains(err.Error(), "0644") {
		t.Errorf("the check of a file that others may read: %v", err)
	}
	if os.Geteuid() == 0 {
		if err := os.Chown(path, 65534, -1); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Find(t.Context(), ref); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("another user's file was taken: %v", err)
		}
	}
	if err := Check(""); err != nil {
		t.Error(err)
	}
}

// TestAChangedFileCounts: from the next pull on.
func TestAChangedFileCounts(t *testing.T) {
	path := write(t, `{"auths": {"r.example": {"auth": "one"}}}`, 0o600)
	n := NewNode(path, slog.Default())
	ref, _ := reference.ParseDockerRef("r.example/a")
	if auth, err := n.Find(t.Context(), ref); err != nil || auth.Auth != "one" {
		t.Fatal(auth, err)
	}
	if err := os.WriteFile(path, []byte(`{"auths": {"r.example": {"auth": "two"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if auth, err := n.Find(t.Context(), ref); err != nil || auth.Auth != "two" {
		t.Fatal(auth, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Find(t.Context(), ref); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a file that is gone: %v", err)
	}
}
