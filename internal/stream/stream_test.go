package stream

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"

	"berth/internal/pod"
)

// transports are the ways in which client-go talks.
var transports = map[string]func(*rest.Config, string) (remotecommand.Executor, error){
	"SPDY": func(cfg *rest.Config, address string) (remotecommand.Executor, error) {
		u, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		return remotecommand.NewSPDYExecutor(cfg, http.MethodPost, u)
	},
	"WebSocket v5": func(cfg *rest.Config, address string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(cfg, http.MethodGet, address)
	},
	"WebSocket v4": func(cfg *rest.Config, address string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutorForProtocols(cfg, http.MethodGet, address, "v4.channel.k8s.io")
	},
}

func connect(t *testing.T, transport, address string) remotecommand.Executor {
	t.Helper()
	e, err := transports[transport](&rest.Config{}, address)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func execURL(t *testing.T, s *Server, w Wanted, cmd ...string) string {
	t.Helper()
	address, err := s.GetExec(t.Context(), ExecRequest{ContainerID: "c1", Cmd: cmd, Wanted: w})
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// noise is reproducible random bytes that are hashed as they are read.
func noise(size int64) (io.Reader, hash.Hash) {
	sum := sha256.New()
	return io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sum), sum
}

func TestBytesComeBackAsTheyWent(t *testing.T) {
	const size = 100 << 20
	s := start(t, Config{})
	for transport, cmd := range map[string][]string{
		"SPDY":         {"cat"},
		"WebSocket v5": {"cat"},
		"WebSocket v4": {"head", "-c", fmt.Sprint(size)}, // this protocol cannot end the input
	} {
		t.Run(transport, func(t *testing.T) {
			in, sent := noise(size)
			got := sha256.New()
			e := connect(t, transport, execURL(t, s, Wanted{Stdin: true, Stdout: true, Stderr: true}, cmd...))
			began := time.Now()
			var stderr bytes.Buffer
			err := e.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdin: in, Stdout: got, Stderr: &stderr})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%.0f MiB/s each way", float64(size>>20)/time.Since(began).Seconds())
			if hex.EncodeToString(sent.Sum(nil)) != hex.EncodeToString(got.Sum(nil)) {
				t.Error("what came back is not what was sent")
			}
			if stderr.Len() > 0 {
				t.Errorf("stderr %q", stderr.String())
			}
		})
	}
}

func TestExitCodesAndErrorsReachTheClient(t *testing.T) {
	s := start(t, Config{})
	for transport := range transports {
		t.Run(transport, func(t *testing.T) {
			run := func(address string) (string, string, error) {
				var stdout, stderr bytes.Buffer
				err := connect(t, transport, address).StreamWithContext(deadline(t),
					remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
				return stdout.String(), stderr.String(), err
			}
			both := Wanted{Stdout: true, Stderr: true}
			stdout, stderr, err := run(execURL(t, s, both, "sh", "-c", "echo out; echo err >&2; exit 42"))
			var exit clientexec.CodeExitError
			if !errors.As(err, &exit) || exit.Code != 42 {
				t.Errorf("error %v, want exit code 42", err)
			}
			if stdout != "out\n" || stderr != "err\n" {
				t.Errorf("stdout %q, stderr %q", stdout, stderr)
			}
			if _, _, err := run(execURL(t, s, both, "true")); err != nil {
				t.Errorf("true: %v", err)
			}
			address, err := s.GetExec(t.Context(), ExecRequest{ContainerID: "gone", Cmd: []string{"true"}, Wanted: both})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := run(address); err == nil || !strings.Contains(err.Error(), "container gone") {
				t.Errorf("error %v, want the runtime's", err)
			}
		})
	}
}

// sizes is a terminal of which the size changes.
type sizes chan remotecommand.TerminalSize

func (q sizes) Next() *remotecommand.TerminalSize {
	if size, ok := <-q; ok {
		return &size
	}
	return nil
}

func TestTerminalsAreResized(t *testing.T) {
	s := start(t, Config{})
	for transport := range transports {
		t.Run(transport, func(t *testing.T) {
			script := `until [ "$(stty size)" = "24 80" ]; do sleep 0.01; done; echo first
				until [ "$(stty size)" = "43 132" ]; do sleep 0.01; done; echo second; exit 7`
			e := connect(t, transport, execURL(t, s, Wanted{TTY: true, Stdin: true, Stdout: true}, "sh", "-c", script))
			queue := make(sizes, 2)
			defer close(queue)
			queue <- remotecommand.TerminalSize{Width: 80, Height: 24}
			stdin, keep := io.Pipe()
			defer keep.Close()
			out := writerFunc(func(p []byte) (int, error) {
				if bytes.Contains(p, []byte("first")) {
					queue <- remotecommand.TerminalSize{Width: 132, Height: 43}
				}
				return len(p), nil
			})
			err := e.StreamWithContext(deadline(t), remotecommand.StreamOptions{
				Stdin: stdin, Stdout: out, Tty: true, TerminalSizeQueue: queue,
			})
			var exit clientexec.CodeExitError
			if !errors.As(err, &exit) || exit.Code != 7 {
				t.Errorf("error %v, want exit code 7", err)
			}
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestAttachJoinsStreams(t *testing.T) {
	s := start(t, Config{})
	for _, transport := range []string{"SPDY", "WebSocket v5"} {
		t.Run(transport, func(t *testing.T) {
			address, err := s.GetAttach(t.Context(), AttachRequest{ContainerID: "c1", Wanted: Wanted{Stdin: true, Stdout: true}})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			err = connect(t, transport, address).StreamWithContext(deadline(t),
				remotecommand.StreamOptions{Stdin: strings.NewReader("one\ntwo\n"), Stdout: &out})
			if err != nil {
				t.Fatal(err)
			}
			if out.String() != "heard one\nheard two\n" {
				t.Errorf("output %q", out.String())
			}
		})
	}
}

// TestAnAttachCanStartItsContainer: with Start, the runtime is asked to start the container with the client attached.
func TestAnAttachCanStartItsContainer(t *testing.T) {
	s := start(t, Config{})
	for _, transport := range []string{"SPDY", "WebSocket v5"} {
		t.Run(transport, func(t *testing.T) {
			address, err := s.GetAttach(t.Context(), AttachRequest{ContainerID: "c1", Start: true,
				Size: pod.TermSize{Width: 80, Height: 24}, Wanted: Wanted{Stdin: true, Stdout: true}})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := connect(t, transport, address).StreamWithContext(deadline(t),
				remotecommand.StreamOptions{Stdin: strings.NewReader("one\n"), Stdout: &out}); err != nil {
				t.Fatal(err)
			}
			if out.String() != "started with 80x24\nheard one\n" {
				t.Errorf("output %q", out.String())
			}
		})
	}
}

func TestAnAddressIsGoodForOneConnectionAndAShortTime(t *testing.T) {
	refused := func(t *testing.T, address string) {
		t.Helper()
		for transport := range transports {
			err := connect(t, transport, address).StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdout: io.Discard})
			if err == nil {
				t.Errorf("%s: was served", transport)
			}
		}
	}
	t.Run("once", func(t *testing.T) {
		s := start(t, Config{})
		address := execURL(t, s, Wanted{Stdout: true}, "true")
		if err := connect(t, "SPDY", address).StreamWithContext(deadline(t),
			remotecommand.StreamOptions{Stdout: io.Discard}); err != nil {
			t.Fatal(err)
		}
		refused(t, address)
	})
	t.Run("a short time", func(t *testing.T) {
		s := start(t, Config{TokenTTL: time.Millisecond})
		address := execURL(t, s, Wanted{Stdout: true}, "true")
		time.Sleep(5 * time.Millisecond)
		refused(t, address)
	})
	t.Run("for what it was asked", func(t *testing.T) {
		s := start(t, Config{})
		refused(t, strings.Replace(execURL(t, s, Wanted{Stdout: true}, "true"), "/exec/", "/attach/", 1))
	})
	t.Run("nothing else is served", func(t *testing.T) {
		s := start(t, Config{})
		for _, path := range []string{"/", "/exec/", "/exec/x", "/exec/../attach/x", "/debug/pprof/"} {
			resp, err := http.Get("http://" + s.Address() + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != http.StatusNotFound {
				t.Errorf("%s: %s", path, resp.Status)
			}
		}
	})
	t.Run("so many at once", func(t *testing.T) {
		s := start(t, Config{})
		for range maxTokens {
			execURL(t, s, Wanted{Stdout: true}, "true")
		}
		if _, err := s.GetExec(t.Context(), ExecRequest{}); err == nil {
			t.Error("one more was given")
		}
	})
}

func TestManyStreamsAtOnce(t *testing.T) {
	s := start(t, Config{})
	var wg sync.WaitGroup
	for i := range 120 {
		transport := []string{"SPDY", "WebSocket v5"}[i%2]
		address := execURL(t, s, Wanted{Stdin: true, Stdout: true}, "cat")
		e := connect(t, transport, address)
		wg.Go(func() {
			in, sent := noise(256 << 10)
			got := sha256.New()
			if err := e.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdin: in, Stdout: got}); err != nil {
				t.Errorf("%s: %v", transport, err)
			} else if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
				t.Errorf("%s: what came back is not what was sent", transport)
			}
		})
	}
	wg.Wait()
}

func TestASlowReaderLosesNothingAndHoldsUpNobody(t *testing.T) {
	s := start(t, Config{})
	for _, transport := range []string{"SPDY", "WebSocket v5"} {
		t.Run(transport, func(t *testing.T) {
			const size = 8 << 20
			release := make(chan struct{})
			var once sync.Once
			var n int64
			slow := writerFunc(func(p []byte) (int, error) {
				once.Do(func() { <-release })
				n += int64(len(p))
				return len(p), nil
			})
			done := make(chan error, 1)
			e := connect(t, transport, execURL(t, s, Wanted{Stdout: true}, "head", "-c", fmt.Sprint(size), "/dev/zero"))
			go func() { done <- e.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdout: slow}) }()
			time.Sleep(300 * time.Millisecond)
			quick := connect(t, transport, execURL(t, s, Wanted{Stdout: true}, "true"))
			if err := quick.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdout: io.Discard}); err != nil {
				t.Errorf("another stream meanwhile: %v", err)
			}
			close(release)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if n != size {
				t.Errorf("%d of %d bytes came", n, size)
			}
		})
	}
}

// pausing is a reader that takes nothing for a while after its first bytes. begun is closed when these have come; nil:
// nobody waits for that. client-go sends pings meanwhile, every 5 s.
func pausing(n *int64, begun chan<- struct{}, pause <-chan struct{}) io.Writer {
	var once sync.Once
	return writerFunc(func(p []byte) (int, error) {
		once.Do(func() {
			if begun != nil {
				close(begun)
			}
			<-pause
		})
		*n += int64(len(p))
		return len(p), nil
	})
}

// A command has long ended when its reader goes on. Seen to fail where connections are closed 2 s after the end, and,
// by WebSocket, where pongs are sent with a deadline.
func TestAReaderThatPausesGetsAllThatACommandWroteBeforeItEnded(t *testing.T) {
	authority := httptest.NewTLSServer(nil)
	defer authority.Close()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate().Raw})
	plain, sealed := start(t, Config{}), start(t, Config{TLS: &tls.Config{Certificates: authority.TLS.Certificates}})
	var wg sync.WaitGroup
	for transport, dial := range transports {
		for i, size := range []int64{100 << 10, 3 << 19, 4 << 20, 16 << 20, 100 << 10, 4 << 20} {
			s := plain
			if i > 3 {
				s = sealed
			}
			pause := make(chan struct{})
			time.AfterFunc(12*time.Second, func() { close(pause) })
			wg.Go(func() {
				var n int64
				address := execURL(t, s, Wanted{Stdout: true}, "sh", "-c", fmt.Sprintf("head -c %d /dev/zero; exit 3", size))
				e, err := dial(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: ca}}, address)
				if err != nil {
					t.Error(err)
					return
				}
				err = e.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdout: pausing(&n, nil, pause)})
				var exit clientexec.CodeExitError
				if !errors.As(err, &exit) || exit.Code != 3 {
					t.Errorf("%s, %d bytes: error %v, want exit code 3", transport, size, err)
				}
				if n != size {
					t.Errorf("%s: %d of %d bytes came", transport, n, size)
				}
			})
		}
	}
	wg.Wait()
}

// givenUp is a host that says when the session of a command has ended.
type givenUp struct {
	*host
	session chan struct{}
}

func (g givenUp) Exec(ctx context.Context, container string, opts pod.ExecOptions) (int, error) {
	context.AfterFunc(ctx, func() { close(g.session) })
	return g.host.Exec(ctx, container, opts)
}

// A client that takes nothing for too long finds the reason behind what it was sent, if it goes on after all.
func TestAReaderThatTakesNothingIsTold(t *testing.T) {
	for _, transport := range []string{"SPDY", "WebSocket v5"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			h := givenUp{newHost(), make(chan struct{})}
			s := start(t, Config{Runtime: h, IdleTimeout: 2 * time.Second})
			s.lastWords = time.Minute
			pause := make(chan struct{})
			var n int64
			done := make(chan error, 1)
			e := connect(t, transport, execURL(t, s, Wanted{Stdout: true}, "cat", "/dev/zero"))
			go func() {
				done <- e.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdout: pausing(&n, nil, pause)})
			}()
			select {
			case <-h.session:
			case <-time.After(2 * time.Minute):
				t.Error("the session goes on")
			}
			close(pause)
			if err := <-done; err == nil || !strings.Contains(err.Error(), "idle_timeout") {
				t.Errorf("error %v, want the reason", err)
			}
			select {
			case <-h.ended:
			case <-time.After(2 * time.Minute):
				t.Error("the command lives on")
			}
		})
	}
}

// A client that neither takes what is there for it nor closes its connection has that for as long as it may be idle.
func TestAConnectionDoesNotLingerForEver(t *testing.T) {
	for transport := range transports {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			s := start(t, Config{IdleTimeout: 3 * time.Second})
			begun, pause := make(chan struct{}), make(chan struct{})
			defer close(pause)
			var n int64
			e := connect(t, transport, execURL(t, s, Wanted{Stdout: true}, "head", "-c", "200000", "/dev/zero"))
			began := time.Now()
			go e.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdout: pausing(&n, begun, pause)})
			<-begun
			time.Sleep(500 * time.Millisecond) // by then the command has ended
			select {
			case <-s.open.end():
			case <-time.After(2 * time.Minute):
				t.Error("it lingers")
			}
			if took := time.Since(began); took < 2*time.Second {
				t.Errorf("it was closed after %v", took)
			}
		})
	}
}

// The end of the server waits for those who have yet to read the last of a command that has ended.
func TestCloseWaitsForClientsThatReadTheLast(t *testing.T) {
	for _, transport := range []string{"SPDY", "WebSocket v5"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			const size = 1 << 20
			s, err := New(Config{Runtime: newHost()})
			if err != nil {
				t.Fatal(err)
			}
			begun, pause := make(chan struct{}), make(chan struct{})
			var n int64
			done := make(chan error, 1)
			e := connect(t, transport, execURL(t, s, Wanted{Stdout: true}, "head", "-c", fmt.Sprint(size), "/dev/zero"))
			go func() {
				done <- e.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdout: pausing(&n, begun, pause)})
			}()
			<-begun
			time.Sleep(time.Second) // by then the command has ended
			closed := make(chan error, 1)
			go func() { closed <- s.Close(deadline(t)) }()
			time.Sleep(7 * time.Second) // one ping
			close(pause)
			if err := <-done; err != nil || n != size {
				t.Errorf("%d of %d bytes came, %v", n, size, err)
			}
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestInputThatNobodyTakesDoesNotKeepACommandFromEnding(t *testing.T) {
	s := start(t, Config{})
	for _, transport := range []string{"SPDY", "WebSocket v5"} {
		t.Run(transport, func(t *testing.T) {
			in, _ := noise(4 << 20)
			var out bytes.Buffer
			e := connect(t, transport, execURL(t, s, Wanted{Stdin: true, Stdout: true}, "sh", "-c", "sleep 0.3; echo end"))
			if err := e.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdin: in, Stdout: &out}); err != nil {
				t.Fatal(err)
			}
			if out.String() != "end\n" {
				t.Errorf("output %q", out.String())
			}
		})
	}
}

func TestACommandEndsWhenItsClientIsGone(t *testing.T) {
	for transport := range transports {
		t.Run(transport, func(t *testing.T) {
			h := newHost()
			s := start(t, Config{Runtime: h})
			ctx, cancel := context.WithCancel(deadline(t))
			begun := make(chan struct{})
			var once sync.Once
			go func() {
				<-begun
				cancel()
			}()
			e := connect(t, transport, execURL(t, s, Wanted{Stdout: true}, "sh", "-c", "echo begun; exec sleep 50"))
			err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: writerFunc(func(p []byte) (int, error) {
				once.Do(func() { close(begun) })
				return len(p), nil
			})})
			if err == nil {
				t.Error("the client saw an end")
			}
			select {
			case <-h.ended:
			case <-time.After(40 * time.Second):
				t.Error("the command lives on")
			}
		})
	}
}

func TestCloseWaitsForStreamsAndThenCutsThemOff(t *testing.T) {
	for _, transport := range []string{"SPDY", "WebSocket v5"} {
		t.Run(transport, func(t *testing.T) {
			h := newHost()
			s, err := New(Config{Runtime: h})
			if err != nil {
				t.Fatal(err)
			}
			stream := func(script string) <-chan error {
				begun, done := make(chan struct{}), make(chan error, 1)
				var once sync.Once
				e := connect(t, transport, execURL(t, s, Wanted{Stdout: true}, "sh", "-c", script))
				go func() {
					done <- e.StreamWithContext(deadline(t),
						remotecommand.StreamOptions{Stdout: writerFunc(func(p []byte) (int, error) {
							once.Do(func() { close(begun) })
							return len(p), nil
						})})
				}()
				<-begun
				return done
			}
			short, long := stream("echo begun; sleep 0.5"), stream("echo begun; exec sleep 500")
			unused := execURL(t, s, Wanted{Stdout: true}, "true")
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			closed := make(chan error, 1)
			go func() { closed <- s.Close(ctx) }()
			if err := <-short; err != nil {
				t.Errorf("the stream that ended in time: %v", err)
			}
			select {
			case err := <-closed:
				t.Errorf("it did not wait: %v", err)
			default:
			}
			cancel()
			if err := <-closed; err != nil {
				t.Error(err)
			}
			if err := <-long; err == nil {
				t.Error("the stream that did not end in time: no error")
			}
			if _, err := http.Get(unused); err == nil {
				t.Error("a connection was taken after the end")
			}
		})
	}
}

func TestStreamsOverTLS(t *testing.T) {
	// httptest has a certificate for 127.0.0.1 and its authority.
	authority := httptest.NewTLSServer(nil)
	defer authority.Close()
	s := start(t, Config{TLS: &tls.Config{Certificates: authority.TLS.Certificates, MinVersion: tls.VersionTLS12}})
	for transport, dial := range transports {
		t.Run(transport, func(t *testing.T) {
			ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate().Raw})
			e, err := dial(&rest.Config{TLSClientConfig: rest.TLSClientConfig{CAData: ca}},
				execURL(t, s, Wanted{Stdout: true}, "echo", "sealed"))
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := e.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdout: &out}); err != nil {
				t.Fatal(err)
			}
			if out.String() != "sealed\n" {
				t.Errorf("output %q", out.String())
			}
		})
	}
}

func TestASilentConnectionIsEnded(t *testing.T) {
	for transport := range transports {
		t.Run(transport, func(t *testing.T) {
			h := newHost()
			s := start(t, Config{Runtime: h, IdleTimeout: 3 * time.Second})
			e := connect(t, transport, execURL(t, s, Wanted{Stdout: true}, "sleep", "50"))
			err := e.StreamWithContext(deadline(t), remotecommand.StreamOptions{Stdout: io.Discard})
			if err == nil && transport != "SPDY" { // a SPDY client takes a closed connection for success
				t.Error("no error")
			}
			select {
			case <-h.ended:
			case <-time.After(40 * time.Second):
				t.Error("the command lives on")
			}
		})
	}
}

// TestTheServerTakesNoPortOfAPod: a pod that has the port gets the connections of clients, with their tokens. Seen to
// fail with any free port taken.
func TestTheServerTakesNoPortOfAPod(t *testing.T) {
	avoided := map[uint16]bool{}
	avoid := func(port uint16) bool {
		if len(avoided) < 20 {
			avoided[port] = true
		}
		return avoided[port]
	}
	s, err := New(Config{Runtime: newHost(), Avoid: avoid})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(t.Context())
	at, err := netip.ParseAddrPort(s.Address())
	if err != nil || avoided[at.Port()] || len(avoided) != 20 {
		t.Fatalf("it listens at %s, %v, and %d ports were to be avoided", s.Address(), err, len(avoided))
	}
	// One that is configured is taken, as the kubelet of the node may know it.
	taken := slices.Collect(maps.Keys(avoided))[0]
	told, err := New(Config{Runtime: newHost(), Address: fmt.Sprintf("127.0.0.1:%d", taken), Avoid: avoid})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close(t.Context())
}
