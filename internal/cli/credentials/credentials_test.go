package credentials

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCredentialsAreFoundByRegistry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	content := `{"auths": {"https://index.docker.io/v1/": {"auth": "aHVi"},
		"r.example:5000": {"auth": "cHJpdmF0ZQ==", "identitytoken": "i"},
		"kept.example": {}}}`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{
		"busybox": "aHVi", "docker.io/library/busybox:1": "aHVi", "r.example:5000/a/b": "cHJpdmF0ZQ==", "r.example/a": "",
		"kept.example/a": "",
	} {
		auth, err := file.Find(t.Context(), image)
		if err != nil || auth.GetAuth() != want {
			t.Errorf("%s: got %q, %v", image, auth.GetAuth(), err)
		}
	}
	if _, err := file.Find(t.Context(), "NOT AN IMAGE"); err == nil {
		t.Error("a reference that cannot be was taken")
	}
}

func TestABadFileIsNamedButNotQuoted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(path, []byte(`{"auths": {"r": {"auth": hunter2}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) ||
		strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
	if _, err := Open(path + ".none"); err == nil {
		t.Error("a file that was named and is not there is no error")
	}
	t.Setenv("REGISTRY_AUTH_FILE", path+".none")
	if _, err := Open(""); err != nil {
		t.Errorf("the default file need not exist: %v", err)
	}
}

// A Secret comes from the author of a manifest: no program that it names is run.
func TestSecretsOfAPodComeBeforeTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	content := `{"auths": {"a.example": {"auth": "ZmlsZQ=="}, "b.example": {"auth": "ZmlsZQ=="}}}`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := &Flags{file: path}
	with, err := flags.With([][]byte{[]byte(`{"auths": {"a.example": {"auth": "c2VjcmV0"}}, "credsStore": "none"}`)})
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{"a.example/x": "c2VjcmV0", "b.example/x": "ZmlsZQ==", "c.example/x": ""} {
		if found, err := with.Find(t.Context(), image); err != nil || found.GetAuth() != want {
			t.Errorf("%s: got %q, %v", image, found.GetAuth(), err)
		}
	}
	if found, err := flags.Find(t.Context(), "a.example/x"); err != nil || found.GetAuth() != "ZmlsZQ==" {
		t.Errorf("without the secrets: %q, %v", found.GetAuth(), err)
	}
	_, err = flags.With([][]byte{[]byte(`{"auths": hunter2}`)})
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}
