package berthv1

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	api "berth/api/berth/v1"
)

// Load imports an archive from the messages of the client. What is imported when it fails stays.
func (s *service) Load(stream grpc.ClientStreamingServer[api.LoadRequest, api.LoadResponse]) error {
	first, err := stream.Recv()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	ctx := stream.Context()
	list, err := s.images.ImportArchive(ctx, &archiveReader{stream: stream, rest: first.GetData()})
	if err != nil {
		return err
	}
	out := &api.LoadResponse{}
	seen := map[string]bool{}
	for _, img := range list {
		if seen[img.ID] {
			continue
		}
		seen[img.ID] = true
		if first.GetPin() {
			if err := s.images.Pin(ctx, img.ID, true); err != nil {
				return err
			}
		}
		if img, err = s.images.Get(ctx, img.ID); err != nil {
			return err
		}
		out.Images = append(out.Images, &api.LoadedImage{Id: img.ID, Names: img.RepoTags})
	}
	return stream.SendAndClose(out)
}

// archiveReader reads the bytes that messages carry.
type archiveReader struct {
	stream grpc.ClientStreamingServer[api.LoadRequest, api.LoadResponse]
	rest   []byte
}

func (r *archiveReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.stream.Recv()
		if err != nil {
			return 0, err
		}
		r.rest = m.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Tag gives an image one more name.
func (s *service) Tag(ctx context.Context, req *api.TagRequest) (*api.TagResponse, error) {
	name, err := s.images.Tag(ctx, req.GetImage(), req.GetName())
	if err != nil {
		return nil, err
	}
	return &api.TagResponse{Name: name}, nil
}

// Untag takes a name away from an image that has others.
func (s *service) Untag(ctx context.Context, req *api.UntagRequest) (*api.UntagResponse, error) {
	name, err := s.images.Untag(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return &api.UntagResponse{Name: name}, nil
}

// Pin says whether clients that free disk space should spare an image.
func (s *service) Pin(ctx context.Context, req *api.PinRequest) (*api.PinResponse, error) {
	return &api.PinResponse{}, s.images.Pin(ctx, req.GetImage(), req.GetPinned())
}
