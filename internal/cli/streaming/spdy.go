package streaming

import (
	"context"
	"net/http"
	"net/url"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	//lint:ignore SA1019 client-go's interface of upgraders has these types
	"k8s.io/apimachinery/pkg/util/httpstream"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	remoteproto "k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// spdyExecutor tells a session that has succeeded from one whose connection broke: client-go returns nil for both,
// since all streams just end then. From version 4 of the protocol on, the runtime writes to the error stream in any
// case.
type spdyExecutor struct {
	remotecommand.Executor
	upgrader *upgrader
}

func newSPDYExecutor(config *restclient.Config, address *url.URL) (remotecommand.Executor, error) {
	transport, inner, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	u := &upgrader{Upgrader: inner}
	executor, err := remotecommand.NewSPDYExecutorForTransports(transport, u, http.MethodPost, address)
	return &spdyExecutor{executor, u}, err
}

func (e *spdyExecutor) StreamWithContext(ctx context.Context, options remotecommand.StreamOptions) error {
	err := e.Executor.StreamWithContext(ctx, options)
	if err == nil && e.upgrader.tells.Load() && !e.upgrader.told.Load() {
		return ErrClosed
	}
	return err
}

// upgrader makes the connection of one session.
type upgrader struct {
	spdy.Upgrader
	tells atomic.Bool // the runtime tells a success too
	told  atomic.Bool // the error stream has brought something
}

func (u *upgrader) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	conn, err := u.Upgrader.NewConnection(resp)
	if err != nil {
		return nil, err
	}
	protocol := resp.Header.Get(httpstream.HeaderProtocolVersion)
	u.tells.Store(protocol == remoteproto.StreamProtocolV4Name || protocol == remoteproto.StreamProtocolV5Name)
	return &connection{conn, u}, nil
}

type connection struct {
	httpstream.Connection
	upgrader *upgrader
}

func (c *connection) CreateStream(headers http.Header) (httpstream.Stream, error) {
	stream, err := c.Connection.CreateStream(headers)
	if err != nil || headers.Get(corev1.StreamType) != corev1.StreamTypeError {
		return stream, err
	}
	return &errorStream{stream, c.upgrader}, nil
}

type errorStream struct {
	httpstream.Stream
	upgrader *upgrader
}

func (s *errorStream) Read(p []byte) (int, error) {
	n, err := s.Stream.Read(p)
	if n > 0 {
		s.upgrader.told.Store(true)
	}
	return n, err
}
