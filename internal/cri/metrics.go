package cri

import (
	"path"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// metrics measures calls by method. A nil *metrics measures nothing.
type metrics struct {
	seconds *prometheus.HistogramVec
	handled *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_cri_call_duration_seconds",
			Help: "How long CRI calls took.",
			// 250 µs to 16 s, and pulls beyond.
			Buckets: prometheus.ExponentialBuckets(0.00025, 4, 9),
		}, []string{"service", "method"}),
		handled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_cri_calls_total",
			Help: "CRI calls that were answered, by gRPC code.",
		}, []string{"service", "method", "code"}),
	}
	for _, c := range []prometheus.Collector{m.seconds, m.handled} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) observe(fullMethod string, code codes.Code, took time.Duration) {
	if m == nil {
		return
	}
	service, method := strings.TrimPrefix(path.Dir(fullMethod), "/"), path.Base(fullMethod)
	m.seconds.WithLabelValues(service, method).Observe(took.Seconds())
	m.handled.WithLabelValues(service, method, code.String()).Inc()
}
