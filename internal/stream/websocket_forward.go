package stream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// forwardProtocols are those that forward ports in channels: an older way, for which the request names the ports.
var forwardProtocols = []string{remotecommand.StreamProtocolV4Name, "v4." + wsstream.Base64ChannelWebSocketProtocol}

// maxForwardPorts is how many pairs of channels the number of a channel has room for.
const maxForwardPorts = 127

// serveChannels forwards for a WebSocket client. Each port has a channel for data and one for errors. Both begin with
// the port's number, in two bytes with the lower one first. It returns when the connection is closed.
func (f *forwarder) serveChannels(w http.ResponseWriter, req *http.Request, ports []int32) {
	if len(ports) > maxForwardPorts {
		http.Error(w, fmt.Sprintf("%d ports, of at most %d", len(ports), maxForwardPorts), http.StatusBadRequest)
		return
	}
	c := f.server.openChannels(w, req, forwardProtocols)
	if c == nil {
		return
	}
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	c.idle = time.AfterFunc(f.server.cfg.IdleTimeout, func() {
		cancel()
		c.conn.Close()
	})
	go c.pongs.send(ctx)

	data := make([]*forwardChannel, len(ports))
	for i := range ports {
		in, feed := io.Pipe()
		data[i] = &forwardChannel{channel: channel{c, byte(2 * i)}, in: in, feed: feed}
	}
	read := make(chan struct{})
	defer func() {
		c.conn.Close()
		<-read
		c.idle.Stop() // the reader has set it again with each message
	}()
	go func() {
		defer close(read)
		defer cancel()
		for {
			number, message, err := c.next()
			if err != nil {
				return
			}
			if i := int(number) / 2; number%2 == 0 && i < len(data) {
				io.Copy(data[i].feed, message) // nobody reads it any more: the rest is skipped by next
			}
		}
	}()
	for i, port := range ports {
		begin := binary.LittleEndian.AppendUint16(nil, uint16(port))
		failure := channel{c, byte(2*i + 1)}
		if errors.Join(c.send(data[i].number, begin), c.send(failure.number, begin)) != nil {
			break
		}
		f.open.Go(func() { _ = f.forward(ctx, port, data[i], failure) })
	}
	f.open.Wait()
	for _, d := range data { // the reader may wait for one that was not forwarded
		_ = d.Reset()
	}
	c.goodbye()
	select {
	case <-read: // the client has closed its side too
	case <-time.After(closeGrace):
	case <-ctx.Done():
	}
}

// forwardChannel is the client's side of a connection to a port.
type forwardChannel struct {
	channel
	in   *io.PipeReader
	feed *io.PipeWriter
}

func (c *forwardChannel) Read(p []byte) (int, error) { return c.in.Read(p) }

// Close is for the end of the connection: a channel cannot be ended alone.
func (c *forwardChannel) Close() error { return c.Reset() }

// Reset has the client's words dropped, and lets nobody wait for them.
func (c *forwardChannel) Reset() error { return errors.Join(c.feed.Close(), c.in.Close()) }
