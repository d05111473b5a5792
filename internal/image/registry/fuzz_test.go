package registry

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/pelletier/go-toml/v2"

	"berth/internal/model"
)

// FuzzHosts: whatever a hosts.toml says, it is refused with an error that names it, or the hosts that it names
// are asked and no other, and a mirror gets credentials only where its table says so.
func FuzzHosts(f *testing.F) {
	for _, text := range []string{
		"", "# nothing", "server = \"https://other.test\"\n",
		"server = \"http://other.test:5000/v2/x\"\noverride_path = true\n",
		"[host.\"https://mirror.test\"]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = \"ca.pem\"\n" +
			"  client = [[\"a\", \"b\"]]\n",
		"[host.\"http://mirror.test\"]\nskip_verify = true\nberth_credentials = \"tls\"\n" +
			"[host.\"http://mirror.test\".header]\nX-A = [\"b\"]\n",
		"[host.\"https://a.test/v2/x\"]\nberth_credentials = \"plain\"\n[host.\"https://a.test/v2/y\"]\n" +
			"berth_credentials = \"never\"\n",
		"[host]\n\"https://hidden.test\".capabilities = [\"pull\"]\n",
		"host = {\"https://hidden.test\" = {skip_verify = true}}\n",
		"[host.\"httpbin.test\"]\n", "[host.\"HTTPS://a.test\"]\n", "[host.\"https://u:p@a.test\"]\n",
		"server = \"ftp://a.test\"\n",
		"dial_timeout = \"x\"\n[host.\"https://a.test\"]\n", "ca = 5\n",
		"[host.\"https://[::1]:5000\"]\ndial_timeout = \"1s\"\n",
	} {
		f.Add(text)
	}
	hosts, err := os.MkdirTemp("/dev/shm", "berth-fuzz-hosts-")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { os.RemoveAll(hosts) })
	file := filepath.Join(hosts, "registry.test", "hosts.toml")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		f.Fatal(err)
	}
	named, err := reference.ParseNormalizedNamed("registry.test/a:1")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var dialled []string
		client := NewClient(Config{HostsDir: hosts, Retry: Retry{Attempts: 1, Backoff: time.Nanosecond}})
		client.dial = func(_ context.Context, _, address string) (net.Conn, error) {
			dialled = append(dialled, address)
			return nil, errors.New("nobody is there")
		}
		repo, err := client.Repository(t.Context(), named, &model.Auth{Username: "user", Password: password})
		if err != nil {
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), filepath.Dir(file)) {
				t.Errorf("an error without a code, or without the file: %v", err)
			}
			return
		}
		defer repo.Close()
		if _, err := repo.Resolve(t.Context()); err == nil {
			t.Error("an image from nowhere")
		}
		may := addresses(t, text)
		for _, address := range dialled {
			if !slices.Contains(may, address) {
				t.Errorf("%s was asked, and the file names %v", address, may)
			}
		}
		var parsed hostsFile
		_ = toml.Unmarshal([]byte(text), &parsed)
		for i, h := range repo.hosts {
			a := h.Authorizer.(*authorizer)
			if a.withheld != "" {
				continue
			}
			server := i == len(repo.hosts)-1
			says := []string{parsed.Credentials}
			if !server {
				says = mirrorCredentials(parsed, h)
			}
			some := func(values ...string) bool {
				return slices.ContainsFunc(says, func(v string) bool { return slices.Contains(values, v) })
			}
			if !some("tls", "plain") && !(some("") && (server || sameHost(h, "registry.test"))) {
				t.Errorf("the host %s gets credentials, and the file says %q", h.Host, says)
			}
			if h.Scheme == "http" && !some("plain") && !docker.IsLocalhost(h.Host) {
				t.Errorf("%s gets credentials over plain HTTP, and the file says %q", h.Host, says)
			}
		}
	})
}

// mirrorCredentials are what the entries say of which a host can have been made: several can name one address, such as
// with and without a scheme.
func mirrorCredentials(file hostsFile, h docker.RegistryHost) []string {
	var says []string
	for key, entry := range file.Host {
		if !strings.HasPrefix(key, "http") {
			key = "https://" + key
		}
		if u, err := url.Parse(key); err == nil && u.Scheme == h.Scheme && u.Host == h.Host {
			says = append(says, entry.Credentials)
		}
	}
	return says
}

// addresses are all that a file names, in the widest reading, and the registry where it names no server.
func addresses(t *testing.T, text string) []string {
	var file struct {
		Server string
		Host   map[string]any
	}
	if text != "" {
		if err := toml.Unmarshal([]byte(text), &file); err != nil {
			t.Errorf("a file that does not parse was taken: %v", err)
		}
	}
	names := []string{"https://registry.test"}
	if file.Server != "" {
		names[0] = file.Server
	}
	for name := range file.Host {
		names = append(names, name)
	}
	var out []string
	for _, name := range names {
		for _, text := range []string{name, "https://" + name} {
			u, err := url.Parse(text)
			if err != nil || u.Host == "" {
				continue
			}
			// With settings of TLS, a host of plain HTTP is asked over TLS first.
			ports := map[string][]string{"https": {"443"}, "http": {"80", "443"}}[u.Scheme]
			if u.Port() != "" {
				ports = []string{u.Port()}
			}
			for _, port := range ports {
				out = append(out, net.JoinHostPort(u.Hostname(), port))
			}
		}
	}
	return out
}
