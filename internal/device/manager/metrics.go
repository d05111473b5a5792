package manager

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// metrics measures calls of plugins.
type metrics struct {
	seconds *prometheus.HistogramVec
	calls   *prometheus.CounterVec
}

var (
	capacityMetric = prometheus.NewDesc("berth_devices", "Devices that the plugin of a resource offers.",
		[]string{"resource"}, nil)
	allocatedMetric = prometheus.NewDesc("berth_devices_allocated", "Devices that containers hold.",
		[]string{"resource"}, nil)
	unhealthyMetric = prometheus.NewDesc("berth_devices_unhealthy", "Devices that are unhealthy, or whose plugin is away.",
		[]string{"resource"}, nil)
)

func newMetrics() *metrics {
	return &metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "berth_device_plugin_call_duration_seconds",
			Help:    "How long calls of device plugins took.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 4, 10), // 250 µs to 65 s
		}, []string{"resource", "call"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_device_plugin_calls_total",
			Help: "Calls of device plugins, by gRPC code.",
		}, []string{"resource", "call", "code"}),
	}
}

func (m *metrics) observe(resource, call string, code codes.Code, took time.Duration) {
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
