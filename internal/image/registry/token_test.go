package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/model"
)

// tokens is a registry at registry.test that wants a token of its own service for a manifest and a blob.
type tokens struct {
	asked    atomic.Int64 // how often the service was asked for a token
	manifest []byte
	blob     []byte
}

// newTokens starts one. fail answers the nth request for a token, unless it returns false.
func newTokens(w *world, fail func(n int64, rw http.ResponseWriter, req *http.Request) bool) *tokens {
	w.Helper()
	r := &tokens{manifest: []byte(`{"schemaVersion":2}`), blob: []byte("layer")}
	w.serve("registry.test:443", func(rw http.ResponseWriter, req *http.Request) {
		switch {
		case req.URL.Path == "/token":
			if !fail(r.asked.Add(1), rw, req) {
				fmt.Fprint(rw, `{"token":"good"}`)
			}
		case req.Header.Get("Authorization") != "Bearer good":
			rw.Header().Set("WWW-Authenticate",
				`Bearer realm="https://registry.test/token",service="x",scope="repository:a:pull"`)
			rw.WriteHeader(http.StatusUnauthorized)
		case req.URL.Path == "/v2/a/blobs/"+digest.FromBytes(r.blob).String():
			_, _ = rw.Write(r.blob)
		default:
			rw.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			rw.Header().Set("Docker-Content-Digest", digest.FromBytes(r.manifest).String())
			_, _ = rw.Write(r.manifest)
		}
	})
	return r
}

// read reads the manifest, or the blob.
func (r *tokens) read(ctx context.Context, repo *Repository, what string) error {
	if what == "manifest" {
		_, err := repo.Resolve(ctx)
		return err
	}
	b, err := repo.Blob(ctx, describe(r.blob), nil)
	if err != nil {
		return err
	}
	defer b.Close()
	_, err = b.Read(make([]byte, 1))
	return err
}

// TestATokenServiceThatFailsIsAskedAgain: the library keeps the error of a token service for ever. Seen to fail without
// forget, for every failure that passes: no attempt of the pull asked the service again.
func TestATokenServiceThatFailsIsAskedAgain(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) }
	}
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		want   error // nil: the second request for a token brings one
	}{
		{"503", status(http.StatusServiceUnavailable), nil},
		{"429", status(http.StatusTooManyRequests), nil},
		{"408", status(http.StatusRequestTimeout), nil},
		{"cut", func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Length", "100")
			fmt.Fprint(rw, `{"token":`)
		}, nil},
		{"401", status(http.StatusUnauthorized), errdefs.ErrUnauthenticated},
		{"403", status(http.StatusForbidden), errdefs.ErrPermissionDenied},
		{"404", status(http.StatusNotFound), errdefs.ErrNotFound},
	} {
		for _, what := range []string{"manifest", "blob"} {
			for _, auth := range []*model.Auth{nil, {Username: "user", Password: password}} {
				t.Run(fmt.Sprintf("%s %s %v", c.name, what, auth != nil), func(t *testing.T) {
					w := newWorld(t)
					w.client.cfg.Retry.Attempts = 3
					r := newTokens(w, func(n int64, rw http.ResponseWriter, req *http.Request) bool {
						if n == 1 || c.want != nil {
							c.answer(rw, req)
							return true
						}
						return false
					})
					err := r.read(t.Context(), w.repository(auth), what)
					asked := int64(2)
					if c.want != nil {
						asked = 1
					}
					if !errors.Is(err, c.want) || r.asked.Load() != asked {
						t.Errorf("error %v, %d tokens were asked for, want %d", err, r.asked.Load(), asked)
					}
				})
			}
		}
	}
}

// TestATokenThatNobodyWaitedForIsAskedForAgain: the library keeps the error of a caller that gave up, for all others.
// Seen to fail without forget.
func TestATokenThatNobodyWaitedForIsAskedForAgain(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	r := newTokens(w, func(n int64, _ http.ResponseWriter, req *http.Request) bool {
		if n > 1 {
			return false
		}
		cancel()
		<-req.Context().Done()
		return true
	})
	repo := w.repository(nil)
	if err := r.read(ctx, repo, "manifest"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if err := r.read(t.Context(), repo, "manifest"); err != nil {
		t.Error(err)
	}
}

// TestManyRequestsOutliveATokenServiceThatFails: seen to fail without the challenges that forget keeps. Each failure
// then had all other requests sent without a token, and the fifth answer 401 was taken for a refusal.
func TestManyRequestsOutliveATokenServiceThatFails(t *testing.T) {
	const readers = 16
	w := newWorld(t)
	w.client.cfg.Retry.Attempts = 5
	r := newTokens(w, func(n int64, rw http.ResponseWriter, _ *http.Request) bool {
		if n <= readers {
			time.Sleep(10 * time.Millisecond) // so that all others wait for the token
			rw.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	repo := w.repository(nil)
	var all sync.WaitGroup
	for range readers {
		all.Go(func() {
			if err := r.read(t.Context(), repo, "manifest"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestATokenIsAskedForByTheNameAtTheMirror: a mirror below a path has the image under another name than the reference,
// and its token service refuses whoever wants more than the mirror has said. Seen to fail with the scopes of the
// library, which asks for both names.
func TestATokenIsAskedForByTheNameAtTheMirror(t *testing.T) {
	for path, c := range map[string]struct {
		url   string   // of the table; the mirror has the image at path
		scope string   // in the mirror's answer 401; empty: it has none
		want  []string // the scopes that its service is asked for
	}{
		"/v2/ORG/hub/a": {"/v2/ORG/hub", "repository:ORG/hub/a:pull", []string{"repository:ORG/hub/a:pull"}},
		"/v2/group/p/a": {"/v2/group/p", "", []string{"repository:group/p/a:pull"}},
		"/v2/of:all/a":  {"/v2/of%3Aall", "repository:of:all/a:pull", []string{"repository:of:all/a:pull"}},
		"/api/hub/a":    {"/api/hub", "repository:hub/a:pull", []string{"repository:hub/a:pull"}},
		"/api/docker/a": {"/api/docker", "", []string{"repository:a:pull"}},
		"/v2/a":         {"/v2", "repository:a:pull", []string{"repository:a:pull"}},
	} {
		t.Run(path, func(t *testing.T) {
			w := newWorld(t)
			manifest, layer := []byte(`{"schemaVersion":2}`), []byte("layer")
			w.serve("registry.test:443", http.NotFound)
			w.serve("mirror.test:443", func(rw http.ResponseWriter, req *http.Request) {
				switch {
				case req.URL.Path == "/token":
					if got := req.URL.Query()["scope"]; !slices.Equal(got, c.want) {
						t.Errorf("a token is wanted for %q", got)
						rw.WriteHeader(http.StatusForbidden)
						return
					}
					fmt.Fprint(rw, `{"token":"good"}`)
				case req.Header.Get("Authorization") != "Bearer good":
					challenge := `Bearer realm="https://mirror.test/token",service="x"`
					if c.scope != "" {
						challenge += fmt.Sprintf(",scope=%q", c.scope)
					}
					rw.Header().Set("WWW-Authenticate", challenge)
					rw.WriteHeader(http.StatusUnauthorized)
				case req.URL.EscapedPath() == path+"/blobs/"+digest.FromBytes(layer).String():
					_, _ = rw.Write(layer)
				case strings.HasPrefix(req.URL.EscapedPath(), path+"/manifests/") && req.URL.Query().Get("ns") == "registry.test":
					rw.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
					rw.Header().Set("Docker-Content-Digest", digest.FromBytes(manifest).String())
					_, _ = rw.Write(manifest)
				default:
					t.Errorf("%s %s", req.Method, req.URL)
				}
			})
			w.configure("skip_verify = true\n[host.\"https://mirror.test" + c.url +
				"\"]\noverride_path = true\nskip_verify = true\n")
			repo := w.repository(nil)
			desc, err := repo.Resolve(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := repo.Document(t.Context(), desc); err != nil {
				t.Error(err)
			}
			if err := w.blob(repo, layer); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestATokenServiceThatFailsIsAskedOnceForADigest in each attempt. Seen to fail where the library, which has found no
// manifest of the digest, went on to look for a blob, and asked for a token again.
func TestATokenServiceThatFailsIsAskedOnceForADigest(t *testing.T) {
	for _, code := range []int{http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusForbidden} {
		w := newWorld(t)
		r := newTokens(w, func(_ int64, rw http.ResponseWriter, _ *http.Request) bool {
			rw.WriteHeader(code)
			return true
		})
		named, err := reference.ParseNormalizedNamed("registry.test/a@" + digest.FromBytes(r.manifest).String())
		if err != nil {
			t.Fatal(err)
		}
		repo, err := w.client.Repository(t.Context(), named, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer repo.Close()
		if err := r.read(t.Context(), repo, "manifest"); err == nil || !strings.Contains(err.Error(), fmt.Sprint(code)) {
			t.Errorf("%d: error %v", code, err)
		}
		if n := r.asked.Load(); n != 1 {
			t.Errorf("%d: the service was asked %d times", code, n)
		}
	}
}

// TestATokenServiceThatFailsDoesNotEndRanges: it is not the host that has refused the range. Seen to fail where its
// answer 500 or 502 was taken for the host's.
func TestATokenServiceThatFailsDoesNotEndRanges(t *testing.T) {
	for _, code := range []int{http.StatusInternalServerError, http.StatusBadGateway} {
		w := ranged(t, small)
		data := noise(1 << 20)
		var failed, ranges atomic.Int64
		w.serve("registry.test:443", func(rw http.ResponseWriter, req *http.Request) {
			switch {
			case req.URL.Path == "/token" && failed.Add(1) == 1:
				rw.WriteHeader(code)
			case req.URL.Path == "/token":
				fmt.Fprint(rw, `{"token":"good"}`)
			case req.Header.Get("Authorization") != "Bearer good":
				rw.Header().Set("WWW-Authenticate", `Bearer realm="https://registry.test/token",service="x"`)
				rw.WriteHeader(http.StatusUnauthorized)
			default:
				if req.Header.Get("Range") != "" {
					ranges.Add(1)
				}
				http.ServeContent(rw, req, "", time.Time{}, bytes.NewReader(data))
			}
		})
		if err := w.blob(w.repository(nil), data); err != nil {
			t.Error(err)
		}
		if ranges.Load() < 2 || strings.Contains(w.logs.text.String(), "does not send ranges") {
			t.Errorf("%d: %d ranges, and the log:\n%s", code, ranges.Load(), w.logs.text.String())
		}
	}
}
