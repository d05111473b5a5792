package streaming

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"
	remoteproto "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// noProxy is a proxy that does not answer. It is in the environment of all tests here: net/http reads that once.
const noProxy = "http://127.0.0.1:1"

func TestMain(m *testing.M) {
	for _, name := range []string{"HTTP_PROXY", "http_proxy"} {
		os.Setenv(name, noProxy)
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		os.Unsetenv(name)
	}
	os.Exit(m.Run())
}

// keptConns are the connections that a listener has accepted.
type keptConns struct {
	net.Listener
	mu  sync.Mutex
	all []net.Conn
}

func (l *keptConns) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.all = append(l.all, conn)
		l.mu.Unlock()
	}
	return conn, err
}

// cut closes the connections, as the end of the runtime's process does.
func (l *keptConns) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.all {
		conn.Close()
	}
}

// runtimeThat serves sessions over SPDY with three streams. It says something on the error stream, and dies.
func runtimeThat(t *testing.T, protocol, says string) string {
	t.Helper()
	var conns *keptConns
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if _, err := httpstream.Handshake(req, w, []string{protocol}); err != nil {
			t.Error(err)
			return
		}
		streams := make(chan httpstream.Stream, 3)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, req,
			func(s httpstream.Stream, replied <-chan struct{}) error {
				go func() { <-replied; streams <- s }()
				return nil
			})
		if conn == nil {
			return
		}
		opened := map[string]httpstream.Stream{}
		for range cap(streams) {
			s := <-streams
			opened[s.Headers().Get("streamType")] = s
		}
		// A connection that is closed before all is read is reset, and its client may not get what was written.
		if _, err := io.ReadAll(opened["stdin"]); err != nil {
			t.Error(err)
		}
		if says != "" {
			if _, err := io.WriteString(opened["error"], says); err != nil {
				t.Error(err)
			}
		}
		conns.cut()
	}))
	conns = &keptConns{Listener: server.Listener}
	server.Listener = conns
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

// TestASessionWhoseRuntimeDiesHasNotSucceeded: over SPDY all that its client sees is that the streams end.
func TestASessionWhoseRuntimeDiesHasNotSucceeded(t *testing.T) {
	for _, c := range []struct {
		name, protocol, says string
		want                 error
	}{
		{"v4, and nothing is said", remoteproto.StreamProtocolV4Name, "", ErrClosed},
		{"v4, and success", remoteproto.StreamProtocolV4Name, `{"status":"Success"}`, nil},
		{"v3, where a success is silent", remoteproto.StreamProtocolV3Name, "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			address := runtimeThat(t, c.protocol, c.says)
			s := &Session{URL: func(context.Context) (string, error) { return address, nil },
				Stdin: strings.NewReader("input"), StdinEnds: true, Stdout: io.Discard}
			if err := s.Run(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// TestAWebSocketThatIsCutOffIsToldAsSuch. Seen to fail where the error was client-go's, with code 1006 of WebSocket.
func TestAWebSocketThatIsCutOffIsToldAsSuch(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		upgrader := websocket.Upgrader{Subprotocols: []string{remoteproto.StreamProtocolV5Name}}
		conn, err := upgrader.Upgrade(w, req, nil)
		if err != nil {
			t.Error(err)
			return
		}
		if err := conn.WriteMessage(websocket.BinaryMessage, []byte("\x01some output")); err != nil {
			t.Error(err)
		}
		conn.NetConn().Close()
	}))
	defer server.Close()
	s := &Session{URL: func(context.Context) (string, error) { return server.URL, nil }, Stdout: io.Discard}
	if err := s.Run(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("%v, want %v", err, ErrClosed)
	}
}

// TestASessionTakesNoProxy: the streaming address is the node's own, also where it is not one of loopback, which no
// proxy is taken for anyway. Seen to fail with the proxy of the environment.
func TestASessionTakesNoProxy(t *testing.T) {
	address, err := url.Parse(runtimeThat(t, remoteproto.StreamProtocolV4Name, `{"status":"Success"}`))
	if err != nil {
		t.Fatal(err)
	}
	address.Host = net.JoinHostPort("0.0.0.0", address.Port()) // this machine, and not loopback by its name
	request := &http.Request{URL: address}
	if proxy, err := http.ProxyFromEnvironment(request); err != nil || proxy == nil || proxy.String() != noProxy {
		t.Fatalf("the proxy of the environment is %v, %v", proxy, err)
	}
	s := &Session{URL: func(context.Context) (string, error) { return address.String(), nil },
		Stdin: strings.NewReader("input"), StdinEnds: true, Stdout: io.Discard}
	if err := s.Run(t.Context()); err != nil {
		t.Error(err)
	}
}
