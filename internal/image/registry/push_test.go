package registry

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// strict is a registry that takes blobs, and does not let any be taken from the repository other/app.
type strict struct {
	public bool                                     // it tells everybody what it has
	bearer bool                                     // it wants tokens
	mount  func(http.ResponseWriter, *http.Request) // its answer to who wants a blob of other/app; nil: there is none
	token  func(http.ResponseWriter, *http.Request) // its answer to who asks for a token for other/app

	mu        sync.Mutex
	passwords int    // requests with a password
	stored    string // what was put
}

const pushToken, pushPassword = "push-token", "hunter2"

func (s *strict) challenge(w http.ResponseWriter, more string) {
	value := `Basic realm="x"`
	if s.bearer {
		value = `Bearer realm="https://registry.test/token",service="x",scope="repository:a:pull,push` + more
	}
	w.Header().Set("WWW-Authenticate", value)
	w.WriteHeader(http.StatusUnauthorized)
}

func (s *strict) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	user, password, basic := req.BasicAuth()
	if basic {
		s.mu.Lock()
		s.passwords++
		s.mu.Unlock()
	}
	known := basic && user == "user" && password == pushPassword
	if req.URL.Path == "/token" {
		switch scope := strings.Join(req.URL.Query()["scope"], " "); {
		case !known:
			w.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(scope, "other/app") && s.token != nil:
			s.token(w, req)
		default:
			fmt.Fprintf(w, `{"token":%q}`, pushToken)
		}
		return
	}
	if s.bearer {
		known = req.Header.Get("Authorization") == "Bearer "+pushToken
	}
	switch {
	case req.Method == http.MethodHead && s.public:
		w.WriteHeader(http.StatusNotFound)
	case !known:
		s.challenge(w, `"`)
	case req.Method == http.MethodHead:
		w.WriteHeader(http.StatusNotFound)
	case req.Method == http.MethodPost && req.URL.Query().Has("mount"):
		s.mount(w, req)
	case req.Method == http.MethodPost:
		w.Header().Set("Location", "/v2/a/blobs/uploads/1")
		w.WriteHeader(http.StatusAccepted)
	default:
		data, _ := io.ReadAll(req.Body)
		s.mu.Lock()
		s.stored = string(data)
		s.mu.Unlock()
		w.WriteHeader(http.StatusCreated)
	}
}

// TestABlobIsPushedWhereItMayNotBeTakenFromAnotherRepository, as other clients do: an image is pulled with the
// credentials of one team, and pushed with those of another. Seen to fail where the refusal was the end of the push.
func TestABlobIsPushedWhereItMayNotBeTakenFromAnotherRepository(t *testing.T) {
	status := func(code int) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	basic := &strict{}
	basic.mount = func(w http.ResponseWriter, _ *http.Request) { basic.challenge(w, "") }
	scope := &strict{bearer: true}
	scope.mount = func(w http.ResponseWriter, _ *http.Request) {
		scope.challenge(w, ` repository:other/app:pull",error="insufficient_scope"`)
	}
	for name, s := range map[string]*strict{
		"401": basic, "403": {mount: status(403)}, "404": {mount: status(404)}, "405": {mount: status(405)},
		"a token without the right": scope,
		"no token, 401":             {bearer: true, token: status(401)}, "no token, 403": {bearer: true, token: status(403)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("registry.test:443", s.ServeHTTP)
			data := []byte("a blob of the image")
			content := Content{Desc: describe(data), From: []string{"other/app"}}
			auth := &model.Auth{Username: "user", Password: pushPassword}
			if _, err := w.repository(auth).Push(t.Context(), content); !errdefs.IsNotFound(err) {
				t.Errorf("without its bytes: %v", err)
			}
			content.Reader = bytes.NewReader(data)
			there, err := w.repository(auth).Push(t.Context(), content)
			if err != nil || there || s.stored != string(data) {
				t.Errorf("the registry has %q, there before: %v, %v", s.stored, there, err)
			}
		})
	}
}

// TestAWrongPasswordIsNotSentAgainWithoutTheOtherRepository: a registry may count wrong passwords. Seen to fail where each
// answer 401 was taken for a refusal of the other repository.
func TestAWrongPasswordIsNotSentAgainWithoutTheOtherRepository(t *testing.T) {
	for name, s := range map[string]*strict{
		"of a public registry": {public: true}, "of a private registry": {}, "of a token service": {bearer: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.serve("registry.test:443", s.ServeHTTP)
			data := []byte("a blob of the image")
			_, err := w.repository(&model.Auth{Username: "user", Password: "wrong"}).Push(t.Context(),
				Content{Desc: describe(data), Reader: bytes.NewReader(data), From: []string{"other/app"}})
			if !errdefs.IsUnauthorized(err) || s.passwords != 1 {
				t.Errorf("the password was sent %d times: %v", s.passwords, err)
			}
		})
	}
}
