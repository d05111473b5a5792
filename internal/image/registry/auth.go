package registry

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// credentials are what a model.Auth says: a user with a password; a refresh token, as the password of no user;
// or a bearer token.
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

// none tells whether there is nothing that authenticates.
func (c *credentials) none() bool { return c.user == "" && c.password == "" && c.token == "" }

// secrets are strings that no error and no log line may hold.
type secrets []string

func (c *credentials) secrets() secrets {
	var s secrets
	add := func(v string) {
		if v != "" && !slices.Contains(s, v) {
			s = append(s, v)
		}
	}
	for _, v := range []string{c.password, c.token, c.encoded} {
		add(v)
		// A server may repeat them in the forms in which it got them, or in JSON.
		add(url.QueryEscape(v))
		add(url.PathEscape(v))
		quoted := strconv.Quote(v)
		add(quoted[1 : len(quoted)-1])
	}
	if c.password != "" {
		for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding,
			base64.RawURLEncoding} {
			add(encoding.EncodeToString([]byte(c.user + ":" + c.password)))
		}
	}
	return s
}

// shortSecret is the length from which a secret is hardly a part of a word by chance.
const shortSecret = 4

// hide returns a text without the queries of URLs, which carry signatures. A text with a secret in it cannot be shown
// (false): without the secret it would tell which word is missing. Names in own, which the client has said itself,
// are no secrets, and a short secret counts where it is not a part of a longer word.
func (s secrets) hide(text string, own ...string) (string, bool) {
	text = query.ReplaceAllString(text, "$1?…")
	rest := text
	slices.SortFunc(own, func(a, b string) int { return len(b) - len(a) })
	for _, name := range own {
		rest = replaceAlone(rest, name, " ")
	}
	for _, v := range s {
		if strings.Contains(rest, v) && (len(v) >= shortSecret || replaceAlone(rest, v, "") != rest) {
			return "", false
		}
	}
	return text, true
}

// replaceAlone replaces a string where it is not a part of a longer word.
func replaceAlone(text, v, by string) string {
	if v == "" {
		return text
	}
	word := func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
	first, _ := utf8.DecodeRuneInString(v)
	last, _ := utf8.DecodeLastRuneInString(v)
	var out strings.Builder
	before := ' ' // the rune before text
	for {
		i := strings.Index(text, v)
		if i < 0 {
			out.WriteString(text)
			return out.String()
		}
		if i > 0 {
			before, _ = utf8.DecodeLastRuneInString(text[:i])
		}
		after, size := utf8.DecodeRuneInString(text[i+len(v):])
		if word(first) && word(before) || word(last) && size > 0 && word(after) {
			_, skip := utf8.DecodeRuneInString(text[i:])
			before, _ = utf8.DecodeRuneInString(text[i:])
			out.WriteString(text[:i+skip])
			text = text[i+skip:]
			continue
		}
		out.WriteString(text[:i] + by)
		text, before = text[i+len(v):], last
	}
}
