package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	// maxMessage is the largest answer of a plugin, in bytes: what a kubelet takes.
	maxMessage = 16 << 20
	// probeTimeout is how long a plugin may take to show that it lives when another wants its place.
	probeTimeout = 2 * time.Second
)

// plugin is a plugin that has registered, from its registration until it goes away.
type plugin struct {
	m        *Manager
	resource string
	endpoint string
	options  atomic.Pointer[pluginapi.DevicePluginOptions]

	ctx  context.Context
	end  context.CancelFunc
	conn *grpc.ClientConn
	api  pluginapi.DevicePluginClient
	err  error // why there is no conn
}

func (m *Manager) newPlugin(resource, endpoint string, options *pluginapi.DevicePluginOptions) *plugin {
	p := &plugin{m: m, resource: resource, endpoint: endpoint}
	if options == nil {
		options = &pluginapi.DevicePluginOptions{}
	}
	p.options.Store(options)
	p.ctx, p.end = context.WithCancel(m.ctx)
	p.conn, p.err = grpc.NewClient("passthrough:///"+resource,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return dial(ctx, m.cfg.Dir, endpoint)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6,
				MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	p.api = pluginapi.NewDevicePluginClient(p.conn)
	return p
}

// dial connects to a socket below a directory, whatever links have been put there.
func dial(ctx context.Context, dir, name string) (net.Conn, error) {
	root, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(root)
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: dir + "/" + name, Err: err}
	}
	defer unix.Close(fd)
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
}

// run follows the plugin until it goes away or another takes its place.
func (p *plugin) run() {
	defer p.end()
	err := p.err
	if err == nil {
		err = p.follow()
		p.conn.Close()
	}
	p.m.gone(p, err.Error())
}

// follow returns an error in any case: why it does not go on.
func (p *plugin) follow() error {
	// It may begin to serve only now.
	unknown := false
	options, err := call(p, p.ctx,
		"GetDevicePluginOptions", func(ctx context.Context) (*pluginapi.DevicePluginOptions, error) {
			options, err := p.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
			unknown = status.Code(err) == codes.Unimplemented
			return options, err
		})
	switch {
	case err == nil:
		p.options.Store(options)
	case !unknown: // those that do not know the call say their options when they register
		return err
	}
	stream, err := p.api.ListAndWatch(p.ctx, &pluginapi.Empty{})
	for err == nil {
		var list *pluginapi.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			p.m.update(p, list.GetDevices())
		}
	}
	if errors.Is(err, io.EOF) {
		return errors.New("ListAndWatch: it ended the stream")
	}
	return fmt.Errorf("ListAndWatch: %s", status.Convert(err).Message())
}

// alive tells whether the plugin answers in time. One that hangs does not: a kubelet would let the newer one win, too.
func (p *plugin) alive(ctx context.Context) bool {
	if p.err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err := p.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	code := status.Code(err)
	return code != codes.Unavailable && code != codes.Canceled && code != codes.DeadlineExceeded
}

// call makes a call of a plugin with its deadline, measures it, and names it in the error.
func call[T any](p *plugin, ctx context.Context, name string, do func(context.Context) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, p.m.cfg.Timeout)
	defer cancel()
	begin := time.Now()
	answer, err := do(limited)
	p.m.metrics.observe(p.resource, name, status.Code(err), time.Since(begin))
	if err == nil {
		return answer, nil
	}
	switch code := status.Code(err); {
	case ctx.Err() != nil: // whoever wanted it has gone
		err = ctx.Err()
	case code == codes.DeadlineExceeded:
		err = fmt.Errorf("no answer within %v: %w", p.m.cfg.Timeout, context.DeadlineExceeded)
	case code == codes.Unavailable, code == codes.ResourceExhausted, code == codes.Canceled:
		err = errgrpc.ToNative(err)
	default:
		// Its class is about what the plugin was asked, and not about the container, of which a client would take it to
		// be: NotFound is not that there is no such container.
		err = fmt.Errorf("%s: %w", status.Convert(err).Message(), errdefs.ErrFailedPrecondition)
	}
	return answer, fmt.Errorf("device plugin of %s: %s: %w", p.resource, name, err)
}
