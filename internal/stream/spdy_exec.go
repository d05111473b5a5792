package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/moby/spdystream/spdy"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	utilexec "k8s.io/utils/exec"
)

const (
	streamType    = remotecommand.StreamType
	portHeader    = "port"
	requestHeader = "requestID"
)

// execStreams are the kinds of streams that a client of an exec or attach opens, each once.
var execStreams = []string{remotecommand.StreamTypeError, remotecommand.StreamTypeStdin, remotecommand.StreamTypeStdout,
	remotecommand.StreamTypeStderr, remotecommand.StreamTypeResize}

// resizeMost bounds how long the JSON of a terminal's size may be, in bytes.
const resizeMost = 4 << 10

// serveSPDY joins the streams of a SPDY client to run. act is what errors say has failed.
func (s *Server) serveSPDY(w http.ResponseWriter, req *http.Request, session executor, act string,
	run func(streams) error) {
	protocol, err := httpstream.Handshake(req, w, remotecommand.SupportedStreamingProtocols)
	if err != nil {
		s.cfg.Log.DebugContext(session.ctx, "SPDY", "error", err) // the client has the answer
		return
	}
	wanted := wantedStreams(session.wanted, protocol)
	seen := map[string]bool{} // the connection's reader's
	c := s.upgradeSPDY(w, req, s.cfg.IdleTimeout+s.lastWords, len(execStreams),
		func(_ spdy.StreamId, header http.Header) (reads, ok bool) {
			kind := header.Get(streamType)
			if seen[kind] || !slices.Contains(execStreams, kind) {
				return false, false
			}
			seen[kind] = true
			input := kind == remotecommand.StreamTypeStdin || kind == remotecommand.StreamTypeResize
			return input && slices.Contains(wanted, kind), true
		})
	if c == nil {
		return
	}
	defer c.close()
	opened, err := c.acceptAll(session.ctx, wanted, s.cfg.CreationTimeout)
	if err != nil {
		s.cfg.Log.DebugContext(session.ctx, "SPDY", "error", err)
		return
	}
	st := streams{}
	// A nil *spdyStream would be an interface that is not nil.
	if in := opened[remotecommand.StreamTypeStdin]; in != nil {
		st.stdin = in
		if protocol == remotecommand.StreamProtocolV1Name {
			_ = in.Close() // its clients wait for that
		}
	}
	if out := opened[remotecommand.StreamTypeStdout]; out != nil {
		st.stdout = out
	}
	if errOut := opened[remotecommand.StreamTypeStderr]; errOut != nil {
		st.stderr = errOut
	}
	if sizes := opened[remotecommand.StreamTypeResize]; sizes != nil {
		st.resize = readSizes(session.ctx, sizes)
	}
	err = run(st)
	var exit utilexec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.Exited()) {
		err = fmt.Errorf("error %s container: %w", act, err)
	}
	_, _ = opened[remotecommand.StreamTypeError].Write(status(protocol, err))
}

// status is what a client reads from the error stream. Up to v3 it is a text that is empty after a success.
func status(protocol string, err error) []byte {
	result := outcome(err)
	if protocol != remotecommand.StreamProtocolV4Name {
		return []byte(result.Message)
	}
	data, _ := json.Marshal(result)
	return data
}

// wantedStreams are the kinds that a client has to open.
func wantedStreams(wanted Wanted, protocol string) []string {
	kinds := []string{remotecommand.StreamTypeError}
	if wanted.Stdin {
		kinds = append(kinds, remotecommand.StreamTypeStdin)
	}
	if wanted.Stdout {
		kinds = append(kinds, remotecommand.StreamTypeStdout)
	}
	if wanted.Stderr {
		kinds = append(kinds, remotecommand.StreamTypeStderr)
	}
	if wanted.TTY && (protocol == remotecommand.StreamProtocolV3Name || protocol == remotecommand.StreamProtocolV4Name) {
		kinds = append(kinds, remotecommand.StreamTypeResize)
	}
	return kinds
}

// acceptAll waits until the client has opened all streams that are wanted, by their kinds.
func (c *spdyConn) acceptAll(ctx context.Context, wanted []string,
	patience time.Duration) (map[string]*spdyStream, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	opened := map[string]*spdyStream{}
	for missing := len(wanted); missing > 0; {
		s := c.accept(ctx)
		if s == nil {
			return nil, fmt.Errorf("the client has gone, or has not opened all streams in %v", patience)
		}
		if slices.Contains(wanted, s.kind) {
			opened[s.kind] = s
			missing--
		}
	}
	return opened, nil
}

// readSizes decodes the sizes of a terminal until the stream or ctx ends.
func readSizes(ctx context.Context, from io.Reader) <-chan remotecommand.TerminalSize {
	sizes := make(chan remotecommand.TerminalSize)
	go func() {
		defer close(sizes)
		bounded := &io.LimitedReader{R: from}
		decoder := json.NewDecoder(bounded)
		for {
			bounded.N = resizeMost
			var size remotecommand.TerminalSize
			if decoder.Decode(&size) != nil {
				_, _ = io.Copy(io.Discard, from)
				return
			}
			select {
			case sizes <- size:
			case <-ctx.Done():
				return
			}
		}
	}()
	return sizes
}
