package stream

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
)

// forwarder forwards ports for one client's connection, which may ask for many.
type forwarder struct {
	ctx     context.Context
	server  *Server
	sandbox string
	open    sync.WaitGroup // what is forwarded
}

// forwarded is the client's side of a connection to a port of the pod. Reset drops what the client still sends.
type forwarded interface {
	io.ReadWriteCloser
	Reset() error
}

// forward joins a client's stream to a port until one of both is gone. What fails is told to the client.
func (f *forwarder) forward(ctx context.Context, port int32, data forwarded, tell io.Writer) error {
	defer data.Reset()
	stop := context.AfterFunc(ctx, func() { data.Reset() })
	defer stop()
	err := f.server.cfg.Runtime.PortForward(ctx, f.sandbox, port, forwardedConn{data})
	if gone := ctx.Err() != nil && f.ctx.Err() == nil; gone {
		return nil // the client has reset its side
	}
	if err != nil {
		f.server.cfg.Log.DebugContext(ctx, "port-forward", "error", err)
		fmt.Fprintf(tell, "error forwarding port %d to pod %s: %v", port, f.sandbox, err)
	}
	return err
}

// forwardedConn is what the runtime gets. CloseWrite tells the client that the pod has said all; the client's words
// still come until it ends them. Close ends both directions.
type forwardedConn struct{ forwarded }

// CloseWrite ends our direction. A WebSocket channel cannot say so, its client learns it by Close.
func (c forwardedConn) CloseWrite() error {
	if _, ok := c.forwarded.(*spdyStream); !ok {
		return nil
	}
	return c.forwarded.Close()
}

func (c forwardedConn) Close() error {
	err := c.forwarded.Close()
	_ = c.forwarded.Reset()
	return err
}

// portOf is the port that a client names.
func portOf(text string) (int32, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no port", text)
	}
	return int32(n), nil
}
