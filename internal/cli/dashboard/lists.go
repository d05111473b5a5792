package dashboard

import (
	"context"

	"berth/internal/cli/listing"
	"berth/internal/cli/space"
)

func (s *Server) readImages(ctx context.Context) (any, error) {
	return never(listing.Images(ctx, s.conn, nil))
}

func (s *Server) readVolumes(ctx context.Context) (any, error) {
	return never(listing.Volumes(ctx, s.conn, false))
}

// deviceRow is a device with the words that the table of berth has for it.
type deviceRow struct {
	listing.Device
	Health string `json:"health"`
	HeldBy string `json:"heldBy"`
}

func (s *Server) readDevices(ctx context.Context) (any, error) {
	list, err := listing.Devices(ctx, s.conn, nil)
	if err != nil {
		return nil, err
	}
	rows := []deviceRow{}
	for _, d := range list {
		rows = append(rows, deviceRow{d, d.Health(), d.HeldBy()})
	}
	return rows, nil
}

func (s *Server) readSpace(ctx context.Context) (any, error) { return space.Read(ctx, s.conn) }

// never makes a list that is empty an empty one in JSON too.
func never[T any](list []T, err error) (any, error) {
	if list == nil {
		list = []T{}
	}
	return list, err
}
