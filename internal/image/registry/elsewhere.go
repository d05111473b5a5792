package registry

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/containerd/containerd/v2/core/remotes/docker"
)

// elsewhere watches the requests for a configured host that go to other places: where the host redirects to, and where
// it wants an upload. The library asks the latter with the headers of hosts.toml and without the authorizer.
type elsewhere struct {
	a    *authorizer
	base http.RoundTripper
}

func (e *elsewhere) RoundTrip(req *http.Request) (*http.Response, error) {
	if e.a.own(req.URL) {
		resp, err := e.base.RoundTrip(req)
		if err == nil {
			e.a.answered(resp)
		}
		return resp, err
	}
	if err := e.check(req.URL); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		return nil, err
	}
	return e.base.RoundTrip(without(e.a.away(req), e.a.host.Header))
}

type awayKey struct{}

// away marks a request to another place than the host, which may not be at the node itself under whatever name: see
// Repository.guard. Where the host is at the node, or hosts.toml names the place, it may.
func (a *authorizer) away(req *http.Request) *http.Request {
	if a.own(req.URL) || docker.IsLocalhost(a.host.Host) || a.rules.names(address(req.URL)) {
		return req
	}
	return req.WithContext(context.WithValue(req.Context(), awayKey{}, true))
}

// address is where a URL is dialled.
func address(u *url.URL) string {
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), map[string]string{"https": "443", "http": "80"}[u.Scheme])
}

// check refuses a place to which a host should not have led: one over plain HTTP, where the host is asked over TLS, and
// the node itself, or what is on its own link, where these are not what hosts.toml names.
func (e *elsewhere) check(to *url.URL) error {
	switch {
	case to.Scheme != "https" && !e.a.plain:
		return fmt.Errorf("%s redirects to plain HTTP, at %s: %w", e.a.host.Host, to.Host, errRefused)
	case e.a.rules.names(address(to)):
	case forbiddenAddress(net.ParseIP(to.Hostname())), docker.IsLocalhost(to.Host) && !docker.IsLocalhost(e.a.host.Host):
		return fmt.Errorf("%s redirects to %s, which is the node itself, or of its own link: %w", e.a.host.Host, to.Host,
			errRefused)
	}
	return nil
}

// without is a request without the values of headers, in whatever case their names came. Other values of the same
// headers stay, such as the authorization by an anonymous token.
func without(req *http.Request, headers http.Header) *http.Request {
	if len(headers) == 0 {
		return req
	}
	req = req.Clone(req.Context())
	for name, values := range req.Header {
		left := slices.DeleteFunc(slices.Clone(values), func(value string) bool {
			return slices.Contains(headers[http.CanonicalHeaderKey(name)], value)
		})
		if len(left) == 0 {
			delete(req.Header, name)
			continue
		}
		req.Header[name] = left
	}
	return req
}

// canonicalHeader has the names as net/http knows them: hosts.toml may have them in any case, and what the library
// makes of it has them as they are there.
func canonicalHeader(headers http.Header) http.Header {
	out := http.Header{}
	for name, values := range headers {
		for _, value := range values {
			out.Add(name, value)
		}
	}
	return out
}
