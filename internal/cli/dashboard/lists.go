package dashboard

import (
	"context"

	"google.golang.org/grpc/codes"

	"berth/internal/cli/connection"
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

// deviceList is the devices, or why the runtime knows none.
type deviceList struct {
	Devices []deviceRow `json:"devices"`
	Note    string      `json:"note,omitempty"`
}

func (s *Server) readDevices(ctx context.Context) (any, error) {
	list, err := listing.Devices(ctx, s.conn, nil)
	all := &deviceList{Devices: []deviceRow{}}
	switch code := connection.Code(err); {
	case code == codes.FailedPrecondition, code == codes.Unimplemented: // the usual case: the device manager is off
		all.Note = connection.Message(err)
	case err != nil:
		return nil, err
	}
	for _, d := range list {
		all.Devices = append(all.Devices, deviceRow{d, d.Health(), d.HeldBy()})
	}
	return all, nil
}

func (s *Server) readSpace(ctx context.Context) (any, error) { return space.Read(ctx, s.conn) }

// never makes a list that is empty an empty one in JSON too.
func never[T any](list []T, err error) (any, error) {
	if list == nil {
		list = []T{}
	}
	return list, err
}
