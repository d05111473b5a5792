package main

import (
	"context"
	"errors"
	"path/filepath"
	"sync"

	"berth/internal/rootfs"
)

// probeOwners tries in the background whether this node can mount root file systems for pods with user namespaces. What
// it returns waits for the result: an error says why it cannot. If that cannot be tried, such pods are not refused.
func (d *parts) probeOwners(ctx context.Context) func() error {
	result := sync.OnceValue(func() error {
		err := rootfs.ProbeOwners(context.WithoutCancel(ctx), filepath.Join(d.cfg.Root, "owners-probe"))
		switch {
		case errors.Is(err, rootfs.ErrOwnersNotMapped):
			d.log.Warn("pods with user namespaces are refused: this node cannot map the owners of their files", "error", err)
			return err
		case err != nil:
			d.log.Warn("whether this node can map the owners of files for pods with user namespaces is not known", "error", err)
		}
		return nil
	})
	go func() { _ = result() }()
	d.onClose(func() error { _ = result(); return nil })
	return result
}
