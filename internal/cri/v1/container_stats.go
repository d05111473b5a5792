package v1

import (
	"context"
	"time"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func (s *runtimeService) ContainerStats(ctx context.Context,
	req *api.ContainerStatsRequest) (*api.ContainerStatsResponse, error) {
	c := newCheck(s.dialect, req)
	c.ID("container_id", req.GetContainerId())
	if err := c.Err(); err != nil {
		return nil, err
	}
	u, err := s.Runtime.ContainerUsage(ctx, req.ContainerId)
	if err != nil {
		return nil, err
	}
	return &api.ContainerStatsResponse{Stats: fromContainerUsage(u)}, nil
}

func fromContainerUsage(u *model.ContainerUsage) *api.ContainerStats {
	cfg, id := containerConfig(u.Container), ""
	if u.Container != nil {
		id = u.Container.ID
	}
	out := &api.ContainerStats{
		Attributes: &api.ContainerAttributes{
			Id:          id,
			Metadata:    fromContainerMetadata(cfg.Metadata),
			Labels:      cfg.Labels,
			Annotations: cfg.Annotations,
		},
		Cpu:    fromCPU(u.CPU, u.At),
		Memory: fromMemory(u.Memory, u.At),
		Io:     fromIO(u.IO, u.At),
	}
	if u.WritableLayer != nil {
		out.WritableLayer = fromFilesystem(*u.WritableLayer)
	}
	if u.Swap != nil {
		out.Swap = &api.SwapUsage{
			Timestamp:          nanoseconds(u.At),
			SwapAvailableBytes: number(u.Swap.Available),
			SwapUsageBytes:     number(u.Swap.Usage),
		}
	}
	return out
}

func fromCPU(u *model.CPUUsage, at time.Time) *api.CpuUsage {
	if u == nil {
		return nil
	}
	out := &api.CpuUsage{
		Timestamp:            nanoseconds(at),
		UsageCoreNanoSeconds: number(u.UsageNanoSeconds),
		Psi:                  fromPSI(u.PSI),
	}
	if u.UsageNanoCores != nil { // without it, a client computes the rate itself
		out.UsageNanoCores = number(*u.UsageNanoCores)
	}
	return out
}

func fromMemory(u *model.MemoryUsage, at time.Time) *api.MemoryUsage {
	if u == nil {
		return nil
	}
	return &api.MemoryUsage{
		Timestamp:       nanoseconds(at),
		WorkingSetBytes: number(u.WorkingSet),
		AvailableBytes:  number(u.Available),
		UsageBytes:      number(u.Usage),
		RssBytes:        number(u.RSS),
		PageFaults:      number(u.PageFaults),
		MajorPageFaults: number(u.MajorPageFaults),
		Psi:             fromPSI(u.PSI),
	}
}

func fromIO(u *model.IOUsage, at time.Time) *api.IoUsage {
	if u == nil {
		return nil
	}
	return &api.IoUsage{Timestamp: nanoseconds(at), Psi: fromPSI(u.PSI)}
}

func fromPSI(p *model.PSI) *api.PsiStats {
	if p == nil {
		return nil
	}
	line := func(d model.PSIData) *api.PsiData {
		return &api.PsiData{Total: d.Total, Avg10: d.Avg10, Avg60: d.Avg60, Avg300: d.Avg300}
	}
	return &api.PsiStats{Full: line(p.Full), Some: line(p.Some)}
}

func fromFilesystem(u model.FilesystemUsage) *api.FilesystemUsage {
	return &api.FilesystemUsage{
		Timestamp:  nanoseconds(u.At),
		FsId:       &api.FilesystemIdentifier{Mountpoint: u.Mountpoint},
		UsedBytes:  number(u.UsedBytes),
		InodesUsed: number(u.InodesUsed),
	}
}

func number(v uint64) *api.UInt64Value { return &api.UInt64Value{Value: v} }
