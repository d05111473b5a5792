package berthv1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	api "berth/api/berth/v1"
	"berth/internal/model"
)

// Images is the image store as this API uses it.
type Images interface {
	// Pull calls Progress of the request from one goroutine at a time, and not after it has returned.
	Pull(ctx context.Context, req model.PullRequest) (*model.Image, error)
	// ImportArchive gives an image once for each name that the archive gives it.
	ImportArchive(ctx context.Context, r io.Reader) ([]*model.Image, error)
	Get(ctx context.Context, refOrID string) (*model.Image, error)
	List(context.Context) ([]*model.Image, error)
	// LayerUsage are the layers on disk of an image.
	LayerUsage(imageID string) []model.LayerUsage
	// Tag returns the name in full.
	Tag(ctx context.Context, refOrID, name string) (string, error)
	// Untag returns the name in full.
	Untag(ctx context.Context, name string) (string, error)
	Pin(ctx context.Context, refOrID string, pinned bool) error
}

// Archive writes archives of images, and pushes them.
type Archive interface {
	// Push calls Progress of the request from one goroutine at a time, and not after it has returned.
	Push(ctx context.Context, req model.PushRequest) (*model.Pushed, error)
	Save(ctx context.Context, images []string, w io.Writer) error
	// Login asks a registry whether it takes credentials. asked is false where it wants none.
	Login(ctx context.Context, registry string, auth *model.Auth) (asked bool, err error)
}

type service struct {
	api.UnimplementedImagesServer
	images  Images
	archive Archive
}

// Pull streams progress while the image is pulled. A client that reads slowly misses events and delays nothing.
func (s *service) Pull(req *api.PullRequest, stream grpc.ServerStreamingServer[api.PullEvent]) error {
	if req.GetImage() == "" {
		return fmt.Errorf("image: empty: %w", errdefs.ErrInvalidArgument)
	}
	var img *model.Image
	err := telling(stream.Context(), func(layer *api.Layer) error {
		return stream.Send(&api.PullEvent{Event: &api.PullEvent_Layer{Layer: layer}})
	}, func(ctx context.Context, progress func(model.PullProgress)) (err error) {
		img, err = s.images.Pull(ctx, model.PullRequest{Ref: req.GetImage(), Auth: auth(req.GetAuth()), Progress: progress})
		return err
	})
	if err != nil {
		return err
	}
	return stream.Send(&api.PullEvent{Event: &api.PullEvent_Done{Done: &api.Done{ImageRef: img.ID}}})
}

// telling runs do, and sends what it tells of layers while it runs. A client that nobody reads for ends it.
func telling(ctx context.Context, send func(*api.Layer) error,
	do func(context.Context, func(model.PullProgress)) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	news := newNews()
	sent := make(chan error, 1)
	go func() {
		err := news.send(send)
		if err != nil {
			cancel()
		}
		sent <- err
	}()
	err := do(ctx, news.add)
	news.close()
	if sendErr := <-sent; sendErr != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return sendErr
	}
	return err
}

func auth(a *api.Auth) *model.Auth {
	if a == nil {
		return nil
	}
	return &model.Auth{
		Username: a.GetUsername(), Password: a.GetPassword(), Auth: a.GetAuth(), ServerAddress: a.GetServerAddress(),
		IdentityToken: a.GetIdentityToken(), RegistryToken: a.GetRegistryToken(),
	}
}

// news holds the latest state of each layer until the stream takes it.
type news struct {
	mu     sync.Mutex
	latest map[string]model.PullProgress
	order  []string // layers with something untold, in the order of their first event
	wake   chan struct{}
	closed bool
}

func newNews() *news {
	return &news{latest: map[string]model.PullProgress{}, wake: make(chan struct{}, 1)}
}

func (n *news) add(p model.PullProgress) {
	n.mu.Lock()
	if _, waits := n.latest[p.Layer]; !waits {
		n.order = append(n.order, p.Layer)
	}
	n.latest[p.Layer] = p
	n.mu.Unlock()
	n.signal()
}

func (n *news) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.signal()
}

func (n *news) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// take returns what is untold, and whether more may come.
func (n *news) take() (events []model.PullProgress, more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, layer := range n.order {
		events = append(events, n.latest[layer])
	}
	n.order = n.order[:0]
	clear(n.latest)
	return events, !n.closed
}

func (n *news) send(send func(*api.Layer) error) error {
	for {
		<-n.wake
		events, more := n.take()
		for _, p := range events {
			layer := &api.Layer{Digest: p.Layer, Phase: phases[p.Phase], Offset: p.Done, Total: p.Total}
			if err := send(layer); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
}

var phases = map[model.PullPhase]api.Phase{
	model.PullWaiting: api.Phase_PHASE_WAITING,
	model.PullLoading: api.Phase_PHASE_DOWNLOADING,
	model.PullPresent: api.Phase_PHASE_EXISTS,
	model.PullDone:    api.Phase_PHASE_DONE,
}
