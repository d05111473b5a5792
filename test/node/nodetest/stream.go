package nodetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// Transport is how a stream reaches the node.
type Transport string

// The transports of exec and attach.
const (
	SPDY      Transport = "SPDY"
	WebSocket Transport = "WebSocket"
)

// Stream runs the client's side of an exec or attach at the URL that the node gave, until the other side ends or ctx
// does. A command that ended with another code than 0 is that code, and no error.
func Stream(ctx context.Context, transport Transport, at string,
	options remotecommand.StreamOptions) (code int, err error) {
	var executor remotecommand.Executor
	switch transport {
	case WebSocket:
		executor, err = remotecommand.NewWebSocketExecutor(&rest.Config{}, http.MethodGet, at)
	default:
		var parsed *url.URL
		if parsed, err = url.Parse(at); err == nil {
			executor, err = remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, parsed)
		}
	}
	if err != nil {
		return 0, err
	}
	err = executor.StreamWithContext(ctx, options)
	if exit := (exec.CodeExitError{}); errors.As(err, &exit) {
		return exit.Code, nil
	}
	return 0, err
}

// ForwardPort forwards a port of this machine to a port of a pod until the test ends, as `kubectl port-forward` does:
// at is the URL that PortForward gave. It returns the address that is forwarded.
func ForwardPort(t testing.TB, transport Transport, at, port string) (local string) {
	t.Helper()
	parsed, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	var dialer httpstream.Dialer
	switch transport {
	case WebSocket:
		dialer, err = portforward.NewSPDYOverWebsocketDialerForStreaming(parsed, &rest.Config{})
	default:
		roundTripper, upgrader, rerr := spdy.RoundTripperFor(&rest.Config{})
		if rerr != nil {
			t.Fatal(rerr)
		}
		dialer = spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: roundTripper}, http.MethodPost, parsed)
	}
	if err != nil {
		t.Fatal(err)
	}
	stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:" + port}, stop, ready,
		io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- f.ForwardPorts() }()
	t.Cleanup(func() {
		close(stop)
		if err := <-done; err != nil {
			t.Errorf("port-forward: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		done <- err
		t.FailNow()
	}
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local)
}

// DialPort opens a connection to a port of a pod through the URL that PortForward gave. The connection's Close ends it.
func DialPort(t testing.TB, at string, port string) io.ReadWriteCloser {
	t.Helper()
	parsed, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dialer := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, parsed)
	conn, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		t.Fatalf("port-forward: %v", err)
	}
	header := func(kind string) http.Header {
		h := http.Header{}
		h.Set("streamType", kind)
		h.Set("port", port)
		h.Set("requestID", "1")
		return h
	}
	errorStream, err := conn.CreateStream(header("error"))
	if err != nil {
		t.Fatalf("port-forward: %v", err)
	}
	if err := errorStream.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := conn.CreateStream(header("data"))
	if err != nil {
		t.Fatalf("port-forward: %v", err)
	}
	return &forwarded{Stream: data, conn: conn, errors: errorStream}
}

type forwarded struct {
	httpstream.Stream
	conn   httpstream.Connection
	errors io.Reader
}

// Close ends the whole connection.
func (f *forwarded) Close() error { return f.conn.Close() }

// CloseWrite says that no more is sent.
func (f *forwarded) CloseWrite() error { return f.Stream.Close() }

// Buffer is bytes that one goroutine writes and others look at.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
