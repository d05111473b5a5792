package plugin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/unixsocket"
)

// registerTimeout is how long a kubelet may take to answer a registration.
const registerTimeout = 10 * time.Second

// server offers one resource on a socket of its own.
type server struct {
	pluginapi.UnsafeDevicePluginServer
	*inventory
	dir  string
	log  *slog.Logger
	grpc *grpc.Server

	// start is closed when the service may start: when a kubelet has taken the registration.
	start    chan struct{}
	serving  sync.WaitGroup
	listener *unixsocket.Listener // of Plugin.run

	mu       sync.Mutex // guards what follows
	units    []unit
	changed  chan struct{} // closed when units are others
	taken    bool          // a kubelet has answered a registration with success: start is closed
	watchers int           // open ListAndWatch streams
	left     time.Time     // when the last one ended
}

func newServer(v *inventory, dir string, log *slog.Logger) *server {
	s := &server{inventory: v, dir: dir, log: log.With("resource", v.Name), changed: make(chan struct{}),
		start: make(chan struct{})}
	s.grpc = grpc.NewServer(
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo,
			handle grpc.UnaryHandler) (any, error) {
			if err := s.started(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return handle(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			handle grpc.StreamHandler) error {
			if err := s.started(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return handle(srv, stream)
		}))
	pluginapi.RegisterDevicePluginServer(s.grpc, s)
	return s
}

// started holds a call until a kubelet has answered the registration with success: only then may a plugin start
// its service. Kubelets since 1.26 connect and ask for the options before they answer, so that these alone are told
// at once.
func (s *server) started(ctx context.Context, method string) error {
	if method == pluginapi.DevicePlugin_GetDevicePluginOptions_FullMethodName {
		return nil
	}
	select {
	case <-s.start:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// endpoint is the name of the socket.
func (s *server) endpoint() string {
	name := strings.ReplaceAll(s.Name, "/", "_")
	if len(name) > 40 { // socket paths are short
		sum := sha256.Sum256([]byte(s.Name))
		name = hex.EncodeToString(sum[:10])
	}
	return "berth-" + name + ".sock"
}

// listen opens the socket where it does not stand: a kubelet that starts removes it. It tells whether it had to.
func (s *server) listen() (bool, error) {
	if s.listener != nil && s.listener.Stands() {
		return false, nil
	}
	l, err := unixsocket.Listen(filepath.Join(s.dir, s.endpoint()), -1)
	if err != nil {
		return false, err
	}
	if s.listener != nil {
		s.listener.Close()
	}
	s.listener = l
	s.serving.Go(func() { _ = s.grpc.Serve(l) }) // it ends with its listener, which is ours
	return true, nil
}

func (s *server) close() {
	s.grpc.Stop()
	s.serving.Wait()
}

// errNoAnswer is for registrations that no kubelet has answered: it is not there, not yet, or has gone in between.
var errNoAnswer = errors.New("no kubelet has answered")

// register tells the kubelet of this resource. An error that is not errNoAnswer is a refusal. With the kubelet's word
// the service starts.
func (s *server) register(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: s.endpoint(), ResourceName: s.Name, Options: options(),
	})
	switch answer := status.Convert(err); answer.Code() {
	case codes.OK:
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return fmt.Errorf("register %s: %w: %s", s.Name, errNoAnswer, answer.Message())
	default:
		return fmt.Errorf("register %s: the kubelet refuses it: %s (%s)", s.Name, answer.Message(), answer.Code())
	}
	s.mu.Lock()
	if !s.taken {
		s.taken = true
		close(s.start)
	}
	s.left = time.Now() // it has as long to begin to watch
	s.mu.Unlock()
	return nil
}

// abandoned tells whether nobody has watched for a time, although it was registered.
func (s *server) abandoned(patience time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watchers == 0 && time.Since(s.left) > patience
}

// rescan looks for changes and tells who watches.
func (s *server) rescan() {
	before := slices.Clone(s.problems)
	units := s.scan()
	for _, problem := range s.problems {
		if !slices.Contains(before, problem) {
			s.log.Warn("a CDI specification is broken", "problem", problem)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	same := slices.EqualFunc(units, s.units, func(a, b unit) bool {
		return a.id == b.id && a.healthy == b.healthy && slices.Equal(a.numa, b.numa) && slices.Equal(a.nodes, b.nodes)
	})
	if same {
		return
	}
	for _, u := range units {
		i := slices.IndexFunc(s.units, func(old unit) bool { return old.id == u.id })
		if i < 0 || s.units[i].healthy != u.healthy {
			s.log.Info("a device is new, or its health has changed", "id", u.id, "healthy", u.healthy)
		}
	}
	s.units = units
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) now() ([]unit, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.units, s.changed
}

func options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}
}

// GetDevicePluginOptions says that there is a preference, and nothing to do before a start.
func (s *server) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return options(), nil
}

// ListAndWatch sends the devices, and sends them again when one of them changes.
func (s *server) ListAndWatch(_ *pluginapi.Empty,
	stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	s.mu.Lock()
	s.watchers++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.watchers--
		s.left = time.Now()
		s.mu.Unlock()
	}()
	for {
		units, changed := s.now()
		if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: s.offer(units)}); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// GetPreferredAllocation keeps a container's devices on one NUMA node, and does not give it one device twice.
func (s *server) GetPreferredAllocation(_ context.Context,
	req *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	units, _ := s.now()
	out := &pluginapi.PreferredAllocationResponse{}
	for _, c := range req.GetContainerRequests() {
		ids := s.prefer(units, c.GetAvailableDeviceIDs(), c.GetMustIncludeDeviceIDs(), int(c.GetAllocationSize()))
		if ids == nil && c.GetAllocationSize() > 0 {
			return nil, status.Errorf(codes.InvalidArgument, "%s: %d devices are not among the %d available ones", s.Name,
				c.GetAllocationSize(), len(c.GetAvailableDeviceIDs()))
		}
		out.ContainerResponses = append(out.ContainerResponses,
			&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return out, nil
}

// Allocate says which nodes and CDI devices the containers get. A device that is not there any more is refused.
func (s *server) Allocate(_ context.Context, req *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	units, _ := s.now()
	out := &pluginapi.AllocateResponse{}
	for _, c := range req.GetContainerRequests() {
		answer := &pluginapi.ContainerAllocateResponse{}
		given := map[string]bool{}
		for _, id := range c.GetDevicesIds() {
			name := s.unitOf(id)
			i := slices.IndexFunc(units, func(u unit) bool { return u.id == name })
			if i < 0 {
				return nil, status.Errorf(codes.NotFound, "%s has no device %q", s.Name, id)
			}
			if given[name] {
				continue // shared, and twice in one container
			}
			given[name] = true
			if err := s.give(units[i], answer); err != nil {
				return nil, err
			}
		}
		out.ContainerResponses = append(out.ContainerResponses, answer)
	}
	return out, nil
}

func (s *server) give(u unit, answer *pluginapi.ContainerAllocateResponse) error {
	if !u.healthy {
		return status.Errorf(codes.FailedPrecondition, "device %q of %s is unhealthy", u.id, s.Name)
	}
	if u.cdi != "" {
		answer.CdiDevices = append(answer.CdiDevices, &pluginapi.CDIDevice{Name: u.cdi})
		return nil
	}
	for _, path := range u.nodes {
		if !isDevice(path) {
			return status.Errorf(codes.FailedPrecondition, "device %q of %s: %s is gone", u.id, s.Name, path)
		}
		if slices.ContainsFunc(answer.Devices, func(d *pluginapi.DeviceSpec) bool { return d.HostPath == path }) {
			continue // of two groups
		}
		answer.Devices = append(answer.Devices,
			&pluginapi.DeviceSpec{HostPath: path, ContainerPath: path, Permissions: s.Permissions})
	}
	return nil
}

// PreStartContainer has nothing to do, and is not asked for.
func (s *server) PreStartContainer(context.Context,
	*pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	return &pluginapi.PreStartContainerResponse{}, nil
}
