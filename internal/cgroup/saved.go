package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	systemdbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/cgroups/systemd"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Saved are limits of a cgroup as they were before an update, which the kernel may refuse in part. The methods can be
// called on nil.
type Saved struct {
	unified bool
	unit    string // of systemd, if the cgroup is one
	files   []savedFile
}

type savedFile struct{ path, text string }

// Save reads the files of a cgroup to which an update writes, and for which a specification has no value that means "as
// it was": CPU sets, which a cgroup may have from its parent, limits of huge pages, weights of block I/O, and the files
// of v2 by their names. What cannot be read is left out: the kernel does not have it, or the update is refused for it.
func (h *Hierarchies) Save(cgroup string, update *specs.LinuxResources) *Saved {
	s := &Saved{unified: h.Version == V2, unit: path.Base(cgroup)}
	files := map[string]string{} // the controllers' directories on v1, by name
	if cpu := update.CPU; cpu != nil && (cpu.Cpus != "" || cpu.Mems != "") {
		files["cpuset.cpus"], files["cpuset.mems"] = "cpuset", "cpuset"
	}
	for _, huge := range update.HugepageLimits {
		if s.unified {
			files["hugetlb."+huge.Pagesize+".max"], files["hugetlb."+huge.Pagesize+".rsvd.max"] = "", ""
		} else {
			files["hugetlb."+huge.Pagesize+".limit_in_bytes"] = "hugetlb"
		}
	}
	if io := update.BlockIO; io != nil && (io.Weight != nil || io.LeafWeight != nil || len(io.WeightDevice) > 0) {
		names := []string{"blkio.weight", "blkio.leaf_weight", "blkio.bfq.weight"}
		if s.unified {
			names = []string{"io.weight", "io.bfq.weight"}
		}
		for _, name := range names {
			files[name] = "blkio"
		}
	}
	if s.unified {
		for name := range update.Unified {
			files[name] = ""
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		dir := h.Dir(files[name], cgroup)
		if dir == "" || path.Base(name) != name {
			continue
		}
		at := path.Join(dir, name)
		if text, err := os.ReadFile(at); err == nil {
			s.files = append(s.files, savedFile{at, string(text)})
		}
	}
	return s
}

// Restore gives the cgroup the limits that were saved. ofSystemd says that systemd has made the cgroup: it keeps limits
// as properties of the unit, and would write those of the update again, at a daemon-reload for example.
func (s *Saved) Restore(ctx context.Context, ofSystemd bool) error {
	if s == nil || len(s.files) == 0 {
		return nil
	}
	var errs []error
	if ofSystemd && s.unified {
		errs = append(errs, s.restoreUnit(ctx))
	}
	for _, f := range s.files {
		if err := f.restore(); err != nil {
			errs = append(errs, fmt.Errorf("restore %s: %w", f.path, err))
		}
	}
	return errors.Join(errs...)
}

// keyed are files with a line for each device or resource, and what one that was not there before is given.
var keyed = map[string]string{
	"io.max":        "rbps=max wbps=max riops=max wiops=max",
	"io.weight":     "default",
	"io.bfq.weight": "default",
	"io.latency":    "target=max",
	"rdma.max":      "hca_handle=max hca_object=max",
}

func (f *savedFile) restore() error {
	now, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil // the cgroup has ended
	}
	if err != nil || string(now) == f.text {
		return err
	}
	to, err := os.OpenFile(f.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer to.Close()
	for _, line := range f.lines(string(now)) { // the kernel takes one line for each call
		_, err := to.WriteString(line)
		if list := possible[path.Base(f.path)]; list != "" && errors.Is(err, unix.ENOSPC) {
			line = "0"
			if text, err := os.ReadFile(list); err == nil {
				line = string(text)
			}
			_, err = to.WriteString(line)
		}
		if err != nil {
			return fmt.Errorf("write %q: %w", line, err)
		}
	}
	return nil
}

// possible are the lists of all CPUs and memory nodes that the node can ever have; a node without the latter has only
// 0. The kernel lets a cgroup v2 with processes not go back to an empty set (ENOSPC). With all of them it has what its
// parent has, as with an empty one.
var possible = map[string]string{
	"cpuset.cpus": "/sys/devices/system/cpu/possible",
	"cpuset.mems": "/sys/devices/system/node/possible",
}

// lines are what gives the file the saved text again, where it has another one now.
func (f *savedFile) lines(now string) []string {
	name := path.Base(f.path)
	if none, is := keyed[name]; is {
		var lines []string
		before := map[string]bool{}
		for line := range strings.Lines(f.text) {
			key, _, _ := strings.Cut(line, " ")
			before[key] = true
			lines = append(lines, line)
		}
		for line := range strings.Lines(now) {
			if key, _, _ := strings.Cut(strings.TrimSpace(line), " "); !before[key] {
				lines = append(lines, key+" "+none+"\n")
			}
		}
		return lines
	}
	text := strings.TrimSpace(f.text)
	if strings.Contains(text, "\n") {
		return slices.Collect(strings.Lines(text + "\n"))
	}
	if name == "cpuset.cpus.partition" {
		text, _, _ = strings.Cut(text, " ") // the kernel adds why a partition is not valid
	}
	return []string{text + "\n"} // an empty line takes the parent's CPUs
}

// restoreUnit gives the unit of the cgroup the properties that systemd has for these files.
func (s *Saved) restoreUnit(ctx context.Context) error {
	properties := map[string]any{}
	for _, f := range s.files {
		maps.Copy(properties, unitProperties(path.Base(f.path), strings.TrimSpace(f.text)))
	}
	if len(properties) == 0 {
		return nil
	}
	conn, err := systemdbus.NewWithContext(ctx)
	if err != nil {
		return fmt.Errorf("restore the limits of %s: %w", s.unit, err)
	}
	defer conn.Close()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		// One by one: a version of systemd that lacks one refuses all that come with it.
		one := systemdbus.Property{Name: name, Value: dbus.MakeVariant(properties[name])}
		if err := conn.SetUnitPropertiesContext(ctx, s.unit, true, one); err != nil {
			errs = append(errs, fmt.Errorf("restore %s of %s: %w", name, s.unit, err))
		}
	}
	return errors.Join(errs...)
}

// unitProperties are the properties of systemd for a file of v2 with a text. A file that it does not know has none.
func unitProperties(file, text string) map[string]any {
	limit := func(property string) map[string]any {
		if text == "max" {
			return map[string]any{property: uint64(math.MaxUint64)}
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil
		}
		return map[string]any{property: n}
	}
	mask := func(property string) map[string]any {
		bits, err := systemd.RangeToBits(text)
		if err != nil || text == "" {
			bits = []byte{} // the parent's
		}
		return map[string]any{property: bits}
	}
	switch file {
	case "cpuset.cpus":
		return mask("AllowedCPUs")
	case "cpuset.mems":
		return mask("AllowedMemoryNodes")
	case "memory.high":
		return limit("MemoryHigh")
	case "memory.low":
		return limit("MemoryLow")
	case "memory.min":
		return limit("MemoryMin")
	case "memory.max":
		return limit("MemoryMax")
	case "memory.swap.max":
		return limit("MemorySwapMax")
	case "pids.max":
		return limit("TasksMax")
	case "cpu.weight":
		return limit("CPUWeight")
	case "cpu.max":
		var quota string
		var period uint64
		if _, err := fmt.Sscan(text, &quota, &period); err != nil || period == 0 {
			return nil
		}
		perSecond := uint64(math.MaxUint64)
		if n, err := strconv.ParseUint(quota, 10, 64); err == nil {
			perSecond = n * 1_000_000 / period
		}
		return map[string]any{"CPUQuotaPerSecUSec": perSecond, "CPUQuotaPeriodUSec": period}
	}
	return nil
}
