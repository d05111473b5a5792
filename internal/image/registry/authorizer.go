package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
)

// authorizer authorizes the requests to one configured host, and those that the host redirects to others. Credentials
// and the headers of hosts.toml go to the host itself alone; a host that it redirects to may give anonymous tokens.
type authorizer struct {
	host  docker.RegistryHost
	rules *hostRules
	plain bool   // plain HTTP is how the host is asked, or may be
	token string // a bearer token that is sent without being asked for
	// withheld is why the host does not get the credentials that there are; empty: it gets them, or there are none.
	withheld string

	tokens docker.Authorizer // of the library: passwords, and tokens for them
}

// newAuthorizer is for a host whose requests go over a transport, without the library's fallback to plain HTTP.
func newAuthorizer(h docker.RegistryHost, over http.RoundTripper, c *credentials, rules *hostRules,
	rule hostRule) *authorizer {
	a := &authorizer{host: h, rules: rules, plain: rule.plain, withheld: c.withheld(rules.registry, h, rule)}
	user, password := "", ""
	if a.withheld == "" {
		user, password, a.token = c.user, c.password, c.token
	}
	service := &tokenService{base: &ownHeaders{a, over}, password: user != ""}
	a.tokens = docker.NewDockerAuthorizer(
		docker.WithAuthClient(&http.Client{Transport: service, CheckRedirect: stayAtOrigin}),
		docker.WithAuthCreds(func(host string) (string, string, error) {
			if host != h.Host {
				return "", "", nil
			}
			return user, password, nil
		}))
	return a
}

// ownHeaders adds the headers of hosts.toml to requests for tokens where the host is its own token service.
// The library would add them to requests to any service that the host names.
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
	return o.base.RoundTrip(o.a.away(req))
}

// tokenService has a token service asked once with a secret. The library asks by POST first, and where that is refused
// once more by GET: two tries with a wrong password, of which some services count few. Docker asks by GET
// for a password and by POST for an identity token, so every service knows these.
type tokenService struct {
	base     http.RoundTripper
	password bool // the secret is a user's password
}

func (s *tokenService) RoundTrip(req *http.Request) (*http.Response, error) {
	// A host chooses the path of its service, which may look like that of a blob: tokens are read into memory.
	req = req.WithContext(withKind(req.Context(), document))
	if req.Method != http.MethodPost {
		return s.base.RoundTrip(req)
	}
	if s.password {
		// The library takes this for a service without POST.
		return &http.Response{Status: "405 Method Not Allowed", StatusCode: http.StatusMethodNotAllowed,
			Proto: "HTTP/1.1", ProtoMajor: 1,
			ProtoMinor: 1, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
	}
	resp, err := s.base.RoundTrip(req)
	if err == nil && (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusBadRequest) {
		resp.Body.Close()
		return nil, fmt.Errorf("the token service %s does not accept the identity token: %s: %w", req.URL.Host, resp.Status,
			docker.ErrInvalidAuthorization)
	}
	return resp, err
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
// The responses are those to one request and its repetitions. What a host has refused is not sent to it again:
// a registry may count wrong passwords.
func (a *authorizer) AddResponses(ctx context.Context, responses []*http.Response) error {
	err := a.addResponses(ctx, responses)
	if errors.Is(err, docker.ErrInvalidAuthorization) {
		return refuse(ctx, err)
	}
	return err
}

func (a *authorizer) addResponses(ctx context.Context, responses []*http.Response) error {
	last := responses[len(responses)-1]
	from := last.Request.URL
	if a.token != "" && a.own(from) {
		return fmt.Errorf("the registry token is not accepted: %w", docker.ErrInvalidAuthorization)
	}
	sent := last.Request.Header.Get("Authorization") != ""
	again := sent && slices.ContainsFunc(responses[:len(responses)-1], func(r *http.Response) bool {
		return r.StatusCode == http.StatusUnauthorized
	})
	for _, challenge := range auth.ParseAuthHeader(last.Header) {
		// A token of an earlier request may have expired, which its host says: the library gets another then.
		expired := challenge.Scheme == auth.BearerAuth && challenge.Parameters["error"] != ""
		if again || sent && !expired {
			told := strings.TrimSpace("the authorization is not accepted " + challenge.Parameters["error"])
			return fmt.Errorf("%s: %w", told, docker.ErrInvalidAuthorization)
		}
		if challenge.Scheme != auth.BearerAuth {
			continue
		}
		if err := checkRealm(challenge.Parameters["realm"], from, a.rules); err != nil {
			return fmt.Errorf("%w: %w", err, docker.ErrInvalidAuthorization)
		}
	}
	return a.tokens.AddResponses(ctx, responses)
}
