package dockerauth

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"berth/internal/asroot"
)

func TestCredentialsAreKeptBesideWhatIsThere(t *testing.T) {
	path := write(t, `{"auths": {"https://r.example/v2/": {"auth": "old"}, "r.example/team": {"auth": "team"},
		"other.example": {"auth": "b3RoZXI6cHc="}}, "HttpHeaders": {"X": "y"}, "credHelpers": {}}`, 0o644)
	link := filepath.Join(t.TempDir(), "link.json")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"r.example", "docker.io"} {
		if err := Save(t.Context(), link, host, "me", "a:b"); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode: %v, %v", info.Mode(), err)
	}
	if info, err = os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link: %v, %v", info, err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var content struct {
		Auths       map[string]map[string]string
		HttpHeaders map[string]string
	}
	if err := json.Unmarshal(data, &content); err != nil || content.HttpHeaders["X"] != "y" || len(content.Auths) != 4 ||
		content.Auths["https://index.docker.io/v1/"]["auth"] != "bWU6YTpi" {
		t.Errorf("%v, %s", err, data)
	}
	f, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{"r.example/a": "bWU6YTpi", "r.example/team/a": "team",
		"busybox": "bWU6YTpi", "other.example/a": "b3RoZXI6cHc="} {
		if auth, err := find(t, f, image); err != nil || auth == nil || auth.Auth != want {
			t.Errorf("%s: %v, %v", image, auth, err)
		}
	}
	for _, want := range []bool{true, false} {
		if known, err := Forget(t.Context(), link, "docker.io"); err != nil || known != want {
			t.Errorf("forget: %t, %v", known, err)
		}
	}
	if known, err := Forget(t.Context(), path+".none", "docker.io"); err != nil || known {
		t.Errorf("forget without a file: %t, %v", known, err)
	}
	if f, err = Read(path); err != nil {
		t.Fatal(err)
	}
	if auth, err := find(t, f, "busybox"); auth != nil || err != nil {
		t.Errorf("what was forgotten: %v, %v", auth, err)
	}
}

func TestAFileThatIsNoneStaysAsItIs(t *testing.T) {
	const content = `{"auths": hunter2}`
	path := write(t, content, 0o600)
	err := Save(t.Context(), path, "r.example", "me", "pw")
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("%v", err)
	}
	if data, _ := os.ReadFile(path); string(data) != content {
		t.Errorf("the file is %s", data)
	}
	fresh := filepath.Join(t.TempDir(), "new", "config.json")
	if err := Save(t.Context(), fresh, "r.example", "me", "pw"); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Dir(fresh)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info, err)
	}
}

func TestHelpersKeepAndForget(t *testing.T) {
	dir := t.TempDir()
	helper(t, "drawer", `case $1 in
store) cat >`+dir+`/kept;;
get) [ -e `+dir+`/kept ] && cat `+dir+`/kept && exit 0; echo "credentials not found in native keychain"; exit 1;;
erase) rm `+dir+`/kept;;
esac`)
	path := write(t, `{"credsStore": "drawer"}`, 0o600)
	if err := Save(t.Context(), path, "r.example", "me", "hunter2"); err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(path); strings.Contains(string(data), "auth\"") ||
		strings.Contains(string(data), "hunter2") || !strings.Contains(string(data), `"r.example": {}`) {
		t.Errorf("the file has what the helper keeps: %s", data)
	}
	f, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if auth, err := find(t, f, "r.example/a"); err != nil || auth == nil || auth.Password != "hunter2" {
		t.Errorf("%v, %v", auth, err)
	}
	for _, want := range []bool{true, false} {
		if known, err := Forget(t.Context(), path, "r.example"); err != nil || known != want {
			t.Errorf("forget: %t, %v", known, err)
		}
	}
	helper(t, "broken", "cat; exit 3")
	path = write(t, `{"credHelpers": {"r.example": "broken"}}`, 0o600)
	if err := Save(t.Context(), path, "r.example", "me", "hunter2"); err == nil ||
		strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a helper that fails: %v", err)
	}
	if data, _ := os.ReadFile(path); strings.Contains(string(data), "auths") {
		t.Errorf("after a helper has failed: %s", data)
	}
}

// TestLoginsAtOnceKeepEachOther: those of a script that logs in to several registries beside each other. Seen to fail
// without the lock of change.
func TestLoginsAtOnceKeepEachOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	const most = 30
	var logins sync.WaitGroup
	for i := range most {
		logins.Go(func() {
			if err := Save(t.Context(), path, fmt.Sprintf("r%d.example", i), "me", "secret"); err != nil {
				t.Error(err)
			}
		})
	}
	logins.Wait()
	f, err := Read(path)
	if err != nil || len(f.auths) != most {
		t.Fatalf("%d credentials are kept of %d, %v", len(f.auths), most, err)
	}
}

// TestNobodyIsToldACredential who may write to the directory: neither a file that is there beside the new one, nor one
// to which a link there leads, is written. Seen to fail with a temporary file of a known name.
func TestNobodyIsToldACredential(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "config.json"), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path+".tmp"); err != nil {
		t.Fatal(err)
	}
	if err := Save(t.Context(), path, "r.example", "me", "secret"); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(victim); err != nil || string(got) != "mine" {
		t.Errorf("the other file is %q, %v", got, err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file is %v, %v", info, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("beside it there is %v, %v", list, err)
	}
}

// TestSudoTakesNoFileAway from the user who has called it, and gives none to others. Seen to fail without the change of
// the owner, and with one for every owner.
func TestSudoTakesNoFileAway(t *testing.T) {
	asroot.Need(t, "chown")
	for caller, want := range map[string]uint32{"4711": 4711, "4712": 0, "": 0} {
		t.Setenv("SUDO_UID", caller)
		path := write(t, `{}`, 0o600)
		if err := os.Chown(path, 4711, 815); err != nil {
			t.Fatal(err)
		}
		if err := Save(t.Context(), path, "r.example", "me", "secret"); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if s := info.Sys().(*syscall.Stat_t); s.Uid != want || info.Mode() != 0o600 {
			t.Errorf("sudo of %q: the file is of %d, %v", caller, s.Uid, info.Mode())
		}
	}
}
