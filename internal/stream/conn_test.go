package stream

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// takenOver is a client's connection to a server whose handler has taken it over and returned, the server's side of it,
// and what the server's end waits for.
func takenOver(t *testing.T, cut context.Context) (client, server net.Conn, open *sessions) {
	t.Helper()
	open = &sessions{cut: cut, none: make(chan struct{})}
	taken := make(chan net.Conn, 1)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !open.begin() {
			t.Error("the server ends already")
		}
		defer open.leave()
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
		}
		taken <- conn
	}))
	s.Listener = watchedListener{s.Listener, open}
	s.Config.ConnState = connState
	s.Start()
	client, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if err := client.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	server = <-taken
	s.Close() // returns once the handler has
	return client, server, open
}

// The last of an exec's output is written after its handler has returned, since SPDY closes its connection later.
func TestTheEndWaitsForConnectionsThatTheirHandlersHaveLeft(t *testing.T) {
	client, server, open := takenOver(t, context.Background())
	none := open.end()
	select {
	case <-none:
		t.Fatal("it did not wait")
	case <-time.After(100 * time.Millisecond):
	}
	if open.begin() {
		t.Error("a session began at the end")
	}
	if _, err := io.WriteString(server, "the last"); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(client); err != nil || string(got) != "the last" {
		t.Errorf("the client read %q, %v", got, err)
	}
	select {
	case <-none:
		t.Error("it did not wait for the client")
	case <-time.After(100 * time.Millisecond):
	}
	client.Close()
	select {
	case <-none:
	case <-time.After(time.Minute):
		t.Error("it waits for ever")
	}
}

// What is never closed is closed at the cut, so that it does not hold up the end.
func TestTheCutClosesConnectionsThatTheirHandlersHaveLeft(t *testing.T) {
	cut, end := context.WithCancel(context.Background())
	client, _, open := takenOver(t, cut)
	none := open.end()
	end()
	if _, err := io.ReadAll(client); err != nil {
		t.Error(err)
	}
	client.Close()
	select {
	case <-none:
	case <-time.After(time.Minute):
		t.Error("it waits for ever")
	}
}

// A connection that is closed when nobody waits any more does not linger.
func TestAConnectionClosedAfterTheEndDoesNotLinger(t *testing.T) {
	open := &sessions{cut: context.Background(), none: make(chan struct{})}
	<-open.end()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener = watchedListener{listener, open}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := server.(*watchedConn).Conn.Write([]byte("x")); err == nil {
		t.Error("the connection is open still")
	}
}
