package migrate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker/config"

	"berth/internal/image/registry"
)

// TestCertificatesOfRegistriesAreTakenOverFromCRIO: a registry that shows a certificate of its own authority, and wants
// one of its client, is reached with the files that are written, whether it has a hosts.toml or not, and as a mirror.
// Seen to fail without the copies, and without the certificates in each of the two places of a hosts.toml.
func TestCertificatesOfRegistriesAreTakenOverFromCRIO(t *testing.T) {
	old := crioCerts
	defer func() { crioCerts = old }()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) != 1 {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	defer server.Close()
	host := server.Listener.Addr().String()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}))
	secret := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))

	dir := t.TempDir()
	crioCerts = [2]string{filepath.Join(dir, "home"), filepath.Join(dir, "docker")}
	write(t, dir, map[string]string{
		"containers/certs.d/" + host + "/ca.crt":     cert,
		"containers/certs.d/" + host + "/node.cert":  cert,
		"containers/certs.d/" + host + "/node.key":   secret,
		"containers/certs.d/" + host + "/README":     "of the administrator",
		"containers/certs.d/lost.example/a.cert":     cert,
		"containers/certs.d/lost.example/b.key":      secret,
		"containers/certs.d/twice.example/first.crt": cert,
		"docker/twice.example/second.crt":            cert,
		"docker/docker.example:5000/ca.crt":          cert,
		"home/docker.example:5000/home.crt":          cert,
		"containers/registries.conf":                 "",
		"containers/registries.conf.d/10-mirror.conf": "[[registry]]\nlocation = \"mirrored.example\"\n" +
			"[[registry.mirror]]\nlocation = \"" + host + "\"\n",
		"containers/registries.conf.d/20-moved.conf": "[[registry]]\nprefix = \"moved.example\"\n" +
			"location = \"" + host + "\"\n",
		"containers/registries.conf.d/30-without-effect.conf": "[[registry]]\nlocation = \"plain.example\"\n",
	})
	berth := filepath.Join(dir, "berth")
	plan, err := FromCRIO(filepath.Join(dir, "crio.conf"), filepath.Join(dir, "containers"), berth)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := plan.Finish()
	if err != nil {
		t.Fatal(err)
	}
	certs := filepath.Join(berth, "certs.d")
	if loaded.HostsDir != certs {
		t.Errorf("hosts_dir is %q", loaded.HostsDir)
	}
	record, err := Open(berth, "crio")
	if err != nil {
		t.Fatal(err)
	}
	if err := record.Apply(berth, plan.Files); err != nil {
		t.Fatal(err)
	}
	if err := registry.CheckHosts(t.Context(), certs); err != nil {
		t.Error(err)
	}
	for path, mode := range map[string]os.FileMode{host + "/ca.crt": 0o644, host + "/node.key": 0o600} {
		if info, err := os.Stat(filepath.Join(certs, path)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want %v", path, info, err, mode)
		}
	}
	for path, there := range map[string]bool{
		host + "/README": false, host + "/hosts.toml": false, "lost.example": false, "twice.example/first.crt": true,
		"twice.example/second.crt": false, "docker.example:5000/home.crt": true, "docker.example:5000/ca.crt": false,
	} {
		if _, err := os.Stat(filepath.Join(certs, path)); (err == nil) != there {
			t.Errorf("%s is there: %v; want %v", path, err == nil, there)
		}
	}
	for _, name := range []string{host, "mirrored.example", "moved.example"} {
		if got := reached(t.Context(), t, certs, name, host); got != http.StatusOK {
			t.Errorf("the host of %s answers %d", name, got)
		}
	}
	for _, key := range []string{"lost.example/a.cert", "lost.example/b.key"} {
		if n, ok := fate(plan, key); !ok || n.Fate != Left {
			t.Errorf("%s: %v", key, n)
		}
	}
	done, err := record.Revert()
	if err != nil {
		t.Error(err)
	}
	if !slices.ContainsFunc(done, func(line string) bool { return strings.HasSuffix(line, host+"/node.key") }) {
		t.Errorf("reverted: %q", done)
	}
	if _, err := os.Stat(certs); err == nil {
		t.Error("the directory of certificates is still there")
	}
}

// reached is what a host answers that is asked as the files in a directory say for a registry; 0: it is not asked, or
// the connection fails.
func reached(ctx context.Context, t *testing.T, dir, name, host string) int {
	t.Helper()
	hosts, err := config.ConfigureHosts(ctx, config.HostOptions{HostDir: config.HostDirFromRoot(dir)})(name)
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	for _, h := range hosts {
		if h.Host != host {
			continue
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := h.Client.Do(request)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return 0
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	return 0
}
