package cri

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// TestCallsThatWaitDelayNoOther: all workers wait, and further calls begin. It was seen to fail with
// grpc.MaxConcurrentStreams(workers).
func TestCallsThatWaitDelayNoOther(t *testing.T) {
	server, err := NewServer(ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	begun, end := make(chan struct{}, 3*workers), make(chan struct{})
	method := func(name string, wait bool) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(
			_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor,
		) (any, error) {
			if wait {
				begun <- struct{}{}
				<-end
			}
			return &emptypb.Empty{}, decode(&emptypb.Empty{})
		}}
	}
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "test", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{method("Wait", true), method("Answer", false)}}, struct{}{})
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var calls sync.WaitGroup
	defer calls.Wait()
	defer close(end)
	for range 3 * workers {
		calls.Go(func() {
			if err := conn.Invoke(context.Background(), "/test/Wait", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
				t.Error(err)
			}
		})
	}
	for i := range 3 * workers {
		select {
		case <-begun:
		case <-ctx.Done():
			t.Fatalf("%d calls wait, and no further one begins", i)
		}
	}
	if err := conn.Invoke(ctx, "/test/Answer", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
		t.Error(err)
	}
}
