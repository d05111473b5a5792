package registry

import (
	"net"
	"net/http"
	"net/url"

	"golang.org/x/net/http/httpproxy"
)

// Proxies are what registries are reached through. Each that is empty is that of the environment: HTTP_PROXY,
// HTTPS_PROXY and NO_PROXY, or the same in lower case.
type Proxies struct {
	HTTP, HTTPS string // URLs, for what is asked over plain HTTP and over TLS
	No          string // what is asked without one, separated by commas
}

type proxies struct {
	choose func(*url.URL) (*url.URL, error)
	known  []*url.URL
}

func newProxies(p Proxies) *proxies {
	cfg := httpproxy.FromEnvironment()
	for _, v := range []struct {
		value *string
		key   string
	}{{&cfg.HTTPProxy, p.HTTP}, {&cfg.HTTPSProxy, p.HTTPS}, {&cfg.NoProxy, p.No}} {
		if v.key != "" {
			*v.value = v.key
		}
	}
	out := &proxies{choose: cfg.ProxyFunc()}
	// What the library makes of a URL, without a scheme perhaps, is what it answers for some host.
	every := *cfg
	every.NoProxy = ""
	for _, scheme := range []string{"http", "https"} {
		if u, err := every.ProxyFunc()(&url.URL{Scheme: scheme, Host: "registry.invalid"}); err == nil && u != nil {
			out.known = append(out.known, u)
		}
	}
	return out
}

// of is the proxy for a request; nil: none. An address that only the node itself should speak to is not asked of a
// proxy, either, on whose machine it may mean as much: see Repository.guard.
func (p *proxies) of(req *http.Request) (*url.URL, error) {
	if forbiddenAddress(net.ParseIP(req.URL.Hostname())) {
		return nil, nil
	}
	return p.choose(req.URL)
}

// names tells whether an address, host:port, is a proxy's.
func (p *proxies) names(address string) bool {
	for _, u := range p.known {
		port := u.Port()
		if port == "" {
			port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
		}
		if net.JoinHostPort(u.Hostname(), port) == address {
			return true
		}
	}
	return false
}

// secrets are the passwords of the proxies.
func (p *proxies) secrets() secrets {
	var out secrets
	for _, u := range p.known {
		if password, ok := u.User.Password(); ok {
			c := credentials{user: u.User.Username(), password: password}
			out = append(out, c.secrets()...)
		}
	}
	return out
}
