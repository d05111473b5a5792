package annotation

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth/internal/model"
)

// Prefix is that of all annotations of ours.
const Prefix = "berth.dev/"

// known are the annotations for containers, without Prefix, and what they change.
var known = map[string]func(c *model.ContainerConfig, r *model.Resources, value string) error{
	"ulimits": func(_ *model.ContainerConfig, r *model.Resources, value string) (err error) {
		if len(r.Ulimits) == 0 {
			r.Ulimits, err = ulimits(value)
		}
		return err
	},
	"blkio": func(_ *model.ContainerConfig, r *model.Resources, value string) (err error) {
		if r.BlockIO == nil {
			r.BlockIO, err = blockIO(value)
		}
		return err
	},
	"disk-quota": func(_ *model.ContainerConfig, r *model.Resources, value string) (err error) {
		if len(r.DiskQuota) == 0 {
			r.DiskQuota, err = diskQuota(value)
		}
		return err
	},
	"quota-id": func(c *model.ContainerConfig, _ *model.Resources, value string) error {
		if c.QuotaID == "" {
			c.QuotaID = value
		}
		return nil
	},
	"log": func(c *model.ContainerConfig, _ *model.Resources, value string) error {
		limits, err := logLimits(value, c.Log)
		if err == nil {
			c.Log = limits
		}
		return err
	},
	"net-priority": func(c *model.ContainerConfig, _ *model.Resources, value string) error {
		return number(&c.NetPriority, value, 0, math.MaxUint32)
	},
	"memory-reservation": func(_ *model.ContainerConfig, r *model.Resources, value string) error {
		return quantity(&r.MemoryReservation, value)
	},
	"kernel-memory": func(_ *model.ContainerConfig, r *model.Resources, value string) error {
		return quantity(&r.KernelMemory, value)
	},
	"memory-swappiness": func(_ *model.ContainerConfig, r *model.Resources, value string) error {
		if r.MemorySwappiness != nil {
			return nil
		}
		var n int64
		if err := number(&n, value, 0, 100); err != nil {
			return err
		}
		r.MemorySwappiness = &n
		return nil
	},
	"pids-limit": func(_ *model.ContainerConfig, r *model.Resources, value string) error {
		return number(&r.PidsLimit, value, -1, math.MaxInt32)
	},
}

// podWide are the annotations that a pod can have for all of its containers, without the name of one.
var podWide = []string{"log"}

// Names are the annotations that a handler's configuration can allow, sorted.
func Names() []string {
	names := make([]string, 0, len(known))
	for name := range known {
		names = append(names, Prefix+name)
	}
	slices.Sort(names)
	return names
}

// Apply returns a container's configuration with what annotations of the container and its pod ask for, in that order,
// and of the pod's those for this container before those for all.
// What the request says in a field of its own holds against any annotation. ignored are those that say something of
// this container and are not allowed, or of which nobody knows what they say, with the reason; cfg is not written to.
func Apply(cfg *model.ContainerConfig, pod *model.SandboxConfig, allowed []string) (_ *model.ContainerConfig,
	ignored map[string]string, err error) {
	out, limits := *cfg, model.Resources{}
	if cfg.Resources != nil {
		limits = *cfg.Resources
	}
	changed := false
	apply := func(name, key, value string) error {
		change := known[name]
		if change == nil || !slices.Contains(allowed, Prefix+name) {
			if ignored == nil {
				ignored = map[string]string{}
			}
			ignored[key] = "the pod's runtime handler does not allow it"
			if change == nil {
				ignored[key] = "there is no such annotation"
			}
			return nil
		}
		changed = true
		if err := change(&out, &limits, strings.TrimSpace(value)); err != nil {
			return fmt.Errorf("annotation %s: %w: %w", key, err, errdefs.ErrInvalidArgument)
		}
		return nil
	}
	for _, from := range []struct {
		annotations map[string]string
		container   bool
		all         bool
	}{{cfg.Annotations, true, false}, {pod.Annotations, false, false}, {pod.Annotations, false, true}} {
		for _, key := range slices.Sorted(maps.Keys(from.annotations)) {
			rest, ours := strings.CutPrefix(key, Prefix)
			if !ours {
				continue
			}
			name, container, named := strings.Cut(rest, ".")
			switch {
			case from.all && (named || !slices.Contains(podWide, name)):
				continue // what is for one container came before, and holds
			case from.all:
			case named && container != cfg.Metadata.Name || !named && !from.container:
				continue // of another container, or of the pod itself
			}
			if err := apply(name, key, from.annotations[key]); err != nil {
				return nil, nil, err
			}
		}
	}
	if !changed {
		return cfg, ignored, nil
	}
	out.Resources = &limits
	return &out, ignored, nil
}

// number sets what is not set yet.
func number(to *int64, text string, low, high int64) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return fmt.Errorf("%q is no number in %d..%d", text, low, high)
	}
	if *to == 0 {
		*to = n
	}
	return nil
}

// quantity reads bytes as Kubernetes writes them: 128Mi, 1G, 4096.
func quantity(to *int64, text string) error {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() <= 0 {
		return fmt.Errorf("%q is no amount of bytes such as 128Mi", text)
	}
	if *to == 0 {
		*to = q.Value()
	}
	return nil
}

// entries splits name=value pairs with commas between.
func entries(text string) ([][2]string, error) {
	var out [][2]string
	for entry := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(entry), "=")
		if !ok || name == "" || value == "" {
			return nil, fmt.Errorf("%q is not name=value", entry)
		}
		out = append(out, [2]string{name, value})
	}
	return out, nil
}

// ulimits reads nofile=1024:4096,nproc=64: the soft limit and the hard one, or one for both.
func ulimits(text string) ([]model.Ulimit, error) {
	list, err := entries(text)
	if err != nil {
		return nil, err
	}
	var out []model.Ulimit
	for _, e := range list {
		soft, hard, two := strings.Cut(e[1], ":")
		if !two {
			hard = soft
		}
		limit := model.Ulimit{Name: e[0]}
		if limit.Soft, err = rlimit(soft); err == nil {
			limit.Hard, err = rlimit(hard)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e[0], err)
		}
		if slices.ContainsFunc(out, func(u model.Ulimit) bool { return u.Name == limit.Name }) {
			return nil, fmt.Errorf("%s is there twice", limit.Name)
		}
		out = append(out, limit)
	}
	return out, nil
}

func rlimit(text string) (int64, error) {
	if text == "unlimited" {
		return -1, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < -1 {
		return 0, fmt.Errorf("%q is no limit", text)
	}
	return n, nil
}

// diskQuota reads /=10g,/data=2g, or one size for the root file system and all volumes together.
func diskQuota(text string) (map[string]string, error) {
	if !strings.Contains(text, "=") {
		return map[string]string{"": text}, nil
	}
	list, err := entries(text)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range list {
		if _, twice := out[e[0]]; twice {
			return nil, fmt.Errorf("%s is there twice", e[0])
		}
		out[e[0]] = e[1]
	}
	return out, nil
}

// blockIO reads weight=500,weight=/dev/sda:300,read-bps=/dev/sda:1Mi,write-iops=/dev/sda:100.
func blockIO(text string) (*model.BlockIO, error) {
	list, err := entries(text)
	if err != nil {
		return nil, err
	}
	out := &model.BlockIO{}
	throttles := map[string]*[]model.ThrottleDevice{
		"read-bps": &out.ReadBps, "write-bps": &out.WriteBps, "read-iops": &out.ReadIOPS, "write-iops": &out.WriteIOPS,
	}
	for _, e := range list {
		i := strings.LastIndexByte(e[1], ':')
		device, amount := "", e[1]
		if i >= 0 {
			device, amount = e[1][:i], e[1][i+1:]
		}
		q, err := resource.ParseQuantity(amount)
		if err != nil || q.Sign() < 0 {
			return nil, fmt.Errorf("%s: %q is no number", e[0], amount)
		}
		value, to := q.Value(), throttles[e[0]]
		switch {
		case e[0] == "weight" && (value < 10 || value > 1000):
			return nil, fmt.Errorf("weight: %d is not in 10..1000", value)
		case e[0] == "weight" && device == "":
			out.Weight = uint16(value)
		case e[0] == "weight":
			out.WeightDevices = append(out.WeightDevices, model.WeightDevice{Path: device, Weight: uint16(value)})
		case to == nil:
			return nil, fmt.Errorf("%q is none of weight, read-bps, write-bps, read-iops, write-iops", e[0])
		case device == "":
			return nil, fmt.Errorf("%s: %q is not device:rate", e[0], e[1])
		default:
			*to = append(*to, model.ThrottleDevice{Path: device, Rate: uint64(value)})
		}
	}
	return out, nil
}
