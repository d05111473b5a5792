package cri

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// A socket that somebody removes, alone or with its directory, is there again within seconds, and calls on connections
// from before go on. Seen to fail with Serve of the gRPC server alone.
func TestARemovedSocketIsPutBack(t *testing.T) {
	t.Parallel() // it waits for ticks of the server
	dir := filepath.Join(t.TempDir(), "run")
	path := filepath.Join(dir, "berthd.sock")
	listener, err := Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	served := make(chan error, 1)
	go func() { served <- Serve(server, listener, path, -1, slog.New(slog.NewTextHandler(io.Discard, nil))) }()
	dial := func() *grpc.ClientConn {
		conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	answers := func(conn *grpc.ClientConn) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return status.Code(conn.Invoke(ctx, "/none/none", &emptypb.Empty{}, &emptypb.Empty{})) == codes.Unimplemented
	}
	until := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	first := dial()
	if !answers(first) {
		t.Fatal("no answer at first")
	}
	for _, gone := range []string{path, dir} {
		if err := os.RemoveAll(gone); err != nil {
			t.Fatal(err)
		}
		if !answers(first) {
			t.Errorf("without %s a connection from before is lost", gone)
		}
		until("it is not put back", func() bool { return answers(dial()) })
	}

	// Another's is left alone, until it goes.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(2*socketCheck + time.Second)
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Accept(); err != nil {
		t.Errorf("the other's socket was taken away: %v", err)
	}
	conn.Close()
	other.Close()
	until("it is not put back behind another's", func() bool { return answers(dial()) })

	server.Stop()
	if err := <-served; err != nil {
		t.Errorf("the end: %v", err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket stays behind: %v", err)
	}
}

// A server that stops has closed its socket, and waits for a call: nobody has removed it from outside. Seen to fail
// where it was put back each two seconds until the call had ended.
func TestTheSocketOfAServerThatStopsIsGone(t *testing.T) {
	t.Parallel() // it waits for ticks of the server
	path := filepath.Join(t.TempDir(), "berthd.sock")
	listener, err := Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	called, end := make(chan struct{}), make(chan struct{})
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		close(called)
		<-end
		return nil
	}))
	var said bytes.Buffer
	served := make(chan error, 1)
	go func() { served <- Serve(server, listener, path, -1, slog.New(slog.NewTextHandler(&said, nil))) }()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _ = conn.Invoke(context.Background(), "/none/none", &emptypb.Empty{}, &emptypb.Empty{}) }()
	<-called
	stopped := make(chan struct{})
	go func() {
		server.GracefulStop()
		close(stopped)
	}()
	time.Sleep(2*socketCheck + time.Second)
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is there: %v", err)
	}
	close(end)
	<-stopped
	if err := <-served; err != nil || said.Len() > 0 {
		t.Errorf("the end: %v; it says %s", err, said.String())
	}
}
