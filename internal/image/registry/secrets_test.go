package registry

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/distribution/reference"

	"berth/internal/model"
)

// TestAnErrorTellsNoSecretAndIsNotGarbled: whatever the secret is. Seen to fail with secrets replaced in place ("…ull
// access denied"), with short ones left alone, and without the names that the client has said itself.
func TestAnErrorTellsNoSecretAndIsNotGarbled(t *testing.T) {
	const denied = "pull access denied, repository does not exist or may require authorization: authorization failed"
	at := func(name string) string {
		return "unexpected status from HEAD request to https://registry.test/v2/" + name + "/manifests/1"
	}
	for _, c := range []struct {
		secret, image, text string
		shown               string // what is told of text; empty: nothing
	}{
		{"p", "app", denied, denied},
		{"p", "app", at("app") + ": 401 Unauthorized", at("app") + ": 401 Unauthorized"},
		{"p", "p", at("p") + ": 401 Unauthorized", at("p") + ": 401 Unauthorized"},
		{"1", "app", at("app") + ": 401 Unauthorized", at("app") + ": 401 Unauthorized"},
		{"app", "app", at("app") + "?sig=1234", at("app") + "?…"},
		{"test", "app", at("app") + ": 401 Unauthorized", at("app") + ": 401 Unauthorized"},
		{"registry.test/app:1", "app", "registry.test/app:1: not found", "registry.test/app:1: not found"},
		{"p", "app", `wrong password "p"`, ""},
		{"p", "app", "wrong password p", ""},
		{"p", "app", "p is the wrong password", ""},
		{"401", "app", at("app") + ": 401 Unauthorized", ""},
		{"+", "app", "user+word", ""},
		{"pw", "app", "user:pw", ""},
		{"pw", "app", "Basic dXNlcjpwdw==", ""},
		{"ä", "app", "wrong (ä)", ""},
		{"ä", "app", "Verfügbarkeit nämlich", "Verfügbarkeit nämlich"},
		{"denied", "app", denied, ""},
		{"hunter2", "app", "you said xhunter2x", ""},
		{"hunter2+x", "app", "hunter2%2Bx", ""},
		{"hunter2\"x", "app", `{"password":"hunter2\"x"}`, ""},
		{"hunter2+x", "app", denied, denied},
	} {
		t.Run(fmt.Sprintf("%s in %s", c.secret, c.text), func(t *testing.T) {
			creds, err := parseAuth(&model.Auth{Username: "user", Password: c.secret})
			if err != nil {
				t.Fatal(err)
			}
			name, err := reference.ParseNormalizedNamed("registry.test/" + c.image + ":1")
			if err != nil {
				t.Fatal(err)
			}
			r := &Repository{name: name, secret: creds.secrets(), log: slog.New(slog.DiscardHandler)}
			got := r.explain(docker.RegistryHost{Host: "registry.test"}, errors.New(c.text)).Error()
			if c.shown != "" {
				if got != "registry.test: "+c.shown {
					t.Errorf("%s", got)
				}
				return
			}
			if !strings.HasPrefix(got, "registry.test: unavailable (") || strings.Contains(got, c.text) {
				t.Errorf("%s", got)
			}
		})
	}
	// The class stays, whatever the text.
	creds, _ := parseAuth(&model.Auth{Username: "user", Password: "denied"})
	name, _ := reference.ParseNormalizedNamed("registry.test/app:1")
	r := &Repository{name: name, secret: creds.secrets()}
	f := r.explain(docker.RegistryHost{Host: "registry.test"}, fmt.Errorf("denied: %w", docker.ErrInvalidAuthorization))
	if got := f.Error(); !strings.HasPrefix(got, "registry.test: unauthorized (") || !errors.Is(f, f.kind) {
		t.Error(got)
	}
}
