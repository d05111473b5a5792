package connection

import (
	"context"
	"fmt"

	images "github.com/containerd/containerd/api/services/images/v1"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"berth/internal/migrate"
)

// ContainerdImages asks a containerd that runs for the names of images in the CRI's namespace.
func ContainerdImages(ctx context.Context, socket string) ([]migrate.Name, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", migrate.Namespace)
	resp, err := images.NewImagesClient(conn).List(ctx, &images.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask containerd on %s for its images: %w", socket, Plain(err))
	}
	var names []migrate.Name
	for _, i := range resp.GetImages() {
		t := i.GetTarget()
		names = append(names, migrate.Name{Name: i.GetName(), Labels: i.GetLabels(), Target: ocispec.Descriptor{
			MediaType: t.GetMediaType(), Digest: digest.Digest(t.GetDigest()), Size: t.GetSize(),
		}})
	}
	return names, nil
}
