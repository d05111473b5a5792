package stream

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
)

// Connections whose clients send nothing have a bound, and a client with a token is served beside them.
func TestIdleConnectionsKeepNobodyOut(t *testing.T) {
	s := start(t, Config{})
	run := func() error {
		return connect(t, "SPDY", execURL(t, s, Wanted{Stdout: true}, "true")).StreamWithContext(deadline(t),
			remotecommand.StreamOptions{Stdout: io.Discard})
	}
	guest := dialSPDY(t, execURL(t, s, Wanted{Stdin: true, Stdout: true}, "cat"), "v4.channel.k8s.io")
	guest.openExec("error", "stdin", "stdout")
	var idle []net.Conn
	for range maxUnauthenticated + 50 {
		conn, err := net.Dial("tcp", s.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		idle = append(idle, conn)
	}
	if err := run(); err != nil {
		t.Error(err)
	}
	if err := idle[0].SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := idle[0].Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("the first idle connection: %v", err)
	}
	if _, err := guest.Write([]byte{0, 0, 0, 3, 0, 0, 0, 5, 'h', 'e', 'l', 'l', 'o'}); err != nil {
		t.Fatal(err)
	}
	if said := fmt.Sprintf("%s", guest.next()); !strings.Contains(said, "hello") {
		t.Errorf("who was there before: %s", said)
	}
}

func TestAHeaderHasABound(t *testing.T) {
	s := start(t, Config{})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, execURL(t, s, Wanted{Stdout: true}, "true"), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x", strings.Repeat("x", 64<<10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Error(resp.Status)
	}
}
