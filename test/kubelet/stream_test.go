package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"

	"berth/test/node"
	"berth/test/node/nodetest"
)

type transport string

const (
	spdyTransport      transport = "SPDY"
	webSocketTransport transport = "WebSocket"
)

// streams say how an exec or attach is connected.
type streams struct {
	transport transport
	stdin     io.Reader
	stderr    io.Writer
	tty       bool
	resize    remotecommand.TerminalSizeQueue
}

// executor is the client's side of an exec or attach through the kubelet's API.
func (p *pod) executor(verb, container string, s streams, command ...string) (remotecommand.Executor, error) {
	query := url.Values{"output": {"1"}, "command": command}
	if s.stdin != nil {
		query.Set("input", "1")
	}
	if s.tty {
		query.Set("tty", "1")
	} else {
		query.Set("error", "1")
	}
	at := &url.URL{
		Scheme: "https", Host: p.k.address, RawQuery: query.Encode(),
		Path: fmt.Sprintf("/%s/default/%s/%s", verb, p.name, container),
	}
	config := &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	if s.transport == webSocketTransport {
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, at.String())
	}
	return remotecommand.NewSPDYExecutor(config, http.MethodPost, at)
}

// stream runs an exec or attach until the other side ends or ctx does.
func (p *pod) stream(ctx context.Context, verb, container string, s streams, stdout io.Writer, command ...string) (
	code int, err error) {
	executor, err := p.executor(verb, container, s, command...)
	if err != nil {
		return 0, err
	}
	stderr := s.stderr
	switch {
	case s.tty:
		stderr = nil
	case stderr == nil:
		stderr = stdout
	}
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdin: s.stdin, Stdout: stdout, Stderr: stderr, Tty: s.tty, TerminalSizeQueue: s.resize,
	})
	if exit := (exec.CodeExitError{}); errors.As(err, &exit) {
		return exit.Code, nil
	}
	return 0, err
}

// exec runs a command in a container and returns what it wrote and its exit code.
func (p *pod) exec(container string, s streams, command ...string) (output string, code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(time.Minute))
	defer cancel()
	var out nodetest.Buffer
	code, err = p.stream(ctx, "exec", container, s, &out, command...)
	return out.String(), code, err
}

func TestExecThroughTheKubelet(t *testing.T) {
	t.Parallel()
	p := shared(t).run(t, manifest("exec", sh("main", sleep)))
	p.running()
	for _, transport := range []transport{spdyTransport, webSocketTransport} {
		t.Run(string(transport), func(t *testing.T) {
			var stderr nodetest.Buffer
			out, code, err := p.exec("main", streams{transport: transport, stderr: &stderr},
				"sh", "-c", "echo out; echo err >&2; exit 7")
			if err != nil || code != 7 || out != "out\n" || stderr.String() != "err\n" {
				t.Errorf("code %d, %v, stdout %q, stderr %q", code, err, out, stderr.String())
			}
			data := strings.Repeat("0123456789abcde\n", 1<<16) // 1 MiB
			out, code, err = p.exec("main", streams{transport: transport, stdin: strings.NewReader(data)}, "cat")
			if err != nil || code != 0 || out != data {
				t.Errorf("1 MiB through cat: code %d, %v, %d bytes back", code, err, len(out))
			}
			out, code, err = p.exec("main", streams{transport: transport, stdin: strings.NewReader(""), tty: true,
				resize: &sizes{{Width: 97, Height: 31}}}, "sh", "-c",
				"while [ \"$(stty size)\" != '31 97' ]; do sleep 0.05; done; tty && stty size")
			if err != nil || code != 0 || !strings.Contains(out, "/dev/pts/") || !strings.Contains(out, "31 97") {
				t.Errorf("with a terminal: code %d, %v, %q", code, err, out)
			}
			if _, _, err := p.exec("main", streams{transport: transport}, "/no/such/program"); err == nil {
				t.Error("a program that is not there was run")
			}
		})
	}
	out, err := p.k.do(t.Context(), http.MethodPost,
		"/run/default/"+p.name+"/main?cmd="+url.QueryEscape("echo synchronous"))
	if err != nil || out != "synchronous\n" {
		t.Errorf("run: %q, %v", out, err)
	}
}

// sizes are the sizes of a terminal, one after the other.
type sizes []remotecommand.TerminalSize

func (s *sizes) Next() *remotecommand.TerminalSize {
	if len(*s) == 0 {
		return nil
	}
	size := (*s)[0]
	*s = (*s)[1:]
	return &size
}

func TestAttachThroughTheKubelet(t *testing.T) {
	t.Parallel()
	for _, transport := range []transport{spdyTransport, webSocketTransport} {
		t.Run(string(transport), func(t *testing.T) {
			c := sh("main", "while read line; do echo got $line; done; sleep 1; exit 3")
			c.Stdin, c.StdinOnce = true, true
			spec := manifest("attach", c)
			spec.Spec.RestartPolicy = v1.RestartPolicyNever
			p := shared(t).run(t, spec)
			p.running()
			ctx, cancel := context.WithTimeout(t.Context(), node.Patience(time.Minute))
			defer cancel()
			var out nodetest.Buffer
			s := streams{transport: transport, stdin: strings.NewReader("one\ntwo\n")}
			if _, err := p.stream(ctx, "attach", "main", s, &out); err != nil {
				t.Fatal(err)
			}
			if got := out.String(); got != "got one\ngot two\n" {
				t.Errorf("the client saw %q", got)
			}
			now := p.ended("Failed")
			if s := status(now, "main"); s.State.Terminated.ExitCode != 3 {
				t.Errorf("it ended with %+v", s.State.Terminated)
			}
			if log, err := p.logs("main", ""); err != nil || log != "got one\ngot two\n" {
				t.Errorf("the log has %q, %v", log, err)
			}
		})
	}
}

func TestPortForwardThroughTheKubelet(t *testing.T) {
	t.Parallel()
	p := shared(t).run(t, manifest("forward", sh("main", serve(8080, "forwarded"))))
	p.running()
	at := &url.URL{Scheme: "https", Host: p.k.address, Path: "/portForward/default/" + p.name}
	config := &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	for _, transport := range []transport{spdyTransport, webSocketTransport} {
		t.Run(string(transport), func(t *testing.T) {
			roundTripper, upgrader, err := spdy.RoundTripperFor(config)
			if err != nil {
				t.Fatal(err)
			}
			dialer := spdy.NewDialer(upgrader, &http.Client{Transport: roundTripper}, http.MethodPost, at)
			if transport == webSocketTransport {
				if dialer, err = portforward.NewSPDYOverWebsocketDialer(at, config); err != nil {
					t.Fatal(err)
				}
			}
			stop, ready := make(chan struct{}), make(chan struct{})
			var said bytes.Buffer
			forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready,
				io.Discard, &said)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- forwarder.ForwardPorts() }()
			select {
			case <-ready:
			case err := <-done:
				t.Fatalf("port-forward: %v", err)
			case <-time.After(node.Patience(20 * time.Second)):
				t.Fatal("port-forward is not ready after 20 s")
			}
			ports, err := forwarder.GetPorts()
			if err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := answers(fmt.Sprintf("http://127.0.0.1:%d/", ports[0].Local), "forwarded"); err != nil {
					t.Error(err)
				}
			}
			close(stop)
			if err := <-done; err != nil && !errors.Is(err, portforward.ErrLostConnectionToPod) {
				t.Error(err)
			}
			if said.Len() > 0 {
				t.Errorf("the client's side says %q", said.String())
			}
		})
	}
}

// answers is nil if a GET of a URL is answered with a text.
func answers(at, text string) error {
	client := &http.Client{Timeout: node.Patience(5 * time.Second), Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: node.Patience(2 * time.Second)}).DialContext,
	}}
	response, err := client.Get(at)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || !strings.Contains(string(body), text) {
		return fmt.Errorf("%s: %s: %q", at, response.Status, body)
	}
	return nil
}
