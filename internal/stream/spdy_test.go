package stream

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/spdystream/spdy"
	"k8s.io/client-go/tools/remotecommand"
)

func TestRepliesAreWhatTheLibraryReads(t *testing.T) {
	var wire bytes.Buffer
	f, err := spdy.NewFramer(&wire, &wire)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range [][]byte{append(bytes.Clone(deflateDictionary), noHeaders...), noHeaders, noHeaders} {
		wire.Write(control(spdy.TypeSynReply, len(block), 5))
		wire.Write(block)
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := frame.(*spdy.SynReplyFrame); !ok || r.StreamId != 5 || len(r.Headers) != 0 {
			t.Errorf("%+v", frame)
		}
	}
}

// rawSPDY is a client that writes frames of its own.
type rawSPDY struct {
	t *testing.T
	net.Conn
	*spdy.Framer
}

func dialSPDY(t *testing.T, address, protocol string) *rawSPDY {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"+
		"X-Stream-Protocol-Version: %s\r\n\r\n", u.Path, protocol)
	in := bufio.NewReader(conn)
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%s", answer.Status)
	}
	f, err := spdy.NewFramer(conn, in)
	if err != nil {
		t.Fatal(err)
	}
	return &rawSPDY{t, conn, f}
}

func (c *rawSPDY) send(frame spdy.Frame) {
	c.t.Helper()
	if err := c.WriteFrame(frame); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawSPDY) next() spdy.Frame {
	c.t.Helper()
	frame, err := c.ReadFrame()
	if err != nil {
		c.t.Fatal(err)
	}
	return frame
}

// openExec opens streams of an exec with the IDs 1, 3, 5 …, and reads the replies.
func (c *rawSPDY) openExec(kinds ...string) {
	c.t.Helper()
	for i, kind := range kinds {
		c.send(&spdy.SynStreamFrame{StreamId: spdy.StreamId(2*i + 1), Headers: http.Header{"streamtype": {kind}}})
		if reply, ok := c.next().(*spdy.SynReplyFrame); !ok || reply.StreamId != spdy.StreamId(2*i+1) {
			c.t.Fatalf("%+v", reply)
		}
	}
}

func forwardHeader(kind, request string) http.Header {
	return http.Header{"streamtype": {kind}, "port": {"80"}, "requestid": {request}}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// held is what connections have taken of the budget that they share.
func held(s *Server) int64 { return allMost - s.memory.free.Load() }

// A container that reads no input: what its client sends is held up to a bound, in frames of any size, and is dropped
// when the client is gone. Frames that are not data pass until then.
func TestInputThatNobodyTakesIsHeldUpToABound(t *testing.T) {
	for name, size := range map[string]int{"frames of 16 MiB": spdy.MaxDataLength, "frames of a byte": 1} {
		t.Run(name, func(t *testing.T) {
			s := start(t, Config{})
			c := dialSPDY(t, execURL(t, s, Wanted{Stdin: true, Stdout: true}, "sleep", "50"), "v4.channel.k8s.io")
			c.openExec("error", "stdin", "stdout")
			c.send(&spdy.DataFrame{StreamId: 3, Data: make([]byte, 1<<20)})
			c.send(&spdy.PingFrame{Id: 1})
			if pong, ok := c.next().(*spdy.PingFrame); !ok || pong.Id != 1 {
				t.Fatalf("%+v", pong)
			}
			frame := append(binary.BigEndian.AppendUint32([]byte{0, 0, 0, 3}, uint32(size)), make([]byte, size)...)
			frames := bytes.Repeat(frame, max(1, 1<<20/len(frame)))
			go func() {
				for {
					if _, err := c.Write(frames); err != nil {
						return // the test is over
					}
				}
			}()
			const most = connectionMost - connectionLeast
			eventually(t, "the bound is reached", func() bool { return held(s) > most-pieceMost-2*pieceCost })
			time.Sleep(200 * time.Millisecond) // it would grow now
			if got := held(s); got > most {
				t.Errorf("%d bytes are held, more than %d", got, int64(most))
			}
			// Others are not held up.
			if err := connect(t, "SPDY", execURL(t, s, Wanted{Stdout: true}, "true")).StreamWithContext(deadline(t),
				remotecommand.StreamOptions{Stdout: io.Discard}); err != nil {
				t.Error(err)
			}
			// A reset, since the server does not read what is behind what it holds.
			if err := c.Conn.(*net.TCPConn).SetLinger(0); err != nil {
				t.Fatal(err)
			}
			c.Close()
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			if err := s.Close(ctx); err != nil {
				t.Error(err)
			}
			eventually(t, "all is given back", func() bool { return held(s) == 0 })
		})
	}
}

func TestConnectionsShareABudgetBeyondWhatEachMayHold(t *testing.T) {
	b := newBudget(100 << 10)
	first := share{of: b, least: connectionLeast, most: connectionMost}
	second := first
	fill := func(s *share) (n int64) {
		for s.take(1 << 10) {
			n += 1 << 10
		}
		return n
	}
	if got := fill(&first); got != connectionLeast+100<<10 {
		t.Errorf("the first takes %d", got)
	}
	if got := fill(&second); got != connectionLeast {
		t.Errorf("the second takes %d", got)
	}
	first.give(first.held)
	if got := fill(&second); got != 100<<10 {
		t.Errorf("the second takes %d more", got)
	}
	second.give(second.held)
	if got := b.free.Load(); got != 100<<10 {
		t.Errorf("%d are free at the end", got)
	}
	alone := first
	alone.of = newBudget(allMost)
	if got := fill(&alone); got != connectionMost {
		t.Errorf("one alone takes %d", got)
	}
}

// TestWhatOthersGiveBackIsFound: a connection of which one stream stands still waits for the budget that it shares, and
// goes on once others have given something back. It was seen to wait for its own stream.
func TestWhatOthersGiveBackIsFound(t *testing.T) {
	memory := newBudget(0)
	near, far := net.Pipe()
	defer far.Close()
	go func() { _, _ = io.Copy(io.Discard, far) }() // pings
	c := newSPDY(near, bufio.NewReader(near), memory, time.Hour, 10, nil)
	defer c.end()
	stuck, s := newSPDYStream(c, 1, nil), newSPDYStream(c, 3, nil)
	if !stuck.reserve(connectionLeast - pieceCost) {
		t.Fatal("there is no room for what a connection may always have")
	}
	done := make(chan bool)
	go func() { done <- s.reserve(1) }()
	eventually(t, "the other stream waits", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.full })
	c.probe()
	select {
	case <-done:
		t.Fatal("there is room where nobody has given any back")
	case <-time.After(100 * time.Millisecond):
	}
	memory.free.Add(1 << 20)
	eventually(t, "it goes on", func() bool {
		c.probe()
		select {
		case ok := <-done:
			return ok
		default:
			return false
		}
	})
}

// logged is what a server has logged.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

func TestAClientThatBreaksABoundIsCutOffAndNamed(t *testing.T) {
	syn := func(id spdy.StreamId, header http.Header) func(*rawSPDY) {
		return func(c *rawSPDY) { c.send(&spdy.SynStreamFrame{StreamId: id, Headers: header}) }
	}
	many := http.Header{}
	for i := range headersMost + 1 {
		many[fmt.Sprint("h", i)] = []string{"x"}
	}
	for name, does := range map[string]func(*rawSPDY){
		"a header that inflates to a megabyte": syn(7, http.Header{"streamtype": {strings.Repeat("a", 1<<20)}}),
		"many headers":                         syn(7, many),
		"a stream that is older than the last": syn(1, http.Header{"streamtype": {"stdin"}}),
		"a stream of the server's":             syn(8, http.Header{"streamtype": {"stdin"}}),
		"a long frame of settings": func(c *rawSPDY) {
			_, _ = c.Write(append(control(spdy.TypeSettings, controlMost+1), make([]byte, controlMost+1)...))
		},
		"a ping that is too long": func(c *rawSPDY) { _, _ = c.Write(control(spdy.TypePing, 0, 1, 1)) },
		"data of no stream":       func(c *rawSPDY) { _, _ = c.Write([]byte{0, 0, 0, 0, 0, 0, 0, 1, 'x'}) },
	} {
		t.Run(name, func(t *testing.T) {
			log := &logged{}
			h := newHost()
			s := start(t, Config{Runtime: h, Log: slog.New(slog.NewTextHandler(log, nil))})
			c := dialSPDY(t, execURL(t, s, Wanted{Stdout: true}, "sh", "-c", "echo begun; exec sleep 50"), "v4.channel.k8s.io")
			c.openExec("error", "stdout")
			if begun, ok := c.next().(*spdy.DataFrame); !ok {
				t.Fatalf("%+v", begun)
			}
			does(c)
			if frame, err := c.ReadFrame(); err == nil {
				t.Errorf("%+v", frame)
			}
			eventually(t, "it is logged", func() bool { return log.has("a streaming client is cut off") })
			select {
			case <-h.ended:
			case <-time.After(40 * time.Second):
				t.Error("the command lives on")
			}
		})
	}
}

func TestStreamsThatAreNoPartOfAnExecAreRefused(t *testing.T) {
	s := start(t, Config{})
	c := dialSPDY(t, execURL(t, s, Wanted{Stdout: true}, "cat"), "v4.channel.k8s.io")
	c.openExec("error")
	for i, kind := range []string{"error", "other", ""} {
		id := spdy.StreamId(3 + 2*i)
		c.send(&spdy.SynStreamFrame{StreamId: id, Headers: http.Header{"streamtype": {kind}}})
		if reset, ok := c.next().(*spdy.RstStreamFrame); !ok || reset.StreamId != id {
			t.Errorf("stream %q: %+v", kind, reset)
		}
	}
	c.send(&spdy.SynStreamFrame{StreamId: 11, Headers: http.Header{"streamtype": {"stdin"}}})
	if reply, ok := c.next().(*spdy.SynReplyFrame); !ok || reply.StreamId != 11 {
		t.Errorf("%+v", reply)
	}
	// Nobody reads the input of this one: it is dropped, so that the session goes on.
	c.send(&spdy.DataFrame{StreamId: 11, Data: make([]byte, 8<<20)})
	c.send(&spdy.SynStreamFrame{StreamId: 13, Headers: http.Header{"streamtype": {"stdout"}}})
	if reply, ok := c.next().(*spdy.SynReplyFrame); !ok || reply.StreamId != 13 {
		t.Errorf("%+v", reply)
	}
	data, ok := c.next().(*spdy.DataFrame)
	if !ok || data.StreamId != 1 || !strings.Contains(string(data.Data), "Success") {
		t.Errorf("%+v", data)
	}
}

func TestAConnectionHasSoManyStreams(t *testing.T) {
	s := start(t, Config{CreationTimeout: time.Hour})
	address, err := s.GetPortForward(t.Context(), PortForwardRequest{SandboxID: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	c := dialSPDY(t, address, "portforward.k8s.io")
	open := func(id spdy.StreamId) spdy.Frame {
		c.send(&spdy.SynStreamFrame{StreamId: id, Headers: forwardHeader("error", fmt.Sprint(id))})
		return c.next()
	}
	last := spdy.StreamId(1)
	for range forwardMost {
		if reply, ok := open(last).(*spdy.SynReplyFrame); !ok || reply.StreamId != last {
			t.Fatalf("stream %d: %+v", last, reply)
		}
		last += 2
	}
	if reset, ok := open(last).(*spdy.RstStreamFrame); !ok || reset.Status != spdy.RefusedStream {
		t.Errorf("one more: %+v", reset)
	}
	c.send(&spdy.RstStreamFrame{StreamId: 1, Status: spdy.Cancel})
	if reply, ok := open(last + 2).(*spdy.SynReplyFrame); !ok {
		t.Errorf("instead of one that has ended: %+v", reply)
	}
}

// TestStreamsThatAreResetAtOnceAreNotKeptWithoutBound: they do not count among the streams that a client has, and each
// waits for its other one.
func TestStreamsThatAreResetAtOnceAreNotKeptWithoutBound(t *testing.T) {
	s := start(t, Config{CreationTimeout: time.Hour})
	client, ours := net.Pipe()
	defer client.Close()
	go func() { _, _ = io.Copy(io.Discard, client) }()
	c := newSPDY(ours, bufio.NewReader(ours), s.memory, time.Hour, forwardMost, nil)
	defer c.close()
	p := &pairs{forwarder: &forwarder{ctx: t.Context(), server: s}, waiting: map[string]*pair{}}
	open := func(n int) *spdyStream {
		stream := newSPDYStream(c, spdy.StreamId(2*n+1), forwardHeader("data", fmt.Sprint(n)))
		c.mu.Lock()
		c.streams[stream.id] = stream
		c.mu.Unlock()
		return stream
	}
	for n := range 2 * forwardMost {
		stream := open(n)
		c.forget(stream.id)
		p.add(stream)
	}
	if n := len(p.waiting); n != forwardMost {
		t.Errorf("%d streams are kept that were reset, want the bound %d", n, forwardMost)
	}
	p.add(open(2 * forwardMost))
	if n := len(c.streams); n != 0 {
		t.Errorf("a stream for which there is no room stays open")
	}
	for key, at := range p.waiting {
		at.timeout.Stop()
		p.giveUp(key, at)
	}
	stream := open(2*forwardMost + 1)
	p.add(stream)
	if at := p.waiting[requestOf(stream)]; at == nil {
		t.Error("there is no room once the others have been given up")
	} else {
		at.timeout.Stop()
	}
}

// A client that opens other streams than it should, and goes, leaves nothing behind.
func TestNothingIsLeftOfClientsThatOpenTooFewStreams(t *testing.T) {
	s := start(t, Config{CreationTimeout: time.Hour})
	before := runtime.NumGoroutine()
	for range 20 {
		c := dialSPDY(t, execURL(t, s, Wanted{Stdin: true, Stdout: true}, "cat"), "v4.channel.k8s.io")
		c.openExec("error", "stdin", "stderr")
		c.send(&spdy.DataFrame{StreamId: 3, Data: make([]byte, 1<<20)})
		c.Close()
		address, err := s.GetPortForward(t.Context(), PortForwardRequest{SandboxID: "p1"})
		if err != nil {
			t.Fatal(err)
		}
		c = dialSPDY(t, address, "portforward.k8s.io")
		for id := spdy.StreamId(1); id < 20; id += 2 {
			c.send(&spdy.SynStreamFrame{StreamId: id, Headers: forwardHeader("data", fmt.Sprint(id))})
			c.send(&spdy.DataFrame{StreamId: id, Data: make([]byte, 64<<10)})
		}
		c.Close()
	}
	eventually(t, "all goroutines have ended", func() bool { return runtime.NumGoroutine() <= before+2 })
	eventually(t, "all is given back", func() bool { return held(s) == 0 })
}

// The JSON of a terminal's size is not kept for as long as its client likes.
func TestASizeOfATerminalHasABound(t *testing.T) {
	long := io.MultiReader(strings.NewReader(`{"Width":80,"Height":24}{"Width":81,"Height":25}`),
		strings.NewReader(`{"Width":`+strings.Repeat(" ", 1<<20)+`1}`), strings.NewReader(`{"Width":82,"Height":26}`))
	var got []remotecommand.TerminalSize
	for size := range readSizes(t.Context(), long) {
		got = append(got, remotecommand.TerminalSize(size))
	}
	if want := []remotecommand.TerminalSize{{Width: 80, Height: 24}, {Width: 81, Height: 25}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A container that reads no input does not keep its client's end from being noticed.
func TestACommandThatReadsNothingEndsWhenItsClientIsGone(t *testing.T) {
	for name, transport := range map[string]string{
		"SPDY": "SPDY", "WebSocket": "WebSocket",
		// The end of the connection comes behind what the server does not read. Seen to fail without its pings.
		"SPDY without a reset": "SPDY",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost()
			s := start(t, Config{Runtime: h})
			address := execURL(t, s, Wanted{Stdin: true, Stdout: true}, "sh", "-c", "echo begun; exec sleep 90")
			var conn net.Conn
			var frame []byte
			if transport == "SPDY" {
				c := dialSPDY(t, address, "v4.channel.k8s.io")
				c.openExec("error", "stdin", "stdout")
				if begun, ok := c.next().(*spdy.DataFrame); !ok {
					t.Fatalf("%+v", begun)
				}
				conn, frame = c.Conn, append([]byte{0, 0, 0, 3, 0, 1, 0, 0}, make([]byte, 1<<16)...)
			} else {
				c := dialChannels(t, address, "v4.channel.k8s.io")
				for begun := false; !begun; {
					_, message, err := c.ReadMessage()
					if err != nil {
						t.Fatal(err)
					}
					begun = strings.Contains(string(message), "begun")
				}
				// A binary message of 65536 bytes, masked with zeros.
				conn, frame = c.NetConn(), append([]byte{0x82, 0xff, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, make([]byte, 1<<16)...)
			}
			// Until the server has read nothing for a while.
			for {
				if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Write(frame); isTimeout(err) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if name == transport {
				if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
					t.Fatal(err)
				}
			}
			conn.Close()
			select {
			case <-h.ended:
			case <-time.After(40 * time.Second):
				t.Error("the command lives on")
			}
		})
	}
}

// What one client forwards leaves room for others.
func TestForwardedConnectionsHaveABound(t *testing.T) {
	port := listen(t, func(c *net.TCPConn) {
		fmt.Fprint(c, "hello")
		<-t.Context().Done()
	})
	s := start(t, Config{})
	s.forwards.free.Store(4)
	connect := func() (says func(request int) string) {
		address, err := s.GetPortForward(t.Context(), PortForwardRequest{SandboxID: "p1"})
		if err != nil {
			t.Fatal(err)
		}
		c := dialSPDY(t, address, "portforward.k8s.io")
		return func(request int) string {
			for i, kind := range []string{"error", "data"} {
				header := forwardHeader(kind, fmt.Sprint(request))
				header["port"] = []string{fmt.Sprint(port)}
				c.send(&spdy.SynStreamFrame{StreamId: spdy.StreamId(4*request + 2*i + 1), Headers: header})
			}
			for {
				if data, ok := c.next().(*spdy.DataFrame); ok {
					return string(data.Data)
				}
			}
		}
	}
	first, second := connect(), connect()
	for request := range forwardsLeast + 4 {
		if got := first(request); got != "hello" {
			t.Fatalf("connection %d: %q", request, got)
		}
	}
	if got := first(forwardsLeast + 4); !strings.Contains(got, "too many connections") {
		t.Errorf("one more: %q", got)
	}
	for request := range forwardsLeast {
		if got := second(request); got != "hello" {
			t.Fatalf("connection %d of another client: %q", request, got)
		}
	}
	if got := second(forwardsLeast); !strings.Contains(got, "too many connections") {
		t.Errorf("one more of another client: %q", got)
	}
}
