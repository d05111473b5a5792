package registry

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// credentials are what a model.Auth comes to: a user with a password; a refresh token as the password of no user; or a
// bearer token.
type credentials struct {
	user, password string
	token          string
	server         string // host[:port] that they are for; empty: the registry of the reference
	encoded        string // as they came, for hiding
}

func parseAuth(a *model.Auth) (credentials, error) {
	var c credentials
	if a == nil {
		return c, nil
	}
	c.encoded = a.Auth
	if a.ServerAddress != "" {
		server := a.ServerAddress
		if !strings.Contains(server, "://") {
			server = "https://" + server
		}
		u, err := url.Parse(server)
		if err != nil || u.Host == "" {
			return c, fmt.Errorf("credentials: server address is not a host or URL: %w", errdefs.ErrInvalidArgument)
		}
		c.server = u.Host
	}
	switch {
	case a.Username != "" && a.Password != "":
		c.user, c.password = a.Username, a.Password
	// Clients may send a user's name along with what stands for the password.
	case a.IdentityToken != "":
		c.password = a.IdentityToken
	case a.Auth != "":
		// Neither the text nor the decoder's error may show: both hold the secret.
		plain, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			plain, err = base64.RawStdEncoding.DecodeString(a.Auth)
		}
		user, password, ok := strings.Cut(string(plain), ":")
		if err != nil || !ok {
			return c, fmt.Errorf("credentials: auth is not the base64 of user:password: %w", errdefs.ErrInvalidArgument)
		}
		c.user, c.password = user, strings.Trim(password, "\x00")
	case a.RegistryToken != "":
		c.token = a.RegistryToken
	case a.Username != "":
		c.user = a.Username
	case a.Password != "":
		return c, fmt.Errorf("credentials: a password without a user name: %w", errdefs.ErrInvalidArgument)
	}
	return c, nil
}

// hosts are those that may see the credentials. Without a server address they are for the registry of the reference,
// and so for the mirrors that the node's owner has put before it; never for a host that one of those redirects to.
func (c *credentials) hosts(domain string, configured []docker.RegistryHost) map[string]bool {
	allowed := map[string]bool{}
	if c.server == "" || canonical(c.server) == canonical(domain) {
		for _, h := range configured {
			allowed[h.Host] = true
		}
		return allowed
	}
	for _, h := range configured {
		if canonical(h.Host) == canonical(c.server) {
			allowed[h.Host] = true
		}
	}
	return allowed
}

// canonical folds the names of Docker Hub into one.
func canonical(host string) string {
	switch host {
	case "index.docker.io", "registry-1.docker.io":
		return "docker.io"
	}
	return host
}

// bearer sends a ready token, to its own host alone.
type bearer struct{ host, token string }

func (b *bearer) Authorize(_ context.Context, req *http.Request) error {
	if req.URL.Host == b.host {
		req.Header.Set("Authorization", "Bearer "+b.token)
	}
	return nil
}

func (b *bearer) AddResponses(context.Context, []*http.Response) error {
	return fmt.Errorf("the registry token is not accepted: %w", docker.ErrInvalidAuthorization)
}

// secrets are strings that no error and no log line may hold.
type secrets []string

func (c *credentials) secrets() secrets {
	var s secrets
	for _, v := range []string{c.password, c.token, c.encoded} {
		if v == "" {
			continue
		}
		s = append(s, v)
		if e := url.QueryEscape(v); e != v {
			s = append(s, e)
		}
	}
	if c.user != "" {
		s = append(s, base64.StdEncoding.EncodeToString([]byte(c.user+":"+c.password)))
	}
	return s
}

// hide removes secrets from a text, and the queries of URLs, which carry signatures.
func (s secrets) hide(text string) string {
	for _, v := range s {
		text = strings.ReplaceAll(text, v, "…")
	}
	return query.ReplaceAllString(text, "$1?…")
}
