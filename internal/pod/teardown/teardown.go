// Package teardown stops and removes containers and pods: for calls, for events of the keeper, and at berthd's start.
// Each of its functions is idempotent, so a removal that was interrupted can be repeated.
package teardown

import (
	"context"
	"log/slog"
	"syscall"

	keeper "berth/internal/keeper/client"
	"berth/internal/metrics"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/devices"
	"berth/internal/pod/events"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/logs"
	"berth/internal/pod/parts"
	"berth/internal/pod/plugins"
	"berth/internal/pod/record"
	"berth/internal/pod/storage"
	"berth/internal/pod/trash"
	"berth/internal/stats"
)

// Keeper is what a Teardown asks of the keeper.
type Keeper interface {
	Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error
	Resume(ctx context.Context, id string) error
	// Status is of one container. The error is errdefs.ErrNotFound if the keeper has none of this ID.
	Status(ctx context.Context, id string) (*keeper.Status, error)
	Delete(ctx context.Context, id string) error
}

// Teardown has what holds something of a container or pod, or knows of it. Its methods may be called concurrently where
// they do not say which lock the caller holds.
type Teardown struct {
	Keeper     Keeper
	Pods       *record.Sandboxes
	Containers *record.Containers
	Index      *index.Index
	Logs       *logs.Claims
	Events     *events.Feed
	Dirs       *layout.Dirs
	Trash      *trash.Trash
	Cgroups    *cgroups.Driver
	Parts      *parts.Maker
	Storage    *storage.Store
	Devices    *devices.Allocator
	Sampler    *stats.Sampler
	Plugins    *plugins.Relay
	Metrics    *metrics.Set
	Log        *slog.Logger
}
