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

// door stands between critest, which speaks v1, and a runtime: it calls v1's services by the names of another version that
// has the same messages, and looks into none.
type door struct {
	conn    *grpc.ClientConn
	server  *grpc.Server
	dir     string
	version string
	address string
}

// openDoor listens on a socket of its own in front of the runtime at address.
func openDoor(version, address string) (*door, error) {
	if !strings.Contains(address, "://") {
		address = "unix://" + address
	}
	d := &door{version: version}
	var err error
	if d.conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.ForceCodecV2(raw{}))); err != nil {
		return nil, err
	}
	if d.dir, err = os.MkdirTemp("", "door-"); err != nil {
		return nil, errors.Join(err, d.conn.Close())
	}
	socket := filepath.Join(d.dir, "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(err, d.conn.Close(), os.RemoveAll(d.dir))
	}
	d.address = "unix://" + socket
	d.server = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(d.pass), grpc.MaxRecvMsgSize(64<<20))
	go func() { _ = d.server.Serve(listener) }()
	return d, nil
}

func (d *door) close() error {
	d.server.Stop()
	return errors.Join(d.conn.Close(), os.RemoveAll(d.dir))
}

// pass hands the messages of one call on, in both directions.
func (d *door) pass(_ any, client grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(client)
	if !ok {
		return errors.New("a call without a name")
	}
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	renamed := strings.Replace(method, "/runtime.v1.", "/runtime."+d.version+".", 1)
	runtime, err := d.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, renamed)
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
