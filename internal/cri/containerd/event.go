package containerd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/api/events"
	api "github.com/containerd/containerd/api/services/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"berth/internal/model"
)

type eventService struct {
	api.UnimplementedEventsServer
	api *API
}

// event is a message of containerd/api/events, which knows its fields.
type event interface {
	proto.Message
	filters.Adaptor
}

// Subscribe follows what happens to containers, sandboxes and images until the client has seen enough. One that is far
// behind gets an error: it comes back and lists. Events of images come in their order, and so do all others. Images are
// not followed for a client that wants none of their events: one image may have more names than a follower may be
// behind, and its removal has an event for each.
func (s *eventService) Subscribe(req *api.SubscribeRequest, stream api.Events_SubscribeServer) error {
	filter, err := filters.ParseAll(req.Filters...)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(stream.Context())
	defer stop()
	send := func(what []topical, at time.Time) error {
		for _, one := range what {
			if !filter.Match(one) {
				continue
			}
			envelope, err := one.envelope(at)
			if err != nil {
				return err
			}
			if err := stream.Send(envelope); err != nil {
				return err
			}
		}
		return nil
	}
	pods := s.api.Runtime.Subscribe(ctx)
	var images <-chan model.ImageEvent
	if wantsImages(filter) {
		images = s.api.Images.Subscribe(ctx)
	}
	for open := true; open; {
		select {
		case e, ok := <-pods:
			if open = ok; ok {
				err = send(s.translate(ctx, &e), e.At)
			}
		case e, ok := <-images:
			if open = ok; ok {
				err = send(s.translateImage(ctx, &e), e.At)
			}
		}
		if err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the client is too far behind with events, or berthd ends: %w", errdefs.ErrUnavailable)
}

// wantsImages tells whether a filter may match an event of an image.
func wantsImages(f filters.Filter) bool {
	return slices.ContainsFunc([]topical{
		{"/images/create", &events.ImageCreate{}}, {"/images/update", &events.ImageUpdate{}},
		{"/images/delete", &events.ImageDelete{}},
	}, func(e topical) bool { return mayMatch(f, e) })
}

// mayMatch tells whether a filter may match an event of an image of this type, whatever its name and labels are.
func mayMatch(f filters.Filter, e topical) bool {
	may := func(f filters.Filter) bool { return mayMatch(f, e) }
	switch f := f.(type) {
	case filters.Any:
		return slices.ContainsFunc(f, may)
	case filters.All:
		return !slices.ContainsFunc(f, func(f filters.Filter) bool { return !may(f) })
	}
	unknown := false
	matches := f.Match(filters.AdapterFunc(func(path []string) (string, bool) {
		if len(path) > 1 && path[0] == "event" && (path[1] == "name" || path[1] == "labels") {
			unknown = true
		}
		return e.Field(path)
	}))
	return matches || unknown
}

// topical is an event and its topic.
type topical struct {
	topic string
	event event
}

// Field has filters ask for topic, namespace and the event's own fields.
func (t topical) Field(path []string) (string, bool) {
	if len(path) > 1 && path[0] == "event" {
		return t.event.Field(path[1:])
	}
	return fields{"topic": t.topic, "namespace": namespace}.Field(path)
}

func (t topical) envelope(at time.Time) (*types.Envelope, error) {
	data, err := proto.Marshal(t.event)
	if err != nil {
		return nil, fmt.Errorf("event %s: %w", t.topic, err)
	}
	return &types.Envelope{
		Timestamp: timestamppb.New(at), Namespace: namespace, Topic: t.topic,
		Event: &anypb.Any{TypeUrl: string(t.event.ProtoReflect().Descriptor().FullName()), Value: data},
	}, nil
}

// translate is what containerd would say. A sandbox that is made runs at once.
func (s *eventService) translate(ctx context.Context, e *model.ContainerEvent) []topical {
	id, sandbox := e.ContainerID, e.ContainerID == e.SandboxID
	var c *model.ContainerStatus
	for _, of := range e.Containers {
		if of.ID == id {
			c = of
		}
	}
	switch e.Type {
	case model.EventCreated:
		image := sandboxImage
		if c != nil {
			image = imageName(c, s.api.image(ctx, c.ImageID))
		}
		return []topical{{"/containers/create", &events.ContainerCreate{
			ID: id, Image: image, Runtime: &events.ContainerCreate_Runtime{Name: model.RuntimeType},
		}}}
	case model.EventStarted:
		start := &events.TaskStart{ContainerID: id}
		if c != nil {
			start.Pid = uint32(c.PID)
		}
		return []topical{{"/tasks/start", start}}
	case model.EventStopped:
		exit := &events.TaskExit{ContainerID: id, ID: id, ExitedAt: timestamppb.New(e.At)}
		if c != nil && !sandbox {
			exit.ExitStatus, exit.ExitedAt, exit.Pid = uint32(c.ExitCode), timestamppb.New(c.FinishedAt), uint32(c.PID)
		}
		out := []topical{{"/tasks/exit", exit}}
		if c != nil && c.Reason == model.ReasonOOMKilled {
			out = append([]topical{{"/tasks/oom", &events.TaskOOM{ContainerID: id}}}, out...)
		}
		return out
	case model.EventDeleted:
		return []topical{{"/containers/delete", &events.ContainerDelete{ID: id}}}
	}
	return nil
}

// translateImage is what containerd would say. The labels are those that the image has when the event is sent: an agent
// that gets the event late learns no more from labels that have changed since.
func (s *eventService) translateImage(ctx context.Context, e *model.ImageEvent) []topical {
	switch e.Type {
	case model.ImageCreated:
		labels := imageLabels(s.api.image(ctx, e.ImageID))
		return []topical{{"/images/create", &events.ImageCreate{Name: e.Name, Labels: labels}}}
	case model.ImageUpdated:
		labels := imageLabels(s.api.image(ctx, e.ImageID))
		return []topical{{"/images/update", &events.ImageUpdate{Name: e.Name, Labels: labels}}}
	case model.ImageDeleted:
		return []topical{{"/images/delete", &events.ImageDelete{Name: e.Name}}}
	}
	return nil
}
