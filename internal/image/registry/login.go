package registry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
)

// Login asks the registry's own host whether it takes the credentials; mirrors are not asked. asked is false where the
// host wants no credentials at its front door, and so has told nothing about these.
func (r *Repository) Login(ctx context.Context) (asked bool, err error) {
	own := &Repository{client: r.client, name: r.name, rules: r.rules, secret: r.secret, log: r.log,
		transports: r.transports, silent: map[endpoint]bool{}}
	withheld := ""
	own.hosts = slices.DeleteFunc(slices.Clone(r.hosts), func(h docker.RegistryHost) bool {
		a, ok := h.Authorizer.(*authorizer)
		if ok && a.withheld != "" {
			withheld = a.withheld
		}
		return !ok || a.withheld != ""
	})
	if len(own.hosts) == 0 {
		return false, fmt.Errorf("no host of %s gets credentials: %s: %w", reference.Domain(r.name), withheld,
			errdefs.ErrFailedPrecondition)
	}
	own.hosts = own.hosts[len(own.hosts)-1:] // mirrors stand before the registry itself
	err = own.try(ctx, own.hosts[0].Capabilities, func(ctx context.Context, host docker.RegistryHost) error {
		asked, err = enter(withKind(ctx, document), host)
		return err
	})
	return asked, err
}

// enter asks for the root of a registry's API, with credentials where the registry wants some. What another host says
// to them, to which the registry redirects, is no answer.
func enter(ctx context.Context, host docker.RegistryHost) (asked bool, err error) {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, host.Scheme+"://"+host.Host+host.Path+"/", nil)
		if err != nil {
			return asked, err
		}
		for name, values := range host.Header {
			req.Header[name] = append(req.Header[name], values...)
		}
		if err := host.Authorizer.Authorize(ctx, req); err != nil {
			return asked, err
		}
		client := *host.Client
		client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
			if a, ok := host.Authorizer.(*authorizer); !ok || !a.own(req.URL) || len(via) >= 10 {
				return fmt.Errorf("%s redirects to %s, whose answer says nothing of these credentials: %w", host.Host,
					req.URL.Host, errRefused)
			}
			return nil
		}
		resp, err := client.Do(req)
		if err != nil {
			return asked, err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		switch {
		case resp.StatusCode == http.StatusOK:
			return asked, nil
		case resp.StatusCode != http.StatusUnauthorized:
			return asked, fmt.Errorf("GET %s: %s: %w", req.URL.Path, resp.Status, errRefused)
		case asked:
			return asked, fmt.Errorf("the authorization is not accepted: %w", docker.ErrInvalidAuthorization)
		}
		asked = true
		if err := host.Authorizer.AddResponses(ctx, []*http.Response{resp}); err != nil {
			return asked, err
		}
	}
}
