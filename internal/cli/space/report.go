package space

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
)

// Kind is what one kind of things takes.
type Kind struct {
	Total            int    `json:"total"`
	Active           int    `json:"active"` // that are used, or run
	Bytes            uint64 `json:"bytes"`
	ReclaimableBytes uint64 `json:"reclaimableBytes"` // that a removal of all others would give back
}

// Container is what a container takes.
type Container struct {
	ID            string `json:"id"`
	Name          string `json:"name"`
	Running       bool   `json:"running"`
	WritableBytes uint64 `json:"writableBytes"` // of its own layer
	LogBytes      uint64 `json:"logBytes"`
}

// Volume is what a named volume takes.
type Volume struct {
	Name  string `json:"name"`
	Used  bool   `json:"used"` // by a container, running or not
	Bytes uint64 `json:"bytes"`
}

// Report is what all take.
type Report struct {
	Images     Kind `json:"images"`
	Containers Kind `json:"containers"`
	Volumes    Kind `json:"volumes"`
	Logs       Kind `json:"logs"`

	ImageList     []*Image    `json:"imageList"`
	ContainerList []Container `json:"containerList"`
	VolumeList    []Volume    `json:"volumeList"`
}

// Read counts everything. It looks at every file of the volumes.
func Read(ctx context.Context, conn *connection.Connection) (*Report, error) {
	containers, err := lookup.Containers(ctx, conn.Runtime, nil)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	if err := r.readImages(ctx, conn, containers); err != nil {
		return nil, err
	}
	for _, c := range containers {
		if err := r.readContainer(ctx, conn, c); err != nil {
			return nil, err
		}
	}
	return r, r.readVolumes(ctx, conn)
}

func (r *Report) readImages(ctx context.Context, conn *connection.Connection, containers []*lookup.Container) error {
	list, err := conn.Images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return connection.Plain(err)
	}
	usage, err := Images(ctx, conn)
	if err != nil {
		return err
	}
	uses, err := ReadUses(ctx, conn.Runtime, containers)
	if err != nil {
		return err
	}
	for _, image := range list.GetImages() {
		one := usage[image.GetId()]
		if one == nil { // another runtime, or pulled meanwhile
			one = &Image{ID: image.GetId(), Bytes: image.GetSize()}
		}
		one.Names, one.Pinned = image.GetRepoTags(), image.GetPinned()
		one.Used = uses.Of(image) != nil
		r.ImageList = append(r.ImageList, one)
		if one.Used {
			r.Images.Active++
		}
	}
	slices.SortStableFunc(r.ImageList, func(a, b *Image) int { return slices.Compare(a.Names, b.Names) })
	r.Images.Total = len(r.ImageList)
	r.Images.Bytes = layerBytes(r.ImageList, func(*Image) bool { return true })
	r.Images.ReclaimableBytes = r.Images.Bytes - layerBytes(r.ImageList, func(i *Image) bool { return i.Used || i.Pinned })
	return nil
}

func (r *Report) readContainer(ctx context.Context, conn *connection.Connection, c *lookup.Container) error {
	one := Container{ID: c.Id, Name: c.ShortName(), Running: c.State == cri.ContainerState_CONTAINER_RUNNING}
	status, err := conn.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
	if err == nil {
		one.LogBytes, err = logBytes(status.GetStatus().GetLogPath())
	}
	if err == nil {
		var stats *cri.ContainerStatsResponse
		stats, err = conn.Runtime.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: c.Id})
		one.WritableBytes = stats.GetStats().GetWritableLayer().GetUsedBytes().GetValue()
	}
	switch code := connection.Code(err); {
	case code == codes.NotFound:
		return nil // removed meanwhile
	case err != nil:
		return connection.Plain(err)
	}
	r.ContainerList = append(r.ContainerList, one)
	r.Containers.add(one.WritableBytes, one.Running)
	r.Logs.add(one.LogBytes, one.Running)
	return nil
}

func (k *Kind) add(bytes uint64, active bool) {
	k.Total++
	k.Bytes += bytes
	if active {
		k.Active++
	} else {
		k.ReclaimableBytes += bytes
	}
}

// logBytes are those of a log and of its rotated parts.
func logBytes(path string) (uint64, error) {
	if path == "" {
		return 0, nil
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if os.IsNotExist(err) {
		return 0, nil
	}
	var sum uint64
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), filepath.Base(path)) {
			continue
		}
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			sum += uint64(info.Size())
		}
	}
	return sum, err
}

func (r *Report) readVolumes(ctx context.Context, conn *connection.Connection) error {
	list, err := conn.Volumes.ListVolumes(ctx, &berthv1.ListVolumesRequest{})
	if connection.Code(err) == codes.Unimplemented {
		return nil
	}
	if err != nil {
		return connection.Plain(err)
	}
	for _, v := range list.GetVolumes() {
		status, err := conn.Volumes.VolumeStatus(ctx, &berthv1.VolumeStatusRequest{Name: v.GetName(), Usage: true})
		if connection.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return connection.Plain(err)
		}
		one := Volume{Name: v.GetName(), Used: len(v.GetContainerIds()) > 0, Bytes: status.GetUsedBytes()}
		r.VolumeList = append(r.VolumeList, one)
		r.Volumes.add(one.Bytes, one.Used)
	}
	return nil
}
