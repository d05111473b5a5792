package cadvisor

import (
	"slices"
	"sort"
	"time"

	"berth/internal/model"
	"berth/internal/stats"
)

// Subject is a pod or a container with its figures. A pod has no Name, Image and Container, as the cgroup of a pod
// has none for cAdvisor.
type Subject struct {
	Cgroup    string // the label id
	Name      string // the container's ID
	Image     string
	Pod       string
	Namespace string
	Container string

	Started    time.Time
	Resources  *model.Resources
	Detail     *stats.Detail
	Layer      *model.FilesystemUsage
	Filesystem *stats.Filesystem // that Layer is on
	Network    []model.InterfaceUsage
	Began      time.Time // when the call began that asks: what is older than that says so
}

func (s *Subject) at() time.Time {
	if s.Detail == nil {
		return time.Time{}
	}
	return stats.Stale(s.Detail.At, s.Began)
}

var common = []string{"container", "id", "image", "name", "namespace", "pod"}

// order is where each label goes once all are sorted: first the common ones, then a family's own.
type order struct {
	keys  []string
	place []int // of label i of common and own
}

var orders = func() []order {
	out := make([]order, len(families))
	for i, f := range families {
		keys := slices.Concat(common, f.labels)
		index := make([]int, len(keys))
		for j := range index {
			index[j] = j
		}
		sort.SliceStable(index, func(a, b int) bool { return keys[index[a]] < keys[index[b]] })
		out[i].place = make([]int, len(keys))
		for to, from := range index {
			out[i].place[from] = to
		}
		slices.Sort(keys)
		out[i].keys = keys
	}
	return out
}()

// Descriptors are all metrics that Metrics may give.
func Descriptors() []model.MetricDescriptor {
	out := make([]model.MetricDescriptor, len(families))
	for i, f := range families {
		out[i] = model.MetricDescriptor{Name: f.name, Help: f.help, Labels: orders[i].keys}
	}
	return out
}

// Metrics are the metrics of a subject, as far as its figures are known.
func Metrics(s *Subject) []model.Metric {
	base := []string{s.Container, s.Cgroup, s.Image, s.Name, s.Namespace, s.Pod}
	var plain []string // the labels of families without any of their own are shared: common is sorted
	out := make([]model.Metric, 0, len(families))
	for i, f := range families {
		f.values(s, func(value uint64, at time.Time, own ...string) {
			labels := plain
			if len(own) > 0 || plain == nil {
				labels = make([]string, len(orders[i].place))
				for from, to := range orders[i].place {
					if from < len(base) {
						labels[to] = base[from]
					} else {
						labels[to] = own[from-len(base)]
					}
				}
				if len(own) == 0 {
					plain = labels
				}
			}
			out = append(out, model.Metric{Name: f.name, Gauge: f.gauge, At: at, Labels: labels, Value: value})
		})
	}
	return out
}
