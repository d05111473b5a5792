package stream

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// listen serves TCP connections as a pod would and returns the port.
func listen(t *testing.T, serve func(*net.TCPConn)) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn.(*net.TCPConn))
			}()
		}
	}()
	return l.Addr().(*net.TCPAddr).Port
}

var dialers = map[string]func(address string) (httpstream.Dialer, error){
	"SPDY": func(address string) (httpstream.Dialer, error) {
		u, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
		if err != nil {
			return nil, err
		}
		return spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u), nil
	},
	"SPDY in WebSocket": func(address string) (httpstream.Dialer, error) {
		u, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		return portforward.NewSPDYOverWebsocketDialerForStreaming(u, &rest.Config{})
	},
}

// forward forwards a port of this machine to a port of a "pod" until the test ends.
func forward(t *testing.T, s *Server, dialer string, port int) string {
	t.Helper()
	address, err := s.GetPortForward(t.Context(), PortForwardRequest{SandboxID: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := dialers[dialer](address)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	f, err := portforward.NewOnAddressesForStreaming(d, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, stop,
		ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- f.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(stop)
		<-done
	})
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local)
}

func TestPortsAreForwarded(t *testing.T) {
	// The pod answers when its client has ended its direction, and not before.
	port := listen(t, func(c *net.TCPConn) {
		sum := sha256.New()
		io.Copy(sum, c)
		fmt.Fprintf(c, "%x", sum.Sum(nil))
	})
	for dialer := range dialers {
		t.Run(dialer, func(t *testing.T) {
			local := forward(t, start(t, Config{}), dialer, port)
			var wg sync.WaitGroup
			for range 8 { // over one connection
				wg.Go(func() {
					c, err := net.Dial("tcp", local)
					if err != nil {
						t.Error(err)
						return
					}
					defer c.Close()
					c.SetDeadline(time.Now().Add(30 * time.Second))
					in, sent := noise(4 << 20)
					if _, err := io.Copy(c, in); err != nil {
						t.Error(err)
					}
					c.(*net.TCPConn).CloseWrite()
					answer, err := io.ReadAll(c)
					if want := hex.EncodeToString(sent.Sum(nil)); string(answer) != want || err != nil {
						t.Errorf("answer %q, %v, want %s", answer, err, want)
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestAPodThatEndsAForwardedConnectionEndsItForTheClient(t *testing.T) {
	port := listen(t, func(c *net.TCPConn) { fmt.Fprint(c, "hello") })
	for dialer := range dialers {
		t.Run(dialer, func(t *testing.T) {
			local := forward(t, start(t, Config{}), dialer, port)
			for range 3 {
				c, err := net.Dial("tcp", local)
				if err != nil {
					t.Fatal(err)
				}
				c.SetDeadline(time.Now().Add(time.Minute))
				if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
					t.Errorf("%q, %v", got, err)
				}
				c.Close()
			}
		})
	}
}

// Both streams are ended for a client that never ends its own side of them.
func TestAPodThatEndsAForwardedConnectionEndsItForAClientThatWaits(t *testing.T) {
	port := listen(t, func(c *net.TCPConn) { fmt.Fprint(c, "hello") })
	for dialer := range dialers {
		t.Run(dialer, func(t *testing.T) {
			_, data, failure := streamPair(t, start(t, Config{}), dialer, port)
			if got, err := io.ReadAll(data); string(got) != "hello" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			if got, err := io.ReadAll(failure); len(got) > 0 || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

// A client that resets its side is done with the port, and is told of no failure. The pod's side ends, too.
func TestAClientThatResetsItsSideEndsAForwardedConnection(t *testing.T) {
	port := listen(t, func(c *net.TCPConn) {
		fmt.Fprint(c, "hello")
		<-t.Context().Done()
	})
	for dialer := range dialers {
		t.Run(dialer, func(t *testing.T) {
			h := newHost()
			_, data, failure := streamPair(t, start(t, Config{Runtime: h}), dialer, port)
			if _, err := io.ReadFull(data, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			if err := data.Reset(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-h.ended:
			case <-time.After(40 * time.Second):
				t.Error("it goes on")
			}
			if got, err := io.ReadAll(failure); len(got) > 0 || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}

func TestAPortWhereNobodyListensIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	for dialer := range dialers {
		t.Run(dialer, func(t *testing.T) {
			_, _, failure := streamPair(t, start(t, Config{}), dialer, port)
			if told, _ := io.ReadAll(failure); !strings.Contains(string(told), "connection refused") {
				t.Errorf("the client was told %q", told)
			}
		})
	}
}

// streamPair connects and opens the two streams of a forwarded connection.
func streamPair(t *testing.T, s *Server, dialer string, port int) (conn httpstream.Connection, data,
	failure httpstream.Stream) {
	t.Helper()
	address, err := s.GetPortForward(t.Context(), PortForwardRequest{SandboxID: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	d, err := dialers[dialer](address)
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err = d.Dial("portforward.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	open := func(kind string) httpstream.Stream {
		header := http.Header{}
		header.Set("port", fmt.Sprint(port))
		header.Set("requestID", "0")
		header.Set("streamType", kind)
		stream, err := conn.CreateStream(header)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	failure = open("error")
	return conn, open("data"), failure
}

func TestForwardingEndsWhenTheClientIsGone(t *testing.T) {
	port := listen(t, func(c *net.TCPConn) {
		fmt.Fprint(c, "hello")
		io.Copy(io.Discard, c)
	})
	for dialer := range dialers {
		t.Run(dialer, func(t *testing.T) {
			h := newHost()
			s := start(t, Config{Runtime: h})
			conn, data, _ := streamPair(t, s, dialer, port)
			hello := make([]byte, 5)
			if _, err := io.ReadFull(data, hello); err != nil {
				t.Fatal(err)
			}
			conn.Close()
			select {
			case <-h.ended:
			case <-time.After(40 * time.Second):
				t.Error("it goes on")
			}
		})
	}
}

// Channels over WebSocket are an older protocol: a pair of them for each port of the request, each begun by the port.
func TestPortsAreForwardedInWebSocketChannels(t *testing.T) {
	port := listen(t, func(c *net.TCPConn) {
		line := make([]byte, 5)
		io.ReadFull(c, line)
		fmt.Fprintf(c, "heard %s", line)
	})
	s := start(t, Config{})
	address, err := s.GetPortForward(t.Context(), PortForwardRequest{SandboxID: "p1", Ports: []int32{int32(port)}})
	if err != nil {
		t.Fatal(err)
	}
	d := websocket.Dialer{Subprotocols: []string{"v4.channel.k8s.io"}}
	c, resp, err := d.Dial(strings.Replace(address, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	if err := c.WriteMessage(websocket.BinaryMessage, append([]byte{0}, "hello"...)); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for {
		_, message, err := c.ReadMessage()
		if err != nil {
			break
		}
		if message[0] == 0 {
			got = append(got, message[1:]...)
		}
	}
	if want := string([]byte{byte(port), byte(port >> 8)}) + "heard hello"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}
