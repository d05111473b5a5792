package registry

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/model"
)

// asked notes the requests that hosts of a world get.
type asked struct {
	mu       sync.Mutex
	requests map[string][]*http.Request // by the host's address
}

// listen serves at an address, by plain HTTP or TLS, and notes what it gets.
func (a *asked) listen(w *world, address string, answer http.HandlerFunc) {
	handler := func(rw http.ResponseWriter, req *http.Request) {
		a.mu.Lock()
		a.requests[address] = append(a.requests[address], req)
		a.mu.Unlock()
		_, _ = io.Copy(io.Discard, req.Body)
		answer(rw, req)
	}
	if _, port, _ := net.SplitHostPort(address); port == "80" {
		w.servePlain(address, handler)
		return
	}
	w.serve(address, handler)
}

// secret tells whether a host was sent the header of hosts.toml, or a password.
func (a *asked) secret(address string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, req := range a.requests[address] {
		if req.Header.Get("X-Api-Key") != "" || req.Header.Get("Authorization") != "" {
			return true
		}
	}
	return false
}

func (a *asked) count(address string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.requests[address])
}

// elsewhereCases are places to which a registry over TLS leads, and what is told where they are not asked.
var elsewhereCases = map[string]string{
	"https://cdn.test:443":        "",
	"https://sub.registry.test":   "",
	"https://registry.test:444":   "",
	"http://registry.test:80":     "redirects to plain HTTP",
	"http://cdn.test:80":          "redirects to plain HTTP",
	"https://127.0.0.1:443":       "the node itself",
	"https://localhost:443":       "the node itself",
	"https://169.254.169.254:443": "of its own link",
	"https://here.test:443":       "the node itself", // by its address
}

const keyed = "skip_verify = true\n[header]\nx-api-key = \"key-of-the-file\"\n"

func newAsked(t *testing.T) (*world, *asked) {
	w := newWorld(t)
	dial := w.client.dial
	w.client.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if far, ok := conn.(away); ok && address == "here.test:443" {
			return far.Conn, err
		}
		return conn, err
	}
	return w, &asked{requests: map[string][]*http.Request{}}
}

func addressOf(place string) string {
	scheme, host, _ := strings.Cut(place, "://")
	if strings.Contains(host, ":") {
		return host
	}
	return host + map[string]string{"https": ":443", "http": ":80"}[scheme]
}

// TestAnUploadLeadsNowhereElseWithSecrets: by the place that a registry names for an upload, or by a redirect. Seen to
// fail without elsewhere: places get the header of hosts.toml, and those are asked that no pull would ask.
func TestAnUploadLeadsNowhereElseWithSecrets(t *testing.T) {
	for to, refused := range elsewhereCases {
		for _, how := range []string{"place of an upload", "redirect of its start", "redirect of its end"} {
			t.Run(how+"/"+to, func(t *testing.T) {
				w, a := newAsked(t)
				other := addressOf(to)
				took := false
				a.listen(w, "registry.test:443", func(rw http.ResponseWriter, req *http.Request) {
					_, _, known := req.BasicAuth()
					switch {
					case !known:
						rw.Header().Set("WWW-Authenticate", `Basic realm="x"`)
						rw.WriteHeader(http.StatusUnauthorized)
					case req.Method == http.MethodHead:
						rw.WriteHeader(http.StatusNotFound)
					case req.Method == http.MethodPost && how == "redirect of its start",
						req.Method == http.MethodPut && how == "redirect of its end":
						http.Redirect(rw, req, to+"/upload", http.StatusTemporaryRedirect)
					case req.Method == http.MethodPost && how == "place of an upload":
						rw.Header().Set("Location", to+"/upload")
						rw.WriteHeader(http.StatusAccepted)
					case req.Method == http.MethodPost:
						rw.Header().Set("Location", "/upload")
						rw.WriteHeader(http.StatusAccepted)
					default:
						t.Errorf("%s %s", req.Method, req.URL)
					}
				})
				a.listen(w, other, func(rw http.ResponseWriter, req *http.Request) {
					if req.Method == http.MethodPost {
						rw.Header().Set("Location", to+"/upload")
						rw.WriteHeader(http.StatusAccepted)
						return
					}
					took = true
					rw.WriteHeader(http.StatusCreated)
				})
				w.configure(keyed)
				data := "a layer"
				desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromString(data),
					Size: int64(len(data))}
				_, err := w.repository(&model.Auth{Username: "user", Password: password}).Push(t.Context(),
					Content{Desc: desc, Reader: strings.NewReader(data)})
				if refused == "" && (err != nil || !took) {
					t.Errorf("pushed: %t, %v", took, err)
				}
				if refused != "" && (err == nil || !strings.Contains(err.Error(), refused) || a.count(other) > 0) {
					t.Errorf("error %v, want one with %q; %s got %d requests", err, refused, to, a.count(other))
				}
				if a.secret(other) {
					t.Errorf("%s got a secret", to)
				}
				if !a.secret("registry.test:443") {
					t.Error("the registry did not get the header of hosts.toml")
				}
				w.quiet(err)
			})
		}
	}
}

// TestALoginIsAnsweredByItsHostAlone: by the root of its API, or by the token service that it names. Seen to fail with
// redirects followed by net/http alone: the header of hosts.toml goes everywhere, the password to other ports,
// and a login is good to which another host has said yes.
func TestALoginIsAnsweredByItsHostAlone(t *testing.T) {
	for to := range elsewhereCases {
		for _, how := range []string{"redirect", "redirect once authorized", "token service"} {
			t.Run(how+"/"+to, func(t *testing.T) {
				w, a := newAsked(t)
				other := addressOf(to)
				a.listen(w, "registry.test:443", func(rw http.ResponseWriter, req *http.Request) {
					_, _, known := req.BasicAuth()
					switch {
					case how == "redirect", how == "redirect once authorized" && known:
						http.Redirect(rw, req, to+req.URL.Path, http.StatusTemporaryRedirect)
					case how == "redirect once authorized":
						rw.Header().Set("WWW-Authenticate", `Basic realm="x"`)
						rw.WriteHeader(http.StatusUnauthorized)
					case req.URL.Path == "/token":
						http.Redirect(rw, req, to+req.URL.Path, http.StatusTemporaryRedirect)
					default:
						rw.Header().Set("WWW-Authenticate", `Bearer realm="https://registry.test/token",service="x"`)
						rw.WriteHeader(http.StatusUnauthorized)
					}
				})
				a.listen(w, other, func(rw http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(rw, `{"token":"x"}`)
				})
				w.configure(keyed)
				_, err := w.repository(&model.Auth{Username: "user", Password: password}).Login(t.Context())
				if err == nil || !strings.Contains(err.Error(), "redirects to ") {
					t.Errorf("error %v", err)
				}
				if a.count(other) > 0 {
					t.Errorf("%s got %d requests, with a secret: %t", to, a.count(other), a.secret(other))
				}
				w.quiet(err)
			})
		}
	}
}

// TestATokenServiceIsNotTheNodeUnderAnotherName: as with a place that the registry redirects to. Seen to fail
// with the addresses of the node's link refused alone.
func TestATokenServiceIsNotTheNodeUnderAnotherName(t *testing.T) {
	w, a := newAsked(t)
	a.listen(w, "registry.test:443", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("WWW-Authenticate", `Bearer realm="https://here.test/token",service="x"`)
		rw.WriteHeader(http.StatusUnauthorized)
	})
	a.listen(w, "here.test:443", func(rw http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(rw, `{"token":"x"}`)
	})
	w.configure(keyed)
	_, err := w.repository(nil).Resolve(t.Context())
	if err == nil || !strings.Contains(err.Error(), "is the node itself") || a.count("here.test:443") > 0 {
		t.Errorf("error %v, %d requests", err, a.count("here.test:443"))
	}
	// hosts.toml may say so.
	w.configure(keyed + "[host.\"https://here.test\"]\ncapabilities = [\"push\"]\nskip_verify = true\n")
	if _, err = w.repository(nil).Resolve(t.Context()); err == nil || a.count("here.test:443") == 0 {
		t.Errorf("error %v, %d requests", err, a.count("here.test:443"))
	}
}
