package manager

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"berth/internal/metrics"
)

// callMetrics measures calls of plugins.
type callMetrics struct {
	seconds *prometheus.HistogramVec
	calls   *prometheus.CounterVec
}

var (
	capacityMetric  = metrics.Devices.Desc()
	allocatedMetric = metrics.DevicesAllocated.Desc()
	unhealthyMetric = metrics.DevicesUnhealthy.Desc()
)

func newMetrics() *callMetrics {
	return &callMetrics{seconds: metrics.DeviceSeconds.HistogramVec(), calls: metrics.DeviceCalls.CounterVec()}
}

func (m *callMetrics) observe(resource, call string, code codes.Code, took time.Duration) {
	m.seconds.WithLabelValues(resource, call).Observe(took.Seconds())
	m.calls.WithLabelValues(resource, call, code.String()).Inc()
}

// Describe and Collect make the manager a prometheus.Collector.
func (m *Manager) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{capacityMetric, allocatedMetric, unhealthyMetric} {
		out <- d
	}
	m.metrics.seconds.Describe(out)
	m.metrics.calls.Describe(out)
}

// Collect gives the metrics as they are now.
func (m *Manager) Collect(out chan<- prometheus.Metric) {
	for _, r := range m.List() {
		var allocated, unhealthy float64
		for _, d := range r.Devices {
			if len(d.Holders) > 0 {
				allocated++
			}
			if !d.Healthy {
				unhealthy++
			}
		}
		gauge := func(desc *prometheus.Desc, value float64) {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, r.Name)
		}
		gauge(capacityMetric, float64(len(r.Devices)))
		gauge(allocatedMetric, allocated)
		gauge(unhealthyMetric, unhealthy)
	}
	m.metrics.seconds.Collect(out)
	m.metrics.calls.Collect(out)
}
