package connection

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/api/pouch"
)

// DefaultAddress is berthd's default socket.
const DefaultAddress = "unix:///run/berth/berth.sock"

// maxMessage is the largest response that is read, in bytes; berthd sends no larger.
const maxMessage = 32 << 20

// Connection holds the clients of one runtime. They reconnect by themselves when the runtime is started again.
type Connection struct {
	Address    string // unix:// and a path
	Runtime    cri.RuntimeServiceClient
	Images     cri.ImageServiceClient
	Pulls      berthv1.ImagesClient
	Containers berthv1.ContainersClient
	Volumes    berthv1.VolumesClient
	Devices    berthv1.DevicesClient
	Audit      berthv1.AuditClient
	Pouch      pouch.RuntimeServiceClient // pauses containers
	conn       *grpc.ClientConn
}

// SocketPath is the path of the socket in an address, a path with or without unix:// before it.
func SocketPath(address string) (string, error) {
	path := strings.TrimPrefix(address, "unix://")
	if !strings.HasPrefix(path, "/") {
		return "", &AddressError{address}
	}
	return path, nil
}

// AddressError means that an address is none of a socket.
type AddressError struct{ Address string }

func (e *AddressError) Error() string {
	return fmt.Sprintf("address %q is not the absolute path of a unix socket (example: %s)", e.Address, DefaultAddress)
}

// Dial connects, and fails at once where nobody answers.
func Dial(ctx context.Context, address string) (*Connection, error) {
	path, err := SocketPath(address)
	if err != nil {
		return nil, err
	}
	if err := Probe(ctx, path); err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("unix://"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6,
				MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	return &Connection{
		Address:    "unix://" + path,
		Runtime:    cri.NewRuntimeServiceClient(conn),
		Images:     cri.NewImageServiceClient(conn),
		Pulls:      berthv1.NewImagesClient(conn),
		Containers: berthv1.NewContainersClient(conn),
		Volumes:    berthv1.NewVolumesClient(conn),
		Devices:    berthv1.NewDevicesClient(conn),
		Audit:      berthv1.NewAuditClient(conn),
		Pouch:      pouch.NewRuntimeServiceClient(conn),
		conn:       conn,
	}, nil
}

// awaitDelay is how long Await waits between two attempts.
const awaitDelay = 500 * time.Millisecond

// Await connects as soon as somebody answers. waits is told once of a socket on which nobody does.
func Await(ctx context.Context, address string, waits func(path string)) (*Connection, error) {
	for told := false; ; told = true {
		conn, err := Dial(ctx, address)
		if err == nil || !Away(err) {
			return conn, err
		}
		var unreachable *UnreachableError
		if errors.As(err, &unreachable) && !told {
			waits(unreachable.Path)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(awaitDelay):
		}
	}
}

// CreateWithVolumes creates a container that mounts named volumes: through v1alpha2, the API which has them. On the
// wire its messages are those of v1 with further fields.
func (c *Connection) CreateWithVolumes(ctx context.Context, request *cri.CreateContainerRequest) (
	*cri.CreateContainerResponse, error) {
	response := &cri.CreateContainerResponse{}
	err := c.conn.Invoke(ctx, "/runtime.v1alpha2.RuntimeService/CreateContainer", request, response)
	if Code(err) == codes.Unimplemented {
		err = fmt.Errorf("the runtime has no named volumes, which stand for persistentVolumeClaims: %w", Plain(err))
	}
	return response, err
}

// VolumePath is the directory of a named volume on the runtime's machine.
func (c *Connection) VolumePath(ctx context.Context, volume string) (string, error) {
	response, err := c.Volumes.VolumeStatus(ctx, &berthv1.VolumeStatusRequest{Name: volume})
	return response.GetVolume().GetPath(), Plain(err)
}

// Close ends the connection.
func (c *Connection) Close() error { return c.conn.Close() }

// UnreachableError says why nobody answers on a socket, and what to try.
type UnreachableError struct {
	Path string
	Why  string
	Try  string
	Err  error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("no runtime answers on %s: %s\n%s", e.Path, e.Why, e.Try)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// Probe connects to a socket and hangs up.
func Probe(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		return conn.Close()
	}
	const start = "Start the daemon with `systemctl start berthd` (or run `berthd`), " +
		"name another socket with --address, " +
		"or let `berth doctor` look at this machine."
	failure := &UnreachableError{Path: path, Why: err.Error(), Try: start, Err: err}
	switch {
	case errors.Is(err, syscall.ENOENT):
		failure.Why = "the socket does not exist, so berthd is not running there."
	case errors.Is(err, syscall.ECONNREFUSED):
		failure.Why = "the socket is there, but its daemon is gone."
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		failure.Why = "permission denied."
		failure.Try = "Run the command as root (sudo), or as a member of the group that owns the socket" + owner(path) + "."
	case errors.Is(err, syscall.ENOTSOCK):
		failure.Why = "the file is no socket."
	}
	if info, statErr := os.Stat(path); statErr == nil && info.IsDir() {
		failure.Why = "it is a directory, and not a socket."
	}
	return failure
}

// owner names the group of a socket, where it can be seen.
func owner(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return fmt.Sprintf(" (group %d)", stat.Gid)
	}
	return ""
}
