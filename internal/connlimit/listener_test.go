package connlimit

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
)

// world is a listener and what connects to it.
type world struct {
	t *testing.T
	*Listener
	log bytes.Buffer
}

func newWorld(t *testing.T, most int) *world {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	w := &world{t: t}
	w.Listener = New(l.(*net.TCPListener), most, slog.New(slog.NewTextHandler(&w.log, nil)))
	return w
}

// connect connects from an address of the loopback.
func (w *world) connect(from string) (client net.Conn, server *Conn) {
	w.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client, err := dialer.DialContext(w.t.Context(), "tcp", w.Addr().String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { client.Close() })
	conn, err := w.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return client, conn.(*Conn)
}

func isOpen(t *testing.T, server *Conn) bool {
	t.Helper()
	err := server.SetReadDeadline(time.Time{})
	if err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	return err == nil
}

func TestTheOldestOfTheAddressWithTheMostMakesRoom(t *testing.T) {
	w := newWorld(t, 4)
	_, other := w.connect("127.0.0.2")
	client, first := w.connect("127.0.0.1")
	_, second := w.connect("127.0.0.1")
	_, third := w.connect("127.0.0.1")
	if w.log.Len() > 0 {
		t.Errorf("logged: %s", w.log.String())
	}
	_, fourth := w.connect("127.0.0.1")
	for i, conn := range []*Conn{other, first, second, third, fourth} {
		if isOpen(t, conn) != (conn != first) {
			t.Errorf("connection %d: open is %t", i, conn == first)
		}
	}
	if _, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the client reads %v, want a reset", err)
	}
	w.connect("127.0.0.1")
	if isOpen(t, second) {
		t.Error("the second is open")
	}
	if n := strings.Count(w.log.String(), "too many connections"); n != 1 {
		t.Errorf("%d lines of the log: %s", n, w.log.String())
	}
}

func TestWhoIsWelcomeOrClosedMakesRoomForNobody(t *testing.T) {
	w := newWorld(t, 2)
	_, guest := w.connect("127.0.0.1")
	guest.Authenticated()
	_, gone := w.connect("127.0.0.1")
	gone.Close()
	gone.Close()
	_, first := w.connect("127.0.0.1")
	_, second := w.connect("127.0.0.1")
	if !isOpen(t, first) || !isOpen(t, second) {
		t.Error("a connection was closed")
	}
	for range 10 {
		w.connect("127.0.0.1")
	}
	if !isOpen(t, guest) || isOpen(t, first) {
		t.Error("the wrong one made room")
	}
	if len(w.from) != 1 || w.from[first.from] != 2 || w.pending.Len() != 2 {
		t.Errorf("%v, %d pending", w.from, w.pending.Len())
	}
}
