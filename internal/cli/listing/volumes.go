package listing

import (
	"context"
	"strconv"
	"time"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
)

// Volume is a volume in lists.
type Volume struct {
	Name       string    `json:"name"`
	Path       string    `json:"path"`
	CreatedAt  time.Time `json:"createdAt"`
	Containers []string  `json:"containers"` // those that use it, as they are named elsewhere
}

// Volumes lists named volumes: all, or those that no container uses.
func Volumes(ctx context.Context, conn *connection.Connection, unused bool) ([]Volume, error) {
	list, err := conn.Volumes.ListVolumes(ctx, &berthv1.ListVolumesRequest{})
	if err != nil {
		return nil, connection.Plain(err)
	}
	names, err := NamesOfContainers(ctx, conn)
	if err != nil {
		return nil, err
	}
	var rows []Volume
	for _, v := range list.GetVolumes() {
		if !unused || len(v.GetContainerIds()) == 0 {
			rows = append(rows, NewVolume(v, names))
		}
	}
	return rows, nil
}

// NamesOfContainers are the names of all containers, by ID.
func NamesOfContainers(ctx context.Context, conn *connection.Connection) (map[string]string, error) {
	list, err := lookup.Containers(ctx, conn.Runtime, nil)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	count := map[string]int{}
	for _, c := range list {
		count[c.ShortName()]++
	}
	for _, c := range list {
		names[c.Id] = c.ShortName()
		if count[c.ShortName()] > 1 { // attempts of one container
			names[c.Id] += "#" + strconv.FormatUint(uint64(c.GetMetadata().GetAttempt()), 10)
		}
	}
	return names, nil
}

// NewVolume is the row of a volume. names are those of containers, by ID.
func NewVolume(v *berthv1.Volume, names map[string]string) Volume {
	row := Volume{Name: v.GetName(), Path: v.GetPath(), CreatedAt: time.Unix(0, v.GetCreatedAt()),
		Containers: []string{}}
	for _, id := range v.GetContainerIds() {
		name := names[id]
		if name == "" {
			name = table.ShortID(id)
		}
		row.Containers = append(row.Containers, name)
	}
	return row
}
