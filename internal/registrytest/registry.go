package registrytest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Registry is a running registry. Its methods may be called from any goroutine.
type Registry struct {
	listener net.Listener
	server   *http.Server
	certPEM  []byte
	auth     *authentication
	redirect func(*http.Request) string // nil: nowhere
	handler  http.Handler               // go-containerregistry's: manifests, uploads
	blobs    *blobs
	raw      rawManifests

	mu       sync.Mutex
	faults   Faults
	requests []Request
	tokens   []Request        // those for tokens
	sent     map[string]int64 // digest -> bytes of it that were sent
	blobbing load             // requests for blobs
	conns    load             // connections
}

// load is how many there are at a time.
type load struct{ now, peak int }

func (l *load) add(n int) {
	l.now += n
	l.peak = max(l.peak, l.now)
}

// Request is one request that the registry got.
type Request struct {
	Method, Path, Range string
	Namespace           string // the `ns` query, which a client adds when it asks a mirror
	Authorized          bool   // it carried credentials that were accepted
	HasCredentials      bool   // it carried an Authorization header
	Host                string
	Header              http.Header
	ContentLength       int64      // of the body; -1: it comes in chunks
	Form                url.Values // of a request for a token
}

// Option changes how a registry is made.
type Option func(*options)

type options struct {
	tls      bool
	names    []string
	auth     *authentication
	realm    string
	redirect func(*http.Request) string
}

// WithTLS serves HTTPS with a certificate of the registry's own, for its address, localhost and these names:
// see CertPEM.
func WithTLS(names ...string) Option {
	return func(o *options) { o.tls, o.names = true, append(o.names, names...) }
}

// WithRealm makes a registry that asks for bearer tokens name this URL as its token service, in place of its own
// /token.
func WithRealm(realm string) Option { return func(o *options) { o.realm = realm } }

// WithRedirects makes the registry answer requests with a redirect to the URL that the function says; empty: none.
func WithRedirects(to func(*http.Request) string) Option { return func(o *options) { o.redirect = to } }

// WithBasicAuth refuses requests without this user and password.
func WithBasicAuth(user, password string) Option {
	return func(o *options) { o.auth.scheme, o.auth.user, o.auth.password = "basic", user, password }
}

// WithTokenAuth makes the registry ask for bearer tokens, which its own token server gives for the user and password
// (GET with basic authentication, or POST of an OAuth2 password grant), or for the refresh token (identity token).
func WithTokenAuth(user, password, refreshToken string) Option {
	return func(o *options) {
		o.auth.scheme, o.auth.user, o.auth.password, o.auth.refresh = "bearer", user, password, refreshToken
	}
}

// WithTokensFor makes each token that the token server gives good for so many requests. Neither the token server nor
// the registry says that it has expired.
func WithTokensFor(requests int64) Option { return func(o *options) { o.auth.uses = requests } }

// WithRegistryToken makes the registry accept this bearer token too, without its token server.
func WithRegistryToken(token string) Option {
	return func(o *options) {
		o.auth.scheme = "bearer"
		o.auth.static = token
	}
}

// New starts a registry on a free port of loopback.
func New(opts ...Option) (*Registry, error) {
	o := options{auth: &authentication{}}
	for _, opt := range opts {
		opt(&o)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	r := &Registry{listener: listener, auth: o.auth, redirect: o.redirect, blobs: newBlobs(), sent: map[string]int64{}}
	if o.tls {
		cert, certPEM, err := selfSigned(listener.Addr().(*net.TCPAddr).IP, o.names)
		if err != nil {
			listener.Close()
			return nil, err
		}
		r.certPEM = certPEM
		listener = tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	}
	if r.auth.realm = o.realm; r.auth.realm == "" {
		r.auth.realm = r.URL() + "/token"
	}
	quiet := log.New(io.Discard, "", 0)
	r.handler = ggcr.New(ggcr.Logger(quiet), ggcr.WithBlobHandler(r.blobs))
	r.server = &http.Server{Handler: http.HandlerFunc(r.serve), ErrorLog: quiet, ReadHeaderTimeout: 10 * time.Second,
		ConnState: r.connection}
	go func() { _ = r.server.Serve(listener) }() // ends with Close
	return r, nil
}

// Close stops the registry and cuts its connections.
func (r *Registry) Close() error { return r.server.Close() }

// Addr is host:port.
func (r *Registry) Addr() string { return r.listener.Addr().String() }

// URL is the registry's base, without a path.
func (r *Registry) URL() string {
	if r.certPEM != nil {
		return "https://" + r.Addr()
	}
	return "http://" + r.Addr()
}

// CertPEM is the certificate of a registry with TLS, to be trusted as its own authority. Nil without TLS.
func (r *Registry) CertPEM() []byte { return r.certPEM }

// HostsDir writes under dir a hosts.toml for each of the registry names ("registry.test", "docker.io";
// "_default" is all others) which makes this registry the one that answers for them.
func (r *Registry) HostsDir(dir string, names ...string) error {
	return Mirrors(dir, names, r)
}

// Mirrors writes a hosts.toml for each of the registry names under dir, with the given registries as mirrors in that
// order; the last stands for the registry itself.
func Mirrors(dir string, names []string, registries ...*Registry) error {
	for _, name := range names {
		if i := strings.LastIndexByte(name, ':'); i > 0 {
			name = name[:i] + "_" + name[i+1:] + "_"
		}
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		var b strings.Builder
		last := registries[len(registries)-1]
		if last.certPEM == nil {
			// Without it the last would be https://<name>: no name of a test leaves this machine.
			fmt.Fprintf(&b, "server = %q\n\n", last.URL())
		} else {
			fmt.Fprintf(&b, "server = %q\nca = %q\n\n", last.URL(), last.caFile())
		}
		for _, reg := range registries[:len(registries)-1] {
			fmt.Fprintf(&b, "[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", reg.URL())
			if reg.certPEM != nil {
				fmt.Fprintf(&b, "  ca = %q\n", reg.caFile())
			}
		}
		for _, reg := range registries {
			if reg.certPEM == nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(at, reg.caFile()), reg.certPEM, 0o644); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(at, "hosts.toml"), []byte(b.String()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *Registry) caFile() string {
	return "ca-" + strings.NewReplacer(":", "-", "[", "", "]", "").Replace(r.Addr()) + ".pem"
}

// Push stores an image (v1.Image) or an index of images (v1.ImageIndex) under a name like "library/busybox:1.36". It
// goes past authentication and faults.
func (r *Registry) Push(name string, what any) error {
	repo, tag, ok := strings.Cut(name, ":")
	if !ok {
		tag = "latest"
	}
	return r.push(repo, tag, what)
}

func (r *Registry) push(repo, tag string, what any) error {
	switch v := what.(type) {
	case v1.Image:
		layers, err := v.Layers()
		if err != nil {
			return err
		}
		for _, l := range layers {
			if err := r.blobs.putLayer(l); err != nil {
				return err
			}
		}
		config, err := v.RawConfigFile()
		if err != nil {
			return err
		}
		r.blobs.put(config)
		return r.putManifest(repo, tag, v)
	case v1.ImageIndex:
		manifest, err := v.IndexManifest()
		if err != nil {
			return err
		}
		for _, d := range manifest.Manifests {
			var child any
			if d.MediaType.IsIndex() {
				child, err = v.ImageIndex(d.Digest)
			} else {
				child, err = v.Image(d.Digest)
			}
			if err != nil {
				return err
			}
			if err := r.push(repo, d.Digest.String(), child); err != nil {
				return err
			}
		}
		return r.putManifest(repo, tag, v)
	}
	return fmt.Errorf("push %s: %T is neither an image nor an index", repo, what)
}

func (r *Registry) putManifest(repo, tag string, m interface {
	RawManifest() ([]byte, error)
	MediaType() (types.MediaType, error)
}) error {
	raw, err := m.RawManifest()
	if err != nil {
		return err
	}
	mt, err := m.MediaType()
	if err != nil {
		return err
	}
	return r.PutManifest(repo, tag, string(mt), raw)
}

// PutManifest stores any bytes as a manifest, so that a broken one can be served.
func (r *Registry) PutManifest(repo, tag, mediaType string, raw []byte) error {
	req, err := http.NewRequest(http.MethodPut, "http://registry/v2/"+repo+"/manifests/"+tag, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", mediaType)
	w := &statusWriter{header: http.Header{}}
	r.handler.ServeHTTP(w, req)
	if w.status >= 300 {
		return fmt.Errorf("push %s:%s: status %d: %s", repo, tag, w.status, w.body.String())
	}
	return nil
}

// PutBlob stores bytes as a blob and returns its digest.
func (r *Registry) PutBlob(data []byte) string { return r.blobs.put(data) }

// Requests are those that came since the start or the last ResetRequests.
func (r *Registry) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Request(nil), r.requests...)
}

// TokenRequests are those for tokens, by a client that was told of this token service.
func (r *Registry) TokenRequests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Request(nil), r.tokens...)
}

// ResetRequests forgets the requests and counts of bytes sent.
func (r *Registry) ResetRequests() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests, r.tokens, r.sent = nil, nil, map[string]int64{}
	r.conns.peak, r.blobbing.peak = r.conns.now, r.blobbing.now
}

// Peaks are how many connections there were at a time, and how many requests for blobs, since the start or the last
// ResetRequests.
func (r *Registry) Peaks() (connections, blobs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conns.peak, r.blobbing.peak
}

// Blobs is how many requests for blobs are being answered.
func (r *Registry) Blobs() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.blobbing.now
}

func (r *Registry) connection(_ net.Conn, state http.ConnState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch state {
	case http.StateNew:
		r.conns.add(1)
	case http.StateClosed, http.StateHijacked:
		r.conns.add(-1)
	}
}

// Sent is how many bytes of a blob went out.
func (r *Registry) Sent(digest string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent[digest]
}

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	got := Request{
		Method: req.Method, Path: req.URL.Path, Range: req.Header.Get("Range"), Namespace: req.URL.Query().Get("ns"),
		HasCredentials: req.Header.Get("Authorization") != "", Host: req.Host, Header: req.Header.Clone(),
		ContentLength: req.ContentLength,
	}
	ok := r.auth.allows(req)
	got.Authorized = ok
	token := req.URL.Path == "/token"
	if token {
		_ = req.ParseForm() // what is no form has no values
		got.Form = req.Form
	}
	to := ""
	if r.redirect != nil {
		to = r.redirect(req)
	}
	r.mu.Lock()
	var fault fault
	ended := func() {}
	if token {
		r.tokens = append(r.tokens, got)
	} else {
		r.requests = append(r.requests, got)
		fault = r.faults.take(req)
		if _, is := blobPath(req); is && req.Method == http.MethodGet {
			if most := r.faults.AtOnce; most > 0 && r.blobbing.now >= most {
				fault.status, fault.retryAfter = http.StatusTooManyRequests, r.faults.RetryAfter
			}
			r.blobbing.add(1)
			ended = sync.OnceFunc(r.blobEnded)
			defer ended()
		}
	}
	r.mu.Unlock()

	if to != "" {
		http.Redirect(w, req, to, http.StatusTemporaryRedirect)
		return
	}
	if token {
		r.auth.serveToken(w, req)
		return
	}

	if fault.down {
		panic(http.ErrAbortHandler)
	}
	if fault.status != 0 {
		if fault.retryAfter != "" {
			w.Header().Set("Retry-After", fault.retryAfter)
		}
		message, _ := json.Marshal(fault.message)
		http.Error(w, fmt.Sprintf(`{"errors":[{"code":"UNKNOWN","message":%s}]}`, message), fault.status)
		return
	}
	if !ok {
		r.auth.challenge(w, req)
		return
	}
	if fault.manifestSize > 0 {
		serveHugeManifest(w, req, fault.manifestSize)
		return
	}
	if r.raw.serve(w, req) {
		return
	}
	if digest, is := blobPath(req); is && (req.Method == http.MethodGet || req.Method == http.MethodHead) {
		r.serveBlob(w, req, digest, fault, ended)
		return
	}
	r.handler.ServeHTTP(w, req)
}

func (r *Registry) blobEnded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blobbing.add(-1)
}

// serveBlob answers with a blob. ended is called before the last bytes go out: a client that has them may ask again at
// once.
func (r *Registry) serveBlob(w http.ResponseWriter, req *http.Request, digest string, fault fault, ended func()) {
	data, ok := r.blobs.get(digest)
	if !ok {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"Unknown blob"}]}`)
		return
	}
	if fault.delay > 0 {
		time.Sleep(fault.delay)
	}
	w.Header().Set("Docker-Content-Digest", digest)
	w.Header().Set("Content-Type", "application/octet-stream")
	if fault.noRange {
		req.Header.Del("Range")
	}
	if fault.corrupt {
		data = append([]byte(nil), data...)
		data[len(data)/2] ^= 0x40
	}
	out := &blobWriter{
		ResponseWriter: w, registry: r, digest: digest, fault: fault, ctx: req.Context(), ended: ended,
		due: time.Now(),
	}
	if part, ok := parsePart(req.Header.Get("Range"), int64(len(data))); ok && fault.lie != "" {
		fault.lie.serve(out, data, part)
		return
	}
	http.ServeContent(out, req, "", time.Time{}, bytes.NewReader(data))
	if out.cut {
		panic(http.ErrAbortHandler) // closes the connection in the middle of the body
	}
}

// blobWriter sends a blob's bytes as slowly, and as few of them, as the fault says.
type blobWriter struct {
	http.ResponseWriter
	registry *Registry
	digest   string
	fault    fault
	ctx      context.Context
	sent     int64
	cut      bool
	ended    func()
	due      time.Time // of the bytes that were sent, at the rate that there is
}

var errCut = errors.New("cut")

func (w *blobWriter) count(n int) {
	w.registry.mu.Lock()
	defer w.registry.mu.Unlock()
	w.registry.sent[w.digest] += int64(n)
}

func (w *blobWriter) Write(p []byte) (int, error) {
	var done int
	for len(p) > 0 {
		chunk := p
		if w.fault.bytesPerSecond > 0 {
			chunk = chunk[:min(len(chunk), max(1, w.fault.bytesPerSecond/20))]
		}
		if w.fault.limit > 0 {
			chunk = chunk[:min(int64(len(chunk)), w.fault.limit-w.sent)]
		}
		if len(chunk) == 0 {
			w.flush()
			if w.fault.stall {
				<-w.ctx.Done()
			}
			w.cut = true
			return done, errCut
		}
		w.count(len(chunk)) // before a client that has it all can ask
		if w.Header().Get("Content-Length") == strconv.FormatInt(w.sent+int64(len(chunk)), 10) {
			w.ended()
		}
		n, err := w.ResponseWriter.Write(chunk)
		w.count(n - len(chunk))
		done += n
		w.sent += int64(n)
		if err != nil {
			return done, err
		}
		p = p[n:]
		if w.fault.bytesPerSecond > 0 {
			w.flush()
			select {
			case <-time.After(w.ahead(n)):
			case <-w.ctx.Done():
				return done, w.ctx.Err()
			}
		}
	}
	return done, nil
}

// ahead is how long to wait after n bytes. What a write took longer than it should is made up for, up to a tenth of a
// second: a busy machine would make every connection slower otherwise.
func (w *blobWriter) ahead(n int) time.Duration {
	now := time.Now()
	if late := now.Add(-100 * time.Millisecond); w.due.Before(late) {
		w.due = late
	}
	w.due = w.due.Add(time.Second * time.Duration(n) / time.Duration(w.fault.bytesPerSecond))
	return w.due.Sub(now)
}

func (w *blobWriter) flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

// serveHugeManifest answers with valid JSON of n bytes whose digest it does not say, so that a client must read it.
func serveHugeManifest(w http.ResponseWriter, req *http.Request, n int64) {
	w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
	if req.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return
	}
	_, _ = io.WriteString(w, `{"schemaVersion":2,"annotations":{"a":"`)
	chunk := bytes.Repeat([]byte("a"), 64<<10)
	for n > 0 {
		k, err := w.Write(chunk[:min(int64(len(chunk)), n)])
		if err != nil {
			return
		}
		n -= int64(k)
	}
	_, _ = io.WriteString(w, `"}}`)
}

// blobPath is the digest of a request for a blob.
func blobPath(req *http.Request) (string, bool) {
	i := strings.LastIndex(req.URL.Path, "/blobs/")
	if i < 0 {
		return "", false
	}
	digest := req.URL.Path[i+len("/blobs/"):]
	return digest, strings.HasPrefix(digest, "sha256:") || strings.HasPrefix(digest, "sha512:")
}

// statusWriter is the answer to a request that never went over a connection.
type statusWriter struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *statusWriter) Header() http.Header { return w.header }
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
}
func (w *statusWriter) Write(p []byte) (int, error) { return w.body.Write(p) }
