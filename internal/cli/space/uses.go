package space

import (
	"cmp"
	"context"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

// Uses is which containers use which images.
type Uses struct {
	made    map[string]*lookup.Container // by the reference of what they are made of; a name may be another image's by now
	mounted map[string]*lookup.Container // by the references of their volumes, which may be names
}

// ReadUses asks what containers are made of, and for the images that are their volumes: without one of these a
// container could not be started again.
func ReadUses(ctx context.Context, runtime cri.RuntimeServiceClient, containers []*lookup.Container) (*Uses, error) {
	u := &Uses{made: map[string]*lookup.Container{}, mounted: map[string]*lookup.Container{}}
	for _, c := range containers {
		for _, ref := range []string{c.GetImageId(), c.GetImageRef(), c.GetImage().GetImage()} {
			u.made[ref] = c
		}
		response, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
		if connection.Code(err) == codes.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, connection.Plain(err)
		}
		for _, mount := range response.GetStatus().GetMounts() {
			u.mounted[mount.GetImage().GetImage()] = c
		}
	}
	return u, nil
}

// Of is a container that uses an image; nil: there is none.
func (u *Uses) Of(image *cri.Image) *lookup.Container {
	for _, ref := range append([]string{image.GetId()}, image.GetRepoDigests()...) {
		if c := cmp.Or(u.made[ref], u.mounted[ref]); c != nil {
			return c
		}
	}
	for _, name := range image.GetRepoTags() {
		if c := u.mounted[name]; c != nil {
			return c
		}
	}
	return nil
}
