package cri

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// stopFixture is a server with a subscription, which sends until the client has no room for more, and with a call that
// takes as long as the test wants.
type stopFixture struct {
	server *grpc.Server
	calls  InFlight
	conn   *grpc.ClientConn
	full   chan struct{} // closed when the subscription has sent what it has
	called chan struct{}
	end    chan struct{} // lets the call end
}

func newStopFixture(t *testing.T) *stopFixture {
	f := &stopFixture{full: make(chan struct{}), called: make(chan struct{}), end: make(chan struct{})}
	var err error
	if f.server, err = NewServer(ServerConfig{InFlight: &f.calls}); err != nil {
		t.Fatal(err)
	}
	f.server.RegisterService(&grpc.ServiceDesc{ServiceName: "berth.v1.Audit", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Follow", ServerStreams: true, Handler: f.follow}},
		Methods: []grpc.MethodDesc{{MethodName: "Long", Handler: func(_ any, ctx context.Context, decode func(any) error,
			intercept grpc.UnaryServerInterceptor,
		) (any, error) {
			var in emptypb.Empty
			if err := decode(&in); err != nil {
				return nil, err
			}
			return intercept(ctx, &in, &grpc.UnaryServerInfo{FullMethod: "/berth.v1.Audit/Long"},
				func(context.Context, any) (any, error) {
					close(f.called)
					<-f.end
					return &emptypb.Empty{}, nil
				})
		}}},
	}, nil)
	path := filepath.Join(t.TempDir(), "s")
	listener, err := Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = f.server.Serve(listener) }()
	t.Cleanup(f.server.Stop)
	f.conn, err = grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.conn.Close() })
	return f
}

func (f *stopFixture) follow(_ any, s grpc.ServerStream) error {
	time.AfterFunc(200*time.Millisecond, func() { close(f.full) })
	for range 100 {
		if err := s.SendMsg(wrapperspb.Bytes(make([]byte, 64<<10))); err != nil {
			return err
		}
	}
	return nil
}

// TestASubscriberWhoNeverReadsDoesNotHoldAStop was seen to fail where Follow is no subscription.
func TestASubscriberWhoNeverReadsDoesNotHoldAStop(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t)
	_, err := f.conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/berth.v1.Audit/Follow")
	if err != nil {
		t.Fatal(err)
	}
	<-f.full
	begin := time.Now()
	Stop(f.server, &f.calls, time.Minute)
	if took := time.Since(begin); took < linger || took > time.Minute/2 {
		t.Errorf("it took %v", took)
	}
}

func TestAStopWaitsForCallsForItsPatience(t *testing.T) {
	t.Parallel()
	for patience, want := range map[time.Duration]bool{time.Minute: true, 100 * time.Millisecond: false} {
		f := newStopFixture(t)
		done := make(chan error, 1)
		go func() {
			done <- f.conn.Invoke(t.Context(), "/berth.v1.Audit/Long", &emptypb.Empty{}, &emptypb.Empty{})
		}()
		<-f.called
		time.AfterFunc(linger+300*time.Millisecond, func() { close(f.end) })
		Stop(f.server, &f.calls, patience)
		if err := <-done; (err == nil) != want {
			t.Errorf("patience %v: %v", patience, err)
		}
	}
}
