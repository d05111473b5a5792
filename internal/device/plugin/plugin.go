package plugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"berth/internal/cdi"
	"berth/internal/liblog"
)

const (
	// settle is how long events are gathered before they are acted on.
	settle = 20 * time.Millisecond
	// sweep is how often everything is looked at, whatever the events say: some file systems send none.
	sweep = 10 * time.Second
	// retry is how long a registration that no kubelet has answered waits, doubled each time up to retryMost.
	retry, retryMost = 250 * time.Millisecond, 10 * time.Second
)

// Options are what a Plugin is made of beside its configuration.
type Options struct {
	Log   *slog.Logger
	Ready func() // called once it looks out for a kubelet
	Sys   string // where sysfs is; empty: /sys
	// Patience is how long a kubelet that has a registration may not watch before it is told again; 0: ten seconds.
	Patience time.Duration
}

// Device is a device as Check tells of it.
type Device struct {
	Resource string   `json:"resource"`
	ID       string   `json:"id"`
	Healthy  bool     `json:"healthy"`
	NUMA     []int64  `json:"numaNodes,omitempty"`
	Nodes    []string `json:"nodes,omitempty"`
	CDI      string   `json:"cdi,omitempty"`
	Shares   int      `json:"shares"`
}

// Check tells what a configuration would offer now, and what is wrong with CDI files.
func Check(cfg *Config) (devices []Device, problems []string) {
	for _, v := range inventories(cfg, "") {
		for _, u := range v.scan() {
			devices = append(devices, Device{v.Name, u.id, u.healthy, u.numa, u.nodes, u.cdi, v.Share})
		}
		problems = append(problems, v.problems...)
	}
	slices.Sort(problems)
	return devices, slices.Compact(problems)
}

func inventories(cfg *Config, sys string) []*inventory {
	registry := cdi.Open(cfg.CDISpecDirs)
	if sys == "" {
		sys = "/sys"
	}
	var out []*inventory
	for i := range cfg.Resources {
		out = append(out, &inventory{Resource: &cfg.Resources[i], registry: registry, sys: sys, seen: map[string]unit{}})
	}
	return out
}

// run is one life of the plugin.
type run struct {
	dir     string // of plugins
	socket  string // the kubelet's
	log     *slog.Logger
	servers []*server
	watcher *fsnotify.Watcher
	// patience is Options.Patience.
	patience time.Duration

	pending map[*server]time.Time // not registered, and when to try
	failed  map[*server]time.Duration
}

// Run offers what the configuration says until ctx ends. Where there is no kubelet, or one that does not answer,
// it waits for one. It ends with the kubelet's reason where that refuses a registration, as device plugins are expected
// to.
func Run(ctx context.Context, cfg *Config, o Options) error {
	r := &run{
		dir: filepath.Clean(cfg.Dir), socket: filepath.Join(cfg.Dir, "kubelet.sock"), log: o.Log,
		pending: map[*server]time.Time{}, failed: map[*server]time.Duration{}, patience: o.Patience,
	}
	if r.patience == 0 {
		r.patience = sweep
	}
	if err := os.MkdirAll(r.dir, 0o750); err != nil {
		return fmt.Errorf("plugin_dir: %w", err)
	}
	var err error
	if r.watcher, err = fsnotify.NewWatcher(); err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	defer r.watcher.Close()
	for _, v := range inventories(cfg, o.Sys) {
		s := newServer(v, r.dir, o.Log)
		defer s.close()
		s.rescan()
		r.servers = append(r.servers, s)
		r.pending[s] = time.Time{}
	}
	r.look()
	if o.Ready != nil {
		o.Ready()
	}
	return r.follow(ctx)
}

// look finds the devices that there are, and watches the directories in which they come and go. After a directory is
// watched for the first time all is looked at once more: what was made in it before has sent no event.
func (r *run) look() {
	const most = 10 // of what somebody makes without end the sweep sees the rest
	for range most {
		for _, s := range r.servers {
			s.rescan()
		}
		if !r.watch() {
			return
		}
	}
}

// watch sees to it that all directories are watched that matter now. It tells whether one was not watched before.
func (r *run) watch() (added bool) {
	wanted := map[string]bool{r.dir: true}
	for _, s := range r.servers {
		for _, dir := range s.directories() {
			wanted[dir] = true
		}
	}
	if !exists(r.dir) {
		wanted[filepath.Dir(r.dir)] = true
	}
	have := map[string]bool{}
	for _, dir := range r.watcher.WatchList() {
		have[dir] = true
		if !wanted[dir] {
			_ = r.watcher.Remove(dir)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(wanted)) {
		// One that went away and came back has lost its watch; adding it again costs nothing.
		err := r.watcher.Add(dir)
		added = added || err == nil && !have[dir]
		if err != nil && !errors.Is(err, os.ErrNotExist) && !have[dir] {
			r.log.Warn("a directory cannot be watched: it is looked at every ten seconds", "directory", dir, "error", err)
		}
	}
	return added
}

func (r *run) follow(ctx context.Context) error {
	act := time.NewTimer(0)
	defer act.Stop()
	due := time.Now()
	within := func(d time.Duration) {
		if at := time.Now().Add(d); due.IsZero() || at.Before(due) { // events that do not end do not put it off
			due = at
			act.Reset(d)
		}
	}
	tick := time.NewTicker(min(sweep, r.patience))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-r.watcher.Events:
			if event.Name == r.socket && event.Has(fsnotify.Create) {
				r.log.Info("the kubelet's socket is there: registering", "socket", r.socket)
				for _, s := range r.servers {
					r.pending[s], r.failed[s] = time.Time{}, 0
				}
			}
			if event.Op != fsnotify.Chmod { // a change of mode is no coming and going
				within(settle)
			}
			continue
		case err := <-r.watcher.Errors: // events were lost
			r.log.Debug("watch directories", "error", err)
		case <-tick.C:
		case <-act.C:
			due = time.Time{}
		}
		r.look()
		next, err := r.registerAll(ctx)
		if err != nil {
			return err
		}
		if next > 0 {
			within(next)
		}
	}
}

// registerAll keeps the sockets and tells the kubelet of those that it does not know. Where there is no kubelet there
// are no sockets either, but those of earlier registrations. It returns when to try again; 0: there is nothing to try.
func (r *run) registerAll(ctx context.Context) (next time.Duration, err error) {
	later := func(d time.Duration) {
		if next == 0 || d < next {
			next = max(d, time.Millisecond)
		}
	}
	kubelet := exists(r.socket)
	for _, s := range r.servers {
		if s.listener == nil && !kubelet {
			continue
		}
		opened, err := s.listen()
		if errors.Is(err, os.ErrNotExist) {
			err = os.MkdirAll(r.dir, 0o750)
		}
		if err != nil && s.listener == nil {
			return 0, fmt.Errorf("%s: %w", s.Name, err)
		}
		if err != nil {
			s.log.Error("the socket is gone and cannot be put back", "error", err)
			later(retryMost)
			continue
		}
		at, waiting := r.pending[s]
		if !waiting && (opened || s.abandoned(r.patience)) {
			at, waiting = time.Time{}, true
			r.pending[s] = at
		}
		if !waiting || !kubelet {
			continue
		}
		if wait := time.Until(at); wait > 0 {
			later(wait)
			continue
		}
		if err := s.register(ctx, r.socket); err != nil {
			if ctx.Err() != nil {
				return 0, nil
			}
			if !errors.Is(err, errNoAnswer) {
				return 0, err
			}
			d := min(max(2*r.failed[s], retry), retryMost)
			s.log.Warn("the kubelet does not answer", "error", err, "again_in_ms", liblog.Milliseconds(d))
			r.failed[s], r.pending[s] = d, time.Now().Add(d)
			later(d)
			continue
		}
		s.log.Info("registered with the kubelet", "socket", r.socket)
		delete(r.pending, s)
		delete(r.failed, s)
	}
	return next, nil
}
