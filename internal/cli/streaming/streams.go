package streaming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
	remoteproto "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// ExitError is a command that ended with another exit code than 0.
type ExitError struct{ Code int }

func (e *ExitError) Error() string { return fmt.Sprintf("the command ended with exit code %d", e.Code) }

// ErrClosed is a connection that ended before the runtime had said how the command or the container went.
var ErrClosed = errors.New("the runtime closed the connection: it may have been stopped or restarted")

// Session is one exec or attach.
type Session struct {
	// URL asks the runtime for the address of the session. Each is good for one try.
	URL            func(ctx context.Context) (string, error)
	Stdin          io.Reader // nil: none
	Stdout, Stderr io.Writer // Stderr is nil with a terminal
	TTY            bool
	// StdinEnds: the end of Stdin means something to the command (it is a pipe or a file). WebSocket before version 5
	// of the protocol cannot tell it, so SPDY is used.
	StdinEnds bool
	Sizes     remotecommand.TerminalSizeQueue
}

// OutputError means that the output of a session could not be written.
type OutputError struct{ Err error }

func (e *OutputError) Error() string { return e.Err.Error() }

func (e *OutputError) Unwrap() error { return e.Err }

// output is an output of a session. client-go takes what cannot be written for written, and the session would go on.
type output struct {
	io.Writer
	fail context.CancelCauseFunc // ends the session
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if err != nil {
		o.fail(&OutputError{err})
	}
	return n, err
}

// Run runs the session until it ends. The error is *ExitError where the command ended with another code than 0,
// *OutputError where its output cannot be written, and ErrClosed where the connection ended before that.
func (s *Session) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	err := s.stream(ctx, fail, s.StdinEnds)
	if err != nil && !s.StdinEnds && httpstream.IsUpgradeFailure(err) {
		err = s.stream(ctx, fail, true)
	}
	var unwritten *OutputError
	if errors.As(context.Cause(ctx), &unwritten) {
		return unwritten
	}
	var exit utilexec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return &ExitError{Code: exit.ExitStatus()}
	}
	if errors.Is(err, io.EOF) {
		return ErrClosed
	}
	if err != nil {
		// Over WebSocket the stream that would have brought the result ends with an error: code 1006, or a reset.
		if ctx.Err() == nil && strings.HasPrefix(err.Error(), "error reading from error stream: ") {
			return ErrClosed
		}
		// The streaming server's own words before those of the runtime.
		if text, ok := strings.CutPrefix(err.Error(), "Internal error occurred: "); ok {
			return errors.New(text)
		}
	}
	return err
}

// ClientConfig is how to reach a streaming address of the runtime: without credentials and without a proxy, since the
// address is the node's own. client-go would take the proxy of the environment if nothing were said.
func ClientConfig(address *url.URL) *restclient.Config {
	return &restclient.Config{
		Host:            address.Scheme + "://" + address.Host,
		TLSClientConfig: restclient.TLSClientConfig{Insecure: address.Scheme == "https"},
		Proxy:           func(*http.Request) (*url.URL, error) { return nil, nil },
	}
}

func (s *Session) stream(ctx context.Context, fail context.CancelCauseFunc, spdy bool) error {
	address, err := s.URL(ctx)
	if err != nil {
		return err
	}
	parsed, err := url.Parse(address)
	if err != nil {
		return fmt.Errorf("the runtime's streaming address: %w", err)
	}
	config := ClientConfig(parsed)
	var executor remotecommand.Executor
	if spdy {
		executor, err = newSPDYExecutor(config, parsed)
	} else {
		executor, err = remotecommand.NewWebSocketExecutorForProtocols(config, "GET", address,
			remoteproto.StreamProtocolV5Name, remoteproto.StreamProtocolV4Name)
	}
	if err != nil {
		return err
	}
	options := remotecommand.StreamOptions{Stdin: s.Stdin, Tty: s.TTY, TerminalSizeQueue: s.Sizes}
	if s.Stdout != nil {
		options.Stdout = &output{s.Stdout, fail}
	}
	if s.Stderr != nil {
		options.Stderr = &output{s.Stderr, fail}
	}
	return executor.StreamWithContext(ctx, options)
}
