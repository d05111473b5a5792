package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"berth/internal/model"
)

// link is the writer of an upload that takes a number of bytes each second of the test's clock, until it takes no more.
type link struct {
	content.Writer
	ctx    context.Context // of the request
	speed  int
	most   int           // bytes that it takes
	answer time.Duration // how long the registry checks what it has
	taken  int
}

func (l *link) Status() (content.Status, error) { return content.Status{}, nil }

func (l *link) Write(p []byte) (int, error) {
	n := min(len(p), l.most-l.taken)
	err := l.wait(time.Duration(n) * time.Second / time.Duration(l.speed))
	if err != nil {
		return 0, err
	}
	if l.taken += n; n < len(p) {
		<-l.ctx.Done()
		err = context.Cause(l.ctx)
	}
	return n, err
}

func (l *link) Commit(context.Context, int64, digest.Digest, ...content.Opt) error {
	return l.wait(l.answer)
}

func (l *link) wait(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-l.ctx.Done():
		return context.Cause(l.ctx)
	}
}

// TestAPushIsGivenUpWhenTheRegistryTakesNothing, and not while a slow link takes some bytes all the time. Seen to fail
// where the clock was started by reads, of a megabyte each, and stopped by the last read: the slow link was cut, and
// the push did not end where the link takes nothing of what is read last.
func TestAPushIsGivenUpWhenTheRegistryTakesNothing(t *testing.T) {
	const all, stall = 5 << 19, 30 * time.Second
	for name, c := range map[string]struct {
		size int
		link link
		want string // empty: the push succeeds
	}{
		"a slow link":                     {all, link{speed: 4 << 10, most: all}, ""},
		"nothing is taken":                {all, link{speed: 1 << 20}, "taken nothing"},
		"nothing of the last piece":       {all, link{speed: 1 << 20, most: all - 100<<10}, "taken nothing"},
		"nothing of a small blob":         {900 << 10, link{speed: 1 << 20}, "taken nothing"},
		"a registry that checks for long": {all, link{speed: 1 << 20, most: all, answer: commits * stall}, ""},
		"a registry that does not answer": {all, link{speed: 1 << 20, most: all, answer: 1000 * stall}, "taken nothing"},
		"no bytes":                        {0, link{speed: 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				time.AfterFunc(time.Hour, func() { cancel(errors.New("the test has waited for an hour")) })
				c.link.ctx = ctx
				data := make([]byte, c.size)
				err := upload(ctx, cancel, &c.link, Content{Desc: describe(data), Reader: bytes.NewReader(data)}, stall)
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%v, want %q", err, c.want)
				}
			})
		})
	}
}

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

// TestAWrongPasswordIsNotSentAgainWithoutTheOtherRepository: a registry may count wrong passwords. Seen to fail where
// each answer 401 was taken for a refusal of the other repository.
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

// TestABlobIsTakenFromARepositoryBelowTheSamePath: the registry's API is at a path of the host, which is a part of the
// names of all its repositories. Seen to fail with the name without the path.
func TestABlobIsTakenFromARepositoryBelowTheSamePath(t *testing.T) {
	w := newWorld(t)
	w.serve("registry.test:443", func(rw http.ResponseWriter, req *http.Request) {
		switch {
		case req.Method == http.MethodHead:
			rw.WriteHeader(http.StatusNotFound)
		case req.URL.Path == "/v2/team/a/blobs/uploads/" && req.URL.Query().Get("from") == "team/other/app":
			rw.WriteHeader(http.StatusCreated)
		default:
			t.Errorf("%s %s", req.Method, req.URL)
			rw.WriteHeader(http.StatusNotFound)
		}
	})
	w.configure("server = \"https://registry.test/v2/team\"\noverride_path = true\nskip_verify = true\n")
	content := Content{Desc: describe([]byte("a blob")), From: []string{"other/app"}}
	if there, err := w.repository(nil).Push(t.Context(), content); err != nil || !there {
		t.Errorf("there: %v, %v", there, err)
	}
}
