package registry

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"berth/internal/image/ranges"
	"berth/internal/model"
)

// Retry says how long a client tries. Zero fields get defaults.
type Retry struct {
	Attempts   int           // in a row without progress; default 5
	Backoff    time.Duration // before the second attempt, doubled each time; default 500 ms
	MaxBackoff time.Duration // and the longest Retry-After of a registry that is honoured; default 15 s
	Stall      time.Duration // a connection that brings less than 4 KiB in this time is cut; default 30 s
}

// Config is the configuration of a Client.
type Config struct {
	HostsDir  string // of hosts.toml files; empty: none
	Retry     Retry
	UserAgent string
	// MaxDocument is the most bytes that a manifest, an index or a configuration may have; default 4 MiB.
	MaxDocument int64
	// Credentials are the node's own, for pulls that come without; nil: there are none. They are asked for at each pull.
	Credentials func(context.Context, reference.Named) (*model.Auth, error)
	Proxies     Proxies
	// Pool bounds what blobs take of memory and connections. It may be shared by several clients; nil: one of its own.
	Pool   *ranges.Pool
	Logger *slog.Logger
}

// Client reads from registries. It is safe for concurrent use and holds nothing that needs closing.
type Client struct {
	cfg Config
	// dial is for tests, whose names are in no DNS; nil: the library's.
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
	proxies *proxies
	roots   roots
	silence silence
}

// The library refuses a manifest of more than 4 MiB or so as one that is not there. This package has a bound of its
// own, Config.MaxDocument, and other words for what is beyond it.
func init() { docker.MaxManifestSize = math.MaxInt64 }

// NewClient makes a client.
func NewClient(cfg Config) *Client {
	r := &cfg.Retry
	setDefault(&r.Attempts, 5)
	setDefault(&r.Backoff, 500*time.Millisecond)
	setDefault(&r.MaxBackoff, 15*time.Second)
	setDefault(&r.Stall, 30*time.Second)
	setDefault(&cfg.MaxDocument, 4<<20)
	setDefault(&cfg.UserAgent, "berth")
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Pool == nil {
		cfg.Pool = ranges.NewPool(ranges.Settings{})
	}
	return &Client{cfg: cfg, proxies: newProxies(cfg.Proxies)}
}

func setDefault[T int | int64 | time.Duration | string](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// Repository is one name on the hosts that serve it, with one client's credentials. Close it when done.
type Repository struct {
	client *Client
	name   reference.Named // with a tag or a digest
	hosts  []docker.RegistryHost
	rules  *hostRules
	secret secrets
	log    *slog.Logger

	// transports are those of the hosts' clients, below what the library puts over them.
	transports map[*http.Client]*transport

	mu     sync.Mutex
	silent map[endpoint]bool // those that have kept a request waiting and not answered; guarded by mu
}

// endpoint is the URL under which a host has the repository: hosts.toml may have several tables for one host, with
// other paths, such as the projects of a Harbor. What one of them answers says nothing of the others.
type endpoint string

func endpointOf(h docker.RegistryHost) endpoint {
	return endpoint(h.Scheme + "://" + h.Host + h.Path)
}

// Repository finds the hosts for a reference. auth may be nil.
func (c *Client) Repository(ctx context.Context, ref reference.Named, auth *model.Auth) (*Repository, error) {
	r := &Repository{client: c, name: ref, log: c.cfg.Logger.With("image", ref.String()),
		transports: map[*http.Client]*transport{}, silent: map[endpoint]bool{}}
	creds, err := parseAuth(auth)
	if err != nil {
		return nil, err
	}
	if creds.none() && c.cfg.Credentials != nil {
		own, err := c.cfg.Credentials(ctx, ref)
		if err != nil {
			return nil, err
		}
		if creds, err = parseAuth(own); err != nil {
			return nil, err
		}
	}
	r.secret = append(creds.secrets(), c.proxies.secrets()...)
	domain := reference.Domain(ref)
	rules, err := readHosts(c.cfg.HostsDir, domain)
	if err != nil {
		return nil, err
	}
	options := config.HostOptions{UpdateClient: r.instrument}
	if c.cfg.HostsDir != "" {
		options.HostDir = config.HostDirFromRoot(c.cfg.HostsDir)
	}
	r.rules = rules
	if r.hosts, err = config.ConfigureHosts(quiet(ctx), options)(domain); err != nil {
		return nil, fmt.Errorf("registry %s: configuration in %s: %w: %w", domain, c.cfg.HostsDir, err,
			errdefs.ErrFailedPrecondition)
	}
	for _, t := range r.transports { // now that the library has added what hosts.toml names
		c.trust(t.base)
	}
	each, err := rules.of(r.hosts)
	if err != nil {
		return nil, err
	}
	for i, h := range r.hosts {
		h.Header = canonicalHeader(h.Header)
		// The library's own authorizer would send credentials by the host's name alone.
		a := newAuthorizer(h, r.transports[h.Client], &creds, rules, each[i])
		client := *h.Client // which other hosts may have, too
		client.Transport = &elsewhere{a, client.Transport}
		h.Authorizer, h.Client = a, &client
		r.hosts[i] = h
	}
	return r, nil
}

// Close drops the connections.
func (r *Repository) Close() {
	for _, t := range r.transports {
		t.CloseIdleConnections()
	}
}

// maxHeader is how long the head of an answer may be: net/http takes 10 MiB, and lines of a few bytes take a hundred
// times as much memory, for each connection.
const maxHeader = 256 << 10

// instrument puts this package's transport under a client. The library calls it more than once for one client.
func (r *Repository) instrument(c *http.Client) error {
	switch t := c.Transport.(type) {
	case *transport:
		r.transports[c] = t
	case *http.Transport:
		t.ReadBufferSize = 64 << 10
		// The ranges of a layer come over the same connections, one after another. Over HTTP/2, which the library leaves
		// off, all would come over one. The pool bounds how many there are.
		t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, r.client.cfg.Pool.Settings().PerHost
		t.Proxy = r.client.proxies.of
		t.MaxResponseHeaderBytes = maxHeader
		// A registry that takes the connection and says nothing is as stalled as one that stops in the middle of a blob.
		stall := r.client.cfg.Retry.Stall
		t.ResponseHeaderTimeout = stall
		if t.TLSHandshakeTimeout == 0 || t.TLSHandshakeTimeout > stall {
			t.TLSHandshakeTimeout = stall
		}
		r.transports[c] = &transport{base: r.guard(t), maxDocument: r.client.cfg.MaxDocument, stall: stall}
		c.Transport = r.transports[c]
	default:
		return fmt.Errorf("registry client has a transport of type %T", t)
	}
	return nil
}

// trust has connections believe the node's certificate authorities of now, besides those that hosts.toml names. Hosts
// without authorities of their own share one pool.
func (c *Client) trust(t *http.Transport) {
	pool, pem := c.roots.current()
	switch {
	case pool == nil, t.TLSClientConfig != nil && t.TLSClientConfig.RootCAs == pool:
	case t.TLSClientConfig == nil:
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	case t.TLSClientConfig.RootCAs == nil:
		t.TLSClientConfig.RootCAs = pool
	default:
		t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem)
	}
}

var noLog = func() *log.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	l.SetLevel(logrus.PanicLevel)
	return logrus.NewEntry(l)
}()

// quiet keeps the library from writing log lines of its own: it does not know which of its words are secret.
func quiet(ctx context.Context) context.Context {
	return log.WithLogger(ctx, noLog)
}

// Resolve finds out what the reference stands for: a manifest or an index.
func (r *Repository) Resolve(ctx context.Context) (ocispec.Descriptor, error) {
	caps := docker.HostCapabilityPull
	if _, ok := r.name.(reference.Digested); !ok {
		caps |= docker.HostCapabilityResolve
	}
	var desc ocispec.Descriptor
	err := r.try(ctx, caps, func(ctx context.Context, host docker.RegistryHost) error {
		resolver, name := r.resolver(host)
		_, got, err := resolver.Resolve(unscoped(withKind(ctx, document), host), name)
		if err == nil {
			desc, err = got, r.manifest(ctx, host, got)
		}
		return err
	})
	return desc, err
}

// manifest refuses what a host has for a reference if it is no manifest: a proxy or a mirror may answer everything with
// a page. The library takes the page, by its digest. Some registries say of a manifest that it is JSON, or text.
func (r *Repository) manifest(ctx context.Context, host docker.RegistryHost, desc ocispec.Descriptor) error {
	if images.IsManifestType(desc.MediaType) || images.IsIndexType(desc.MediaType) ||
		desc.MediaType == images.MediaTypeDockerSchema1Manifest {
		return nil
	}
	as := desc
	as.MediaType = ocispec.MediaTypeImageManifest // so that it is looked for among manifests, not blobs
	data, err := r.read(ctx, host, as)
	if err != nil {
		return err
	}
	var doc map[string]json.RawMessage
	if json.Unmarshal(data, &doc) == nil && doc["schemaVersion"] != nil {
		return nil
	}
	return fmt.Errorf("the answer for the image is of type %.100q, and no manifest: %w", desc.MediaType,
		errdefs.ErrFailedPrecondition)
}

// Document reads a manifest, an index or a configuration whole, and checks its digest and size.
func (r *Repository) Document(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	if limit := r.client.cfg.MaxDocument; desc.Size > limit {
		return nil, tooLarge(fmt.Sprintf("%.100s %s has %d bytes,", desc.MediaType, desc.Digest, desc.Size), limit)
	}
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w: %w", desc.Digest, err, errdefs.ErrInvalidArgument)
	}
	desc.URLs = nil // what an image says of other places is not followed
	var data []byte
	err := r.try(ctx, docker.HostCapabilityPull, func(ctx context.Context, host docker.RegistryHost) (err error) {
		data, err = r.read(ctx, host, desc)
		return err
	})
	return data, err
}

// read reads a document of a host whole.
func (r *Repository) read(ctx context.Context, host docker.RegistryHost, desc ocispec.Descriptor) ([]byte, error) {
	resolver, name := r.resolver(host)
	fetcher, err := resolver.Fetcher(ctx, name)
	if err != nil {
		return nil, err
	}
	rc, err := fetcher.Fetch(unscoped(withKind(ctx, document), host), desc)
	if err != nil {
		return nil, err
	}
	defer rc.Close()
	data, err := io.ReadAll(io.LimitReader(rc, desc.Size+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) != desc.Size || desc.Digest.Algorithm().FromBytes(data) != desc.Digest {
		return nil, fmt.Errorf("%s sent %d bytes that are not %s: %w", host.Host, len(data), desc.Digest, ErrCorrupt)
	}
	return data, nil
}

// resolver speaks to one host alone: which host is next is decided here. name is what the reference is to be called
// there.
func (r *Repository) resolver(host docker.RegistryHost) (resolver remotes.Resolver, name string) {
	below, at := inRepository(host)
	name = r.name.String()
	if below != "" {
		domain := reference.Domain(r.name)
		name = domain + "/" + below + strings.TrimPrefix(name, domain)
	}
	return docker.NewResolver(docker.ResolverOptions{
		Headers: http.Header{"User-Agent": []string{r.client.cfg.UserAgent}},
		Hosts:   func(string) ([]docker.RegistryHost, error) { return []docker.RegistryHost{at}, nil },
	}), name
}

// repositoryPath is the path of a host that is a repository of the registry there, in characters that the library takes
// as they are.
var repositoryPath = regexp.MustCompile(`^/v2/([A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*)$`)

// inRepository splits the path of a host: below /v2 is a part of the repository's name at that registry, such as
// ORG/hub, by which its token service has to be asked. The library would ask for a token for the name in the reference
// and for what the registry says, and a strict service refuses both.
func inRepository(h docker.RegistryHost) (below string, at docker.RegistryHost) {
	if parts := repositoryPath.FindStringSubmatch(h.Path); parts != nil {
		h.Path = "/v2"
		return parts[1], h
	}
	return "", h
}

// unscopedKey is for a context as it was before the library has added the scope of the token that a request needs.
type unscopedKey struct{}

// unscoped makes a host whose API has a root of its own, elsewhere than at /v2, say what a token is to be for: nothing
// but the host knows what the repository's name is to its token service. See authorizer.scopes.
func unscoped(ctx context.Context, h docker.RegistryHost) context.Context {
	if below, at := inRepository(h); below != "" || at.Path == "/v2" {
		return ctx
	}
	return context.WithValue(ctx, unscopedKey{}, ctx)
}

// try asks the hosts in their order until one answers, and starts over, after a pause, while the reason for failing
// may pass.
func (r *Repository) try(ctx context.Context, caps docker.HostCapabilities,
	ask func(context.Context, docker.RegistryHost) error) error {

	hosts := slices.DeleteFunc(slices.Clone(r.hosts), func(h docker.RegistryHost) bool {
		return !h.Capabilities.Has(caps)
	})
	if len(hosts) == 0 && caps == docker.HostCapabilityPush {
		return fmt.Errorf("hosts.toml gives no host of %s the capability push: %w", reference.Domain(r.name),
			errdefs.ErrFailedPrecondition)
	}
	if len(hosts) == 0 {
		return fmt.Errorf("no host is configured for %s: %w", r.name.Name(), errdefs.ErrNotFound)
	}
	if caps == docker.HostCapabilityPush { // a push that fails at one host must not end at another
		hosts = hosts[:1]
	}
	hosts = r.inOrder(hosts)
	retry := r.client.cfg.Retry
	var lasting *failure // of hosts that are not asked again
	for attempt := 1; ; attempt++ {
		var passing *failure
		var again []docker.RegistryHost
		for _, h := range hosts {
			began := time.Now()
			err := ask(withRefusal(quiet(ctx)), h)
			if err == nil {
				r.answered(h)
				return nil
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			f := r.explain(h, err)
			r.waited(h, began, f)
			r.log.Debug("registry host failed", "host", h.Host, "attempt", attempt, "error", f)
			if f.transient {
				again, passing = append(again, h), worse(passing, f)
			} else {
				lasting = worse(lasting, f)
			}
		}
		if passing == nil || attempt >= retry.Attempts || passing.retryAfter > retry.MaxBackoff {
			return worse(lasting, passing)
		}
		hosts = again
		if err := pause(ctx, retry, attempt, passing.retryAfter); err != nil {
			return err
		}
	}
}

// pause waits between two attempts, and no shorter than the registry asked for.
func pause(ctx context.Context, retry Retry, attempt int, atLeast time.Duration) error {
	d := min(retry.Backoff<<min(attempt-1, 20), retry.MaxBackoff)
	timer := time.NewTimer(max(d, atLeast))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
