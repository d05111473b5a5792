package v1

import (
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

// ImageFsInfo counts as container file systems the writable layers, which live on the file system of the images: those
// of all containers, since a container keeps its own until it is removed.
func (s *imageService) ImageFsInfo(ctx context.Context, req *api.ImageFsInfoRequest) (*api.ImageFsInfoResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	images, err := s.Images.Usage(ctx)
	if err != nil {
		return nil, err
	}
	containers, err := s.Runtime.ListContainerUsage(ctx, model.ContainerFilter{States: []model.ContainerState{
		model.ContainerCreated, model.ContainerRunning, model.ContainerPaused, model.ContainerExited,
	}})
	if err != nil {
		return nil, err
	}
	layers := model.FilesystemUsage{At: images.At, Mountpoint: images.Mountpoint}
	for _, u := range containers {
		if u.WritableLayer != nil {
			layers.UsedBytes += u.WritableLayer.UsedBytes
			layers.InodesUsed += u.WritableLayer.InodesUsed
		}
	}
	return &api.ImageFsInfoResponse{
		ImageFilesystems:     []*api.FilesystemUsage{fromFilesystem(images)},
		ContainerFilesystems: []*api.FilesystemUsage{fromFilesystem(layers)},
	}, nil
}
