package pod

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/cgroup"
	"berth/internal/model"
	"berth/internal/ocispec"
	"berth/internal/pod/record"
	"berth/internal/state"
)

// cgroupUse is which cgroups pods live in. Its lock is held while cgroups are removed, which may wait for the kernel: so that
// no pod arrives in one, and nobody else waits.
type cgroupUse struct {
	mu    sync.Mutex
	below map[string]int  // how many pods live in a cgroup or below it
	owned map[string]int  // how many pods it came with: their OwnedCgroup
	pods  map[string]bool // the IDs of the pods that are counted
}

func newCgroupUse() cgroupUse {
	return cgroupUse{below: map[string]int{}, owned: map[string]int{}, pods: map[string]bool{}}
}

// enter counts a pod in, and makes it a co-owner of the topmost cgroup on its way that came with another.
func (u *cgroupUse) enter(dir string, r *record.Sandbox) {
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

func (u *cgroupUse) leave(dir string, r *record.Sandbox) {
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

// cgroups are the cgroups of pods and of their containers, as the node's driver names them. Its methods may be called
// concurrently.
type cgroups struct {
	root       string // parent of the cgroups of pods that name none
	systemd    bool   // the driver
	use        cgroupUse
	left       state.Records   // leftCgroups, by pod
	ctx        context.Context // ends with the Manager
	background *sync.WaitGroup // of the Manager, which waits for it
	log        *slog.Logger
}

func newCgroups(ctx context.Context, cfg *Config, background *sync.WaitGroup) *cgroups {
	return &cgroups{
		root: cfg.CgroupRoot, systemd: cfg.SystemdCgroup, use: newCgroupUse(),
		left: state.Records{Dir: filepath.Join(cfg.Root, "cgroups"), File: "left.json"},
		ctx:  ctx, background: background, log: cfg.Log,
	}
}

// place decides where a pod's cgroups go. A pod that names no parent gets one of its own below the node's root, which is this
// berthd's alone (cgroup.Claim). Without an error leave has to follow.
func (g *cgroups) place(r *record.Sandbox) error {
	parent := r.Config.CgroupParent
	own := parent == "" || r.Config.OwnCgroup
	if parent == "" {
		parent = g.root
	}
	switch slice := strings.HasSuffix(parent, ".slice"); {
	case g.systemd:
		parent = path.Base(parent) // kubelets give the full path of a slice
		if _, err := cgroup.Slice(parent); err != nil || !slice {
			return model.FieldSandboxCgroupParent.Wrong(fmt.Errorf("%q is no slice, and this node's cgroup driver is systemd: %w",
				r.Config.CgroupParent, errdefs.ErrInvalidArgument))
		}
		if own {
			parent = podSlice(parent, r.ID)
		}
	case slice:
		return model.FieldSandboxCgroupParent.Wrong(fmt.Errorf("%q is a systemd slice, and this node's cgroup driver is cgroupfs: %w",
			parent, errdefs.ErrInvalidArgument))
	default:
		parent = path.Clean("/" + parent)
		if own {
			parent = path.Join(parent, r.ID)
		}
	}
	host, err := cgroup.Host()
	if err != nil {
		return err
	}
	r.CgroupParent = parent
	dir := g.podDir(parent)
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

// path is the cgroup of a container, in the form that a runtime spec has for the node's driver.
func (g *cgroups) path(parent, id string) string {
	if g.systemd {
		return parent + ":berth:" + id
	}
	return path.Join(parent, id)
}

// dir is the same as a path below the cgroup mounts.
func (g *cgroups) dir(parent, id string) string {
	dir, err := cgroup.Path(g.path(parent, id), g.systemd)
	if err != nil { // place has checked the parent
		g.log.Error("the cgroup of a container", "container", record.ShortID(id), "error", err)
	}
	return dir
}

// podDir is the cgroup of a whole pod as a path below the cgroup mounts.
func (g *cgroups) podDir(parent string) string {
	if !g.systemd {
		return parent
	}
	dir, err := cgroup.Slice(parent)
	if err != nil { // place has checked it
		g.log.Error("the cgroup of a pod", "slice", parent, "error", err)
	}
	return dir
}

// removalPatience bounds how long the removal of one cgroup waits for the kernel, or for systemd. All processes are gone by then.
func (g *cgroups) removalPatience() time.Duration {
	if g.systemd {
		return 2 * time.Second
	}
	return 200 * time.Millisecond
}

// leftCgroups are the cgroups that came with a pod that is gone. Its JSON is the format of <root>/cgroups/<pod>/left.json, where it is
// until they are removed: what is removed is what this node has made, not what it finds.
type leftCgroups struct {
	PodID string `json:"podID"`
	Dir   string `json:"dir"` // the pod's
	Top   string `json:"top"` // the topmost that came with it
}

// leave ends a pod's use of its cgroups, and removes those that came with it, as far as no other pod lives below them, later
// if it cannot do so now. It comes before the end of the pod's record, and may be called again.
func (g *cgroups) leave(r *record.Sandbox) {
	left := leftCgroups{PodID: r.ID, Dir: g.podDir(r.CgroupParent), Top: r.OwnedCgroup}
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

// How long after a failure the removal of a cgroup is tried again. Each try takes a tenth of that at the most: pods that come
// meanwhile wait for it.
const firstRetry, longestRetry = time.Second, time.Minute

// removeLater is for a process that does not die, a systemd that is slow, or somebody else's cgroup in one of these. What is left
// when berthd ends is on record for the next one.
func (g *cgroups) removeLater(left leftCgroups) {
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

// removeAll removes a pod's cgroup and what is above it up to the topmost that came with it, with patience for each. Where
// another pod of this node lives in one of these, theirs is true, and the rest is that pod's to remove. The caller holds m.cgroups.mu.
func (g *cgroups) removeAll(left leftCgroups, patience time.Duration) (theirs bool, err error) {
	host, err := cgroup.Host()
	if err != nil {
		return false, err
	}
	root := g.podDir(g.root)
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

// remove removes a cgroup as the node's driver does. What is in one that is a pod's own goes with it. In any other there may be cgroups
// of pods that this node knows nothing of, which keep it where it is.
func (g *cgroups) remove(host *cgroup.Hierarchies, dir string, own bool, patience time.Duration) error {
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

// removeContainer removes the cgroup of a container that the keeper has removed, where there still is one: a restore that lost its
// keeper goes on for a moment, and CRIU makes cgroups meanwhile. Nothing else would remove it, since it is a pod's own cgroup only
// that goes with all that is in it.
func (g *cgroups) removeContainer(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	host, err := cgroup.Host()
	if err != nil || !host.Exists(dir) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, g.removalPatience())
	defer cancel()
	return host.Remove(ctx, dir)
}

// forget drops the record of cgroups that are removed.
func (g *cgroups) forget(podID string) {
	if err := os.RemoveAll(g.left.Path(podID)); err != nil {
		g.log.Error("remove the record of a removed cgroup", "pod", record.ShortID(podID), "error", err)
	}
}

// own is the cgroup of a pod that names no parent.
func (g *cgroups) own(id string) string {
	if g.systemd {
		return g.podDir(podSlice(g.root, id))
	}
	return path.Join("/", g.root, id)
}

// reconcile removes the cgroups of pods that are gone, and those of pods whose records cannot be read, as far as their IDs say
// which these are.
func (g *cgroups) reconcile(broken []state.Broken) {
	list := map[string]*leftCgroups{}
	unread, spared, err := g.left.Load(func(id string) any {
		list[id] = &leftCgroups{}
		return list[id]
	})
	if err != nil {
		g.log.Error("read which cgroups are to be removed", "error", err)
		return
	}
	noteSpared(g.log, "pod", spared)
	for _, b := range append(unread, broken...) {
		own := g.own(b.ID)
		list[b.ID] = &leftCgroups{PodID: b.ID, Dir: own, Top: own}
	}
	for id, left := range list {
		if left.PodID != id || !podID.MatchString(id) {
			g.log.Error("a record of a cgroup that is to be removed is not of the pod that it is named by", "pod", id)
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

// podID is what newID makes.
var podID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// owns tells whether a pod's cgroup came with it, so that nobody else sets its limits.
func (g *cgroups) owns(r *record.Sandbox) bool {
	return r.OwnedCgroup != "" && within(g.podDir(r.CgroupParent), r.OwnedCgroup)
}

// limitPod sets the limits of a pod's cgroup, and makes that where it is not there, if it is the pod's own. Pods that were
// told to share one share its limits too: those of the last one hold.
func (g *cgroups) limitPod(r *record.Sandbox) error {
	for _, limits := range []*model.Resources{r.Config.Overhead, r.Config.Resources} {
		if err := checkPodLimits(limits); err != nil {
			return err
		}
	}
	limits := podResources(r.Config)
	if limits == nil {
		return nil
	}
	if !g.owns(r) {
		return nil
	}
	host, err := ocispec.Detect()
	if err != nil {
		return err
	}
	resources, err := ocispec.Resources(limits, 0, host)
	if err != nil {
		return fmt.Errorf("limits of the whole pod: %w", err)
	}
	tree, err := cgroup.Host()
	if err != nil {
		return err
	}
	if g.systemd {
		return tree.LimitSlice(g.podDir(r.CgroupParent), resources)
	}
	if err := tree.Create(r.CgroupParent); err != nil {
		return err
	}
	return tree.Limit(r.CgroupParent, resources)
}
