package dashboard

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
)

const (
	// maxRequests is how many requests for data are answered at a time; others wait.
	maxRequests = 8
	// maxStreams is how many logs and lists of events are followed at a time; others are refused.
	maxStreams = 16
	// maxHeader bounds the headers of a request, in bytes.
	maxHeader = 16 << 10
	// patience is how long the runtime may take for an answer, and a browser to take it.
	patience = 30 * time.Second
)

// Server serves the dashboard of one runtime.
type Server struct {
	// Version is that of berth.
	Version string

	conn     *connection.Connection
	token    string
	requests chan struct{} // one for each request that is answered
	streams  chan struct{} // one for each stream that is open
	events   *hub
	watch    *launch.Watch // of the containers whose logs are followed; set by Serve

	pods, images, volumes, devices, space, node *cached
}

// New makes the server of a runtime.
func New(conn *connection.Connection, version string) *Server {
	s := &Server{Version: version, conn: conn, token: newToken(), requests: make(chan struct{}, maxRequests),
		streams: make(chan struct{}, maxStreams), events: newHub(conn.Runtime)}
	s.pods = &cached{read: s.podReader(), least: 1500 * time.Millisecond}
	s.images = &cached{read: s.readImages, least: 2 * time.Second}
	s.volumes = &cached{read: s.readVolumes, least: 2 * time.Second}
	s.devices = &cached{read: s.readDevices, least: 2 * time.Second}
	s.space = &cached{read: s.readSpace, least: 10 * time.Second}
	s.node = &cached{read: s.readNode, least: time.Second}
	return s
}

// URL is the address of the page with its secret. The secret is in the fragment, which a browser sends to nobody.
func (s *Server) URL(listener net.Listener) string {
	return "http://" + listener.Addr().String() + "/#token=" + s.token
}

// Serve answers requests until ctx ends.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.watch = launch.NewWatch(ctx, s.conn.Runtime)
	events := make(chan struct{})
	go func() { defer close(events); s.events.run(ctx) }()
	server := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeader,
		// Streams end with the command.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		cancel()
	}
	server.Close()
	<-events
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/node", s.list(s.node))
	mux.HandleFunc("GET /api/pods", s.list(s.pods))
	mux.HandleFunc("GET /api/pods/{id}", s.answer(s.pod))
	mux.HandleFunc("GET /api/pods/{id}/timeline", s.answer(s.timeline))
	mux.HandleFunc("GET /api/containers/{id}/log", s.stream(s.followLog))
	mux.HandleFunc("GET /api/images", s.list(s.images))
	mux.HandleFunc("GET /api/volumes", s.list(s.volumes))
	mux.HandleFunc("GET /api/devices", s.list(s.devices))
	mux.HandleFunc("GET /api/space", s.list(s.space))
	mux.HandleFunc("GET /api/events", s.stream(s.followEvents))
	mux.HandleFunc("/api/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, "no such data")
	})
	mux.HandleFunc("/", serveAsset)
	return guard(s.token, mux)
}
