package stream

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"
)

// channelClient speaks a protocol of channels by hand; "": it names none.
type channelClient struct {
	*websocket.Conn
	text bool
}

func dialChannels(t *testing.T, address, protocol string) channelClient {
	t.Helper()
	d := websocket.Dialer{}
	if protocol != "" {
		d.Subprotocols = []string{protocol}
	}
	c, resp, err := d.Dial(strings.Replace(address, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	t.Cleanup(func() { c.Close() })
	if c.Subprotocol() != protocol {
		t.Fatalf("the server speaks %q", c.Subprotocol())
	}
	if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return channelClient{c, strings.Contains(protocol, "base64")}
}

func (c channelClient) send(number byte, data string) error {
	if c.text {
		message := fmt.Sprint(number) + base64.StdEncoding.EncodeToString([]byte(data))
		return c.WriteMessage(websocket.TextMessage, []byte(message))
	}
	return c.WriteMessage(websocket.BinaryMessage, append([]byte{number}, data...))
}

// all is what comes on each channel until the connection ends.
func (c channelClient) all(t *testing.T) map[byte]string {
	t.Helper()
	got := map[byte]string{}
	for {
		kind, message, err := c.ReadMessage()
		if websocket.IsCloseError(err, websocket.CloseNormalClosure) {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		number, data := message[0], message[1:]
		if c.text {
			if kind != websocket.TextMessage {
				t.Errorf("a message of kind %d", kind)
			}
			number -= '0'
			if data, err = base64.StdEncoding.DecodeString(string(data)); err != nil {
				t.Error(err)
			}
		}
		got[number] += string(data)
	}
}

func TestOldWebSocketProtocolsAreSpoken(t *testing.T) {
	s := start(t, Config{})
	for protocol, says := range map[string]string{
		"":                         "command terminated with non-zero exit code",
		"channel.k8s.io":           "command terminated with non-zero exit code",
		"base64.channel.k8s.io":    "command terminated with non-zero exit code",
		"v4.base64.channel.k8s.io": `"reason":"NonZeroExitCode"`,
		"v4.channel.k8s.io":        `"reason":"NonZeroExitCode"`,
	} {
		t.Run(protocol, func(t *testing.T) {
			wanted := Wanted{Stdin: true, Stdout: true, Stderr: true}
			c := dialChannels(t, execURL(t, s, wanted, "sh", "-c", "head -c 5; echo err >&2; exit 3"), protocol)
			for _, part := range []string{"he", "llo and more"} {
				if err := c.send(0, part); err != nil {
					t.Fatal(err)
				}
			}
			got := c.all(t)
			if got[1] != "hello" || got[2] != "err\n" || !strings.Contains(got[3], says) {
				t.Errorf("%q", got)
			}
			c = dialChannels(t, execURL(t, s, Wanted{Stdout: true}, "true"), protocol)
			if got := c.all(t); strings.Contains(got[3], "Success") != strings.HasPrefix(protocol, "v4") {
				t.Errorf("after a success: %q", got)
			}
		})
	}
	t.Run("others are refused", func(t *testing.T) {
		d := websocket.Dialer{Subprotocols: []string{"other"}}
		_, resp, err := d.Dial(strings.Replace(execURL(t, s, Wanted{Stdout: true}, "true"), "http", "ws", 1), nil)
		if err == nil || resp == nil || resp.StatusCode != http.StatusForbidden {
			t.Errorf("%v, %v", resp, err)
		}
	})
}

func TestPortsAreForwardedInEveryProtocolOfChannels(t *testing.T) {
	port := listen(t, func(c *net.TCPConn) {
		line := make([]byte, 5)
		_, _ = io.ReadFull(c, line)
		fmt.Fprintf(c, "heard %s", line)
	})
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := closed.Addr().(*net.TCPAddr).Port
	closed.Close()
	s := start(t, Config{})
	for _, protocol := range []string{"", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"} {
		t.Run(protocol, func(t *testing.T) {
			address, err := s.GetPortForward(t.Context(), PortForwardRequest{SandboxID: "p1",
				Ports: []int32{int32(nobody), int32(port)}})
			if err != nil {
				t.Fatal(err)
			}
			c := dialChannels(t, address, protocol)
			if err := c.send(2, "hello"); err != nil {
				t.Fatal(err)
			}
			got := c.all(t)
			begin := func(port int) string { return string([]byte{byte(port), byte(port >> 8)}) }
			if got[0] != begin(nobody) || !strings.Contains(got[1], "connection refused") ||
				got[2] != begin(port)+"heard hello" || got[3] != begin(port) {
				t.Errorf("%q", got)
			}
		})
	}
}

// TestAPortThatIsNotForwardedKeepsNoReader: a client asks for several ports, sends data for one that is not forwarded
// yet, and is gone. No port is forwarded, since the first write fails, and the goroutine that reads the connection has
// data that nobody takes. It was seen to fail where nobody ended the pipes of such ports.
func TestAPortThatIsNotForwardedKeepsNoReader(t *testing.T) {
	s := start(t, Config{})
	for range 3 {
		conn, client := tcpPair(t)
		// One binary message for channel 2, the data of the second port, with a mask of zeros.
		if _, err := client.Write([]byte("\x82\x85\x00\x00\x00\x00\x02data")); err != nil {
			t.Fatal(err)
		}
		req := httptest.NewRequest(http.MethodGet, "/portforward/token", nil)
		for name, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13",
			"Sec-Websocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-Websocket-Protocol": "v4.channel.k8s.io",
		} {
			req.Header.Set(name, value)
		}
		f := &forwarder{ctx: t.Context(), server: s, sandbox: "sandbox"}
		f.serveChannels(hijacked{httptest.NewRecorder(), &writesOnce{Conn: conn}}, req, []int32{1, 2})
	}
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		if !bytes.Contains(stacks, []byte("forwarder).serveChannels")) {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("a goroutine is left:\n%s", stacks)
		}
	}
}

// hijacked is the answer to a request whose connection a handler takes over.
type hijacked struct {
	http.ResponseWriter
	conn net.Conn
}

func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

// writesOnce is a connection to a client that is gone once it has got the handshake.
type writesOnce struct {
	net.Conn
	wrote bool
}

func (c *writesOnce) Write(p []byte) (int, error) {
	if c.wrote {
		return 0, unix.EPIPE
	}
	c.wrote = true
	return c.Conn.Write(p)
}

// tcpPair is both ends of a connection.
func tcpPair(t *testing.T) (server, client net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server, client
}

// TestATunnelWhoseClientTakesNothingIsClosedSoon: the connection is closed because nothing has moved for the idle
// timeout, an hour here, while a message is being written. It was seen to fail where the goodbye waits for that message
// for another idle timeout.
func TestATunnelWhoseClientTakesNothingIsClosedSoon(t *testing.T) {
	const idle = time.Hour
	took := make(chan time.Duration, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w, _ = tunnel(w, req, idle)
		conn := w.(*tunnelWriter).conn.(*tunnelConn)
		written := make(chan struct{})
		var wrote atomic.Int64
		go func() {
			defer close(written)
			for {
				if _, err := conn.Write(make([]byte, 32<<10)); err != nil {
					return
				}
				wrote.Add(1)
			}
		}()
		for before := int64(-1); before != wrote.Load(); time.Sleep(500 * time.Millisecond) {
			before = wrote.Load()
		}
		conn.moved.Store(time.Now().Add(-idle).UnixNano())
		begin := time.Now()
		cut := time.AfterFunc(20*time.Second, func() { conn.NetConn().Close() })
		defer cut.Stop()
		_ = conn.Close()
		took <- time.Since(begin)
		<-written
	}))
	defer server.Close()
	d := websocket.Dialer{Subprotocols: []string{"SPDY/3.1+portforward.k8s.io"}}
	c, resp, err := d.Dial(strings.Replace(server.URL, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	defer c.Close()
	if took := <-took; took > 15*time.Second {
		t.Errorf("Close took %v", took)
	}
}
