package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/model"
	rt "berth/internal/registrytest"
)

// world is a set of registries with names of their own, and a client to which the names lead there.
type world struct {
	*testing.T
	hosts  string // directory of hosts.toml files
	client *Client
	logs   *buffer

	mu         sync.Mutex
	registries map[string]*rt.Registry // by host:port
	addresses  map[string]string       // host:port -> address, of other servers
	dialled    []string
}

type buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, hosts: t.TempDir(), registries: map[string]*rt.Registry{}, addresses: map[string]string{},
		logs: &buffer{}}
	w.client = NewClient(Config{
		HostsDir: w.hosts, Retry: Retry{Attempts: 1, Backoff: time.Millisecond},
		Logger: slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	w.client.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		w.mu.Lock()
		w.dialled = append(w.dialled, address)
		r, at := w.registries[address], w.addresses[address]
		w.mu.Unlock()
		if r != nil {
			at = r.Addr()
		}
		if at == "" {
			return nil, fmt.Errorf("%s is not in this world", address)
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, at)
		if err != nil {
			return nil, err
		}
		return away{conn}, nil
	}
	return w
}

// away is a connection to another machine, as far as the client knows.
type away struct{ net.Conn }

func (away) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP("192.0.2.1"), Port: 443} }

// registry starts one that answers at host:port, with TLS at port 443.
func (w *world) registry(address string, opts ...rt.Option) *rt.Registry {
	w.Helper()
	host, port, _ := net.SplitHostPort(address)
	if port == "443" {
		opts = append(opts, rt.WithTLS(host))
	}
	r, err := rt.New(opts...)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { r.Close() })
	w.mu.Lock()
	w.registries[address] = r
	w.mu.Unlock()
	return r
}

// foreign is a server other than a registry, which answers at host:port.
func (w *world) foreign(address string, s *httptest.Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addresses[address] = s.Listener.Addr().String()
}

// configure writes the hosts.toml of registry.test. A line with CA trusts the registry at that address.
func (w *world) configure(text string) {
	w.Helper()
	dir := filepath.Join(w.hosts, "registry.test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.Fatal(err)
	}
	var all []byte
	for _, r := range w.registries {
		all = append(all, r.CertPEM()...)
	}
	for name, data := range map[string]string{"ca.pem": string(all),
		"hosts.toml": strings.ReplaceAll(text, "CA", `ca = "ca.pem"`)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *world) push(registries ...*rt.Registry) {
	w.Helper()
	img, err := rt.Image(rt.WithFiles(map[string]string{"a": "b"}))
	if err != nil {
		w.Fatal(err)
	}
	for _, r := range registries {
		if err := r.Push("a:1", img); err != nil {
			w.Fatal(err)
		}
	}
}

// read resolves registry.test/a:1, and reads its manifest and a blob.
func (w *world) read(auth *model.Auth) error {
	w.Helper()
	named, err := reference.ParseNormalizedNamed("registry.test/a:1")
	if err != nil {
		w.Fatal(err)
	}
	repo, err := w.client.Repository(w.Context(), named, auth)
	if err != nil {
		return err
	}
	defer repo.Close()
	desc, err := repo.Resolve(w.Context())
	if err != nil {
		return err
	}
	data, err := repo.Document(w.Context(), desc)
	if err != nil {
		return err
	}
	var manifest struct{ Config ocispec.Descriptor }
	if err := json.Unmarshal(data, &manifest); err != nil {
		return err
	}
	blob, err := repo.Blob(w.Context(), manifest.Config, nil)
	if err != nil {
		return err
	}
	defer blob.Close()
	_, err = blob.Read(make([]byte, 1))
	return err
}

const password, refreshToken, registryToken = "hunter2+x", "refresh-me/x", "bear-me"

// kinds are credentials of all kinds, and what a registry that takes them is.
var kinds = map[string]struct {
	auth   model.Auth
	option rt.Option
}{
	"basic":          {model.Auth{Username: "user", Password: password}, rt.WithBasicAuth("user", password)},
	"token":          {model.Auth{Username: "user", Password: password}, rt.WithTokenAuth("user", password, refreshToken)},
	"identity token": {model.Auth{IdentityToken: refreshToken}, rt.WithTokenAuth("user", password, refreshToken)},
	"registry token": {model.Auth{RegistryToken: registryToken}, rt.WithRegistryToken(registryToken)},
}

// got tells whether a registry, or its token service, was sent a secret in any form.
func got(r *rt.Registry) bool {
	var c secrets
	for _, k := range kinds {
		parsed, _ := parseAuth(&k.auth)
		c = append(c, parsed.secrets()...)
	}
	return slices.ContainsFunc(append(r.Requests(), r.TokenRequests()...), func(req rt.Request) bool {
		text := fmt.Sprint(req.Header, req.Form, req.Path)
		return slices.ContainsFunc(c, func(secret string) bool { return strings.Contains(text, secret) })
	})
}

// Seen to fail with a rule that sends credentials to every configured host, as containerd does: all cases
// in which a mirror must get none fail for each kind.
func TestCredentialsGoToThoseTheyAreFor(t *testing.T) {
	const tlsMirror, plainMirror = "[host.\"https://mirror.test\"]\nCA\n", "[host.\"http://mirror.test\"]\n"
	for _, c := range []struct {
		name, file, server       string
		mirror                   string // its address
		registry                 string // the registry's; empty: registry.test:443
		mirrorGets, registryGets bool
	}{
		{name: "without a file", file: "CA", registryGets: true},
		{name: "a mirror", file: "CA\n" + tlsMirror, mirror: "mirror.test:443", registryGets: true},
		{name: "a mirror over plain HTTP", file: "CA\n" + plainMirror, mirror: "mirror.test:80", registryGets: true},
		{name: "a mirror that may, over TLS", file: "CA\n" + tlsMirror + "berth_credentials = \"tls\"",
			mirror: "mirror.test:443", mirrorGets: true},
		{name: "a mirror that may, over TLS, over plain HTTP", file: "CA\n" + plainMirror + "berth_credentials = \"tls\"",
			mirror: "mirror.test:80", registryGets: true},
		{name: "a mirror that may, over plain HTTP", file: "CA\n" + plainMirror + "berth_credentials = \"plain\"",
			mirror: "mirror.test:80", mirrorGets: true},
		// The library tries TLS first for such a host, and then plain HTTP.
		{name: "a mirror over plain HTTP with settings of TLS",
			file:   "CA\n[host.\"http://mirror.test:5000\"]\nskip_verify = true\nberth_credentials = \"tls\"",
			mirror: "mirror.test:5000", registryGets: true},
		{name: "the registry over plain HTTP", file: `server = "http://registry.test"`, registry: "registry.test:80"},
		{name: "the registry that may, over plain HTTP", file: "server = \"http://registry.test\"\n" +
			"berth_credentials = \"plain\"", registry: "registry.test:80", registryGets: true},
		{name: "the registry never", file: "CA\nberth_credentials = \"never\""},
		{name: "a server in place of the registry", file: "server = \"https://other.test\"\nCA", registry: "other.test:443",
			registryGets: true},
		{name: "a server in place of the registry over plain HTTP", file: `server = "http://other.test"`,
			registry: "other.test:80"},
		{name: "the registry as its own mirror", file: "server = \"http://other.test\"\n[host.\"https://registry.test\"]\nCA",
			registryGets: true},
		{name: "for a mirror", file: "CA\n" + tlsMirror, mirror: "mirror.test:443", server: "https://mirror.test/v2/",
			mirrorGets: true},
		{name: "for a mirror over plain HTTP", file: "CA\n" + plainMirror, mirror: "mirror.test:80", server: "mirror.test"},
		{name: "for the registry, with its port", file: "CA", server: "Registry.TEST:443", registryGets: true},
		{name: "for another port of the registry", file: "CA", server: "registry.test:5000"},
		{name: "for another host", file: "CA\n" + tlsMirror + "berth_credentials = \"plain\"", mirror: "mirror.test:443",
			server: "another.test"},
	} {
		for kind, k := range kinds {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				w := newWorld(t)
				address := c.registry
				if address == "" {
					address = "registry.test:443"
				}
				// A token service has the address of its registry.
				scheme := map[bool]string{true: "https://", false: "http://"}
				realm := func(address string) rt.Option {
					host, port, _ := net.SplitHostPort(address)
					if port != "443" && port != "80" {
						host = address
					}
					return rt.WithRealm(scheme[port == "443"] + host + "/token")
				}
				server := w.registry(address, k.option, realm(address))
				all := []*rt.Registry{server}
				var mirror *rt.Registry
				if c.mirror != "" {
					mirror = w.registry(c.mirror, k.option, realm(c.mirror))
					all = append(all, mirror)
				}
				w.push(all...)
				w.configure(c.file)
				auth := k.auth
				auth.ServerAddress = c.server
				err := w.read(&auth)
				if c.mirrorGets || c.registryGets {
					if err != nil {
						t.Error(err)
					}
				} else if !errors.Is(err, errdefs.ErrUnauthenticated) ||
					!strings.Contains(err.Error(), "the credentials of this pull were not sent there: ") {
					t.Errorf("an error that does not say why: %v", err)
				}
				if sent := got(server); sent != c.registryGets {
					t.Errorf("the registry got the credentials: %t", sent)
				}
				if mirror != nil {
					if len(mirror.Requests()) == 0 {
						t.Error("the mirror was not asked")
					}
					if sent := got(mirror); sent != c.mirrorGets {
						t.Errorf("the mirror got the credentials: %t", sent)
					}
				}
				w.quiet(err)
			})
		}
	}
}

// quiet: neither the log nor an error tells a secret.
func (w *world) quiet(err error) {
	w.Helper()
	for _, k := range kinds {
		c, _ := parseAuth(&k.auth)
		for _, secret := range c.secrets() {
			if err != nil && strings.Contains(err.Error(), secret) || strings.Contains(w.logs.text.String(), secret) {
				w.Errorf("a secret is told: %v, %s", err, w.logs.text.String())
			}
		}
	}
}

// Seen to fail without stayAtOrigin, with names of headers as hosts.toml has them, and without the refusal of plain
// HTTP: net/http hands the header Authorization on to other ports, to subdomains, and from TLS to plain HTTP, and all
// other headers to everybody.
func TestCredentialsDoNotFollowRedirects(t *testing.T) {
	for to, refused := range map[string]string{
		"https://cdn.test:443":          "",
		"https://sub.registry.test:443": "",
		"https://registry.test:444":     "",
		"http://registry.test:80":       "redirects to plain HTTP",
		"http://cdn.test:80":            "redirects to plain HTTP",
		"https://169.254.169.254:443":   "of its own link",
		"https://127.0.0.1:443":         "the node itself",
	} {
		for kind, k := range kinds {
			t.Run(to+"/"+kind, func(t *testing.T) {
				w := newWorld(t)
				address := to[strings.Index(to, "//")+2:]
				var opts []rt.Option
				if strings.HasPrefix(to, "https") {
					host, _, _ := net.SplitHostPort(address)
					opts = append(opts, rt.WithTLS(host))
				}
				var other *rt.Registry
				if !strings.Contains(to, "169.254") && !strings.Contains(to, "127.0") {
					other = w.registry(address, opts...)
				}
				registry := w.registry("registry.test:443", k.option, rt.WithRealm("https://registry.test/token"),
					rt.WithRedirects(func(req *http.Request) string {
						if req.URL.Path == "/token" || req.Header.Get("Authorization") == "" {
							return ""
						}
						return to + req.URL.Path
					}))
				w.push(registry)
				if other != nil {
					w.push(other)
				}
				w.configure("CA\n[header]\nx-api-key = \"key-of-the-file\"\n")
				err := w.read(&k.auth)
				if refused == "" && err != nil || refused != "" && (err == nil || !strings.Contains(err.Error(), refused)) {
					t.Errorf("error %v, want %q", err, refused)
				}
				if !got(registry) {
					t.Error("the registry did not get the credentials")
				}
				for _, req := range registry.Requests() {
					if req.Header.Get("X-Api-Key") != "key-of-the-file" {
						t.Error("the registry did not get the header of hosts.toml")
					}
				}
				if other == nil {
					return
				}
				if refused == "" && len(other.Requests()) == 0 || refused != "" && len(other.Requests()) > 0 {
					t.Errorf("%s got %d requests", to, len(other.Requests()))
				}
				if got(other) {
					t.Error("credentials followed a redirect")
				}
				for _, req := range other.Requests() {
					if req.HasCredentials || req.Header.Get("X-Api-Key") != "" {
						t.Errorf("%s got %v", to, req.Header)
					}
				}
			})
		}
	}
}

// A host names the token service that it wants to be asked. Seen to fail without checkRealm, and with the library's
// authorizer: it asks any URL, with the credentials, and hands what it finds there to the host that named it.
func TestTokenServicesAreAskedOnlyWhereTheyMayBe(t *testing.T) {
	for _, c := range []struct {
		name, file, host, realm, service string
		asked, credentials               bool
	}{
		{"one of the registry's choice, over TLS",
			"CA", "registry.test:443", "https://auth.test/token", "auth.test:443", true, true},
		{"of the registry, over plain HTTP",
			"CA", "registry.test:443", "http://auth.test/token", "auth.test:80", false, false},
		{"of the registry, on its own host, over plain HTTP",
			"CA", "registry.test:443", "http://registry.test:81/token", "registry.test:81", false, false},
		{"of a mirror, over TLS", "CA\n[host.\"https://mirror.test\"]\nCA", "mirror.test:443", "https://auth.test/token",
			"auth.test:443", true, false},
		// its certificate is not trusted
		{"of a mirror over plain HTTP, over TLS",
			"CA\n[host.\"http://mirror.test\"]\n", "mirror.test:80", "https://auth.test/token", "auth.test:443", false, false},
		{"of a mirror over plain HTTP, elsewhere",
			"CA\n[host.\"http://mirror.test\"]\n", "mirror.test:80", "http://auth.test/token", "auth.test:80", false, false},
		{"of a mirror over plain HTTP, beside it", "CA\n[host.\"http://mirror.test\"]\n", "mirror.test:80",
			"http://mirror.test:81/token", "mirror.test:81", true, false},
		{"of one that may, beside it", "CA\n[host.\"http://mirror.test\"]\nberth_credentials = \"plain\"",
			"mirror.test:80", "http://mirror.test:81/token", "mirror.test:81", true, true},
		{"of one that may, elsewhere", "CA\n[host.\"http://mirror.test\"]\nberth_credentials = \"plain\"",
			"mirror.test:80", "http://auth.test/token", "auth.test:80", false, false},
		{"a metadata service", "CA\n[host.\"http://mirror.test\"]\n", "mirror.test:80", "http://169.254.169.254/token",
			"169.254.169.254:80", false, false},
		{"a metadata service over TLS",
			"CA", "registry.test:443", "https://169.254.169.254/token", "169.254.169.254:443", false, false},
		{"one on the node's link that hosts.toml names", "CA\n[host.\"https://169.254.1.1:443\"]\nCA", "registry.test:443",
			"https://169.254.1.1/token", "169.254.1.1:443", true, true},
		{"one on the node's link at another port than hosts.toml names",
			"CA\n[host.\"https://169.254.1.1:444\"]\n", "registry.test:443", "https://169.254.1.1/token", "169.254.1.1:443",
			false, false},
		{"one of the node's own that hosts.toml names", "CA\n[host.\"https://127.0.0.1:443\"]\nCA", "registry.test:443",
			"https://127.0.0.1:443/token", "127.0.0.1:443", true, true},
		{"one of the node's own", "CA", "registry.test:443", "https://127.0.0.1:6443/token", "127.0.0.1:6443", false, false},
		{"one of the node's own, by name",
			"CA", "registry.test:443", "https://localhost:6443/token", "localhost:6443", false, false},
		{"no URL", "CA", "registry.test:443", "file:///etc/shadow", "", false, false},
		{"one with a user", "CA", "registry.test:443", "https://x:y@auth.test/token", "auth.test:443", false, false},
	} {
		for _, kind := range []string{"token", "identity token"} {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				w := newWorld(t)
				k := kinds[kind]
				host := w.registry(c.host, k.option, rt.WithRealm(c.realm))
				var service *rt.Registry
				if c.service != "" {
					service = w.registry(c.service, k.option)
				}
				if c.host != "registry.test:443" {
					w.push(w.registry("registry.test:443"))
				}
				w.push(host)
				w.configure(c.file)
				err := w.read(&k.auth)
				if service == nil {
					if err == nil {
						t.Error("no error")
					}
					return
				}
				if asked := len(service.TokenRequests()) > 0; asked != c.asked {
					t.Errorf("the token service was asked: %t; %v", asked, err)
				}
				if sent := got(service); sent != c.credentials {
					t.Errorf("the token service got the credentials: %t; %v", sent, err)
				}
				if c.host == "registry.test:443" && !c.asked && !errors.Is(err, errdefs.ErrUnauthenticated) {
					t.Errorf("error %v", err)
				}
				if !c.credentials && got(host) {
					t.Error("the host got the credentials")
				}
				w.quiet(err)
			})
		}
	}
}

// TestATokenThatExpiresUnsaidIsRenewed: token services need not say how long a token is good for, and registries need
// not say that it has expired. A pull that took longer than that failed, at each attempt. A token that has never been
// good is not asked for again.
func TestATokenThatExpiresUnsaidIsRenewed(t *testing.T) {
	for kind, k := range kinds {
		if kind != "token" && kind != "identity token" {
			continue
		}
		for _, uses := range []int64{1, 2, 3} {
			w := newWorld(t)
			registry := w.registry("registry.test:443", k.option, rt.WithRealm("https://registry.test/token"),
				rt.WithTokensFor(uses))
			w.push(registry)
			w.configure("CA")
			for range 3 {
				if err := w.read(&k.auth); err != nil {
					t.Errorf("%s: tokens for %d requests: %v", kind, uses, err)
				}
			}
		}
		w := newWorld(t)
		registry := w.registry("registry.test:443", k.option, rt.WithRealm("https://registry.test/token"),
			rt.WithTokensFor(-1))
		w.push(registry)
		w.configure("CA")
		if err := w.read(&k.auth); !errors.Is(err, errdefs.ErrUnauthenticated) || len(registry.TokenRequests()) != 1 {
			t.Errorf("%s: no token is good: %v, %d were asked for", kind, err, len(registry.TokenRequests()))
		}
	}
}

// A token service that redirects takes the password along: the form of a POST goes with a redirect 307.
func TestATokenServiceDoesNotSendPasswordsOn(t *testing.T) {
	for _, kind := range []string{"token", "identity token"} {
		w := newWorld(t)
		k := kinds[kind]
		evil := w.registry("evil.test:443", k.option)
		registry := w.registry("registry.test:443", k.option, rt.WithRealm("https://registry.test/token"),
			rt.WithRedirects(func(req *http.Request) string {
				if req.URL.Path == "/token" {
					return "https://evil.test/token"
				}
				return ""
			}))
		w.push(registry)
		w.configure("CA")
		if err := w.read(&k.auth); !errors.Is(err, errdefs.ErrUnauthenticated) {
			t.Errorf("%s: error %v", kind, err)
		}
		if len(evil.Requests())+len(evil.TokenRequests()) > 0 {
			t.Errorf("%s: the password went to %+v", kind, evil.TokenRequests())
		}
	}
}

// A name may lead to the metadata service of a cloud, from which no image comes: a registry that redirects
// there would have the answer in an error, or take it for a token. A connection with such an address stands
// for what DNS would say. Seen to fail without guard.
func TestTheNodesOwnLinkIsNotAsked(t *testing.T) {
	for address, forbidden := range map[string]bool{
		"169.254.169.254": true, "fe80::1": true, "fd00:ec2::254": true, "0.0.0.0": true, "::": true, "224.0.0.1": true,
		"::ffff:169.254.169.254": true, "10.0.0.1": false, "192.168.1.1": false, "8.8.8.8": false, "fd00::1": false,
		"127.0.0.1": false, "fd20:ce::254": true, "100.100.100.200": true, "100.100.100.100": false, "168.63.129.16": true,
	} {
		if forbiddenAddress(net.ParseIP(address)) != forbidden {
			t.Errorf("%s: %t", address, !forbidden)
		}
	}
	w := newWorld(t)
	w.configure("# no host but the registry")
	r := &Repository{client: w.client}
	r.client.dial = func(context.Context, string, string) (net.Conn, error) { return linkLocal{}, nil }
	for file, c := range map[string]struct {
		address string
		refused bool
	}{
		"":                                      {"registry.test:443", true},
		"[host.\"https://169.254.1.1:5000\"]\n": {"169.254.1.1:5000", false}, // the author of the file says so
		"[host.\"https://169.254.1.2:5000\"]\n": {"169.254.1.1:5000", true},
	} {
		r.rules = &hostRules{registry: "registry.test"}
		if file != "" {
			r.rules.file = "hosts.toml"
			if err := r.rules.parse([]byte(file)); err != nil {
				t.Fatal(err)
			}
		}
		conn, err := r.guard(&http.Transport{}).DialContext(t.Context(), "tcp", c.address)
		if errors.Is(err, errRefused) != c.refused || (conn == nil) != c.refused {
			t.Errorf("%q: %s: %v", file, c.address, err)
		}
	}
}

type linkLocal struct{ net.Conn }

func (linkLocal) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP("169.254.169.254"), Port: 443}
}
func (linkLocal) Close() error { return nil }

// CVE-2020-15157: a manifest says of a layer that it is elsewhere, and the runtime asks there, with the credentials.
// Seen to fail with the URLs left in descriptors.
func TestURLsOfForeignLayersAreNotAsked(t *testing.T) {
	for kind, k := range kinds {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			evil := w.registry("evil.test:443", k.option)
			registry := w.registry("registry.test:443", k.option, rt.WithRealm("https://registry.test/token"))
			w.push(registry)
			w.configure("CA")
			data := []byte("a layer that is somewhere else")
			sum := sha256.Sum256(data)
			desc := ocispec.Descriptor{
				MediaType: "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
				Digest:    digest.Digest("sha256:" + hex.EncodeToString(sum[:])), Size: int64(len(data)),
				URLs: []string{"https://evil.test/v2/a/blobs/sha256:" + hex.EncodeToString(sum[:]),
					"http://169.254.169.254/latest"},
			}
			evil.PutBlob(data)
			named, _ := reference.ParseNormalizedNamed("registry.test/a:1")
			repo, err := w.client.Repository(t.Context(), named, &k.auth)
			if err != nil {
				t.Fatal(err)
			}
			defer repo.Close()
			blob, err := repo.Blob(t.Context(), desc, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer blob.Close()
			if _, err := blob.Read(make([]byte, 1)); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("a blob that the registry does not have: %v", err)
			}
			if _, err := repo.Document(t.Context(), desc); !errors.Is(err, errdefs.ErrNotFound) {
				t.Errorf("a document that the registry does not have: %v", err)
			}
			for _, address := range w.dialled {
				if address != "registry.test:443" {
					t.Errorf("%s was asked", address)
				}
			}
		})
	}
}
