package berthv1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	api "berth/api/berth/v1"
	"berth/internal/cri"
	"berth/internal/image"
	"berth/internal/model"
)

// pull is a store of one function.
type pull func(context.Context, image.PullRequest) (*model.Image, error)

func (pull) ImportArchive(context.Context, io.Reader) ([]*model.Image, error) { panic("not asked for") }
func (pull) Get(context.Context, string) (*model.Image, error)                { panic("not asked for") }
func (pull) List(context.Context) ([]*model.Image, error)                     { panic("not asked for") }
func (pull) LayerUsage(string) []model.LayerUsage                             { panic("not asked for") }
func (pull) Tag(context.Context, string, string) (string, error)              { panic("not asked for") }
func (pull) Untag(context.Context, string) (string, error)                    { panic("not asked for") }
func (pull) Pin(context.Context, string, bool) error                          { panic("not asked for") }

func (p pull) Pull(ctx context.Context, req image.PullRequest) (*model.Image, error) {
	return p(ctx, req)
}

// dial serves images on a socket and connects to it.
func dial(t *testing.T, images Images) api.ImagesClient {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server, err := cri.NewServer(cri.ServerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	Register(server, Deps{Images: images})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return api.NewImagesClient(conn)
}

func TestAPullTellsTheLatestOfEachLayerThenIsDone(t *testing.T) {
	client := dial(t, pull(func(_ context.Context, req image.PullRequest) (*model.Image, error) {
		if req.Ref != "i" || req.Auth.Password != "p" {
			return nil, errors.New("another request")
		}
		for offset := range int64(1001) { // more than anybody reads
			req.Progress(model.PullProgress{Layer: "a", Phase: model.PullLoading, Done: offset, Total: 1000})
		}
		req.Progress(model.PullProgress{Layer: "b", Phase: model.PullPresent, Done: 5, Total: 5})
		req.Progress(model.PullProgress{Layer: "a", Phase: model.PullDone, Done: 1000, Total: 1000})
		return &model.Image{ID: "sha256:1"}, nil
	}))
	stream, err := client.Pull(context.Background(), &api.PullRequest{Image: "i", Auth: &api.Auth{Password: "p"}})
	if err != nil {
		t.Fatal(err)
	}
	last := map[string]*api.Layer{}
	for {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if layer := event.GetLayer(); layer != nil {
			if before := last[layer.Digest]; before != nil && before.Offset > layer.Offset {
				t.Errorf("%s went back from %d to %d", layer.Digest, before.Offset, layer.Offset)
			}
			last[layer.Digest] = layer
			continue
		}
		if event.GetDone().GetImageRef() != "sha256:1" {
			t.Errorf("got %v", event)
		}
		break
	}
	if last["a"].GetPhase() != api.Phase_PHASE_DONE || last["b"].GetPhase() != api.Phase_PHASE_EXISTS {
		t.Errorf("got %v", last)
	}
	if _, err := stream.Recv(); err != io.EOF {
		t.Errorf("after the end: %v", err)
	}
}

func TestAPullThatFailsHasItsCode(t *testing.T) {
	client := dial(t, pull(func(context.Context, image.PullRequest) (*model.Image, error) {
		return nil, fmt.Errorf("image i: %w", errdefs.ErrNotFound)
	}))
	for ref, want := range map[string]codes.Code{"i": codes.NotFound, "": codes.InvalidArgument} {
		stream, err := client.Pull(context.Background(), &api.PullRequest{Image: ref})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); status.Code(err) != want {
			t.Errorf("%q: %v", ref, err)
		}
	}
}

func TestAClientThatLeavesEndsItsPull(t *testing.T) {
	ended := make(chan error, 1)
	client := dial(t, pull(func(ctx context.Context, req image.PullRequest) (*model.Image, error) {
		req.Progress(model.PullProgress{Layer: "a", Phase: model.PullLoading})
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}))
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := client.Pull(ctx, &api.PullRequest{Image: "i"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(40 * time.Second):
		t.Fatal("the pull goes on")
	}
}
