package berthv1

import (
	"context"

	api "berth/api/berth/v1"
	"berth/internal/model"
)

// Volumes are the node's named volumes as this API uses them.
type Volumes interface {
	ListVolumes(context.Context) ([]*model.Volume, error)
	Volume(ctx context.Context, name string) (*model.Volume, error)
	VolumeUsage(ctx context.Context, name string) (bytes, inodes uint64, err error)
	CreateVolume(ctx context.Context, name string) (*model.Volume, error)
	RemoveVolume(ctx context.Context, name string) error
}

type volumeService struct {
	api.UnimplementedVolumesServer
	volumes Volumes
}

func (s *volumeService) ListVolumes(ctx context.Context, _ *api.ListVolumesRequest) (*api.ListVolumesResponse, error) {
	list, err := s.volumes.ListVolumes(ctx)
	if err != nil {
		return nil, err
	}
	out := &api.ListVolumesResponse{}
	for _, v := range list {
		out.Volumes = append(out.Volumes, toVolume(v))
	}
	return out, nil
}

func (s *volumeService) VolumeStatus(ctx context.Context,
	req *api.VolumeStatusRequest) (*api.VolumeStatusResponse, error) {
	v, err := s.volumes.Volume(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	out := &api.VolumeStatusResponse{Volume: toVolume(v)}
	if req.GetUsage() {
		if out.UsedBytes, out.InodesUsed, err = s.volumes.VolumeUsage(ctx, req.GetName()); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *volumeService) CreateVolume(ctx context.Context,
	req *api.CreateVolumeRequest) (*api.CreateVolumeResponse, error) {
	v, err := s.volumes.CreateVolume(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return &api.CreateVolumeResponse{Volume: toVolume(v)}, nil
}

func (s *volumeService) RemoveVolume(ctx context.Context,
	req *api.RemoveVolumeRequest) (*api.RemoveVolumeResponse, error) {
	return &api.RemoveVolumeResponse{}, s.volumes.RemoveVolume(ctx, req.GetName())
}

func toVolume(v *model.Volume) *api.Volume {
	return &api.Volume{Name: v.Name, Path: v.Path, CreatedAt: v.CreatedAt.UnixNano(), ContainerIds: v.Containers}
}
