package cri

import (
	"path"
	"strings"
	"time"

	grpcprometheus "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"berth/internal/metrics"
)

// callMetrics measures calls by method, under names of Berth's own and under those that gRPC servers have in common. A
// nil *callMetrics measures nothing.
type callMetrics struct {
	seconds  *prometheus.HistogramVec
	handled  *prometheus.CounterVec
	standard *grpcprometheus.ServerMetrics
}

func newMetrics(reg prometheus.Registerer) (*callMetrics, error) {
	m := &callMetrics{
		seconds: metrics.CallSeconds.HistogramVec(),
		handled: metrics.Calls.CounterVec(),
		standard: grpcprometheus.NewServerMetrics(grpcprometheus.WithServerHandlingTimeHistogram(
			grpcprometheus.WithHistogramBuckets(prometheus.ExponentialBuckets(0.00025, 4, 9)))),
	}
	for _, c := range []prometheus.Collector{m.seconds, m.handled, m.standard} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *callMetrics) observe(fullMethod string, code codes.Code, took time.Duration) {
	if m == nil {
		return
	}
	service, method := strings.TrimPrefix(path.Dir(fullMethod), "/"), path.Base(fullMethod)
	m.seconds.WithLabelValues(service, method).Observe(took.Seconds())
	m.handled.WithLabelValues(service, method, code.String()).Inc()
}

// interceptors are those of the standard names, to be outside of others: the code is the one that the client gets.
func (m *callMetrics) interceptors() ([]grpc.UnaryServerInterceptor, []grpc.StreamServerInterceptor) {
	if m == nil {
		return nil, nil
	}
	return []grpc.UnaryServerInterceptor{m.standard.UnaryServerInterceptor()},
		[]grpc.StreamServerInterceptor{m.standard.StreamServerInterceptor()}
}
