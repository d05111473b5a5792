package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// proxy stands between critest, which speaks v1, and a runtime: it calls v1's services by the names of another version
// that has the same messages, and looks into none.
type proxy struct {
	conn    *grpc.ClientConn
	server  *grpc.Server
	dir     string
	version string
	address string
}

// openProxy listens on a socket of its own in front of the runtime at address.
func openProxy(version, address string) (*proxy, error) {
	if !strings.Contains(address, "://") {
		address = "unix://" + address
	}
	p := &proxy{version: version}
	var err error
	if p.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.ForceCodecV2(raw{}))); err != nil {
		return nil, err
	}
	if p.dir, err = os.MkdirTemp("", "proxy-"); err != nil {
		return nil, errors.Join(err, p.conn.Close())
	}
	socket := filepath.Join(p.dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(err, p.conn.Close(), os.RemoveAll(p.dir))
	}
	p.address = "unix://" + socket
	p.server = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(p.pass),
		grpc.MaxRecvMsgSize(64<<20))
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

func (p *proxy) close() error {
	p.server.Stop()
	return errors.Join(p.conn.Close(), os.RemoveAll(p.dir))
}

// pass hands the messages of one call on, in both directions.
func (p *proxy) pass(_ any, client grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(client)
	if !ok {
		return errors.New("a call without a name")
	}
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	renamed := strings.Replace(method, "/runtime.v1.", "/runtime."+p.version+".", 1)
	runtime, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, renamed)
	if err != nil {
		return err
	}
	go func() {
		for {
			var m mem.BufferSlice
			if err := client.RecvMsg(&m); err != nil {
				if err == io.EOF {
					_ = runtime.CloseSend()
				} else {
					cancel()
				}
				return
			}
			if err := runtime.SendMsg(&m); err != nil {
				return // its answer tells why
			}
		}
	}()
	header, err := runtime.Header()
	if err == nil {
		err = client.SendHeader(header)
	}
	for err == nil {
		var m mem.BufferSlice
		if err = runtime.RecvMsg(&m); err == nil {
			err = client.SendMsg(&m)
		}
	}
	client.SetTrailer(runtime.Trailer())
	if err == io.EOF {
		return nil
	}
	return err
}

// raw is a codec that leaves messages as they are.
type raw struct{}

var _ encoding.CodecV2 = raw{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*mem.BufferSlice)
	if !ok {
		return nil, fmt.Errorf("a message of type %T", v)
	}
	return *m, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*mem.BufferSlice)
	if !ok {
		return fmt.Errorf("a message of type %T", v)
	}
	data.Ref() // the caller lets go of it
	*m = data
	return nil
}
