package doctor

import (
	"context"
	"fmt"
	"net"
	"time"
)

// Snapshotter is the remote snapshotter of the daemon's configuration.
type Snapshotter struct{ Name, Address string }

// checkSnapshotter says whether somebody listens at the socket of the snapshotter.
func checkSnapshotter(ctx context.Context, cfg Config) Finding {
	if cfg.Daemon == nil {
		return good("not checked: berthd does not answer")
	}
	s := cfg.Daemon.Snapshotter
	if s == nil {
		return good("none: snapshotter.name")
	}
	dialer := net.Dialer{Timeout: 2 * time.Second}
	conn, err := dialer.DialContext(ctx, "unix", s.Address)
	if err != nil {
		return poor(fmt.Sprintf("%s cannot be reached, so no image can be pulled, and containers of images with its layers "+
			"cannot be created: %v", s.Name, err),
			"Start the snapshotter. It listens at the address that berthd's configuration has: ls -l "+s.Address)
	}
	_ = conn.Close()
	return good(fmt.Sprintf("%s listens at %s", s.Name, s.Address))
}
