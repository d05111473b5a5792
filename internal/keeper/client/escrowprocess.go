package client

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
)

// dirLook is how often an escrow process looks whether the keeper's directory is still there.
const dirLook = time.Second

// HoldEscrow is what an escrow process does, for the time in which there may be neither keeper nor berthd: it holds all
// that the keeper in cfg.Dir puts into escrow until another keeper has taken it back, the directory is gone, or ctx
// ends. It calls held once it has everything.
func HoldEscrow(ctx context.Context, cfg Config, held func()) error {
	cfg.Binary, cfg.Await, cfg.NoEscrow = "", true, false
	// A keeper that comes does not take anything for lost while this lock is held.
	lock, err := os.OpenFile(filepath.Join(cfg.Dir, protocol.EscrowFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_SH); err != nil {
		return &os.PathError{Op: "flock", Path: lock.Name(), Err: err}
	}
	c, err := Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	first, _ := c.talksTo()
	select {
	case <-c.escrow.synced:
	case <-ctx.Done():
		return fmt.Errorf("take into escrow what the keeper in %s has: %w", cfg.Dir, ctx.Err())
	}
	held()
	look := time.NewTicker(dirLook)
	defer look.Stop()
	for {
		// Only who was handed everything becomes the one that is talked to.
		now, changed := c.talksTo()
		if now != first {
			return nil
		}
		select {
		case <-changed:
		case <-look.C:
			if _, err := os.Stat(cfg.Dir); os.IsNotExist(err) {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// talksTo is the generation of the keeper last connected to; changed is closed when the connection is another.
func (c *Client) talksTo() (generation string, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation, c.changed
}
