package connection

import (
	"context"

	version "github.com/containerd/containerd/api/services/version/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// ContainerdVersion is the version that containerd, or who answers for it on a socket, says of itself.
func ContainerdVersion(ctx context.Context, socket string) (string, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	resp, err := version.NewVersionClient(conn).Version(ctx, &emptypb.Empty{})
	return resp.GetVersion(), err
}
