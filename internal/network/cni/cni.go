package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth/internal/disk"
	"berth/internal/metrics"
	"berth/internal/namespace"
	"berth/internal/network/keylock"
	"berth/internal/state"
	"berth/internal/undo"
)

// Config says where things are.
type Config struct {
	ConfDir  string   // of the network configurations; empty: there are none
	Network  string   // name of the network; empty: the lexically first file's
	BinDirs  []string // where plugins are searched, in this order
	CacheDir string   // libcni's
	StateDir string   // for records; made if it is not there
	Logger   *slog.Logger
	Metrics  *metrics.Set // nil: nothing is counted
}

const (
	// statusTimeout and statusAge bound what asking the plugins for their status costs.
	statusTimeout = 5 * time.Second
	statusAge     = 10 * time.Second
	// gcTimeout bounds how long new pods wait while plugins collect.
	gcTimeout = 10 * time.Second
	// takenOutAtOnce is how many pods that are gone are taken out of their networks at a time.
	takenOutAtOnce = 8
	// brokenAge is how long a broken file is not read again. It is read again even if it has not changed: a plugin that
	// it needs may have been installed.
	brokenAge = 2 * time.Second
)

// Networks joins pods to the network of the node's configuration.
type Networks struct {
	cfg    Config
	log    *slog.Logger
	lib    *libcni.CNIConfig
	follow *follower
	ids    keylock.Lock // one operation at a time for a pod

	mu       sync.Mutex
	selected Selection
	loaded   time.Time
	changed  time.Time // the directory's own time then
	records  map[string]*record
	dead     []string        // on record, and gone: Collect takes them out
	joining  map[string]bool // pods that Add is about to record
	gc       chan struct{}   // closed when the plugins have collected; nil: they do not

	orphansMu sync.Mutex      // one search for orphans at a time
	earlier   map[string]bool // pods that an earlier berthd has recorded; nil: its plugins have ended

	collected bool // by the plugins, or they did not answer; Collect's own

	statusMu sync.Mutex
	status   *answer // the last question; nil: none yet
	asking   sync.WaitGroup
	closed   context.Context // of every question
	end      context.CancelFunc
}

// answer is what the plugins of a network say about its status. The other fields may be read once done is closed.
type answer struct {
	file string
	done chan struct{}
	err  error
	at   time.Time
}

// holds tells whether the answer need not be asked for again: it is young, or it is still to come.
func (a *answer) holds() bool {
	select {
	case <-a.done:
		return time.Since(a.at) < statusAge
	default:
		return true
	}
}

// Result is the result of the plugins.
type Result struct {
	IPs []netip.Addr    // in the plugins' order
	Raw json.RawMessage // a CNI result of version 1.0.0 or later
}

// Open reads what is on disk.
func Open(cfg Config) (*Networks, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.ConfDir != "" {
		dir, err := filepath.Abs(cfg.ConfDir) // as events name it
		if err != nil {
			return nil, err
		}
		cfg.ConfDir = dir
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, err
	}
	n := &Networks{
		cfg: cfg, log: cfg.Logger,
		records: map[string]*record{}, joining: map[string]bool{}, earlier: map[string]bool{},
	}
	n.closed, n.end = context.WithCancel(context.Background())
	n.lib = libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, cfg.CacheDir, &executor{log: cfg.Logger, metrics: cfg.Metrics})
	entries, err := os.ReadDir(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(cfg.StateDir, e.Name())
		id, isRecord := strings.CutSuffix(e.Name(), ".json")
		if !isRecord { // what a crash has left of a write
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		r, spoilt, err := readRecord(path, id)
		if err != nil {
			return nil, err
		}
		if spoilt != nil { // Restore makes it anew where its pod lives, and Reconcile removes it otherwise
			cfg.Logger.Warn("a record of the pod network is spoilt", "pod_id", id, "error", spoilt)
			continue
		}
		n.records[id], n.earlier[id] = r, true
	}
	if cfg.ConfDir != "" {
		n.follow = follow(cfg.ConfDir)
	}
	return n, nil
}

// Selected is the selection from the directory as it is now.
func (n *Networks) Selected() Selection {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.follow == nil {
		return Selection{}
	}
	stale := len(n.selected.Broken) > 0 && time.Since(n.loaded) > brokenAge
	// A new or removed file changes the directory's time before its event arrives.
	var at time.Time
	if dir, err := os.Stat(n.cfg.ConfDir); err == nil {
		at = dir.ModTime()
	}
	if !n.follow.changed() && !stale && at.Equal(n.changed) {
		return n.selected
	}
	s := load(n.cfg.ConfDir, n.cfg.Network, findIn(n.cfg.BinDirs))
	if errors.Join(s.Broken...) != nil && fmt.Sprint(s.Broken) != fmt.Sprint(n.selected.Broken) {
		n.log.Warn("CNI configurations that cannot be used are skipped", "error", errors.Join(s.Broken...))
	}
	if s.File != n.selected.File {
		n.log.Info("a CNI configuration is chosen", "file", s.File)
	}
	n.selected, n.loaded, n.changed = s, time.Now(), at
	return s
}

func (n *Networks) path(id string) string { return filepath.Join(n.cfg.StateDir, id+".json") }

// Add joins a pod to a network. If that fails, it is taken out of it again.
func (n *Networks) Add(ctx context.Context, list *libcni.NetworkConfigList, a Attachment) (*Result, error) {
	defer n.ids.Lock(a.ID)()
	joined, err := n.join(ctx, a.ID)
	if err != nil {
		return nil, err
	}
	defer joined()
	// One that is still on record may be joined to another network, or half joined.
	if err := n.del(ctx, a.ID); err != nil {
		return nil, err
	}
	r, err := newRecord(a, list)
	if err != nil {
		return nil, err
	}
	list, conf, err := r.runtime()
	if err != nil {
		return nil, err
	}
	if err := namespace.Do(a.NetNS, loopbackUp); err != nil {
		return nil, err
	}
	if err := n.write(r); err != nil {
		return nil, fmt.Errorf("record of the pod's network: %w", err)
	}
	raw, err := n.lib.AddNetworkList(ctx, list, conf)
	var result *Result
	if err == nil {
		result, err = convert(raw)
	}
	if err == nil {
		return result, nil
	}
	err = fmt.Errorf("CNI network %s: %w", list.Name, err)
	undoing, cancel := undo.Context(ctx)
	defer cancel()
	if failed := n.del(undoing, a.ID); failed != nil {
		n.log.Error("what is left of a failed network set-up goes at the next try", "pod", r.Pod, "error", failed)
	}
	return nil, err
}

// join waits until no garbage collection of plugins (CNI GC) runs, and protects the pod from the next one: plugins then
// get the list of all pods that are on record, or about to be.
func (n *Networks) join(ctx context.Context, id string) (joined func(), err error) {
	for {
		n.mu.Lock()
		gc := n.gc
		if gc == nil {
			n.joining[id] = true
			n.mu.Unlock()
			return func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				delete(n.joining, id)
			}, nil
		}
		n.mu.Unlock()
		select {
		case <-gc:
		case <-ctx.Done():
			return nil, fmt.Errorf("CNI plugins collect what is of no pod: %w", context.Cause(ctx))
		}
	}
}

func loopbackUp() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	return nil
}

func (n *Networks) write(r *record) error {
	data, err := json.Marshal(r)
	if err == nil {
		data, err = state.Seal(data)
	}
	if err != nil {
		return err
	}
	if err := disk.WriteFile(n.path(r.ID), data, 0o600); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.records[r.ID] = r
	return nil
}

func convert(raw types.Result) (*Result, error) {
	r, err := current.NewResultFromResult(raw)
	if err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	result := new(Result)
	var unplaced, further []netip.Addr
	for _, ip := range r.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		i := ip.Interface
		switch {
		case !ok:
		case i == nil:
			result.IPs = append(result.IPs, addr.Unmap())
		case *i < 0 || *i >= len(r.Interfaces):
		case r.Interfaces[*i].Sandbox == "" && r.Interfaces[*i].Name == Interface:
			unplaced = append(unplaced, addr.Unmap()) // Alibaba Cloud's Terway names no sandbox
		case r.Interfaces[*i].Sandbox == "":
			// A plugin may report addresses of the host's end too.
		case r.Interfaces[*i].Name == Interface:
			result.IPs = append(result.IPs, addr.Unmap())
		default:
			further = append(further, addr.Unmap())
		}
	}
	// Plugins of a chain may add interfaces with addresses of other networks. The pod's own are those that it is
	// reached at, wherever they are in the list.
	for _, others := range [][]netip.Addr{unplaced, further} {
		if len(result.IPs) == 0 {
			result.IPs = others
		}
	}
	if len(result.IPs) == 0 {
		return nil, errors.New("the plugins gave the pod no address")
	}
	result.Raw, err = json.Marshal(r)
	return result, err
}

// Del takes a pod out of the network that it was joined to. It is idempotent; a namespace that is gone is named to the
// plugins as none, as the specification has it.
func (n *Networks) Del(ctx context.Context, id string) error {
	defer n.ids.Lock(id)()
	return n.del(ctx, id)
}

// errDel is the error of the plugins' DEL.
type errDel struct{ error }

func (e errDel) Unwrap() error { return e.error }

// Forget is Del for a pod that is to go in any case, if its plugins have never answered an ADD with a result: where
// they fail, that is logged, and the pod is forgotten. What they may have left is told to them by the next GC only. A
// call that was cancelled says nothing about the plugins.
func (n *Networks) Forget(ctx context.Context, id string) error {
	defer n.ids.Lock(id)()
	err := n.del(ctx, id)
	var failed errDel
	if !errors.As(err, &failed) || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	n.mu.Lock()
	r := n.records[id]
	n.mu.Unlock()
	list, _, recordErr := r.runtime()
	if recordErr != nil {
		return err
	}
	if _, statErr := os.Stat(n.cachePath(list.Name, id)); !errors.Is(statErr, os.ErrNotExist) {
		return err
	}
	n.log.Error("CNI plugins have failed both to join a pod and to take it out of the network: the pod is forgotten, "+
		"and what they may have left of it stays", "pod_id", id, "pod", r.Pod, "error", err)
	return n.forget(id)
}

func (n *Networks) del(ctx context.Context, id string) error {
	n.mu.Lock()
	r := n.records[id]
	n.mu.Unlock()
	if r == nil {
		return nil
	}
	list, conf, err := r.runtime()
	if err != nil {
		return err
	}
	if err := n.endOrphans(ctx, list.Name, id); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if unix.Statfs(conf.NetNS, &fs) != nil || fs.Type != unix.NSFS_MAGIC {
		conf.NetNS = ""
	}
	if err := n.lib.DelNetworkList(ctx, list, conf); err != nil {
		return errDel{fmt.Errorf("CNI network %s: remove pod %s: %w", list.Name, r.Pod, err)}
	}
	return n.forget(id)
}

// forget removes a pod's record. The caller holds the pod's lock.
func (n *Networks) forget(id string) error {
	if err := os.Remove(n.path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	n.orphansMu.Lock()
	delete(n.earlier, id) // an ADD that follows is this berthd's
	n.orphansMu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.records, id)
	return nil
}

// Has tells whether a pod is on record.
func (n *Networks) Has(id string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.records[id] != nil
}

// Reconcile notes which pods do not live. It calls no plugin: Collect does.
func (n *Networks) Reconcile(live map[string]bool) error {
	n.mu.Lock()
	for id := range n.records {
		if !live[id] {
			n.dead = append(n.dead, id)
		}
	}
	n.mu.Unlock()
	return n.removeSpoilt()
}

// Collect takes the pods that are gone out of their networks, and has the plugins of the node's network collect
// what they hold for pods that they should not know. It may take as long as plugins do, and is called again
// until it succeeds.
func (n *Networks) Collect(ctx context.Context) error {
	n.mu.Lock()
	dead := slices.Clone(n.dead)
	n.mu.Unlock()
	errs := make([]error, len(dead))
	var g errgroup.Group
	g.SetLimit(takenOutAtOnce)
	for i, id := range dead {
		g.Go(func() error {
			errs[i] = n.Del(ctx, id)
			return nil
		})
	}
	_ = g.Wait()
	n.mu.Lock()
	n.dead = slices.DeleteFunc(n.dead, func(id string) bool {
		i := slices.Index(dead, id)
		return i >= 0 && errs[i] == nil
	})
	n.mu.Unlock()
	return errors.Join(append(errs, n.collect(ctx))...)
}

// collect calls the plugins' GC. New pods wait for it: where it does not end in time, it is not tried again
// before the next start.
func (n *Networks) collect(ctx context.Context) error {
	list := n.Selected().Network
	if list == nil || n.collected {
		return nil
	}
	short, cancel := context.WithTimeout(ctx, gcTimeout)
	defer cancel()
	err := n.tellKnown(short, list)
	n.collected = err == nil || short.Err() != nil && ctx.Err() == nil
	if err != nil {
		return fmt.Errorf("CNI network %s: collect what is left: %w", list.Name, err)
	}
	return nil
}

func (n *Networks) tellKnown(ctx context.Context, list *libcni.NetworkConfigList) error {
	gc := make(chan struct{})
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}
	n.mu.Lock()
	n.gc = gc
	known := maps.Clone(n.joining)
	for id := range n.records {
		known[id] = true
	}
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.gc = nil
		close(gc)
	}()
	for id := range known {
		args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: Interface})
	}
	return n.lib.GCNetworkList(ctx, list, args)
}

// Status asks the plugins of a network whether they can join pods (STATUS of CNI 1.1). The answer is kept for a while.
// It is for all callers, so the context of one of them ends only that caller's wait, not the plugins.
func (n *Networks) Status(ctx context.Context, s Selection) error {
	n.statusMu.Lock()
	a := n.status
	if a == nil || a.file != s.File || !a.holds() {
		a = &answer{file: s.File, done: make(chan struct{})}
		n.status = a
		n.asking.Go(func() { n.ask(s, a) })
	}
	n.statusMu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return fmt.Errorf("CNI network %s (%s): wait for the status of its plugins: %w", s.Network.Name, s.File,
			context.Cause(ctx))
	}
}

func (n *Networks) ask(s Selection, a *answer) {
	ctx, cancel := context.WithTimeout(n.closed, statusTimeout)
	defer cancel()
	if err := n.lib.GetStatusNetworkList(ctx, s.Network); err != nil {
		a.err = fmt.Errorf("CNI network %s (%s): %w: %w", s.Network.Name, s.File, err, errdefs.ErrUnavailable)
	}
	a.at = time.Now()
	close(a.done)
}

// Close ends following the directory, and asking plugins for their status.
func (n *Networks) Close() error {
	n.end()
	n.statusMu.Lock()
	n.asking.Wait()
	n.statusMu.Unlock()
	if n.follow != nil {
		n.follow.close()
	}
	return nil
}

// Reason is the broken files in one line.
func (s Selection) Reason() string {
	lines := make([]string, len(s.Broken))
	for i, err := range s.Broken {
		lines[i] = err.Error()
	}
	return strings.Join(lines, "; ")
}
