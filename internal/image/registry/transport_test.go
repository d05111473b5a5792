package registry

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// TestARegistrysDateIsByItsOwnClock, wherever that of the node was set. Seen to fail with the node's time in its place.
func TestARegistrysDateIsByItsOwnClock(t *testing.T) {
	now := time.Now()
	at := func(later time.Duration) string { return now.Add(later).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		name, after string
		date        time.Time // of the answer; zero: it has none
		want        time.Duration
	}{
		{"none", "", now, 0},
		{"seconds", "7", now.Add(-24 * time.Hour), 7 * time.Second},
		{"the node is a day ahead", at(-24*time.Hour + 9*time.Second), now.Add(-24 * time.Hour), 9 * time.Second},
		{"the node is a day behind", at(24*time.Hour + 9*time.Second), now.Add(24 * time.Hour), 9 * time.Second},
		{"it was over when it was said", at(0), now.Add(time.Minute), 0},
		{"no date of the answer", at(time.Minute), time.Time{}, time.Minute},
		{"neither seconds nor a date", "soon", now, 0},
	} {
		header := http.Header{"Retry-After": {c.after}}
		if !c.date.IsZero() {
			header.Set("Date", c.date.UTC().Format(http.TimeFormat))
		}
		if got := retryAfter(header, now); (got - c.want).Abs() > 2*time.Second {
			t.Errorf("%s: %v, and should be %v", c.name, got, c.want)
		}
	}
}

// TestTheReasonOfA403IsAskedForOnce: whatever the answer, the error stays that of the HEAD, nothing further is asked,
// and the pull does not wait for long. Seen to fail without transport.reason, without timeReason (30 s), and with the
// request left to the library, which follows the redirect seven times and has a text of any length in the error.
func TestTheReasonOfA403IsAskedForOnce(t *testing.T) {
	said := func(code int, text string) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(code)
			fmt.Fprintf(rw, `{"errors":[{"code":"DENIED","message":%q}]}`, text)
		}
	}
	end := make(chan struct{})
	for name, c := range map[string]struct {
		get  http.HandlerFunc
		told string // after the status
	}{
		"a reason": {said(403, "no access to the key vault"), " (DENIED: no access to the key vault)"},
		"no body":  {func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(403) }, ""},
		"a page": {func(rw http.ResponseWriter, _ *http.Request) {
			http.Error(rw, "<html>", http.StatusForbidden)
		}, ""},
		"too long":         {said(403, strings.Repeat("x", maxSaid)), ""},
		"a good answer":    {said(200, "a manifest"), ""},
		"not found":        {said(404, "unknown"), ""},
		"too many":         {said(429, "slower"), ""},
		"an error":         {said(500, "broken"), ""},
		"a repeated token": {said(403, registryToken), "left out"},
		"a challenge": {func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			rw.WriteHeader(401)
		}, ""},
		"a redirect": {func(rw http.ResponseWriter, req *http.Request) {
			http.Redirect(rw, req, "/elsewhere", http.StatusTemporaryRedirect)
		}, ""},
		"no answer": {func(http.ResponseWriter, *http.Request) { <-end }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var asked []string
			s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				mu.Lock()
				asked = append(asked, req.Method+" "+req.URL.Path+" "+req.Header.Get("Authorization"))
				mu.Unlock()
				if req.Method == http.MethodHead {
					rw.WriteHeader(http.StatusForbidden)
					return
				}
				c.get(rw, req)
			}))
			defer s.Close()
			if name == "no answer" {
				defer close(end)
			}
			w := newWorld(t)
			w.client.cfg.Retry.Attempts = 3
			w.foreign("registry.test:80", s)
			w.configure("server = \"http://registry.test\"\nberth_credentials = \"plain\"")
			began := time.Now()
			err := w.read(&model.Auth{RegistryToken: registryToken})
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("it took %v", took)
			}
			switch {
			case !errdefs.IsPermissionDenied(err):
				t.Errorf("%v", err)
			case c.told == "left out":
				if strings.Contains(err.Error(), registryToken) {
					t.Errorf("%v", err)
				}
			case !strings.HasSuffix(err.Error(), ": 403 Forbidden"+c.told):
				t.Errorf("%v", err)
			}
			mu.Lock()
			defer mu.Unlock()
			const what = " /v2/a/manifests/1 Bearer " + registryToken
			if !slices.Equal(asked, []string{"HEAD" + what, "GET" + what}) {
				t.Errorf("asked %q", asked)
			}
		})
	}
}
