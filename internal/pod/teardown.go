package pod

import (
	"log/slog"

	"berth/internal/metrics"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/devices"
	"berth/internal/pod/events"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/logs"
	"berth/internal/pod/parts"
	"berth/internal/pod/record"
	"berth/internal/pod/storage"
	"berth/internal/pod/trash"
	"berth/internal/stats"
)

// teardown ends and removes containers and pods, for the calls that do so, for the keeper's events and for the start
// of berthd. Its methods may be called concurrently where they do not say which lock the caller holds.
type teardown struct {
	keeper     Keeper
	pods       *record.Sandboxes
	containers *record.Containers
	index      *index.Index
	logs       *logs.Claims
	events     *events.Feed
	dirs       *layout.Dirs
	trash      *trash.Trash
	cgroups    *cgroups.Driver
	parts      *parts.Maker
	storage    *storage.Store
	devices    *devices.Allocator
	sampler    *stats.Sampler
	metrics    *metrics.Set
	log        *slog.Logger
}
