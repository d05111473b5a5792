package v1alpha2

import (
	"maps"
	"path/filepath"
	"strconv"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/internal/cri/request"
	"berth/internal/model"
)

// maxPriority is what the kernel keeps a priority in.
const maxPriority = 1<<32 - 1

func (dialect) ReadResources(c *request.Check, p request.Path, in *api.LinuxContainerResources, out *model.Resources) {
	ext := read(c, p, in, &pouch.LinuxContainerResources{})
	out.DiskQuota = maps.Clone(ext.DiskQuota)
	out.KernelMemory = atLeast(c, p.Field("kernel_memory"), ext.KernelMemory, -1)
	out.MemoryReservation = atLeast(c, p.Field("memory_reservation"), ext.MemoryReservation, -1)
	if s := ext.MemorySwappiness; s != nil {
		if s.Value < 0 || s.Value > model.MaxSwappiness {
			c.Fail(p.Field("memory_swappiness"), "%d is not in 0..%d", s.Value, model.MaxSwappiness)
		}
		value := s.Value
		out.MemorySwappiness = &value
	}
	seen := map[string]bool{}
	for i, u := range ext.Ulimits {
		at := "ulimits[" + strconv.Itoa(i) + "]"
		limit := model.Ulimit{Name: u.GetName(), Hard: u.GetHard(), Soft: u.GetSoft()}
		if err := model.CheckUlimit(limit); err != nil {
			c.Fail(p.Field(at), "%v", err)
		} else if seen[limit.Name] {
			c.Fail(p.Field(at+".name"), "%s has a limit already", limit.Name)
		}
		seen[limit.Name] = true
		out.Ulimits = append(out.Ulimits, limit)
	}
	out.BlockIO = readBlockIO(c, p, ext)
}

func atLeast(c *request.Check, p request.Path, v, low int64) int64 {
	if v < low {
		c.Fail(p, "%d is less than %d", v, low)
	}
	return v
}

func readBlockIO(c *request.Check, p request.Path, ext *pouch.LinuxContainerResources) *model.BlockIO {
	out := &model.BlockIO{}
	weight := func(field string, w uint32) uint16 {
		if w < model.MinBlockWeight || w > model.MaxBlockWeight {
			c.Fail(p.Field(field), "%d is not in %d..%d", w, model.MinBlockWeight, model.MaxBlockWeight)
		}
		return uint16(w)
	}
	device := func(field, path string) string {
		if !filepath.IsAbs(path) {
			c.Fail(p.Field(field), "%q is not an absolute path", path)
		}
		return path
	}
	set := ext.BlkioWeight != 0
	if set {
		out.Weight = weight("blkio_weight", ext.BlkioWeight)
	}
	for i, d := range ext.BlkioWeightDevice {
		at := "blkio_weight_device[" + strconv.Itoa(i) + "]"
		out.WeightDevices = append(out.WeightDevices, model.WeightDevice{
			Path: device(at+".path", d.GetPath()), Weight: weight(at+".Weight", d.GetWeight()),
		})
		set = true
	}
	for _, t := range []struct {
		field string
		from  []*pouch.ThrottleDevice
		to    *[]model.ThrottleDevice
	}{
		{"blkio_device_read_bps", ext.BlkioDeviceReadBps, &out.ReadBps},
		{"blkio_device_write_bps", ext.BlkioDeviceWriteBps, &out.WriteBps},
		{"blkio_device_read_IOps", ext.BlkioDeviceRead_IOps, &out.ReadIOPS},
		{"blkio_device_write_IOps", ext.BlkioDeviceWrite_IOps, &out.WriteIOPS},
	} {
		for i, d := range t.from {
			at := t.field + "[" + strconv.Itoa(i) + "]"
			*t.to = append(*t.to, model.ThrottleDevice{Path: device(at+".path", d.GetPath()), Rate: d.GetRate()})
			set = true
		}
	}
	if !set {
		return nil
	}
	return out
}

func fromResources(r *model.Resources) *pouch.LinuxContainerResources {
	out := &pouch.LinuxContainerResources{
		DiskQuota:         r.DiskQuota,
		KernelMemory:      r.KernelMemory,
		MemoryReservation: r.MemoryReservation,
	}
	if r.MemorySwappiness != nil {
		out.MemorySwappiness = &pouch.Int64Value{Value: *r.MemorySwappiness}
	}
	for _, u := range r.Ulimits {
		out.Ulimits = append(out.Ulimits, &pouch.Ulimit{Name: u.Name, Hard: u.Hard, Soft: u.Soft})
	}
	b := r.BlockIO
	if b == nil {
		return out
	}
	out.BlkioWeight = uint32(b.Weight)
	for _, d := range b.WeightDevices {
		out.BlkioWeightDevice = append(out.BlkioWeightDevice, &pouch.WeightDevice{Path: d.Path, Weight: uint32(d.Weight)})
	}
	throttle := func(list []model.ThrottleDevice) []*pouch.ThrottleDevice {
		var out []*pouch.ThrottleDevice
		for _, d := range list {
			out = append(out, &pouch.ThrottleDevice{Path: d.Path, Rate: d.Rate})
		}
		return out
	}
	out.BlkioDeviceReadBps, out.BlkioDeviceWriteBps = throttle(b.ReadBps), throttle(b.WriteBps)
	out.BlkioDeviceRead_IOps, out.BlkioDeviceWrite_IOps = throttle(b.ReadIOPS), throttle(b.WriteIOPS)
	return out
}
