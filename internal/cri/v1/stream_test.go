package v1

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

// received is what a stream has sent, message by message.
func received[M any, I any](t *testing.T, s grpc.ServerStreamingClient[M], err error,
	items func(*M) []I) (all []I, messages int) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return all, messages
		}
		if err != nil {
			t.Fatal(err)
		}
		batch := items(m)
		if len(batch) == 0 {
			t.Error("a message without an item")
		}
		if size := proto.Size(any(m).(proto.Message)); size > 4<<20 && len(batch) > 1 {
			t.Errorf("a message of %d bytes, which a plain client does not take", size)
		}
		all, messages = append(all, batch...), messages+1
	}
}

func TestStreamsHaveEachItemOnceInMessagesThatEveryClientTakes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds: run without -short")
	}
	const items = 300
	d := open(t, slog.LevelError)
	padding := strings.Repeat("x", 50<<10)
	for i := range items {
		name := fmt.Sprint(i)
		labels := map[string]string{"i": name, "padding": padding}
		sandbox := &model.SandboxStatus{ID: name, State: model.SandboxReady, Config: &model.SandboxConfig{Labels: labels}}
		container := &model.ContainerStatus{ID: name, Config: &model.ContainerConfig{Labels: labels}}
		d.rec.sandboxes = append(d.rec.sandboxes, sandbox)
		d.rec.containers = append(d.rec.containers, container)
		d.rec.images = append(d.rec.images, &model.Image{ID: name, RepoTags: []string{padding}})
		d.rec.usage = append(d.rec.usage, &model.ContainerUsage{Container: container})
		d.rec.podUsage = append(d.rec.podUsage, &model.SandboxUsage{Sandbox: sandbox})
		d.rec.metrics = append(d.rec.metrics, model.SandboxMetrics{SandboxID: name,
			Metrics: []model.Metric{{Name: "a", Labels: []string{padding}}}})
	}
	ctx := t.Context()
	check := func(what string, ids []string, messages int) {
		t.Helper()
		if len(ids) != items || messages < 5 {
			t.Errorf("%s: %d items in %d messages", what, len(ids), messages)
			return
		}
		for i, id := range ids {
			if id != fmt.Sprint(i) {
				t.Errorf("%s: item %d is %s", what, i, id)
				return
			}
		}
	}
	{
		s, err := d.StreamPodSandboxes(ctx, &api.StreamPodSandboxesRequest{})
		all, n := received(t, s, err, (*api.StreamPodSandboxesResponse).GetPodSandboxes)
		check("sandboxes", ids(all, (*api.PodSandbox).GetId), n)
	}
	{
		s, err := d.StreamContainers(ctx, &api.StreamContainersRequest{})
		all, n := received(t, s, err, (*api.StreamContainersResponse).GetContainers)
		check("containers", ids(all, (*api.Container).GetId), n)
	}
	{
		s, err := d.StreamImages(ctx, &api.StreamImagesRequest{})
		all, n := received(t, s, err, (*api.StreamImagesResponse).GetImages)
		check("images", ids(all, (*api.Image).GetId), n)
	}
	{
		s, err := d.StreamContainerStats(ctx, &api.StreamContainerStatsRequest{})
		all, n := received(t, s, err, (*api.StreamContainerStatsResponse).GetContainerStats)
		check("container stats", ids(all, func(u *api.ContainerStats) string { return u.GetAttributes().GetId() }), n)
	}
	{
		s, err := d.StreamPodSandboxStats(ctx, &api.StreamPodSandboxStatsRequest{})
		all, n := received(t, s, err, (*api.StreamPodSandboxStatsResponse).GetPodSandboxStats)
		check("sandbox stats", ids(all, func(u *api.PodSandboxStats) string { return u.GetAttributes().GetId() }), n)
	}
	{
		s, err := d.StreamPodSandboxMetrics(ctx, &api.StreamPodSandboxMetricsRequest{})
		all, n := received(t, s, err, (*api.StreamPodSandboxMetricsResponse).GetPodSandboxMetrics)
		check("metrics", ids(all, (*api.PodSandboxMetrics).GetPodSandboxId), n)
	}
}

func ids[I any](list []I, id func(I) string) (out []string) {
	for _, item := range list {
		out = append(out, id(item))
	}
	return out
}

// Statistics that fit no message take those of no other pod away, but a list without one of its pods would be wrong.
// Seen to fail with sendAll for statistics too.
func TestStatisticsThatFitNoMessageAreLeftOut(t *testing.T) {
	d := open(t, slog.LevelWarn)
	huge := map[string]string{"padding": strings.Repeat("x", maxMessage)}
	for _, c := range []struct {
		id     string
		labels map[string]string
	}{{"before", nil}, {"huge", huge}, {"after", nil}} {
		sandbox := &model.SandboxStatus{ID: c.id, State: model.SandboxReady, Config: &model.SandboxConfig{Labels: c.labels}}
		container := &model.ContainerStatus{ID: c.id, Config: &model.ContainerConfig{Labels: c.labels}}
		d.rec.sandboxes = append(d.rec.sandboxes, sandbox)
		d.rec.usage = append(d.rec.usage, &model.ContainerUsage{Container: container})
		d.rec.podUsage = append(d.rec.podUsage, &model.SandboxUsage{Sandbox: sandbox})
		d.rec.metrics = append(d.rec.metrics, model.SandboxMetrics{SandboxID: c.id,
			Metrics: []model.Metric{{Name: "a", Labels: []string{c.labels["padding"]}}}})
	}
	ctx, want := t.Context(), []string{"before", "after"}
	containers, err := d.StreamContainerStats(ctx, &api.StreamContainerStatsRequest{})
	usage, _ := received(t, containers, err, (*api.StreamContainerStatsResponse).GetContainerStats)
	got := ids(usage, func(u *api.ContainerStats) string { return u.GetAttributes().GetId() })
	if !slices.Equal(got, want) {
		t.Errorf("containers: %q, want %q", got, want)
	}
	pods, err := d.StreamPodSandboxStats(ctx, &api.StreamPodSandboxStatsRequest{})
	podUsage, _ := received(t, pods, err, (*api.StreamPodSandboxStatsResponse).GetPodSandboxStats)
	got = ids(podUsage, func(u *api.PodSandboxStats) string { return u.GetAttributes().GetId() })
	if !slices.Equal(got, want) {
		t.Errorf("pods: %q, want %q", got, want)
	}
	metrics, err := d.StreamPodSandboxMetrics(ctx, &api.StreamPodSandboxMetricsRequest{})
	all, _ := received(t, metrics, err, (*api.StreamPodSandboxMetricsResponse).GetPodSandboxMetrics)
	if got := ids(all, (*api.PodSandboxMetrics).GetPodSandboxId); !slices.Equal(got, want) {
		t.Errorf("metrics: %q, want %q", got, want)
	}
	log := d.log.String()
	if said := strings.Count(log, "statistics are left out"); said != 3 || strings.Count(log, "huge") != 3 {
		t.Errorf("it was logged %d times, want once for each stream, with the ID:\n%s", said, log)
	}
	list, err := d.StreamPodSandboxes(ctx, &api.StreamPodSandboxesRequest{})
	for err == nil {
		_, err = list.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the list of pods: %v", err)
	}
}

func TestAnEmptyStreamEndsWithoutAMessage(t *testing.T) {
	d := open(t, slog.LevelError)
	s, err := d.StreamContainers(t.Context(), &api.StreamContainersRequest{})
	if all, n := received(t, s, err, (*api.StreamContainersResponse).GetContainers); len(all) != 0 || n != 0 {
		t.Errorf("%d items in %d messages", len(all), n)
	}
}

func TestStreamsFilterAsListsDo(t *testing.T) {
	d := open(t, slog.LevelError)
	s, err := d.StreamContainers(t.Context(), &api.StreamContainersRequest{Filter: &api.ContainerFilter{
		Id: "c", PodSandboxId: "p", State: &api.ContainerStateValue{State: api.ContainerState_CONTAINER_EXITED},
		LabelSelector: map[string]string{"a": "b"},
	}})
	received(t, s, err, (*api.StreamContainersResponse).GetContainers)
	got := d.rec.last("ListContainers")[0].(model.ContainerFilter)
	if got.ID != "c" || got.SandboxID != "p" || len(got.States) == 0 || got.States[0] != model.ContainerExited ||
		got.Labels["a"] != "b" {
		t.Errorf("filter %+v", got)
	}
	bad, err := d.StreamPodSandboxes(t.Context(), &api.StreamPodSandboxesRequest{Filter: &api.PodSandboxFilter{
		State: &api.PodSandboxStateValue{State: 77},
	}})
	if err == nil {
		_, err = bad.Recv()
	}
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "filter.state.state") {
		t.Errorf("a state that does not exist: %v", err)
	}
}
