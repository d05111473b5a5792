package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"berth/internal/cgroup"
	"berth/internal/config"
	"berth/internal/state"
)

// systemdCgroups tells who makes cgroups on this node.
func systemdCgroups(cfg *config.Config) bool {
	switch cfg.CgroupDriver {
	case "systemd":
		return true
	case "cgroupfs":
		return false
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return false
	}
	host, err := cgroup.Host()
	return err == nil && host.Version == cgroup.V2
}

// cgroupRoot is the parent of pods that name none, in the words of the driver.
func cgroupRoot(cfg *config.Config, systemd bool) string {
	if systemd && !strings.HasSuffix(cfg.CgroupRoot, ".slice") {
		stem := strings.ReplaceAll(strings.Trim(cfg.CgroupRoot, "/"), "/", "-")
		if stem == "" {
			stem = "-" // the root is -.slice
		}
		return stem + ".slice"
	}
	return cfg.CgroupRoot
}

// claimWait bounds how long systemd may take to start or stop the slice of the node's pods.
const claimWait = 30 * time.Second

// cgroupRoots are the cgroups that this node has claimed and not removed since: one, and those that it had in earlier
// configurations. Its JSON is the format of <root>/cgroups/roots.json.
type cgroupRoots struct {
	Roots []claimedRoot `json:"roots"`
}

type claimedRoot struct {
	Cgroup  string `json:"cgroup"` // below the hierarchies' roots
	Systemd bool   `json:"systemd,omitempty"`
}

// claimCgroups claims the cgroup of the node's pods, so that no other berthd of the machine takes its pods' cgroups
// for its own. What it returns gives it back.
func claimCgroups(ctx context.Context, cfg *config.Config, systemd bool,
	log *slog.Logger) (release func() error, err error) {
	host, err := cgroup.Host()
	if err != nil {
		return nil, err
	}
	own := claimedRoot{Cgroup: cgroupRoot(cfg, systemd), Systemd: systemd}
	if systemd {
		if own.Cgroup, err = cgroup.Slice(own.Cgroup); err != nil {
			return nil, fmt.Errorf("cgroup_root: %w", err)
		}
	}
	records := state.Records{Dir: cfg.Root, File: "roots.json"}
	const id = "cgroups"
	var known cgroupRoots
	var newer *state.FormatError
	if err := records.LoadFile(id, records.File, &known); errors.As(err, &newer) {
		return nil, err // before anything is changed
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.Error("read which cgroups this node has claimed before", "error", err)
	}
	owner := cgroup.Owner{PID: os.Getpid(), Root: cfg.Root, Address: cfg.Address}
	claim := func(r claimedRoot) (func() error, error) {
		ctx, cancel := context.WithTimeout(ctx, claimWait)
		defer cancel()
		c, err := host.Claim(ctx, r.Cgroup, r.Systemd, owner)
		if err != nil {
			return nil, err
		}
		return func() error {
			ctx, cancel := context.WithTimeout(context.Background(), claimWait)
			defer cancel()
			return c.Release(ctx)
		}, nil
	}
	// The intent: a berthd that is killed leaves a cgroup, and its next configuration may name another.
	if !slices.Contains(known.Roots, own) {
		known.Roots = append(known.Roots, own)
		if err := records.Save(id, &known); err != nil {
			return nil, err
		}
	}
	release, err = claim(own)
	if err != nil {
		return nil, fmt.Errorf("cgroup_root: %w", err)
	}
	// Those of earlier configurations go once no pod is left in them.
	kept := slices.DeleteFunc(slices.Clone(known.Roots), func(r claimedRoot) bool {
		if r == own {
			return false
		}
		if host.Exists(r.Cgroup) {
			giveBack, err := claim(r)
			var other *cgroup.ClaimedError
			if errors.As(err, &other) && other.Other == r.Cgroup {
				return true // it has become somebody else's
			}
			if err == nil {
				err = giveBack()
			}
			if err != nil {
				log.Info("the cgroup of an earlier configuration stays for now", "cgroup", r.Cgroup, "error", err)
			}
		}
		return !host.Exists(r.Cgroup)
	})
	if len(kept) < len(known.Roots) {
		if err := records.Save(id, &cgroupRoots{Roots: kept}); err != nil {
			return nil, errors.Join(err, release())
		}
	}
	return release, nil
}

// scopeAfter are the units that systemd stops after containers when the node shuts down: the keeper's, which has their
// output. berthd's is none of them: systemd starts no scope while a unit before it stops or starts, and so a restart of
// berthd would wait for the starts of containers that are under way, and these for the restart.
func scopeAfter(keeper int) []string {
	name := cgroup.Unit(keeper)
	if name == "" || name == cgroup.Unit(os.Getpid()) { // berthd has started it
		return nil
	}
	return []string{name}
}
