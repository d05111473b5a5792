package v1

import (
	"context"
	"encoding/json"

	"github.com/containerd/errdefs"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *imageService) ImageStatus(ctx context.Context, req *api.ImageStatusRequest) (*api.ImageStatusResponse, error) {
	c := newCheck(s.dialect, req)
	spec := toImageSpec(c, "image", req.GetImage())
	if err := c.Err(); err != nil {
		return nil, err
	}
	img, err := s.Images.Get(ctx, spec.Image)
	if errdefs.IsNotFound(err) {
		return &api.ImageStatusResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	resp := &api.ImageStatusResponse{Image: fromImage(s.dialect, img)}
	if req.Verbose {
		info, err := s.imageInfo(img)
		if err != nil {
			return nil, err
		}
		resp.Info = map[string]string{"info": jsonText(info)}
	}
	return resp, nil
}

// imageInfo is what a verbose status tells beside the interface's fields.
func (s *imageService) imageInfo(img *model.Image) (map[string]any, error) {
	if img.Artifact != "" { // whose configuration may be anything, and whose layers are in the manifest
		manifest, err := s.Images.Manifest(img.ID)
		return map[string]any{"artifactType": img.Artifact, "manifest": json.RawMessage(manifest), "pinned": img.Pinned,
			"size": img.Size}, err
	}
	config, err := s.Images.ConfigJSON(img.ID)
	return map[string]any{
		"imageSpec": json.RawMessage(config), // under the name that crictl's users know
		"diffIDs":   img.Layers,
		"platform":  img.Platform,
		"pinned":    img.Pinned,
		"size":      img.Size,
	}, err
}

func fromImage(d Dialect, img *model.Image) *api.Image {
	uid, username := imageUser(img.Config.User)
	out := &api.Image{
		Id:          img.ID,
		RepoTags:    img.RepoTags,
		RepoDigests: img.RepoDigests,
		Size:        img.Size,
		Uid:         uid,
		Username:    username,
		Spec:        &api.ImageSpec{Image: img.ID},
		Pinned:      img.Pinned,
	}
	d.WriteImageSpec(&model.ImageSpec{SpecAnnotations: img.SpecAnnotations}, out.Spec)
	d.WriteImage(img, out)
	return out
}

// imageUser is what the interface tells of USER of an image: a number or a name. An image that says nothing runs
// as root, and is told as neither. What is no user at all is told as a name: clients refuse it where they want somebody
// else than root, and a container of the image is not created.
func imageUser(user string) (*api.Int64Value, string) {
	uid, name, err := model.ImageUser(user)
	if err != nil || uid == nil {
		return nil, name
	}
	return &api.Int64Value{Value: *uid}, ""
}
