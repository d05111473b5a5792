package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
)

// authorizer authorizes the requests to one configured host, and those that the host redirects to others. Credentials and
// the headers of hosts.toml go to the host itself alone; a host that it redirects to may give anonymous tokens.
type authorizer struct {
	host  docker.RegistryHost
	plain bool   // plain HTTP is how the host is asked, or may be
	token string // a bearer token that is sent without being asked for
	// withheld is why the host does not get the credentials that there are; empty: it gets them, or there are none.
	withheld string

	tokens docker.Authorizer // of the library: passwords, and tokens for them
}

// newAuthorizer is for a host whose requests go over a transport, without the library's fallback to plain HTTP.
func newAuthorizer(h docker.RegistryHost, over http.RoundTripper, c *credentials, domain string, rule hostRule) *authorizer {
	a := &authorizer{host: h, plain: rule.plain, withheld: c.withheld(domain, h, rule)}
	user, password := "", ""
	if a.withheld == "" {
		user, password, a.token = c.user, c.password, c.token
	}
	a.tokens = docker.NewDockerAuthorizer(
		docker.WithAuthClient(&http.Client{Transport: &ownHeaders{a, over}, CheckRedirect: stayAtOrigin}),
		docker.WithAuthCreds(func(host string) (string, string, error) {
			if host != h.Host {
				return "", "", nil
			}
			return user, password, nil
		}))
	return a
}

// ownHeaders adds the headers of hosts.toml to requests for tokens where the host is its own token service. The library would
// add them to requests to any service that the host names.
type ownHeaders struct {
	a    *authorizer
	base http.RoundTripper
}

func (o *ownHeaders) RoundTrip(req *http.Request) (*http.Response, error) {
	if o.a.own(req.URL) && len(o.a.host.Header) > 0 {
		req = req.Clone(req.Context())
		for name, values := range o.a.host.Header {
			req.Header[name] = append(req.Header[name], values...)
		}
	}
	return o.base.RoundTrip(req)
}

// stayAtOrigin keeps a request for a token, which has a password in it, at the service that it was meant for.
func stayAtOrigin(req *http.Request, via []*http.Request) error {
	if from := via[0].URL; req.URL.Host != from.Host || req.URL.Scheme != from.Scheme {
		return fmt.Errorf("the token service %s redirects to %s: %w", from.Host, req.URL.Host, docker.ErrInvalidAuthorization)
	}
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

// own tells whether a request is to the host itself, and not on a worse way than the configured one.
func (a *authorizer) own(u *url.URL) bool {
	return u.Host == a.host.Host && (u.Scheme == "https" || a.plain)
}

// Authorize is called for each request, and once more for each redirect, when net/http has copied the headers.
func (a *authorizer) Authorize(ctx context.Context, req *http.Request) error {
	switch {
	case a.own(req.URL):
		if a.token != "" {
			req.Header.Set("Authorization", "Bearer "+a.token)
			return nil
		}
	default:
		req.Header.Del("Authorization")
		for name := range a.host.Header {
			req.Header.Del(name)
		}
		if req.URL.Host == a.host.Host {
			return nil
		}
	}
	return a.tokens.Authorize(ctx, req)
}

// AddResponses is called when a host, the configured one or one that it redirects to, has asked for authorization.
func (a *authorizer) AddResponses(ctx context.Context, responses []*http.Response) error {
	last := responses[len(responses)-1]
	from := last.Request.URL
	if a.token != "" && a.own(from) {
		return fmt.Errorf("the registry token is not accepted: %w", docker.ErrInvalidAuthorization)
	}
	for _, challenge := range auth.ParseAuthHeader(last.Header) {
		if challenge.Scheme != auth.BearerAuth {
			continue
		}
		if err := checkRealm(challenge.Parameters["realm"], from); err != nil {
			return fmt.Errorf("%w: %w", err, docker.ErrInvalidAuthorization)
		}
	}
	return a.tokens.AddResponses(ctx, responses)
}
