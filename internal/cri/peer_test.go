package cri

import (
	"net"
	"os"
	"path"
	"path/filepath"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/audit"
)

// TestAStreamsContextSaysWhoCallsAndHasASpan, as that of any other call: commands of 2016's API run in streams.
func TestAStreamsContextSaysWhoCallsAndHasASpan(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)))
	defer otel.SetTracerProvider(before)
	server, err := NewServer(ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var peer *audit.Peer
	var span trace.SpanContext
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "test", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Run", ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
			peer, span = audit.PeerOf(s.Context()), trace.SpanContextFromContext(s.Context())
			return status.Error(codes.NotFound, "there is none")
		}}}}, nil)
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const method = "/test/Run"
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&emptypb.Empty{}); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	server.GracefulStop()
	if peer == nil || peer.PID != uint32(os.Getpid()) {
		t.Errorf("the peer is %+v", peer)
	}
	ended := spans.Ended()
	if len(ended) != 1 || ended[0].Name() != path.Base(method) || ended[0].Status().Description != "there is none" ||
		ended[0].SpanContext().SpanID() != span.SpanID() {
		t.Errorf("the spans are %v, and that of the stream's context is %v", ended, span.SpanID())
	}
}
