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
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

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

// TestTheReasonOfA403IsAskedForOnce: whatever the answer, unless it is a good one, the error stays that of the HEAD,
// nothing further is asked, and the pull does not wait for long. Seen to fail without transport.reason, without
// timeReason (30 s), and with the request left to the library, which follows the redirect seven times and has a text of
// any length in the error.
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

// TestAManifestIsReadByGETWhereHEADIsForbidden: a registry redirects to a store with a URL that is signed for GET,
// which the store does not take for HEAD, or a proxy refuses HEAD itself. Seen to fail where the answer to the GET was
// thrown away unless it was a 403.
func TestAManifestIsReadByGETWhereHEADIsForbidden(t *testing.T) {
	manifest := []byte(`{"schemaVersion":2}`)
	want := digest.FromBytes(manifest)
	for name, c := range map[string]struct {
		moved  bool
		body   func(rw http.ResponseWriter)
		header bool   // the answer has the digest
		wrong  string // in the error; empty: it is read
	}{
		"signed for GET":              {moved: true},
		"signed for GET, with digest": {moved: true, header: true},
		"no HEAD":                     {header: true},
		"no HEAD, without a digest":   {},
		"a manifest without an end": {moved: true, wrong: "max_document", body: func(rw http.ResponseWriter) {
			for chunk := make([]byte, 1<<20); ; {
				if _, err := rw.Write(chunk); err != nil {
					return
				}
			}
		}},
		"a page": {wrong: "no manifest", body: func(rw http.ResponseWriter) { fmt.Fprint(rw, "<html>log in</html>") }},
	} {
		for _, ref := range []string{"registry.test/a:1", "registry.test/a@" + want.String()} {
			if c.wrong != "" && strings.Contains(ref, "@") {
				continue // what comes is compared with the digest when it is read
			}
			t.Run(name+" "+ref, func(t *testing.T) {
				w := newWorld(t)
				answer := func(rw http.ResponseWriter, req *http.Request) {
					if req.Method == http.MethodHead {
						rw.WriteHeader(http.StatusForbidden)
						return
					}
					rw.Header().Set("Content-Type", "binary/octet-stream")
					if c.header {
						rw.Header().Set("Docker-Content-Digest", want.String())
					}
					if c.body != nil {
						c.body(rw)
						return
					}
					_, _ = rw.Write(manifest)
				}
				w.serve("store.test:443", func(rw http.ResponseWriter, req *http.Request) {
					if req.URL.Query().Get("signature") != "good" || req.Header.Get("Authorization") != "" {
						t.Errorf("%s %s with %q", req.Method, req.URL, req.Header.Get("Authorization"))
					}
					answer(rw, req)
				})
				w.serve("registry.test:443", func(rw http.ResponseWriter, req *http.Request) {
					if c.moved {
						http.Redirect(rw, req, "https://store.test/object?signature=good", http.StatusTemporaryRedirect)
						return
					}
					answer(rw, req)
				})
				named, err := reference.ParseNormalizedNamed(ref)
				if err != nil {
					t.Fatal(err)
				}
				repo, err := w.client.Repository(t.Context(), named, &model.Auth{RegistryToken: registryToken})
				if err != nil {
					t.Fatal(err)
				}
				defer repo.Close()
				desc, err := repo.Resolve(t.Context())
				switch {
				case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
					t.Errorf("%+v, error %v", desc, err)
				case c.wrong == "" && (err != nil || desc.Digest != want || desc.Size != int64(len(manifest))):
					t.Errorf("%+v, error %v", desc, err)
				}
			})
		}
	}
}
