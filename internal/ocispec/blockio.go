package ocispec

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/hostpath"
	"berth/internal/model"
)

// BlockIO checks limits and weights of block I/O and finds their devices.
func BlockIO(b *model.BlockIO, h *Host) (*specs.LinuxBlockIO, error) {
	out := &specs.LinuxBlockIO{}
	if b.Weight != 0 {
		if err := checkWeight(model.LimitBlockWeight, b.Weight, h); err != nil {
			return nil, err
		}
		weight := b.Weight
		out.Weight = &weight
	}
	for _, d := range b.WeightDevices {
		if err := checkWeight(model.LimitBlockWeightDevices, d.Weight, h); err != nil {
			return nil, err
		}
		major, minor, err := blockDevice(model.LimitBlockWeightDevices, d.Path)
		if err != nil {
			return nil, err
		}
		if err := h.checkScheduler(d.Path, major, minor); err != nil {
			return nil, err
		}
		weight, one := d.Weight, specs.LinuxWeightDevice{}
		one.Major, one.Minor, one.Weight = major, minor, &weight
		out.WeightDevice = append(out.WeightDevice, one)
	}
	for _, t := range []struct {
		field model.Field
		file  string
		from  []model.ThrottleDevice
		to    *[]specs.LinuxThrottleDevice
	}{
		{model.LimitBlockReadBps, "blkio.throttle.read_bps_device", b.ReadBps, &out.ThrottleReadBpsDevice},
		{model.LimitBlockWriteBps, "blkio.throttle.write_bps_device", b.WriteBps, &out.ThrottleWriteBpsDevice},
		{model.LimitBlockReadIOPS, "blkio.throttle.read_iops_device", b.ReadIOPS, &out.ThrottleReadIOPSDevice},
		{model.LimitBlockWriteIOPS, "blkio.throttle.write_iops_device", b.WriteIOPS, &out.ThrottleWriteIOPSDevice},
	} {
		if len(t.from) > 0 && !h.hasBlockFile(t.file, "io.max") {
			return nil, t.field.Wrong(unable("the kernel has no throttling of block I/O for cgroup v%d here", h.Cgroups.Version))
		}
		for _, d := range t.from {
			major, minor, err := blockDevice(t.field, d.Path)
			if err != nil {
				return nil, err
			}
			one := specs.LinuxThrottleDevice{Rate: d.Rate}
			if d.Rate == 0 {
				one.Rate = unthrottled(h)
			}
			one.Major, one.Minor = major, minor
			*t.to = append(*t.to, one)
		}
	}
	return out, nil
}

// unthrottled is the rate of a device without a limit, which v1 calls 0. v2 refuses 0.
func unthrottled(h *Host) uint64 {
	if h.Cgroups.Version == cgroup.V2 {
		return math.MaxUint64
	}
	return 0
}

func checkWeight(field model.Field, weight uint16, h *Host) error {
	if weight < model.MinBlockWeight || weight > model.MaxBlockWeight {
		return field.Wrong(invalid("%d is not in %d to %d", weight, model.MinBlockWeight, model.MaxBlockWeight))
	}
	names := []string{"blkio.weight", "blkio.bfq.weight"}
	switch perDevice, v2 := field == model.LimitBlockWeightDevices, h.Cgroups.Version == cgroup.V2; {
	case perDevice && v2:
		names = []string{"io.bfq.weight"} // io.weight gets none: libcontainer writes only the weight of all devices there
	case perDevice:
		names = []string{legacyWeights, "blkio.bfq.weight_device"}
	case v2:
		names = []string{"io.weight", "io.bfq.weight"}
	}
	for _, name := range names {
		if h.hasBlockFile(name, name) {
			return nil
		}
	}
	return field.Wrong(unable("the kernel has no weights of block I/O for cgroup v%d here (%s)", h.Cgroups.Version,
		names[len(names)-1]))
}

// legacyWeights is the file of cgroup v1 for weights of a device, whatever its scheduler, before Linux 5.0.
const legacyWeights = "blkio.weight_device"

// checkScheduler refuses the weight of a device whose I/O scheduler is not BFQ: the kernel takes no other (EOPNOTSUPP).
// Where sysfs does not tell the scheduler, the kernel is left to refuse.
func (h *Host) checkScheduler(path string, major, minor int64) error {
	if h.Cgroups.Version == cgroup.V1 && h.hasBlockFile(legacyWeights, "") {
		return nil
	}
	list, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/queue/scheduler", major, minor))
	if err != nil || strings.Contains(string(list), "[bfq]") {
		return nil
	}
	return model.LimitBlockWeightDevices.Wrong(unable(
		"the kernel has weights for devices with the I/O scheduler bfq, and %s has %s", path,
		strings.TrimSpace(string(list))))
}

// hasBlockFile tells whether cgroups have a file of the block I/O controller. Roots lack some of them, so one below
// it is asked; where there is none yet, nobody knows, and the start of the container tells.
func (h *Host) hasBlockFile(v1, v2 string) bool {
	controller, name := "blkio", v1
	if h.Cgroups.Version == cgroup.V2 {
		controller, name = "io", v2
	}
	if !h.Cgroups.Has(controller) {
		return false
	}
	root := h.Cgroups.Dir(controller, "/")
	children, err := filepath.Glob(filepath.Join(root, "*", "cgroup.procs"))
	if err != nil || len(children) == 0 {
		return true
	}
	found, err := filepath.Glob(filepath.Join(root, "*", name))
	return err == nil && len(found) > 0
}

func blockDevice(field model.Field, path string) (major, minor int64, err error) {
	if !filepath.IsAbs(path) {
		return 0, 0, field.Wrong(invalid("%q is not an absolute path", path))
	}
	resolved, err := hostpath.Resolve(path)
	var n hostpath.Node
	if err == nil {
		n, err = hostpath.Stat(resolved.Path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, 0, field.Wrong(invalid("%v", err))
	case errdefs.IsUnavailable(err):
		return 0, 0, field.Wrong(err)
	case err != nil:
		return 0, 0, field.Wrong(unable("%v", err))
	case n.Mode&unix.S_IFMT != unix.S_IFBLK:
		return 0, 0, field.Wrong(invalid("%s is no block device", path))
	}
	return int64(n.Major), int64(n.Minor), nil
}

// mergeBlockIO is stored limits with an update laid over, device by device. Neither is written to.
func mergeBlockIO(stored, update *model.BlockIO) *model.BlockIO {
	if stored == nil || update == nil {
		if update != nil {
			return update
		}
		return stored
	}
	throttles := func(a, b []model.ThrottleDevice) []model.ThrottleDevice {
		return mergeBy(a, b, func(d model.ThrottleDevice) string { return d.Path })
	}
	out := &model.BlockIO{
		Weight: stored.Weight,
		WeightDevices: mergeBy(stored.WeightDevices, update.WeightDevices,
			func(d model.WeightDevice) string { return d.Path }),
		ReadBps:   throttles(stored.ReadBps, update.ReadBps),
		WriteBps:  throttles(stored.WriteBps, update.WriteBps),
		ReadIOPS:  throttles(stored.ReadIOPS, update.ReadIOPS),
		WriteIOPS: throttles(stored.WriteIOPS, update.WriteIOPS),
	}
	if update.Weight != 0 {
		out.Weight = update.Weight
	}
	return out
}
