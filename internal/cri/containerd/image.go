package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	content "github.com/containerd/containerd/api/services/content/v1"
	api "github.com/containerd/containerd/api/services/images/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/model"
)

// Labels that containerd's CRI plugin gives to an image. Pinned images have one more.
const (
	managedLabel = "io.cri-containerd.image"
	pinnedLabel  = "io.cri-containerd.pinned"
)

type imageService struct {
	api.UnimplementedImagesServer
	api *API
}

// Get finds an image by one of its names: a tag, a digest of a repository, or the ID.
func (s *imageService) Get(ctx context.Context, req *api.GetImageRequest) (*api.GetImageResponse, error) {
	in, err := inNamespace(ctx)
	if err != nil {
		return nil, err
	}
	if in {
		image, err := s.api.Images.Get(ctx, req.Name)
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		if err == nil && slices.Contains(imageRefs(image), req.Name) {
			return &api.GetImageResponse{Image: s.describe(image, req.Name)}, nil
		}
	}
	return nil, fmt.Errorf("image %q: %w", req.Name, errdefs.ErrNotFound)
}

// List are all images, each under all of its names.
func (s *imageService) List(ctx context.Context, req *api.ListImagesRequest) (*api.ListImagesResponse, error) {
	resp := &api.ListImagesResponse{}
	in, err := inNamespace(ctx)
	if err != nil || !in {
		return resp, err
	}
	filter, err := filters.ParseAll(req.Filters...)
	if err != nil {
		return nil, err
	}
	list, err := s.api.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, image := range list {
		for _, name := range imageRefs(image) {
			out := s.describe(image, name)
			match := fields{"name": name, "target.digest": out.Target.Digest, "target.mediatype": out.Target.MediaType}
			if filter.Match(labeled{match, out.Labels}) {
				resp.Images = append(resp.Images, out)
			}
		}
	}
	return resp, nil
}

// imageRefs are the names that containerd's CRI plugin has an image under.
func imageRefs(image *model.Image) []string {
	return append(slices.Concat(image.RepoTags, image.RepoDigests), image.ID)
}

// imageLabels are the labels of an image; nil: it is gone.
func imageLabels(image *model.Image) map[string]string {
	labels := map[string]string{managedLabel: "managed"}
	if image != nil && image.Pinned {
		labels[pinnedLabel] = "pinned"
	}
	return labels
}

func (s *imageService) describe(image *model.Image, name string) *api.Image {
	target := &types.Descriptor{Digest: image.Manifest, MediaType: ocispec.MediaTypeImageManifest}
	if data, err := s.api.Images.Document(image.Manifest); err == nil {
		target.Size = int64(len(data))
		target.MediaType = mediaType(data, target.MediaType)
	}
	return &api.Image{Name: name, Labels: imageLabels(image), Target: target}
}

// mediaType is what a manifest says of itself. Those of OCI need not.
func mediaType(manifest []byte, otherwise string) string {
	var m struct {
		MediaType string `json:"mediaType"`
	}
	if json.Unmarshal(manifest, &m) != nil || m.MediaType == "" {
		return otherwise
	}
	return m.MediaType
}

// contentService has manifests and configurations of images. Layers are unpacked and kept in no other form.
type contentService struct {
	content.UnimplementedContentServer
	api *API
}

func (s *contentService) document(ctx context.Context, digest string) ([]byte, error) {
	in, err := inNamespace(ctx)
	if err != nil {
		return nil, err
	}
	if !in {
		return nil, fmt.Errorf("content %s: %w", digest, errdefs.ErrNotFound)
	}
	return s.api.Images.Document(digest)
}

// Info is the size of a manifest or a configuration.
func (s *contentService) Info(ctx context.Context, req *content.InfoRequest) (*content.InfoResponse, error) {
	data, err := s.document(ctx, req.Digest)
	if err != nil {
		return nil, err
	}
	return &content.InfoResponse{Info: &content.Info{Digest: req.Digest, Size: int64(len(data))}}, nil
}

// readChunk is the size of a message of Read: gRPC's clients take 4 MiB at the most.
const readChunk = 1 << 20

// Read is a manifest or a configuration, or a part of it.
func (s *contentService) Read(req *content.ReadContentRequest, stream content.Content_ReadServer) error {
	data, err := s.document(stream.Context(), req.Digest)
	if err != nil {
		return err
	}
	size, offset := int64(len(data)), max(req.Offset, 0)
	if offset > size || req.Size < 0 || req.Size > size-offset {
		return fmt.Errorf("content %s has %d bytes, not %d from %d on: %w", req.Digest, size, req.Size, offset,
			errdefs.ErrOutOfRange)
	}
	end := size
	if req.Size > 0 {
		end = offset + req.Size
	}
	for ; offset < end; offset += readChunk {
		part := data[offset:min(offset+readChunk, end)]
		if err := stream.Send(&content.ReadContentResponse{Offset: offset, Data: part}); err != nil {
			return err
		}
	}
	return nil
}

// List are the manifests and configurations of all images.
func (s *contentService) List(req *content.ListContentRequest, stream content.Content_ListServer) error {
	in, err := inNamespace(stream.Context())
	if err != nil || !in {
		return err
	}
	filter, err := filters.ParseAll(req.Filters...)
	if err != nil {
		return err
	}
	list, err := s.api.Images.List(stream.Context())
	if err != nil {
		return err
	}
	var infos []*content.Info
	for _, image := range list {
		for _, digest := range []string{image.Manifest, image.ID} {
			data, err := s.api.Images.Document(digest)
			if err == nil && filter.Match(fields{"digest": digest, "size": fmt.Sprint(len(data))}) {
				infos = append(infos, &content.Info{Digest: digest, Size: int64(len(data))})
			}
		}
	}
	return stream.Send(&content.ListContentResponse{Info: infos})
}

// ListStatuses is empty: nothing is written through this API.
func (*contentService) ListStatuses(
	context.Context, *content.ListStatusesRequest,
) (*content.ListStatusesResponse, error) {
	return &content.ListStatusesResponse{}, nil
}
