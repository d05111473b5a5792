// Package cgroups owns the cgroups of pods. It knows where they are for the node's cgroup driver, which cgroups have to
// be removed with a pod, and the limits of whole pods. A cgroup that cannot be removed when its pod ends stays on
// record until it is removed.
package cgroups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/cgroup"
	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/background"
	"berth/internal/pod/record"
	"berth/internal/state"
)

// use is which cgroups pods live in. Its lock is held while cgroups are removed, which may wait for the kernel: so that
// no pod arrives in one, and nobody else waits.
type use struct {
	mu    sync.Mutex
	below map[string]int  // how many pods live in a cgroup or below it
	owned map[string]int  // how many pods it came with: their OwnedCgroup
	pods  map[string]bool // the IDs of the pods that are counted
}

func newUse() use {
	return use{below: map[string]int{}, owned: map[string]int{}, pods: map[string]bool{}}
}

// enter counts a pod in, and makes it a co-owner of the topmost cgroup on its way that came with another.
func (u *use) enter(dir string, r *record.Sandbox) {
	u.pods[r.ID] = true
	for p := dir; p != "/"; p = path.Dir(p) {
		u.below[p]++
		if u.owned[p] > 0 && (r.OwnedCgroup == "" || within(r.OwnedCgroup, p)) {
			r.OwnedCgroup = p
		}
	}
	if r.OwnedCgroup != "" {
		u.owned[r.OwnedCgroup]++
	}
}

// leave counts a pod out.
func (u *use) leave(dir string, r *record.Sandbox) {
	less := func(counts map[string]int, key string) {
		if counts[key]--; counts[key] <= 0 {
			delete(counts, key)
		}
	}
	delete(u.pods, r.ID)
	for p := dir; p != "/"; p = path.Dir(p) {
		less(u.below, p)
	}
	if r.OwnedCgroup != "" {
		less(u.owned, r.OwnedCgroup)
	}
}

// Driver places, limits and removes the cgroups of pods and of their containers, as cgroupfs or systemd names them. Its
// methods may be called concurrently.
type Driver struct {
	given      Tree   // nil: cgroup.Host
	root       string // parent of the cgroups of pods that name none
	systemd    bool   // the driver
	use        use
	left       state.Records     // leftCgroups, by pod
	ctx        context.Context   // ends the removals that are tried again
	background *background.Group // of whoever ends ctx, and waits for it
	log        *slog.Logger
}

// Tree is the cgroups of the node. What is idempotent there is so here: see package cgroup.
type Tree interface {
	Exists(cgroup string) bool
	Create(cgroup string) error
	Limit(cgroup string, r *specs.LinuxResources) error
	LimitSlice(cgroup string, r *specs.LinuxResources) error
	Renew(cgroup string) error
	Rmdir(cgroup string) error
	Remove(ctx context.Context, cgroup string) error
	RemoveEmpty(ctx context.Context, cgroup string) error
	RemoveSlice(ctx context.Context, cgroup string) error
	RemoveEmptySlice(ctx context.Context, cgroup string) error
	Processes(cgroup string) ([]int, error)
}

// Config is what a Driver is made of.
type Config struct {
	Tree       Tree   // nil: cgroup.Host
	Root       string // parent of the cgroups of pods that name none
	Systemd    bool   // the driver
	Records    string // a directory, in which is which cgroups are to be removed
	Background *background.Group
	Log        *slog.Logger
}

// New is a driver that knows no pod. What it removes later is removed in the configuration's Background until ctx ends.
func New(ctx context.Context, cfg Config) *Driver {
	return &Driver{
		given: cfg.Tree, root: cfg.Root, systemd: cfg.Systemd, use: newUse(),
		left: state.Records{Dir: cfg.Records, File: "left.json"},
		ctx:  ctx, background: cfg.Background, log: cfg.Log,
	}
}

// tree is the cgroups of the node, or why there are none.
func (g *Driver) tree() (Tree, error) {
	if g.given != nil {
		return g.given, nil
	}
	host, err := cgroup.Host()
	if err != nil {
		return nil, err
	}
	return host, nil
}

// Processes are the IDs of the processes in a cgroup.
func (g *Driver) Processes(dir string) ([]int, error) {
	tree, err := g.tree()
	if err != nil {
		return nil, err
	}
	return tree.Processes(dir)
}

// Adopt counts in a pod whose record was loaded, and may make it a co-owner of a cgroup. Leave has to
// follow.
func (g *Driver) Adopt(r *record.Sandbox) {
	g.use.mu.Lock()
	defer g.use.mu.Unlock()
	g.use.enter(g.PodDir(r.CgroupParent), r)
}

// Place decides where a pod's cgroups go. A pod that names no parent gets one of its own below the node's root, which
// is this berthd's alone (cgroup.Claim). Without an error Leave has to follow.
func (g *Driver) Place(r *record.Sandbox) error {
	parent := r.Config.CgroupParent
	own := parent == "" || r.Config.OwnCgroup
	if parent == "" {
		parent = g.root
	}
	switch slice := strings.HasSuffix(parent, ".slice"); {
	case g.systemd:
		parent = path.Base(parent) // kubelets give the full path of a slice
		if _, err := cgroup.Slice(parent); err != nil || !slice {
			return model.FieldSandboxCgroupParent.Wrong(fmt.Errorf(
				"%q is no slice, and this node's cgroup driver is systemd: %w", r.Config.CgroupParent, errdefs.ErrInvalidArgument))
		}
		if own {
			parent = podSlice(parent, r.ID)
		}
	case slice:
		return model.FieldSandboxCgroupParent.Wrong(fmt.Errorf(
			"%q is a systemd slice, and this node's cgroup driver is cgroupfs: %w", parent, errdefs.ErrInvalidArgument))
	default:
		parent = path.Clean("/" + parent)
		if own {
			parent = path.Join(parent, r.ID)
		}
	}
	host, err := g.tree()
	if err != nil {
		return err
	}
	r.CgroupParent = parent
	dir := g.PodDir(parent)
	g.use.mu.Lock()
	defer g.use.mu.Unlock()
	for p := dir; p != "/" && !host.Exists(p); p = path.Dir(p) {
		r.OwnedCgroup = p
	}
	g.use.enter(dir, r)
	return nil
}

// podSlice is a slice for one pod: a-ID.slice below a.slice.
func podSlice(parent, id string) string {
	if parent == "-.slice" {
		return id + ".slice"
	}
	return strings.TrimSuffix(parent, ".slice") + "-" + id + ".slice"
}

func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// What the names of systemd's scopes begin with. Agents on nodes (Falco, Cilium, coroot) tell containers from other
// units by the names that containerd and CRI-O give to scopes, and know no others. A container's record has its cgroup,
// so containers of earlier versions of Berth keep the scopes that they have.
const (
	containerScope = "cri-containerd"
	sandboxScope   = "berth"
)

// Path is the cgroup of a container, in the form that a runtime spec has for the node's driver.
func (g *Driver) Path(parent, id string) string { return g.path(parent, containerScope, id) }

// SandboxPath is the same for a pod's init process, or what stands for it.
func (g *Driver) SandboxPath(parent, id string) string { return g.path(parent, sandboxScope, id) }

func (g *Driver) path(parent, scope, id string) string {
	if g.systemd {
		return parent + ":" + scope + ":" + id
	}
	return path.Join(parent, id)
}

// Dir is Path as a path below the cgroup mounts.
func (g *Driver) Dir(parent, id string) string { return g.dir(g.Path(parent, id)) }

// SandboxDir is SandboxPath as a path below the cgroup mounts.
func (g *Driver) SandboxDir(parent, id string) string { return g.dir(g.SandboxPath(parent, id)) }

func (g *Driver) dir(specified string) string {
	dir, err := cgroup.Path(specified, g.systemd)
	if err != nil { // place has checked the parent
		g.log.Error("find a cgroup by its name", "cgroup", specified, "error", err)
	}
	return dir
}

// DirOf is the cgroup that a specification names, as a path below the cgroup mounts.
func (g *Driver) DirOf(path string) (string, error) { return cgroup.Path(path, g.systemd) }

// Exists tells whether there is a cgroup in any hierarchy.
func (g *Driver) Exists(dir string) (bool, error) {
	tree, err := g.tree()
	return err == nil && tree.Exists(dir), err
}

// PodDir is the cgroup of a whole pod as a path below the cgroup mounts.
func (g *Driver) PodDir(parent string) string {
	if !g.systemd {
		return parent
	}
	dir, err := cgroup.Slice(parent)
	if err != nil { // place has checked it
		g.log.Error("find the cgroup of a pod by the name of its slice", "slice", parent, "error", err)
	}
	return dir
}

// removalPatience bounds how long the removal of one cgroup waits for the kernel, or for systemd. All processes are
// gone by then.
func (g *Driver) removalPatience() time.Duration {
	if g.systemd {
		return 2 * time.Second
	}
	return 200 * time.Millisecond
}

// leftCgroups are the cgroups that were made for a pod that is gone. Its JSON is the format of
// <root>/cgroups/<pod>/left.json, which exists until they are removed. berthd removes only cgroups that it has recorded
// as its own, not every cgroup that it finds.
type leftCgroups struct {
	PodID string `json:"podID"`
	Dir   string `json:"dir"` // the pod's
	Top   string `json:"top"` // the topmost that came with it
}

// Leave ends a pod's use of its cgroups, and removes those that came with it, as far as no other pod lives below them,
// later if it cannot do so now. It comes before the end of the pod's record, and may be called again.
func (g *Driver) Leave(r *record.Sandbox) {
	left := leftCgroups{PodID: r.ID, Dir: g.PodDir(r.CgroupParent), Top: r.OwnedCgroup}
	g.use.mu.Lock()
	defer g.use.mu.Unlock()
	if !g.use.pods[r.ID] {
		return
	}
	g.use.leave(left.Dir, r)
	if left.Top == "" {
		return
	}
	if _, err := g.removeAll(left, g.removalPatience()); err != nil {
		if saveErr := g.left.Save(left.PodID, left); saveErr != nil {
			g.log.Error("record that a pod's cgroup is to be removed", "cgroup", left.Dir, "error", saveErr)
		}
		g.log.Warn("remove a pod's cgroup: it is tried again", "cgroup", left.Dir, "error", err)
		g.background.Go(func() { g.removeLater(left) })
	}
}

// How long after a failure the removal of a cgroup is tried again. Each try takes a tenth of that at the most: pods
// that come meanwhile wait for it.
const firstRetry, longestRetry = time.Second, time.Minute

// removeLater is for a process that does not die, a systemd that is slow, or somebody else's cgroup in one of these.
// What is left when berthd ends is on record for the next one.
func (g *Driver) removeLater(left leftCgroups) {
	for wait := firstRetry; ; wait = min(2*wait, longestRetry) {
		select {
		case <-g.ctx.Done():
			return
		case <-time.After(wait):
		}
		g.use.mu.Lock()
		_, err := g.removeAll(left, min(wait/10, g.removalPatience()))
		g.use.mu.Unlock()
		if err == nil {
			g.forget(left.PodID)
			g.log.Info("a pod's cgroup is removed at last", "cgroup", left.Dir)
			return
		}
		g.log.Debug("remove a pod's cgroup", "cgroup", left.Dir, "error", err)
	}
}

// removeAll removes a pod's cgroup and its parents, up to the topmost that was made for the pod, and waits at most
// patience for each. If another pod of this node uses one of the parents, theirs is true: that pod removes the rest.
// The caller holds g.use.mu.
func (g *Driver) removeAll(left leftCgroups, patience time.Duration) (theirs bool, err error) {
	host, err := g.tree()
	if err != nil {
		return false, err
	}
	root := g.PodDir(g.root)
	for p := left.Dir; within(p, left.Top) && p != root; p = path.Dir(p) {
		if g.use.below[p] > 0 {
			return true, nil
		}
		if err := g.remove(host, p, strings.Contains(path.Base(p), left.PodID), patience); err != nil {
			return false, err
		}
	}
	return false, nil
}

// remove removes a cgroup as the node's driver does. What is in one that is a pod's own goes with it. In any other
// there may be cgroups of pods that this node knows nothing of, which keep it where it is.
func (g *Driver) remove(host Tree, dir string, own bool, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(g.ctx, patience)
	defer cancel()
	switch {
	case g.systemd && own:
		return host.RemoveSlice(ctx, dir)
	case g.systemd:
		return host.RemoveEmptySlice(ctx, dir)
	case own:
		return host.Remove(ctx, dir)
	}
	return host.RemoveEmpty(ctx, dir)
}

// RemoveContainer removes the cgroup of a container that the keeper has removed, if the cgroup still exists: after the
// keeper was killed, CRIU continues a restore for a moment and makes cgroups. Nothing else would remove this cgroup,
// since only a pod's own cgroup is removed with everything in it.
func (g *Driver) RemoveContainer(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	host, err := g.tree()
	if err != nil || !host.Exists(dir) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, g.removalPatience())
	defer cancel()
	return host.Remove(ctx, dir)
}

// forget drops the record of cgroups that are removed.
func (g *Driver) forget(podID string) {
	if err := os.RemoveAll(g.left.Path(podID)); err != nil {
		g.log.Error("remove the record of a removed cgroup", "pod_id", podID, "error", err)
	}
}

// own is the cgroup of a pod that names no parent.
func (g *Driver) own(id string) string {
	if g.systemd {
		return g.PodDir(podSlice(g.root, id))
	}
	return path.Join("/", g.root, id)
}

// Reconcile removes the cgroups of pods that are gone, and those of pods whose records cannot be read, as far as their
// IDs say which these are.
func (g *Driver) Reconcile(broken []state.Broken) {
	list, unread, spared, err := state.LoadAll[leftCgroups](g.left)
	if err != nil {
		g.log.Error("read which cgroups are to be removed", "error", err)
		return
	}
	record.LogSpared(g.log, "pod_id", spared)
	for _, b := range append(unread, broken...) {
		own := g.own(b.ID)
		list[b.ID] = &leftCgroups{PodID: b.ID, Dir: own, Top: own}
	}
	for id, left := range list {
		if left.PodID != id || !podID.MatchString(id) {
			g.log.Error("a record of a cgroup that is to be removed is not of the pod that it is named by", "pod_id", id)
			g.forget(id)
			continue
		}
		g.use.mu.Lock()
		_, err := g.removeAll(*left, g.removalPatience())
		g.use.mu.Unlock()
		if err != nil {
			g.log.Warn("remove a cgroup that a pod has left: it is tried again", "cgroup", left.Dir, "error", err)
			g.background.Go(func() { g.removeLater(*left) })
			continue
		}
		g.forget(id)
	}
}

// podID is what record.NewID makes.
var podID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Owns tells whether a pod's cgroup came with it, so that nobody else sets its limits.
func (g *Driver) Owns(r *record.Sandbox) bool {
	return r.OwnedCgroup != "" && within(g.PodDir(r.CgroupParent), r.OwnedCgroup)
}

// Limit sets the limits of a pod's cgroup, and makes that where it is not there, if it is the pod's own. Pods that were
// told to share one share its limits too: those of the last one hold.
func (g *Driver) Limit(r *record.Sandbox) error {
	resources, _, err := g.resources(r)
	if err != nil || resources == nil {
		return err
	}
	return g.set(r, resources)
}

// Save reads of a pod's cgroup what UndoLimit has to know after a Limit with the same record.
func (g *Driver) Save(after *record.Sandbox) *cgroup.Saved {
	update, host, err := g.resources(after)
	if err != nil || update == nil {
		return nil
	}
	return host.Cgroups.Save(g.limited(after), update)
}

// limited is the cgroup of a pod's own that has its limits.
func (g *Driver) limited(r *record.Sandbox) string {
	if g.systemd {
		return g.PodDir(r.CgroupParent)
	}
	return r.CgroupParent
}

// UndoLimit gives a pod's cgroup the limits of before, after a Limit with those of after that the kernel has refused in
// part, or that is not to hold. saved is what Save has read before the Limit.
func (g *Driver) UndoLimit(ctx context.Context, before, after *record.Sandbox, saved *cgroup.Saved) error {
	update, host, err := g.resources(after)
	if err != nil || update == nil {
		return nil // nothing of it was set
	}
	old, _, err := g.resources(before)
	if err != nil {
		return err
	}
	if old == nil {
		old = &specs.LinuxResources{}
	}
	err = g.set(after, ocispec.UndoResources(old, update, host))
	return errors.Join(err, saved.Restore(ctx, g.systemd))
}

// resources are the limits of a pod's cgroup in the form of a specification. Nil: it has none, or is not the pod's own.
func (g *Driver) resources(r *record.Sandbox) (*specs.LinuxResources, *ocispec.Host, error) {
	if err := checkPodLimits(model.FieldSandboxOverhead, r.Config.Overhead); err != nil {
		return nil, nil, err
	}
	if err := checkPodLimits(model.FieldSandboxResources, r.Config.Resources); err != nil {
		return nil, nil, err
	}
	limits := Limits(r.Config)
	if limits == nil || !g.Owns(r) {
		return nil, nil, nil
	}
	host, err := ocispec.Detect()
	if err != nil {
		return nil, nil, err
	}
	resources, err := ocispec.Resources(limits, 0, host)
	if err != nil {
		return nil, nil, model.FieldSandboxResources.Within(err)
	}
	return resources, host, nil
}

// set sets limits of a pod's cgroup.
func (g *Driver) set(r *record.Sandbox, resources *specs.LinuxResources) error {
	tree, err := g.tree()
	if err != nil {
		return err
	}
	if g.systemd {
		return tree.LimitSlice(g.limited(r), resources)
	}
	if err := tree.Create(g.limited(r)); err != nil {
		return err
	}
	return tree.Limit(g.limited(r), resources)
}

// checkPodLimits refuses limits that only containers have. within is what they are asked for in.
func checkPodLimits(within model.Field, r *model.Resources) error {
	if r == nil {
		return nil
	}
	for limit, set := range map[model.Field]bool{
		model.LimitBlockIO: r.BlockIO != nil, model.LimitKernelMemory: r.KernelMemory != 0,
		model.LimitMemorySwappiness: r.MemorySwappiness != nil, model.LimitPids: r.PidsLimit != 0,
		model.LimitUlimits: len(r.Ulimits) > 0, model.LimitDiskQuota: len(r.DiskQuota) > 0,
	} {
		if set {
			err := fmt.Errorf("only a container can have this limit, and not a whole pod: %w", errdefs.ErrInvalidArgument)
			return within.Within(limit.Wrong(err))
		}
	}
	return nil
}

// Limits are the limits of a whole pod: those of its containers together and, on top, its overhead. Nil: none.
func Limits(cfg *model.SandboxConfig) *model.Resources {
	if cfg.Resources == nil && cfg.Overhead == nil {
		return nil
	}
	var sum model.Resources
	if cfg.Resources != nil {
		sum = *cfg.Resources
	}
	if over := cfg.Overhead; over != nil {
		if sum.MemorySwap > 0 { // it includes memory
			sum.MemorySwap += over.MemoryLimit
		}
		sum.CPUShares = min(plus(sum.CPUShares, over.CPUShares), maxShares)
		sum.MemoryLimit = plus(sum.MemoryLimit, over.MemoryLimit)
		if sum.CPUQuota > 0 && over.CPUQuota > 0 {
			sum.CPUQuota += over.CPUQuota * cfsPeriod(sum.CPUPeriod) / cfsPeriod(over.CPUPeriod)
		}
	}
	return &sum
}

// plus adds an overhead to a limit. Overhead on top of no limit is no limit.
func plus(limit, overhead int64) int64 {
	if limit <= 0 || overhead <= 0 {
		return limit
	}
	return limit + overhead
}

// cfsPeriod is a period of CPU time in µs; 0 is the kernel's own.
func cfsPeriod(period int64) int64 {
	if period == 0 {
		return 100000
	}
	return period
}

// maxShares is the kernel's largest weight.
const maxShares = 262144
