package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Sources are asked when Prometheus asks. None of them may wait for a disk; Keeper may wait for the keeper, until its
// context ends.
type Sources struct {
	Pods, Containers func() map[string]int // by state, those without any included
	Images           func() ImageNumbers
	Readings         func() (cgroup, disk time.Time) // when the oldest readings were made; zero: there is none
	Keeper           func(context.Context) (*KeeperNumbers, error)
}

// ImageNumbers are those of the image store.
type ImageNumbers struct {
	Images        int
	Alone, Shared int // layers
	Bytes, Inodes uint64
}

// KeeperNumbers are those of the keeper.
type KeeperNumbers struct {
	StartedAt            time.Time
	Upgrades, Containers int
	Counts               *KeeperCounts // nil: the keeper is too old to know
}

// KeeperCounts are what a keeper tells that knows of them.
type KeeperCounts struct {
	Execs, Holders, Queue             int
	Backlog                           int64
	LogBytes, LogLinesCut, LogDropped uint64
	// Of the limits of logs.
	LogRotations, LogRemovedBytes, LogLimitedLines, LogLimitedBytes uint64
	LogHeld                                                         time.Duration
}

// keeperWait is how long a scrape waits for the keeper.
const keeperWait = 2 * time.Second

// collector reads Sources.
type collector struct{ Sources }

// Add has the sources asked at each scrape.
func (m *Set) Add(s Sources) error { return m.registry.Register(collector{s}) }

var read = []*Definition{
	Pods, Containers, Images, Layers, StoreBytes, StoreInodes, CgroupAge, DiskAge, KeeperUp, KeeperStart,
	KeeperUpgrades, KeeperContainers, KeeperExecs, KeeperHolders, KeeperQueue, KeeperBacklog,
	LogBytes, LogSplit, LogDropped, LogRotations, LogRemoved, LogLimitedLines, LogLimitedBytes, LogHeld,
}

var descs = func() map[*Definition]*prometheus.Desc {
	m := map[*Definition]*prometheus.Desc{}
	for _, d := range read {
		m[d] = d.Desc()
	}
	return m
}()

func (c collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range read {
		out <- descs[d]
	}
}

func (c collector) Collect(out chan<- prometheus.Metric) {
	put := func(d *Definition, v float64, labels ...string) {
		kind := prometheus.GaugeValue
		if d.Type == Counter {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(descs[d], kind, v, labels...)
	}
	for state, n := range c.Pods() {
		put(Pods, float64(n), state)
	}
	for state, n := range c.Containers() {
		put(Containers, float64(n), state)
	}
	i := c.Images()
	put(Images, float64(i.Images))
	put(Layers, float64(i.Alone), strconv.FormatBool(false))
	put(Layers, float64(i.Shared), strconv.FormatBool(true))
	put(StoreBytes, float64(i.Bytes))
	put(StoreInodes, float64(i.Inodes))
	cgroup, disk := c.Readings()
	for d, at := range map[*Definition]time.Time{CgroupAge: cgroup, DiskAge: disk} {
		if !at.IsZero() {
			put(d, time.Since(at).Seconds())
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), keeperWait)
	defer cancel()
	k, err := c.Keeper(ctx)
	if err != nil {
		put(KeeperUp, 0)
		return
	}
	put(KeeperUp, 1)
	put(KeeperStart, float64(k.StartedAt.UnixMilli())/1000)
	put(KeeperUpgrades, float64(k.Upgrades))
	put(KeeperContainers, float64(k.Containers))
	if n := k.Counts; n != nil {
		put(KeeperExecs, float64(n.Execs))
		put(KeeperHolders, float64(n.Holders))
		put(KeeperQueue, float64(n.Queue))
		put(KeeperBacklog, float64(n.Backlog))
		put(LogBytes, float64(n.LogBytes))
		put(LogSplit, float64(n.LogLinesCut))
		put(LogDropped, float64(n.LogDropped))
		put(LogRotations, float64(n.LogRotations))
		put(LogRemoved, float64(n.LogRemovedBytes))
		put(LogLimitedLines, float64(n.LogLimitedLines))
		put(LogLimitedBytes, float64(n.LogLimitedBytes))
		put(LogHeld, n.LogHeld.Seconds())
	}
}
