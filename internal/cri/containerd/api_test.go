package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/api/events"
	containers "github.com/containerd/containerd/api/services/containers/v1"
	content "github.com/containerd/containerd/api/services/content/v1"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	introspection "github.com/containerd/containerd/api/services/introspection/v1"
	namespacesapi "github.com/containerd/containerd/api/services/namespaces/v1"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	versions "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"berth/internal/eventfeed"
	"berth/internal/model"
)

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%s: %v, not %v", what, err, want)
	}
}

// TestAllIsInOneNamespace: others are empty, and a call has to name one, as containerd's.
func TestAllIsInOneNamespace(t *testing.T) {
	_, conn, ctx := serve(t, newFake())
	client := containers.NewContainersClient(conn)
	other := namespaces.WithNamespace(t.Context(), "moby")
	for _, tc := range []struct {
		ctx  context.Context
		want int
	}{{ctx, 6}, {other, 0}} {
		list, err := client.List(tc.ctx, &containers.ListContainersRequest{})
		if err != nil || len(list.Containers) != tc.want {
			t.Errorf("%d containers, not %d: %v", len(list.GetContainers()), tc.want, err)
		}
	}
	_, err := client.Get(other, &containers.GetContainerRequest{ID: "main"})
	wantCode(t, "a container in another namespace", err, codes.NotFound)
	_, err = tasks.NewTasksClient(conn).Get(other, &tasks.GetRequest{ContainerID: "main"})
	wantCode(t, "a task in another namespace", err, codes.NotFound)
	_, err = content.NewContentClient(conn).Info(other, &content.InfoRequest{Digest: "sha256:m"})
	wantCode(t, "content in another namespace", err, codes.NotFound)
	_, err = client.List(t.Context(), &containers.ListContainersRequest{})
	wantCode(t, "no namespace", err, codes.FailedPrecondition)
	all, err := namespacesapi.NewNamespacesClient(conn).List(t.Context(), &namespacesapi.ListNamespacesRequest{})
	if err != nil || len(all.Namespaces) != 1 || all.Namespaces[0].Name != "k8s.io" {
		t.Errorf("namespaces %v, %v", all, err)
	}
}

// TestAContainerIsAsContainerdsCRIPluginHasIt: what cAdvisor makes labels of series from.
func TestAContainerIsAsContainerdsCRIPluginHasIt(t *testing.T) {
	_, conn, ctx := serve(t, newFake())
	got, err := containers.NewContainersClient(conn).Get(ctx, &containers.GetContainerRequest{ID: "main"})
	if err != nil {
		t.Fatal(err)
	}
	c := got.Container
	for key, want := range map[string]string{
		"io.cri-containerd.kind": "container", "io.kubernetes.container.name": "main", "vendor": "nginx", "owner": "pod",
	} {
		if c.Labels[key] != want {
			t.Errorf("label %s is %q, not %q", key, c.Labels[key], want)
		}
	}
	if c.Image != "docker.io/library/nginx:1" || c.Spec.TypeUrl != specType ||
		!strings.Contains(string(c.Spec.Value), `"id":"main"`) ||
		c.Sandbox != "sandbox" || !c.CreatedAt.AsTime().Equal(began.Add(1)) {
		t.Errorf("%+v", c)
	}
	got, err = containers.NewContainersClient(conn).Get(ctx, &containers.GetContainerRequest{ID: "sandbox"})
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(got.Container.Spec.Value, &spec); err != nil {
		t.Fatal(err)
	}
	labels := got.Container.Labels
	if labels["io.cri-containerd.kind"] != "sandbox" || labels["io.kubernetes.pod.name"] != "web" ||
		!strings.HasPrefix(got.Container.Image, "registry.k8s.io/pause:") || spec.Linux.CgroupsPath != "/pods/sandbox" ||
		spec.Linux.Namespaces[0].Path != "/run/netns/x" || spec.Process == nil ||
		spec.Annotations["io.kubernetes.cri.sandbox-namespace"] != "shop" {
		t.Errorf("%+v\n%+v", got.Container, spec)
	}
	for _, id := range []string{"mai", "sandb", "none", ""} {
		_, err = containers.NewContainersClient(conn).Get(ctx, &containers.GetContainerRequest{ID: id})
		wantCode(t, "container "+id, err, codes.NotFound)
	}
}

// TestListsAreFiltered by the fields that containerd's filters know, and read the specifications of what they give
// alone.
func TestListsAreFiltered(t *testing.T) {
	for filter, want := range map[string]string{
		"": "over sandbox main ended waits failed", `labels."io.cri-containerd.kind"==sandbox`: "over sandbox",
		`labels."io.kubernetes.container.name"==main`: "main",
		"id==ended": "ended", "image~=nginx": "main ended waits failed",
		"runtime.name==io.containerd.runc.v2": "",
	} {
		f := newFake()
		_, conn, ctx := serve(t, f)
		req := &containers.ListContainersRequest{}
		if filter != "" {
			req.Filters = []string{filter}
		}
		list, err := containers.NewContainersClient(conn).List(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		var ids, streamed []string
		specs := 0
		for _, c := range list.Containers {
			ids = append(ids, c.ID)
			if c.Labels[kindLabel] == kindContainer {
				specs++
			}
		}
		if got := strings.Join(ids, " "); got != want || f.specs != specs {
			t.Errorf("%s: %s, not %s; %d specifications were read", filter, got, want, f.specs)
		}
		stream, err := containers.NewContainersClient(conn).ListStream(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		for {
			message, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			streamed = append(streamed, message.Container.ID)
		}
		if !slices.Equal(streamed, ids) {
			t.Errorf("%s: streamed %v", filter, streamed)
		}
	}
	_, conn, ctx := serve(t, newFake())
	_, err := containers.NewContainersClient(conn).List(ctx, &containers.ListContainersRequest{Filters: []string{"=="}})
	wantCode(t, "no filter", err, codes.InvalidArgument)
}

// TestTasksAreWhatRuns, or has run.
func TestTasksAreWhatRuns(t *testing.T) {
	_, conn, ctx := serve(t, newFake())
	client := tasks.NewTasksClient(conn)
	for id, want := range map[string]*task.Process{
		"main":    {Pid: 100, Status: task.Status_RUNNING},
		"ended":   {Status: task.Status_STOPPED, ExitStatus: 7}, // its PID may be another's
		"sandbox": {Pid: 100, Status: task.Status_RUNNING},
		"waits":   nil, "failed": nil, "over": nil, "none": nil,
	} {
		got, err := client.Get(ctx, &tasks.GetRequest{ContainerID: id})
		if want == nil {
			wantCode(t, id, err, codes.NotFound)
			continue
		}
		if p := got.GetProcess(); err != nil || p.Pid != want.Pid || p.Status != want.Status ||
			p.ExitStatus != want.ExitStatus || p.ID != id {
			t.Errorf("%s: %v, %v", id, p, err)
		}
	}
	_, err := client.Get(ctx, &tasks.GetRequest{ContainerID: "main", ExecID: "x"})
	wantCode(t, "an exec", err, codes.NotFound)
	list, err := client.List(ctx, &tasks.ListTasksRequest{})
	if err != nil || len(list.Tasks) != 3 {
		t.Errorf("%v, %v", list, err)
	}
	pids, err := client.ListPids(ctx, &tasks.ListPidsRequest{ContainerID: "main"})
	if err != nil || len(pids.Processes) != 2 || pids.Processes[1].Pid != 101 {
		t.Errorf("%v, %v", pids, err)
	}
	pids, err = client.ListPids(ctx, &tasks.ListPidsRequest{ContainerID: "sandbox"})
	if err != nil || len(pids.Processes) != 0 {
		t.Errorf("a sandbox: %v, %v", pids, err)
	}
}

// TestImagesAreListedUnderAllNames, and their manifests and configurations can be read.
func TestImagesAreListedUnderAllNames(t *testing.T) {
	_, conn, ctx := serve(t, newFake())
	list, err := imagesapi.NewImagesClient(conn).List(ctx, &imagesapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, image := range list.Images {
		names = append(names, image.Name)
		if image.Target.Digest != "sha256:m" ||
			image.Target.MediaType != "application/vnd.docker.distribution.manifest.v2+json" ||
			image.Target.Size == 0 || image.Labels[pinnedLabel] != "pinned" {
			t.Errorf("%+v", image)
		}
	}
	want := []string{"docker.io/library/nginx:1", "docker.io/library/nginx@sha256:m", "sha256:id"}
	if !slices.Equal(names, want) {
		t.Errorf("names %v", names)
	}
	_, err = imagesapi.NewImagesClient(conn).Get(ctx, &imagesapi.GetImageRequest{Name: "nginx:1"})
	wantCode(t, "a short name", err, codes.NotFound)
	for _, tc := range []struct{ offset, size, want int64 }{
		{0, 0, 3 * readChunk}, {5, 10, 10}, {3 * readChunk, 0, 0}, {7, 0, 3*readChunk - 7},
	} {
		stream, err := content.NewContentClient(conn).Read(ctx, &content.ReadContentRequest{
			Digest: "sha256:id", Offset: tc.offset, Size: tc.size,
		})
		if err != nil {
			t.Fatal(err)
		}
		at := tc.offset
		for {
			part, err := stream.Recv()
			if err == io.EOF {
				break
			}
			if err != nil || part.Offset != at {
				t.Fatalf("at %d: %v, %v", at, part.GetOffset(), err)
			}
			at += int64(len(part.Data))
		}
		if at-tc.offset != tc.want {
			t.Errorf("%+v: %d bytes", tc, at-tc.offset)
		}
	}
	for _, req := range []*content.ReadContentRequest{
		{Digest: "sha256:id", Offset: 3*readChunk + 1}, {Digest: "sha256:id", Size: 1 << 62},
	} {
		stream, err := content.NewContentClient(conn).Read(ctx, req)
		if err == nil {
			_, err = stream.Recv()
		}
		wantCode(t, req.String(), err, codes.OutOfRange)
	}
}

// TestEveryCallThatIsNotAnsweredIsRefused with a sentence that names Berth and the call, whatever the service. A call
// that containerd adds is refused until somebody lists it.
func TestEveryCallThatIsNotAnsweredIsRefused(t *testing.T) {
	a, conn, ctx := serve(t, newFake())
	answered, refused := 0, 0
	check := func(service service, name string, call func(method string) error) {
		if slices.Contains(service.calls, name) {
			answered++
			return
		}
		refused++
		method := "/" + service.desc.ServiceName + "/" + name
		err := call(method)
		wantCode(t, method, err, codes.Unimplemented)
		if text := status.Convert(err).Message(); !strings.Contains(text, "Berth") || !strings.Contains(text, method) {
			t.Errorf("%s: %s", method, text)
		}
	}
	for _, service := range a.services() {
		for _, m := range service.desc.Methods {
			check(service, m.MethodName, func(method string) error {
				return conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
			})
		}
		for _, s := range service.desc.Streams {
			check(service, s.StreamName, func(method string) error {
				stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
				if err != nil {
					return err
				}
				return stream.RecvMsg(&emptypb.Empty{})
			})
		}
	}
	if answered != 20 || refused < 60 {
		t.Errorf("%d calls are answered, %d refused", answered, refused)
	}
}

// TestVersionAndPluginsSayWhoAnswers.
func TestVersionAndPluginsSayWhoAnswers(t *testing.T) {
	_, conn, ctx := serve(t, newFake())
	v, err := versions.NewVersionClient(conn).Version(ctx, &emptypb.Empty{})
	if err != nil || v.Version != "v2.3.4+berth.0.1.0" {
		t.Errorf("%v, %v", v, err)
	}
	client := introspection.NewIntrospectionClient(conn)
	plugins, err := client.Plugins(ctx, &introspection.PluginsRequest{Filters: []string{"id==tasks", "id==snapshots"}})
	if err != nil || len(plugins.Plugins) != 1 || plugins.Plugins[0].ID != "tasks" {
		t.Errorf("%v, %v", plugins, err)
	}
	server, err := client.Server(ctx, &emptypb.Empty{})
	if err != nil || server.UUID != "u" || server.Pid == 0 || server.Pidns == 0 {
		t.Errorf("%v, %v", server, err)
	}
}

// TestEventsAreContainerds, as far as the filters select them.
func TestEventsAreContainerds(t *testing.T) {
	f := newFake()
	_, conn, ctx := serve(t, f)
	stream, err := eventsapi.NewEventsClient(conn).Subscribe(ctx, &eventsapi.SubscribeRequest{Filters: []string{
		`topic=="/tasks/exit",event.container_id==main`, `topic=="/containers/create"`,
		`topic=="/tasks/oom",namespace==k8s.io`,
	}})
	if err != nil {
		t.Fatal(err)
	}
	ended := *f.containers["main"]
	ended.ExitCode, ended.Reason, ended.FinishedAt = 137, model.ReasonOOMKilled, began.Add(time.Minute)
	all := []*model.ContainerStatus{&ended}
	for _, e := range []model.ContainerEvent{
		{ContainerID: "main", SandboxID: "sandbox", Type: model.EventCreated, Containers: all},
		{ContainerID: "sandbox", SandboxID: "sandbox", Type: model.EventStopped},
		{ContainerID: "main", SandboxID: "sandbox", Type: model.EventStopped, Containers: all},
	} {
		f.events <- e
	}
	want := []proto.Message{&events.ContainerCreate{}, &events.TaskOOM{}, &events.TaskExit{}}
	for _, into := range want {
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if name := string(into.ProtoReflect().Descriptor().FullName()); e.Event.TypeUrl != name || e.Namespace != namespace {
			t.Fatalf("%s in %s, not %s", e.Event.TypeUrl, e.Namespace, name)
		}
		if err := proto.Unmarshal(e.Event.Value, into); err != nil {
			t.Fatal(err)
		}
	}
	if c := want[0].(*events.ContainerCreate); c.ID != "main" || c.Image != "docker.io/library/nginx:1" {
		t.Errorf("%v", c)
	}
	if e := want[2].(*events.TaskExit); e.ExitStatus != 137 || !e.ExitedAt.AsTime().Equal(ended.FinishedAt) {
		t.Errorf("%v", e)
	}
	close(f.events) // as for a reader that is too far behind
	_, err = stream.Recv()
	wantCode(t, "the end", err, codes.Unavailable)
}

// TestEventsOfImagesAreContainerds: the names are those of a list of images, and the labels are those of the image.
func TestEventsOfImagesAreContainerds(t *testing.T) {
	f := newFake()
	_, conn, ctx := serve(t, f)
	stream, err := eventsapi.NewEventsClient(conn).Subscribe(ctx, &eventsapi.SubscribeRequest{Filters: []string{
		`topic~="/images/",event.name~=nginx`,
	}})
	if err != nil {
		t.Fatal(err)
	}
	const tag = "docker.io/library/nginx:1"
	for _, e := range []model.ImageEvent{
		{Type: model.ImageCreated, Name: tag, ImageID: "sha256:id", At: began},
		{Type: model.ImageCreated, Name: "docker.io/library/other:1", ImageID: "sha256:id", At: began},
		{Type: model.ImageUpdated, Name: tag, ImageID: "sha256:gone", At: began.Add(1)},
		{Type: model.ImageDeleted, Name: tag, At: began.Add(2)},
	} {
		f.named <- e
	}
	managed := map[string]string{managedLabel: "managed"}
	pinned := map[string]string{managedLabel: "managed", pinnedLabel: "pinned"}
	for i, want := range []struct {
		topic string
		event proto.Message
	}{
		{"/images/create", &events.ImageCreate{Name: tag, Labels: pinned}},
		{"/images/update", &events.ImageUpdate{Name: tag, Labels: managed}},
		{"/images/delete", &events.ImageDelete{Name: tag}},
	} {
		e, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got := want.event.ProtoReflect().New().Interface()
		if err := proto.Unmarshal(e.Event.Value, got); err != nil {
			t.Fatal(err)
		}
		name := string(want.event.ProtoReflect().Descriptor().FullName())
		if e.Topic != want.topic || e.Namespace != namespace || e.Event.TypeUrl != name ||
			!e.Timestamp.AsTime().Equal(began.Add(time.Duration(i))) || !proto.Equal(got, want.event) {
			t.Errorf("%v, not %s %v", e, want.topic, want.event)
		}
	}
	close(f.named) // as for a reader that is too far behind
	_, err = stream.Recv()
	wantCode(t, "the end", err, codes.Unavailable)
}

// TestEventsOfImagesEndNoStreamWithoutThem: the removal of an image has an event for each of its names, more than a
// follower may be behind. Seen to fail where images were followed for every client.
func TestEventsOfImagesEndNoStreamWithoutThem(t *testing.T) {
	f := newFake()
	f.feed = &eventfeed.Feed[model.ImageEvent]{}
	_, conn, ctx := serve(t, f)
	tasks, err := eventsapi.NewEventsClient(conn).Subscribe(ctx, &eventsapi.SubscribeRequest{
		Filters: []string{`topic~="^/tasks/"`},
	})
	if err != nil {
		t.Fatal(err)
	}
	stopped := model.ContainerEvent{ContainerID: "main", SandboxID: "sandbox", Type: model.EventStopped}
	exits := func() {
		t.Helper()
		f.events <- stopped
		if e, err := tasks.Recv(); err != nil || e.Topic != "/tasks/exit" {
			t.Fatalf("got %v, %v", e, err)
		}
	}
	exits() // it follows now
	const names = 2000
	for i := range names {
		f.feed.Publish(func() model.ImageEvent {
			return model.ImageEvent{Type: model.ImageDeleted, Name: fmt.Sprintf("docker.io/library/nginx:%d", i), At: began}
		})
	}
	time.Sleep(100 * time.Millisecond) // a stream that ends has ended by then
	exits()
}

// TestWantsImages: a filter that may match an event of some image follows them all.
func TestWantsImages(t *testing.T) {
	for text, want := range map[string]bool{
		``: true, `topic~="^/tasks/"`: false, `topic~=images`: true, `topic=="/images/delete"`: true,
		`topic=="/containers/create"`: false, `topic!="/tasks/exit"`: true, `namespace==k8s.io`: true,
		`namespace==moby`: false, `event.name~=nginx`: true, `event.container_id==main`: false,
		`event.name==x,topic~="^/tasks/"`: false, `topic~="^/images/",event.name==x`: true,
		`topic=="/images/update",event.labels."a.b"==c`: true, `topic=="/images/delete",event.container_id`: false,
	} {
		f, err := filters.ParseAll(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := wantsImages(f); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	all, err := filters.ParseAll()
	if err != nil || !wantsImages(all) {
		t.Errorf("no filter: %v", err)
	}
	either, err := filters.ParseAll(`topic~="^/tasks/"`, `topic=="/images/create"`)
	if err != nil || !wantsImages(either) {
		t.Errorf("two filters: %v", err)
	}
}
