package registry

import (
	"context"
	"encoding/base64"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/distribution/reference"

	"berth/internal/model"
	rt "berth/internal/registrytest"
)

// proxy starts a proxy that answers at proxy.test:3128 and knows where the names of the world lead.
func (w *world) proxy() *rt.Proxy {
	p := rt.NewProxy(func(address string) (string, bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if r := w.registries[address]; r != nil {
			return r.Addr(), true
		}
		return "", false
	})
	w.Cleanup(p.Close)
	inner := w.client.dial
	w.client.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == "proxy.test:3128" {
			return (&net.Dialer{}).DialContext(ctx, network, p.Addr())
		}
		return inner(ctx, network, address)
	}
	return p
}

// direct are the addresses that were asked without the proxy.
func (w *world) direct() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(w.dialled)))
}

// TestRegistriesAreReachedThroughProxies: by the keys and by the environment, with CONNECT and without, and a mirror
// that no_proxy names is asked directly.
func TestRegistriesAreReachedThroughProxies(t *testing.T) {
	const url = "http://proxy.test:3128"
	const tls = "server = \"https://registry.test\"\nCA\n"
	const plain = "server = \"http://registry.test\"\n"
	const mirror = "server = \"https://registry.test\"\n[host.\"https://mirror.test\"]\nCA\n"
	for name, c := range map[string]struct {
		hosts   string
		keys    Proxies
		env     map[string]string
		proxied []string
		direct  []string
	}{
		"CONNECT by the key": {hosts: tls, keys: Proxies{HTTPS: url}, proxied: []string{"CONNECT registry.test:443"}},
		"CONNECT by the environment": {hosts: tls, env: map[string]string{"HTTPS_PROXY": url},
			proxied: []string{"CONNECT registry.test:443"}},
		"plain by the key": {hosts: plain, keys: Proxies{HTTP: url},
			proxied: []string{"GET registry.test", "HEAD registry.test"}},
		"plain by the environment": {hosts: plain, env: map[string]string{"http_proxy": url},
			proxied: []string{"GET registry.test", "HEAD registry.test"}},
		"a key before the environment": {hosts: tls, keys: Proxies{HTTPS: url},
			env: map[string]string{"HTTPS_PROXY": "http://other.test:1"}, proxied: []string{"CONNECT registry.test:443"}},
		"no_proxy for a mirror": {hosts: mirror, keys: Proxies{HTTPS: url, No: "mirror.test"},
			direct: []string{"mirror.test:443"}},
		"NO_PROXY for a mirror": {hosts: mirror, keys: Proxies{HTTPS: url}, env: map[string]string{"NO_PROXY": ".test"},
			direct: []string{"mirror.test:443"}},
		"none": {hosts: tls, direct: []string{"registry.test:443"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
				t.Setenv(v, c.env[v])
				t.Setenv(strings.ToLower(v), c.env[strings.ToLower(v)])
			}
			w := newWorld(t)
			p := w.proxy()
			for _, address := range []string{"registry.test:443", "registry.test:80", "mirror.test:443"} {
				w.push(w.registry(address))
			}
			w.configure(c.hosts)
			w.client.proxies = newProxies(c.keys)
			if err := w.read(nil); err != nil {
				t.Fatal(err)
			}
			if got := p.Asked(); !slices.Equal(got, c.proxied) {
				t.Errorf("the proxy was asked for %q, want %q", got, c.proxied)
			}
			if got := w.direct(); !slices.Equal(got, c.direct) {
				t.Errorf("directly asked: %q, want %q", got, c.direct)
			}
		})
	}
}

// TestAProxysPasswordIsSentToItAlone: and is in no error.
func TestAProxysPasswordIsSentToItAlone(t *testing.T) {
	w := newWorld(t)
	p := w.proxy()
	p.Require("Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+password)))
	r := w.registry("registry.test:443")
	w.push(r)
	w.configure("server = \"https://registry.test\"\nCA\n")
	t.Setenv("HTTPS_PROXY", "http://user:"+password+"@proxy.test:3128")
	w.client.proxies = newProxies(Proxies{})
	if err := w.read(nil); err != nil {
		t.Fatal(err)
	}
	if got(r) {
		t.Error("the registry was sent the proxy's password")
	}
	p.Require("Basic other")
	err := w.read(nil)
	if err == nil || !strings.Contains(err.Error(), "Proxy Authentication Required") {
		t.Errorf("a proxy that does not accept the password: %v", err)
	}
	w.quiet(err)
	named, err := reference.ParseNormalizedNamed("registry.test/a:1")
	if err != nil {
		t.Fatal(err)
	}
	repo, err := w.client.Repository(t.Context(), named, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer repo.Close()
	if text, ok := repo.secret.hide("502 Bad Gateway: user " + password); ok {
		t.Errorf("what a proxy repeats of its password is told: %s", text)
	}
}

// TestAProxyIsNotAskedForTheNodesOwnLink: what a registry may not have the node ask, it may not have a proxy ask.
func TestAProxyIsNotAskedForTheNodesOwnLink(t *testing.T) {
	p := newProxies(Proxies{HTTP: "http://proxy.test:3128"})
	for url, want := range map[string]bool{
		"http://169.254.169.254/latest": false, "http://[fe80::1]/": false, "http://registry.test/": true,
	} {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if u, err := p.of(req); err != nil || (u != nil) != want {
			t.Errorf("%s: %v, %v", url, u, err)
		}
	}
}

// TestTheNodesCredentialsComeAfterThePulls: they are for pulls that come without.
func TestTheNodesCredentialsComeAfterThePulls(t *testing.T) {
	node := &model.Auth{Username: "node", Password: password}
	for name, c := range map[string]struct {
		pull *model.Auth
		asks int
		ok   bool
	}{
		"none":            {nil, 1, true},
		"empty ones":      {&model.Auth{}, 1, true},
		"wrong ones":      {&model.Auth{Username: "user", Password: "wrong"}, 0, false},
		"the node's same": {node, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			r := w.registry("registry.test:443", rt.WithBasicAuth("node", password))
			w.push(r)
			w.configure("server = \"https://registry.test\"\nCA\n")
			asks := 0
			w.client.cfg.Credentials = func(_ context.Context, ref reference.Named) (*model.Auth, error) {
				if asks++; ref.Name() != "registry.test/a" {
					t.Errorf("credentials for %s", ref)
				}
				return node, nil
			}
			err := w.read(c.pull)
			if (err == nil) != c.ok || asks != c.asks {
				t.Errorf("%v; asked %d times", err, asks)
			}
			w.quiet(err)
		})
	}
}
