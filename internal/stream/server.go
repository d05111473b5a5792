package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"berth/internal/audit"
	"berth/internal/connlimit"
	"berth/internal/metrics"
	"berth/internal/pod"
)

// Runtime is what the server joins streams to.
type Runtime interface {
	// Exec runs a command and returns its exit code. When ctx ends, the client is gone.
	Exec(ctx context.Context, containerID string, opts pod.ExecOptions) (exitCode int, err error)
	Attach(ctx context.Context, containerID string, opts pod.AttachOptions) error
	// StartAttached starts a created container with the client attached from the first byte of its output on.
	StartAttached(ctx context.Context, containerID string, size pod.TermSize, opts pod.AttachOptions) error
	// PortForward joins conn to a port of a pod. A conn with CloseWrite can end one direction; Close ends both.
	PortForward(ctx context.Context, sandboxID string, port int32, conn io.ReadWriteCloser) error
}

// Config is what a server is made of. Zero values are the defaults that are named.
type Config struct {
	Runtime Runtime
	// Address is host:port. 127.0.0.1:0: loopback, any free port. Whoever can reach it needs a token still.
	Address string
	TLS     *tls.Config // nil: plain HTTP
	// IdleTimeout ends a connection on which nothing happens, and one whose client takes nothing of what is there for it.
	// 4 h.
	IdleTimeout time.Duration
	// CreationTimeout is how long a client has to open its streams. 30 s.
	CreationTimeout time.Duration
	// TokenTTL is how long an address is good for. 1 min.
	TokenTTL time.Duration
	// Avoid tells whether a pod has a port as its host port: clients of the server would reach the pod there. Where
	// Address leaves the port open, another one is taken. Nil: no pod has any.
	Avoid   func(port uint16) bool
	Log     *slog.Logger
	Metrics *metrics.Set // nil: nothing is counted
}

// Server serves streams until Close. Its methods may be called concurrently.
type Server struct {
	cfg      Config
	base     url.URL
	tokens   tokens
	http     *http.Server
	listener net.Listener
	ctx      context.Context // ends when Close has no more patience; every connection's context is below it
	cancel   context.CancelFunc
	cut      context.Context // ends a little later: connections are closed then
	cutOff   context.CancelFunc
	open     *sessions
	memory   *budget       // bytes that clients have sent and nobody has taken yet
	forwards *budget       // connections to ports of pods
	places   places        // of clients that have brought a token
	serving  chan struct{} // closed when Serve of the HTTP server has returned
	// lastWords is how long a client that has taken nothing for too long still has to take why its session has ended.
	lastWords time.Duration
}

const (
	// maxUnauthenticated bounds the connections that have not brought a token.
	maxUnauthenticated = 1024
	// maxHeader bounds the header of a request, in bytes. A kubelet passes on those that the API server's client has sent.
	maxHeader = 32 << 10
)

// New listens and serves.
func New(cfg Config) (*Server, error) {
	if cfg.Address == "" {
		cfg.Address = "127.0.0.1:0"
	}
	if cfg.IdleTimeout <= 0 {
		cfg.IdleTimeout = 4 * time.Hour
	}
	if cfg.CreationTimeout <= 0 {
		cfg.CreationTimeout = remotecommand.DefaultStreamCreationTimeout
	}
	if cfg.TokenTTL <= 0 {
		cfg.TokenTTL = time.Minute
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	listener, err := openListener(&cfg)
	if err != nil {
		return nil, fmt.Errorf("streaming server: %w", err)
	}
	s := &Server{
		cfg:      cfg,
		base:     url.URL{Scheme: "http", Host: listener.Addr().String()},
		tokens:   tokens{ttl: cfg.TokenTTL, pending: map[string]entry{}},
		memory:   newBudget(allMost),
		forwards: newBudget(forwardsMost),
		places:   places{of: map[string]int{}},
		serving:  make(chan struct{}),

		lastWords: 2 * time.Second,
	}
	s.cut, s.cutOff = context.WithCancel(context.Background())
	s.open = &sessions{cut: s.cut, none: make(chan struct{})}
	s.listener = watchedListener{connlimit.New(listener.(*net.TCPListener), maxUnauthenticated, cfg.Log), s.open}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	mux := http.NewServeMux()
	for _, method := range []string{"GET", "POST"} {
		mux.HandleFunc(method+" /exec/{token}", serve(s, s.exec))
		mux.HandleFunc(method+" /attach/{token}", serve(s, s.attach))
		mux.HandleFunc(method+" /portforward/{token}", serve(s, s.portForward))
	}
	s.http = &http.Server{
		Handler:   mux,
		TLSConfig: cfg.TLS,
		// Until a connection is taken over.
		ReadTimeout:    10 * time.Second,
		WriteTimeout:   10 * time.Second,
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: maxHeader,
		ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
		BaseContext:    func(net.Listener) context.Context { return s.ctx },
		ConnContext:    connContext,
		ConnState:      connState,
		// SPDY and WebSocket take over an HTTP/1.1 connection; HTTP/2 has none to take over.
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	if cfg.TLS != nil {
		s.base.Scheme = "https"
	}
	go s.serve()
	return s, nil
}

// mostAvoided is how many ports are passed over.
const mostAvoided = 1000

// openListener listens at a port that no pod has, unless the configuration names it.
func openListener(cfg *Config) (net.Listener, error) {
	_, asked, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return nil, err
	}
	var avoided []net.Listener // open, so that the kernel gives another port
	defer func() {
		for _, l := range avoided {
			l.Close()
		}
	}()
	for {
		l, err := net.Listen("tcp", cfg.Address)
		if err != nil {
			return nil, err
		}
		if cfg.Avoid == nil || !cfg.Avoid(uint16(l.Addr().(*net.TCPAddr).Port)) {
			return l, nil
		}
		if asked != "0" || len(avoided) == mostAvoided {
			cfg.Log.Error("the port of the streaming server is a host port of a pod, which its clients may reach instead",
				"address", l.Addr().String())
			return l, nil
		}
		avoided = append(avoided, l)
	}
}

func (s *Server) serve() {
	defer close(s.serving)
	var err error
	if s.cfg.TLS != nil {
		err = s.http.ServeTLS(s.listener, "", "")
	} else {
		err = s.http.Serve(s.listener)
	}
	if !errors.Is(err, http.ErrServerClosed) {
		s.cfg.Log.Error("streaming server", "error", err)
	}
}

// Address is where the server listens, host:port.
func (s *Server) Address() string { return s.base.Host }

// farewell is how long clients have to be told that the server ends.
const farewell = time.Second

// Close takes no more connections, waits for open streams, and for clients that have yet to take the last of theirs,
// until ctx ends, then ends what still runs, tells its clients, and closes their connections.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Close() // streams have left the HTTP server: it closes its listener and idle connections
	<-s.serving
	done := s.open.end()
	select {
	case <-done:
	case <-ctx.Done():
	}
	s.cancel()
	select {
	case <-done:
	case <-time.After(farewell):
	}
	s.cutOff()
	<-done
	return err
}

// GetExec returns the address at which one client can run a command.
func (s *Server) GetExec(ctx context.Context, r ExecRequest) (string, error) {
	return s.address(ctx, "exec", r)
}

// GetAttach returns the address at which one client can join a container's streams.
func (s *Server) GetAttach(ctx context.Context, r AttachRequest) (string, error) {
	return s.address(ctx, "attach", r)
}

// GetPortForward returns the address at which one client can reach ports of a pod.
func (s *Server) GetPortForward(ctx context.Context, r PortForwardRequest) (string, error) {
	return s.address(ctx, "portforward", r)
}

func (s *Server) address(ctx context.Context, kind string, request request) (string, error) {
	if err := s.places.check(request.target()); err != nil {
		return "", err
	}
	token, err := s.tokens.put(request, audit.PeerOf(ctx))
	if err != nil {
		return "", err
	}
	return s.base.JoinPath(kind, token).String(), nil
}

// serve makes a handler that takes the request of the token in the path. The context that it gets ends
// with the client's connection.
func serve[R request](s *Server, handle func(context.Context, http.ResponseWriter, *http.Request, R)) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if !s.open.begin() {
			http.Error(w, "berthd is ending", http.StatusServiceUnavailable)
			return
		}
		defer s.open.leave()
		stored, ok := s.tokens.take(req.PathValue("token"))
		request, right := stored.request.(R)
		if !ok || !right {
			http.Error(w, "this address has been used, or is too old", http.StatusNotFound)
			return
		}
		leave, err := s.places.take(request.target())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		if conn := connOf(req.Context()); conn != nil {
			// A client that does not read has its connection for as long as its patience lasts, which is hours: a bound that did
			// not count these would be none.
			defer conn.whenEnded(leave)
			conn.authenticated()
			conn.setPatience(s.cfg.IdleTimeout)
		} else {
			defer leave()
		}
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		ctx = audit.WithPeer(ctx, stored.by.At(req.RemoteAddr))
		handle(ctx, w, req.WithContext(ctx), request)
	}
}

func (s *Server) exec(ctx context.Context, w http.ResponseWriter, req *http.Request, r ExecRequest) {
	defer s.cfg.Metrics.Stream(metrics.StreamExec)()
	run, end := s.executor(ctx, r.Wanted)
	defer end(nil)
	run.as = r.As
	s.serveStreams(w, req, run, "executing command in", func(st streams) error {
		return run.exec(r.ContainerID, r.Cmd, st)
	})
}

func (s *Server) attach(ctx context.Context, w http.ResponseWriter, req *http.Request, r AttachRequest) {
	defer s.cfg.Metrics.Stream(metrics.StreamAttach)()
	run, end := s.executor(ctx, r.Wanted)
	defer end(nil)
	run.start, run.size = r.Start, r.Size
	s.serveStreams(w, req, run, "attaching to", func(st streams) error { return run.attach(r.ContainerID, st) })
}

// streams are a session's. A stream that was not asked for is nil, or something that nobody should use.
type streams struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	resize         <-chan remotecommand.TerminalSize
}

// serveStreams joins the streams of a client of an exec or attach to run. act is what errors say has failed.
func (s *Server) serveStreams(w http.ResponseWriter, req *http.Request, session executor, act string,
	run func(streams) error) {
	if wsstream.IsWebSocketRequest(req) {
		s.serveChannels(w, req, session, run)
		return
	}
	s.serveSPDY(w, req, session, act, run)
}

func (s *Server) portForward(ctx context.Context, w http.ResponseWriter, req *http.Request, r PortForwardRequest) {
	defer s.cfg.Metrics.Stream(metrics.StreamPortForward)()
	if isTunnel(req) {
		if w, req = tunnel(w, req, s.cfg.IdleTimeout); w == nil {
			return
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	f := &forwarder{ctx: ctx, server: s, sandbox: r.SandboxID}
	if wsstream.IsWebSocketRequest(req) {
		f.serveChannels(w, req, r.Ports)
	} else {
		f.serveSPDY(w, req)
	}
	// The connection is closed now; what was forwarded over it ends with it.
	cancel()
	f.open.Wait()
}
