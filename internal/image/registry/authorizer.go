package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
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

	fresh func() docker.Authorizer // makes one of the library, which has passwords, and gets tokens for them

	asking chan struct{} // held while the library authorizes a request

	mu       sync.Mutex
	tokens   docker.Authorizer // guarded by mu
	accepted map[string]bool   // tokens that the host has accepted, until they are renewed; guarded by mu
	renewed  map[string]bool   // tokens that the host accepted and then refused; guarded by mu
	// challenges are the answers 401 from which tokens knows how hosts authorize requests, by host; guarded by mu.
	challenges map[string]*http.Response
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
	a.fresh = func() docker.Authorizer {
		return docker.NewDockerAuthorizer(
			docker.WithAuthClient(&http.Client{Transport: service, CheckRedirect: stayAtOrigin}),
			docker.WithAuthCreds(func(host string) (string, string, error) {
				if host != h.Host {
					return "", "", nil
				}
				return user, password, nil
			}))
	}
	a.asking = make(chan struct{}, 1)
	a.tokens, a.accepted, a.renewed = a.fresh(), map[string]bool{}, map[string]bool{}
	a.challenges = map[string]*http.Response{}
	return a
}

func (a *authorizer) library() docker.Authorizer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tokens
}

// bearer is the token that a request has; empty: none, or none that a token service gives.
func bearer(req *http.Request) string {
	token, _ := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	return token
}

// answered notes whether the host has accepted the token of a request to it.
func (a *authorizer) answered(resp *http.Response) {
	token := bearer(resp.Request)
	if token == "" || resp.StatusCode >= 400 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.renewed[token] {
		a.accepted[token] = true
	}
}

// renew has the library forget a token that the host has accepted and refuses now: it has expired, although neither the
// token service nor the host has said so. Of those who have sent it, the first one does this.
func (a *authorizer) renew(token string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.accepted[token] {
		delete(a.accepted, token)
		a.renewed[token] = true
		a.tokens = a.fresh()
		clear(a.challenges)
	}
	return a.renewed[token]
}

// forget has the library forget that a token service has failed: it would return that error for ever. What hosts have
// asked for is kept. Otherwise each of many requests that wait for a token would be sent without one when the one
// before it has failed, and the library gives up after five answers 401.
func (a *authorizer) forget(ctx context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens = a.fresh()
	for _, challenge := range a.challenges {
		_ = a.tokens.AddResponses(ctx, []*http.Response{challenge}) // a host whose challenge is missing asks again
	}
}

// challenged passes on what a host has asked for. Like the library, it goes by the first challenge of a host until the
// host says that a token is no longer good.
func (a *authorizer) challenged(ctx context.Context, responses []*http.Response) error {
	last := responses[len(responses)-1]
	host := last.Request.URL.Host
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.tokens.AddResponses(ctx, responses); err != nil {
		delete(a.challenges, host)
		return err
	}
	anew := slices.ContainsFunc(auth.ParseAuthHeader(last.Header), func(c auth.Challenge) bool {
		return c.Parameters["error"] != ""
	})
	if a.challenges[host] == nil || anew {
		a.challenges[host] = &http.Response{StatusCode: last.StatusCode, Request: last.Request,
			Header: http.Header{"Www-Authenticate": last.Header.Values("WWW-Authenticate")}}
	}
	return nil
}

// refusedToken tells whether a token service has refused the credentials, or what they are to be used for. The same
// request would be refused again, and a service may count wrong passwords. Everything else may be different the next
// time: that the service is overloaded, that the connection broke, or that the caller gave up.
func refusedToken(err error) bool {
	var unexpected remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &unexpected) {
		code := unexpected.StatusCode
		return code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests
	}
	return errors.Is(err, docker.ErrInvalidAuthorization)
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
	// One at a time: all others would wait for the same token, and the library looks at it while it is being made.
	select {
	case a.asking <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-a.asking }()
	err := a.library().Authorize(a.scopes(ctx, req.URL.Host), req)
	if err == nil {
		return nil
	}
	if !refusedToken(err) {
		a.forget(ctx)
	}
	// The library would look for a digest among blobs as well, and ask the service again.
	return refuse(ctx, &tokenError{err})
}

// tokenError is that there is no token for a request. What the service has answered says nothing of the host, such as
// whether it sends ranges.
type tokenError struct{ error }

func (e *tokenError) Unwrap() error { return e.error }

// scopes is a context by which the library asks for a token: for what the host has said alone, where the context was
// made by unscoped. If the host has said nothing, for the name in the reference.
func (a *authorizer) scopes(ctx context.Context, host string) context.Context {
	before, ok := ctx.Value(unscopedKey{}).(context.Context)
	if !ok {
		return ctx
	}
	a.mu.Lock()
	challenge := a.challenges[host]
	a.mu.Unlock()
	if challenge != nil && slices.ContainsFunc(auth.ParseAuthHeader(challenge.Header), func(c auth.Challenge) bool {
		return c.Parameters["scope"] != ""
	}) {
		return before
	}
	return ctx
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
	renewed := sent && !again && a.own(from) && a.renew(bearer(last.Request))
	for _, challenge := range auth.ParseAuthHeader(last.Header) {
		// A token of an earlier request may have expired, which its host says: the library gets another then. Some hosts
		// do not say it.
		expired := challenge.Scheme == auth.BearerAuth && (renewed || challenge.Parameters["error"] != "")
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
	return a.challenged(ctx, responses)
}
