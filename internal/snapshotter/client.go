package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	snapshots "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Config is the configuration of a Client. All of it is required.
type Config struct {
	Name      string        // of the snapshotter, in requests, records and errors
	Address   string        // of its unix socket, absolute
	Namespace string        // of containerd, in which it keeps the snapshots
	Timeout   time.Duration // of each call
}

// The labels of a snapshot: see containerd's docs/remote-snapshotter.md.
const (
	// LabelRef names the snapshot that a layer is to become. containerd gives the chain ID of the layer.
	LabelRef = "containerd.io/snapshot.ref"
	// labelPrefix starts the labels that a snapshotter keeps.
	labelPrefix = "containerd.io/snapshot/"
	// labelRemote starts those by which clients other than the CRI say where a layer is.
	labelRemote = labelPrefix + "remote/"

	labelImage    = labelPrefix + "cri.image-ref"
	labelManifest = labelPrefix + "cri.manifest-digest"
	labelLayer    = labelPrefix + "cri.layer-digest"
	labelLayers   = labelPrefix + "cri.image-layers"
)

// Client is a connection to a snapshotter. Its methods are safe for concurrent use. Errors name the snapshotter; those
// of one that is down or does not answer in time wrap errdefs.ErrUnavailable.
type Client struct {
	cfg  Config
	conn *grpc.ClientConn
	api  snapshots.SnapshotsClient
}

// New makes a client. It connects with the first call.
func New(cfg Config) (*Client, error) {
	quick := backoff.DefaultConfig
	quick.MaxDelay = 2 * time.Second // a snapshotter that is back is found soon
	conn, err := grpc.NewClient("unix:"+cfg.Address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: quick, MinConnectTimeout: time.Second}))
	if err != nil {
		return nil, fmt.Errorf("snapshotter %s: %w", cfg.Name, err)
	}
	return &Client{cfg: cfg, conn: conn, api: snapshots.NewSnapshotsClient(conn)}, nil
}

// Name is that of the configuration.
func (c *Client) Name() string { return c.cfg.Name }

// Address is the socket.
func (c *Client) Address() string { return c.cfg.Address }

// Close ends the calls that are under way.
func (c *Client) Close() error { return c.conn.Close() }

// call makes one call.
func (c *Client) call(ctx context.Context, act string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	deadline, _ := ctx.Deadline() // the caller's may be earlier
	limit := time.Until(deadline).Round(10 * time.Millisecond)
	ctx = metadata.AppendToOutgoingContext(ctx, "containerd-namespace", c.cfg.Namespace)
	err := f(ctx)
	if err == nil {
		return nil
	}
	native := err
	if _, theirs := status.FromError(err); theirs {
		native = errgrpc.ToNative(err)
	}
	if status.Code(err) == codes.DeadlineExceeded || errors.Is(ctx.Err(), context.DeadlineExceeded) {
		native = fmt.Errorf("no answer within %v: %w", limit, errdefs.ErrUnavailable)
	}
	return fmt.Errorf("snapshotter %s (%s): %s: %w", c.cfg.Name, c.cfg.Address, act, native)
}

// Prepare asks for the layer that becomes the snapshot labels[LabelRef] on top of parent. remote: the snapshotter has
// the layer, and nothing of it has to be downloaded. Otherwise it may have made an empty snapshot with the key, which
// the caller removes.
func (c *Client) Prepare(ctx context.Context, key, parent string, labels map[string]string) (remote bool, err error) {
	err = c.call(ctx, "prepare "+labels[LabelRef], func(ctx context.Context) error {
		_, err := c.api.Prepare(ctx, &snapshots.PrepareSnapshotRequest{
			Snapshotter: c.cfg.Name, Key: key, Parent: parent, Labels: labels,
		})
		return err
	})
	if errdefs.IsAlreadyExists(err) {
		return true, nil
	}
	return false, err
}

// Find finds the committed snapshot that a layer has become, as containerd does: by its label and its parent. The error
// wraps errdefs.ErrNotFound if there is none.
func (c *Client) Find(ctx context.Context, ref, parent string) (name string, err error) {
	err = c.call(ctx, "find "+ref, func(ctx context.Context) error {
		list, err := c.api.List(ctx, &snapshots.ListSnapshotsRequest{
			Snapshotter: c.cfg.Name, Filters: []string{fmt.Sprintf("labels.%q==%q,parent==%q", LabelRef, ref, parent)},
		})
		for err == nil {
			var page *snapshots.ListSnapshotsResponse
			page, err = list.Recv()
			for _, info := range page.GetInfo() {
				if info.Kind == snapshots.Kind_COMMITTED && info.Labels[LabelRef] == ref && info.Parent == parent {
					name = info.Name
					return nil
				}
			}
		}
		// One that has never had a snapshot says so in an error, to which containerd's service gives no code in a stream.
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Unknown && strings.HasSuffix(err.Error(), "not found") {
			return status.Error(codes.NotFound, "the snapshotter does not have this snapshot")
		}
		return err
	})
	return name, err
}

// Dirs returns the directories of a snapshot and those below it, top first, by a view of it with the key. The view is
// made if it is not there. The snapshotter checks meanwhile that it can read the layers.
func (c *Client) Dirs(ctx context.Context, view, name string) ([]string, error) {
	var dirs []string
	find := func() error {
		return c.call(ctx, "mounts of "+name, func(ctx context.Context) error {
			found, err := c.api.Mounts(ctx, &snapshots.MountsRequest{Snapshotter: c.cfg.Name, Key: view})
			if err == nil {
				dirs, err = lowers(found.Mounts)
			}
			return err
		})
	}
	err := find()
	if errdefs.IsNotFound(err) {
		err = c.call(ctx, "view of "+name, func(ctx context.Context) error {
			made, err := c.api.View(ctx, &snapshots.ViewSnapshotRequest{Snapshotter: c.cfg.Name, Key: view, Parent: name})
			if err == nil {
				dirs, err = lowers(made.Mounts)
			}
			return err
		})
		if errdefs.IsAlreadyExists(err) { // another pull of the same image has made it meanwhile
			err = find()
		}
	}
	return dirs, err
}

// Remove removes a snapshot. One that is not there is no error.
func (c *Client) Remove(ctx context.Context, key string) error {
	err := c.call(ctx, "remove "+key, func(ctx context.Context) error {
		_, err := c.api.Remove(ctx, &snapshots.RemoveSnapshotRequest{Snapshotter: c.cfg.Name, Key: key})
		return err
	})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Cleanup has the snapshotter remove the files and mounts of removed snapshots, which some do only when they are asked
// to.
func (c *Client) Cleanup(ctx context.Context) error {
	err := c.call(ctx, "clean up", func(ctx context.Context) error {
		_, err := c.api.Cleanup(ctx, &snapshots.CleanupRequest{Snapshotter: c.cfg.Name})
		return err
	})
	if errdefs.IsNotImplemented(err) {
		return nil
	}
	return err
}
