package v1

import (
	"context"

	"google.golang.org/grpc"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

// ListMetricDescriptors is static: a kubelet asks once, when it starts.
func (s *runtimeService) ListMetricDescriptors(_ context.Context, req *api.ListMetricDescriptorsRequest) (
	*api.ListMetricDescriptorsResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	resp := &api.ListMetricDescriptorsResponse{}
	for _, d := range s.Runtime.MetricDescriptors() {
		resp.Descriptors = append(resp.Descriptors, &api.MetricDescriptor{Name: d.Name, Help: d.Help, LabelKeys: d.Labels})
	}
	return resp, nil
}

func (s *runtimeService) ListPodSandboxMetrics(ctx context.Context, req *api.ListPodSandboxMetricsRequest) (
	*api.ListPodSandboxMetricsResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	list, err := s.Runtime.ListSandboxMetrics(ctx)
	if err != nil {
		return nil, err
	}
	resp := &api.ListPodSandboxMetricsResponse{PodMetrics: make([]*api.PodSandboxMetrics, 0, len(list))}
	for _, m := range list {
		resp.PodMetrics = append(resp.PodMetrics, fromSandboxMetrics(m))
	}
	return resp, nil
}

func (s *runtimeService) StreamPodSandboxMetrics(req *api.StreamPodSandboxMetricsRequest,
	out grpc.ServerStreamingServer[api.StreamPodSandboxMetricsResponse]) error {
	if err := checkOnly(s.dialect, req); err != nil {
		return err
	}
	list, err := s.Runtime.ListSandboxMetrics(out.Context())
	if err != nil {
		return err
	}
	id := func(m model.SandboxMetrics) string { return m.SandboxID }
	return sendFigures(s.Log, list, id, fromSandboxMetrics, func(batch []*api.PodSandboxMetrics) error {
		return out.Send(&api.StreamPodSandboxMetricsResponse{PodSandboxMetrics: batch})
	})
}

func fromSandboxMetrics(m model.SandboxMetrics) *api.PodSandboxMetrics {
	out := &api.PodSandboxMetrics{PodSandboxId: m.SandboxID, Metrics: fromMetrics(m.Metrics)}
	for _, c := range m.Containers {
		out.ContainerMetrics = append(out.ContainerMetrics, &api.ContainerMetrics{
			ContainerId: c.ContainerID, Metrics: fromMetrics(c.Metrics),
		})
	}
	return out
}

func fromMetrics(in []model.Metric) []*api.Metric {
	out := make([]*api.Metric, 0, len(in))
	for _, m := range in {
		kind := api.MetricType_COUNTER
		if m.Gauge {
			kind = api.MetricType_GAUGE
		}
		// The value is always there: a kubelet reads it without a look.
		out = append(out, &api.Metric{Name: m.Name, Timestamp: nanoseconds(m.At), MetricType: kind, LabelValues: m.Labels,
			Value: number(m.Value)})
	}
	return out
}
