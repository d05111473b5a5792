package registry

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// TestEachHostOfARegistryIsAskedWhetherItAnswers: mirrors too, and one that wants credentials answers.
func TestEachHostOfARegistryIsAskedWhetherItAnswers(t *testing.T) {
	var asked sync.Map // by path
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Store(r.URL.Path, true)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer mirror.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "hosts.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("registry.test", "server = \""+gone.URL+"\"\n[host.\""+mirror.URL+"\"]\n")
	hosts, err := NewClient(Config{HostsDir: dir}).Reach(t.Context())
	if _, ok := asked.Load("/v2/"); hosts != 2 || !ok {
		t.Errorf("%d hosts; the mirror was asked for its API: %v", hosts, ok)
	}
	if err == nil || strings.Count(err.Error(), "registry registry.test: ") != 1 ||
		!strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
	write("registry.test", "server = \""+mirror.URL+"\"\n")
	if hosts, err := NewClient(Config{HostsDir: dir}).Reach(t.Context()); hosts != 1 || err != nil {
		t.Errorf("%d hosts, %v", hosts, err)
	}
	// Of all other registries, those are asked that the file names: not the registry, which has no name there.
	write("_default", "[host.\""+gone.URL+"\"]\n[host.\""+mirror.URL+"\"]\n")
	hosts, err = NewClient(Config{HostsDir: dir}).Reach(t.Context())
	if hosts != 3 || err == nil || strings.Count(err.Error(), "registry _default: ") != 1 ||
		strings.Contains(err.Error(), "default.invalid") {
		t.Errorf("%d hosts, %v", hosts, err)
	}
	write("_default", "server = \""+mirror.URL+"\"\n")
	if hosts, err := NewClient(Config{HostsDir: dir}).Reach(t.Context()); hosts != 2 || err != nil {
		t.Errorf("%d hosts, %v", hosts, err)
	}
	if hosts, err := NewClient(Config{HostsDir: filepath.Join(dir, "none")}).Reach(t.Context()); hosts != 0 || err != nil {
		t.Errorf("no directory: %d hosts, %v", hosts, err)
	}
	write("registry_5000_", "[broken")
	if _, err := NewClient(Config{HostsDir: dir}).Reach(t.Context()); err == nil {
		t.Error("a file that cannot be read is no failure")
	}
}
