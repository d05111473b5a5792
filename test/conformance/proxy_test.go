package main

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// behind is a runtime that answers under the names of v1alpha2 alone.
type behind struct {
	api.UnimplementedRuntimeServiceServer
}

func (behind) Version(context.Context, *api.VersionRequest) (*api.VersionResponse, error) {
	return &api.VersionResponse{RuntimeName: "behind"}, nil
}

func (behind) RemoveContainer(context.Context, *api.RemoveContainerRequest) (*api.RemoveContainerResponse, error) {
	return nil, status.Error(codes.NotFound, "no such container")
}

func (behind) StreamContainers(_ *api.StreamContainersRequest,
	out grpc.ServerStreamingServer[api.StreamContainersResponse]) error {
	for range 3 {
		if err := out.Send(&api.StreamContainersResponse{Containers: []*api.Container{{Id: "c"}}}); err != nil {
			return err
		}
	}
	return nil
}

func TestTheProxyRenamesCallsAndKeepsTheirErrors(t *testing.T) {
	server := grpc.NewServer()
	desc := api.RuntimeService_ServiceDesc
	desc.ServiceName = "runtime.v1alpha2.RuntimeService"
	server.RegisterService(&desc, behind{})
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	d, err := openProxy("v1alpha2", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient(d.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := api.NewRuntimeServiceClient(conn)
	if v, err := client.Version(t.Context(), &api.VersionRequest{}); err != nil || v.RuntimeName != "behind" {
		t.Errorf("%v, %v", v, err)
	}
	if _, err := client.RemoveContainer(t.Context(),
		&api.RemoveContainerRequest{ContainerId: "c"}); status.Code(err) != codes.NotFound {
		t.Errorf("%v", err)
	}
	stream, err := client.StreamContainers(t.Context(), &api.StreamContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		got += len(m.Containers)
	}
	if got != 3 {
		t.Errorf("%d of 3 items came", got)
	}
}
