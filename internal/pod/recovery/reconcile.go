// Package recovery runs when berthd starts. It compares the records of pods and containers with the kernel and the
// keeper, adopts what is alive, and removes what has no owner.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"berth/internal/image"
	keeper "berth/internal/keeper/client"
	"berth/internal/network"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/checkpoints"
	"berth/internal/pod/devices"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/logs"
	"berth/internal/pod/parts"
	"berth/internal/pod/record"
	"berth/internal/pod/storage"
	"berth/internal/pod/teardown"
	"berth/internal/pod/trash"
	"berth/internal/pod/watch"
	"berth/internal/rootfs"
	"berth/internal/state"
	"berth/internal/undo"
)

// Keeper is what a Recovery asks of the keeper.
type Keeper interface {
	watch.Lister
	Status(ctx context.Context, id string) (*keeper.Status, error)
	Delete(ctx context.Context, id string) error
	EndCheckpoint(ctx context.Context, id string) error
}

// Images is what a Recovery asks of the image store.
type Images interface {
	AddReference(imageID, holder string) (*image.Layers, error)
	Collect(context.Context) error
}

// Recovery has what the records are compared with, and what mends a difference. It has one goroutine until Reconcile
// returns.
type Recovery struct {
	Keeper      Keeper
	Images      Images
	Network     network.Provider
	Pods        *record.Sandboxes
	Containers  *record.Containers
	Index       *index.Index
	Logs        *logs.Claims
	Dirs        *layout.Dirs
	Cgroups     *cgroups.Driver
	Parts       *parts.Maker
	Storage     *storage.Store
	Devices     *devices.Allocator
	Checkpoints *checkpoints.Checkpointer
	Trash       *trash.Trash
	Teardown    *teardown.Teardown
	Watch       *watch.Watcher
	// Mounts waits for the list of the mounts below Containers.Dir and Dirs.StatePods, and Hidden for the directories of
	// single pods to be closed. Both were begun before.
	Mounts func() ([]string, error)
	Hidden func()
	Ctx    context.Context // ends what goes on while berthd serves
	Log    *slog.Logger

	// Unfinished is what Reconcile could not bring to its end, and what can wait until berthd serves. Each is to be called
	// in a goroutine of its own, once the keeper's events are followed, and returns when it is done or Ctx has ended.
	Unfinished []func()

	withoutImage map[string]string // containers to images of theirs that the store does not know
	// lostNamespaces waits for what lookAtNamespaces finds: the namespace that a pod has lost, by pod; empty: none.
	lostNamespaces func() map[string]string
}

// Reconcile compares the records with reality, adopts what lives and removes what does not. It can be killed at any
// point and run again. What cannot be removed now is logged and tried again at the next start; it does not keep the
// node down.
func (rc *Recovery) Reconcile(ctx context.Context) error {
	// The keeper lists its containers while the records are read.
	var statuses map[string]*keeper.Status
	var listing errgroup.Group
	listing.Go(func() (err error) {
		statuses, err = watch.Statuses(ctx, rc.Keeper)
		return err
	})
	brokenPods, sparedPods, err := rc.loadSandboxes()
	if err != nil {
		return errors.Join(err, listing.Wait())
	}
	rc.lookAtNamespaces()
	brokenContainers, sparedContainers, err := rc.loadContainers()
	if err := errors.Join(err, listing.Wait()); err != nil {
		return err
	}
	points, err := rc.Mounts()
	if err != nil {
		return err
	}
	rc.Hidden()
	rc.Mounts, rc.Hidden = nil, nil // a thousand pods have a megabyte of mounts
	mounted := mountPoints(points)
	rc.adoptSpared(sparedPods, sparedContainers, statuses)
	rc.Unfinished = append(rc.Unfinished, rc.mendSpares())
	// Removals that wait for something must not keep berthd from serving the pods that run.
	removals, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for _, c := range rc.Index.Containers() {
		rc.reconcileContainer(ctx, removals, c, statuses[c.ID()], mounted)
	}
	for _, s := range rc.Index.Sandboxes() {
		rc.reconcileSandbox(removals, s, statuses[s.ID()])
	}
	rc.endLost(removals, rc.withoutRecord(brokenPods, brokenContainers, statuses, points))
	rc.Storage.Quotas.Reconcile(rc.Index.Has)
	rc.Devices.Reconcile()
	rc.removeStrayState(points)
	rc.Cgroups.Reconcile(brokenPods)
	rc.reconcileNetwork(ctx, rc.networkPods())
	rc.collectImages()
	rc.Unfinished = append(rc.Unfinished, rc.resolveLogs)
	return nil
}

// collectImages removes image layers that nobody needs. If a container that has not ended has an image that the store
// does not know, its layers are unknown too, and any layer that seems to be unused may be one of them: then this start
// removes none. A power failure may leave many layers with many files, so they are removed while berthd serves.
func (rc *Recovery) collectImages() {
	for _, c := range rc.Index.Containers() {
		if image := rc.withoutImage[c.ID()]; image != "" && c.Record().Phase != record.ContainerExited {
			rc.Log.Error("image layers are not collected: a container that has not ended has an image that was lost",
				"container_id", c.ID(), "image_id", image)
			return
		}
	}
	rc.Unfinished = append(rc.Unfinished, func() {
		if err := rc.Images.Collect(rc.Ctx); err != nil && rc.Ctx.Err() == nil {
			rc.Log.Error("collect image layers that nobody needs", "error", err)
		}
	})
}

// refer adds a reference of a container to an image, and notes an image that the store does not know.
func (rc *Recovery) refer(id, image, noun string) {
	if _, err := rc.Images.AddReference(image, id); err != nil {
		rc.Log.Warn("add a reference to the image of a "+noun, "container_id", id, "image_id", image, "error", err)
		if rc.withoutImage == nil {
			rc.withoutImage = map[string]string{}
		}
		rc.withoutImage[id] = image
	}
}

// withoutRecord returns the pods and containers that have no record which can be read: those whose records are broken,
// and those that only the keeper knows. No client could be told of them. points are the mounts of the node.
func (rc *Recovery) withoutRecord(
	brokenPods, brokenContainers []state.Broken, statuses map[string]*keeper.Status, points []string,
) []lost {
	var all []lost
	broken := map[string]bool{}
	for _, b := range brokenContainers {
		all = append(all, lost{id: b.ID, why: b.Err, dir: rc.Containers.Path(b.ID), status: statuses[b.ID], points: points})
		broken[b.ID] = true
	}
	for _, b := range brokenPods {
		all = append(all, lost{id: b.ID, why: b.Err, dir: rc.Pods.Path(b.ID), status: statuses[b.ID], pod: true})
		broken[b.ID] = true
	}
	for id, status := range statuses {
		if !broken[id] && !rc.Index.Has(id) {
			all = append(all, lost{id: id, why: errNoRecord, status: status})
		}
	}
	return all
}

// mountPoints is a list of mount points, to look them up in.
func mountPoints(list []string) map[string]bool {
	mounted := make(map[string]bool, len(list))
	for _, p := range list {
		mounted[p] = true
	}
	return mounted
}

// networkPods are the pods whose networks stay: those that run, those that are being removed and still have running
// containers, and those that StartSandbox may start again with the same address.
func (rc *Recovery) networkPods() []*network.Pod {
	var pods []*network.Pod
	for _, s := range rc.Index.Sandboxes() {
		r := s.Record()
		if r.NodeNetwork() {
			continue
		}
		switch r.Phase {
		case record.SandboxReady, record.SandboxBroken:
		case record.SandboxCreating, record.SandboxRemoving:
			if !rc.runsSomething(s) {
				continue
			}
		default:
			continue
		}
		pod, err := rc.Parts.JoinedPod(&r)
		rc.logFailure("read the addresses of a pod", podID(s.ID()), err)
		if r.Phase == record.SandboxBroken {
			pod.NetNS = ""
		}
		pods = append(pods, pod)
	}
	return pods
}

// reconcileNetwork compares the network with the pods. One whose network is lost is not ready any more.
func (rc *Recovery) reconcileNetwork(ctx context.Context, live []*network.Pod) {
	lost, err := rc.Network.Reconcile(ctx, live)
	if err != nil {
		rc.Log.Error("compare the network with the pods", "error", err) // Status says so, too
	}
	for id, why := range lost {
		rc.Log.Error("the network of a pod is lost", "pod_id", id, "error", why)
		if s, _ := rc.Index.ByID(id); s.Record().Phase == record.SandboxReady {
			rc.logFailure("record that a pod is broken", podID(id), rc.Watch.BreakSandbox(s, "network"))
		}
	}
	// CNI plugins may wait for the cluster's API server, and that for its pod on this node: berthd serves meanwhile.
	rc.Unfinished = append(rc.Unfinished, func() {
		ctx, cancel := context.WithTimeout(rc.Ctx, undo.Timeout)
		err := rc.Network.Collect(ctx)
		cancel()
		if err != nil {
			const what = "collect what the network holds for pods that are gone"
			rc.Log.Error(what+": it is tried again", "error", err)
			rc.repeat(what, slog.Attr{}, rc.Network.Collect)
		}
	})
}

// logFailure logs an error, if there is one: what could not be done, and with which object.
func (rc *Recovery) logFailure(what string, of slog.Attr, err error) {
	if err != nil {
		rc.Log.Error(what, of, "error", err)
	}
}

// podID and containerID say of which object a log line speaks.
func podID(id string) slog.Attr       { return slog.String("pod_id", id) }
func containerID(id string) slog.Attr { return slog.String("container_id", id) }

var errNoRecord = errors.New("there is no record")

func (rc *Recovery) loadSandboxes() ([]state.Broken, sparedRecords, error) {
	loaded, broken, spared, err := rc.Pods.Load()
	if err != nil {
		return nil, nil, err
	}
	for id, entry := range loaded {
		s := index.NewSandbox(entry)
		r := s.Record()
		rc.logFailure("reserve the SELinux label of a pod", podID(id), r.Label.Reserve())
		rc.Cgroups.Adopt(&r)
		err := s.Update(record.Draft, func(to *record.Sandbox) { to.OwnedCgroup = r.OwnedCgroup })
		rc.logFailure("note the cgroup that a pod owns", podID(id), err)
		rc.Index.AdoptSandbox(s)
	}
	record.LogSpared(rc.Log, "pod_id", spared)
	return broken, noteSpared(spared), nil
}

func (rc *Recovery) loadContainers() ([]state.Broken, sparedRecords, error) {
	loaded, broken, spared, err := rc.Containers.Load()
	if err != nil {
		return nil, nil, err
	}
	for id, entry := range loaded {
		r := entry.Record()
		s, _ := rc.Index.ByID(r.SandboxID)
		if s == nil {
			broken = append(broken, state.Broken{ID: id, Err: fmt.Errorf("its pod %q has no record", r.SandboxID)})
			continue
		}
		rc.refer(id, r.ImageID, "container")
		for _, volume := range r.VolumeImages {
			rc.refer(id, volume, "volume")
		}
		for _, mount := range r.Config.Mounts {
			if mount.Volume != "" && r.Phase != record.ContainerCreating {
				rc.logFailure("note that a container uses a volume", containerID(id), rc.Storage.Volumes.AddUser(mount.Volume, id))
			}
		}
		rc.Index.AdoptContainer(index.NewContainer(entry, s))
	}
	record.LogSpared(rc.Log, "container_id", spared)
	return broken, noteSpared(spared), nil
}

// lookAtNamespaces begins to look at the namespaces of all pods that are ready, while other records are read.
func (rc *Recovery) lookAtNamespaces() {
	var ready []record.Sandbox
	for _, s := range rc.Index.Sandboxes() {
		if r := s.Record(); r.Phase == record.SandboxReady {
			ready = append(ready, r)
		}
	}
	rc.lostNamespaces = sync.OnceValue(func() map[string]string {
		lost := map[string]string{}
		for i := range ready {
			lost[ready[i].ID] = rc.Dirs.LostNamespace(&ready[i])
		}
		return lost
	})
	go rc.lostNamespaces()
}

// startWait is how long a start of berthd waits for the start of a container that is under way at the keeper, and
// hungStart how long that may take until it is ended.
const startWait, hungStart = 3 * time.Second, 20 * time.Second

// startDecided waits until the keeper has finished or undone the start of a container, and returns the container's
// status: nil if the keeper does not know the container. known is false if the keeper does not answer, or the start
// takes longer than wait.
func (rc *Recovery) startDecided(ctx context.Context, id string, status *keeper.Status,
	wait time.Duration) (_ *keeper.Status, known bool) {
	for deadline := time.Now().Add(wait); status != nil &&
		status.State == keeper.StateStarting; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, false
		}
		var err error
		if status, err = rc.Keeper.Status(ctx, id); errors.Is(err, errdefs.ErrNotFound) {
			return nil, true
		} else if err != nil {
			rc.logFailure("ask for a start that was cut off", containerID(id), err)
			return nil, false
		}
	}
	return status, true
}

// awaitStart waits in the background, while berthd serves, for a start that the keeper has not finished. A start that
// takes too long is ended. The start is an operation like one of this berthd's: it has the locks that such a start has,
// so that no stop or removal is answered before the start is decided. If it does not let itself be ended, because it
// waits in the kernel, the locks are free between two tries: a stop or a removal tries the same, and says why it fails.
func (rc *Recovery) awaitStart(c *index.Container) {
	release, err := lockStart(rc.Ctx, c)
	if err != nil {
		return // berthd ends
	}
	wait := hungStart
	rc.later("decide a start that was under way", containerID(c.ID()), func(ctx context.Context) (err error) {
		if release == nil {
			if release, err = lockStart(ctx, c); err != nil {
				return err
			}
		}
		defer func() {
			release()
			release = nil
		}()
		p := c.Record().Phase
		if rc.Index.GoneContainer(c) || p != record.ContainerStarting && p != record.ContainerRunning {
			return nil // it was removed meanwhile, or its end was told
		}
		err = rc.decideStart(ctx, c, wait)
		wait = startWait
		return err
	})
}

// lockStart takes the locks of a start: the pod's, shared, and the container's.
func lockStart(ctx context.Context, c *index.Container) (release func(), err error) {
	releasePod, err := c.LockPod(ctx, "start")
	if err != nil {
		return nil, err
	}
	releaseContainer, err := c.Lock(ctx, "start")
	if err != nil {
		releasePod()
		return nil, err
	}
	return func() {
		releaseContainer()
		releasePod()
	}, nil
}

// decideStart waits for the start of awaitStart, or ends it, and records what has become of it. The caller holds the
// locks of the pod and the container.
func (rc *Recovery) decideStart(ctx context.Context, c *index.Container, wait time.Duration) error {
	status, known := rc.startDecided(ctx, c.ID(), &keeper.Status{State: keeper.StateStarting}, wait)
	if !known {
		// The keeper may not have answered, and the program may have begun since it was last asked: it is asked once more.
		var err error
		if status, err = rc.Keeper.Status(ctx, c.ID()); err != nil && !errors.Is(err, errdefs.ErrNotFound) {
			return fmt.Errorf("ask for a start that takes too long: %w", err)
		}
		switch {
		case err != nil:
			status = nil
			if err := rc.Keeper.Delete(ctx, c.ID()); err != nil {
				return fmt.Errorf("remove what is left of a start: %w", err)
			}
		case status.State == keeper.StateStarting:
			if err := rc.Teardown.EndHungStart(ctx, c); err != nil {
				return fmt.Errorf("end a start that takes too long: %w", err)
			}
			rc.dropRestored(c)
			return rc.Teardown.ReleaseContainer(ctx, c)
		}
	}
	points, err := rc.Storage.Rootfs.Mounts(rc.Containers.Dir(), rc.Dirs.StatePods())
	if err != nil {
		return err
	}
	release, err := rc.adoptStarted(ctx, c, status, mountPoints(points))
	if release {
		err = rc.Teardown.ReleaseContainer(ctx, c)
	}
	return err
}

// reconcileContainer brings a container's record in line with the keeper and the kernel. The context removals ends
// early: see attempt.
func (rc *Recovery) reconcileContainer(ctx, removals context.Context, c *index.Container, status *keeper.Status,
	mounted map[string]bool) {
	r, of := c.Record(), containerID(c.ID())
	if r.CheckpointTemp != "" {
		rc.endCheckpoint(removals, c)
	}
	rc.dropRestored(c)
	switch r.Phase {
	case record.ContainerCreating, record.ContainerRemoving:
		finish := func(ctx context.Context) error { return rc.finishContainer(ctx, c) }
		rc.attempt(removals, "finish the removal of a container", of, finish)
	case record.ContainerCreated:
		// Its root file system went with the node, if that was down since.
		if err := rc.Storage.RemountRoot(ctx, c.ContainerEntry, new(c.Sandbox.Record()), mounted); err != nil {
			rc.logFailure("mount the root file system of a created container", of, err)
		}
	case record.ContainerStarting, record.ContainerRunning:
		if decided, known := rc.startDecided(removals, c.ID(), status, startWait); known {
			rc.adoptDecided(removals, c, decided, mounted)
		} else {
			rc.awaitStart(c) // as it was, until the keeper says
		}
	case record.ContainerExited:
		c.Ended()
		rc.releaseEnded(removals, c)
	}
}

// endCheckpoint ends a checkpoint that was cut off. Its files may be on a file system that does not answer, such as one
// of a server that is gone: they are removed once berthd serves.
func (rc *Recovery) endCheckpoint(ctx context.Context, c *index.Container) {
	r, of := c.Record(), containerID(c.ID())
	rc.logFailure("thaw a container after a checkpoint that was cut off", of, rc.Keeper.EndCheckpoint(ctx, c.ID()))
	free := func() {}
	if r.CheckpointPod != "" { // else files of a new checkpoint there could be taken for those of the old one
		free, _ = rc.Checkpoints.Hold(filepath.Dir(r.CheckpointPod))
	}
	rc.later("remove what is left of a checkpoint", of, func(ctx context.Context) error {
		release, err := c.Lock(ctx, "clean")
		if err != nil {
			return err
		}
		defer release()
		if rc.Index.GoneContainer(c) {
			err = rc.Checkpoints.RemoveParts(&r)
		} else {
			err = rc.Checkpoints.Clean(c.ContainerEntry)
		}
		if err == nil {
			free()
		}
		return err
	})
}

// dropRestored removes the checkpoint that a container was restored from, once it is not needed for a start any more.
func (rc *Recovery) dropRestored(c *index.Container) {
	r := c.Record()
	if r.Restored != nil && r.Phase != record.ContainerCreated && r.Phase != record.ContainerStarting {
		rc.Checkpoints.Drop(c.ID())
	}
}

// adoptDecided calls adoptStarted during the start of berthd. What takes long is done in the background.
func (rc *Recovery) adoptDecided(removals context.Context, c *index.Container, status *keeper.Status,
	mounted map[string]bool) {
	release, err := rc.adoptStarted(removals, c, status, mounted)
	if release {
		rc.releaseEnded(removals, c)
	}
	if err == nil {
		return
	}
	rc.Log.Error("end what the keeper does not know: it is tried again", "container_id", c.ID(), "error", err)
	rc.later("end what the keeper does not know", containerID(c.ID()), func(ctx context.Context) error {
		if _, ended := rc.Teardown.EndUnlisted(ctx, c); !ended {
			return errLives
		}
		unlock, err := c.Lock(ctx, "release")
		if err != nil {
			return err
		}
		defer unlock()
		if p := c.Record().Phase; p != record.ContainerStarting && p != record.ContainerRunning {
			return nil // it was removed meanwhile
		}
		rc.Teardown.FinishLost(c)
		rc.dropRestored(c)
		return rc.Teardown.ReleaseContainer(ctx, c)
	})
}

var errLives = errors.New("processes of the container live")

// adoptStarted brings the record of a container that was started in line with its status (nil: the keeper has none).
// release says that the container has ended, and that the caller is to release its resources. AdoptExit has released
// those of a container that the keeper reports as exited. The error is errLives if the container's processes are alive
// although the keeper does not know the container.
func (rc *Recovery) adoptStarted(ctx context.Context, c *index.Container, status *keeper.Status,
	mounted map[string]bool) (release bool, err error) {
	if c.Record().Phase == record.ContainerStarting {
		defer rc.dropRestored(c)
	}
	if status == nil {
		return rc.adoptUnlisted(ctx, c, mounted)
	}
	if status.State == keeper.StateExited {
		rc.Teardown.AdoptExit(ctx, c, *status)
		return false, nil
	}
	rc.logFailure("record that a container runs", containerID(c.ID()), rc.Teardown.AdoptRunning(c, *status))
	rc.reconcilePause(ctx, c)
	rc.adoptLog(c)
	return false, nil
}

// adoptLog claims the log of a container that runs. berthd does not serve yet, and the file system of the log may not
// answer, so that is not asked for anything. An earlier version of Berth has not recorded the log's path without links:
// if the kernel does not have that in its cache, resolveLogs finds it out.
func (rc *Recovery) adoptLog(c *index.Container) {
	r := c.Record()
	file := r.LogFile
	if earlierLog(&r) {
		var known bool
		if file, known = logs.Known(r.LogPath); !known {
			file = r.LogPath
		}
	}
	rc.Logs.Adopt(c.ID(), file)
}

// earlierLog tells whether an earlier version of Berth has started a container that has a log.
func earlierLog(r *record.Container) bool { return r.LogFile == "" && r.LogPath != "" }

// resolveLogs finds out, while berthd serves, where the logs of an earlier version's containers are.
func (rc *Recovery) resolveLogs() {
	for _, c := range rc.Index.Containers() {
		r := c.Record()
		if r.Phase != record.ContainerRunning || !earlierLog(&r) {
			continue
		}
		if rc.Ctx.Err() != nil {
			return
		}
		file, err := logs.File(r.LogPath)
		if err != nil {
			rc.Log.Warn("where the log of a container is cannot be found out: another container may write to it, too",
				"container_id", c.ID(), "path", r.LogPath, "error", err)
			continue
		}
		rc.Logs.Correct(c.ID(), file)
	}
}

// adoptUnlisted is adoptStarted where the keeper does not know the container.
func (rc *Recovery) adoptUnlisted(ctx context.Context, c *index.Container,
	mounted map[string]bool) (release bool, err error) {
	lived, ended := rc.Teardown.EndUnlisted(ctx, c)
	r := c.Record()
	mayHaveRun := lived || r.Phase != record.ContainerStarting || r.StartEnded
	switch {
	case !ended:
		return false, errLives
	case !mayHaveRun && rc.Dirs.LostNamespace(new(c.Sandbox.Record())) == "":
		// The keeper knows a container from a start's first moment on, until it has failed or been cut off: no program has
		// run.
		of := containerID(c.ID())
		err := c.Update(record.Save, func(r *record.Container) { r.Phase = record.ContainerCreated })
		rc.logFailure("record that a start was cut off", of, err)
		err = rc.Storage.RemountRoot(ctx, c.ContainerEntry, new(c.Sandbox.Record()), mounted)
		rc.logFailure("mount the root file system of a created container", of, err)
		return false, nil
	}
	rc.Teardown.FinishLost(c)
	return true, nil
}

func (rc *Recovery) reconcileSandbox(ctx context.Context, s *index.Sandbox, status *keeper.Status) {
	r := s.Record()
	phase := r.Phase
	if r.Restoring { // some of its containers are missing, and its client has no ID of it
		phase = record.SandboxRemoving
	}
	switch phase {
	case record.SandboxCreating, record.SandboxRemoving:
		const what = "finish the removal of a pod"
		finish := func(ctx context.Context) error { return rc.finishSandbox(ctx, s) }
		if rc.runsSomething(s) {
			rc.Log.Warn("a pod whose removal has begun still runs containers: they are ended", "pod_id", s.ID())
			rc.later(what, podID(s.ID()), finish)
			return
		}
		rc.attempt(ctx, what, podID(s.ID()), finish)
	case record.SandboxReady:
		lost, known := rc.lostNamespaces()[s.ID()]
		if !known { // its record was repaired since
			lost = rc.Dirs.LostNamespace(new(s.Record()))
		}
		if r.HasInit() && !watch.InitLives(status) {
			lost = watch.LostInit
		}
		if lost != "" {
			rc.logFailure("record that a pod is broken", podID(s.ID()), rc.Watch.BreakSandbox(s, lost))
			return
		}
		rc.logFailure("correct the directory of a pod that an earlier version of Berth has made", podID(s.ID()),
			rc.Dirs.MakeStatePod(&r))
		rc.logFailure("make the files of a pod that an earlier version of Berth has made", podID(s.ID()),
			rc.Parts.AdoptFiles(s.SandboxEntry))
	case record.SandboxStopped:
		// A stop writes its record last, so there is nothing to do.
	}
}

// removeStrayState removes directories of the state directory that are of pods without a record.
func (rc *Recovery) removeStrayState(points []string) {
	entries, err := os.ReadDir(rc.Dirs.StatePods())
	if err != nil {
		rc.Log.Error("list the state of pods", "error", err)
		return
	}
	for _, e := range entries {
		id := e.Name()
		if rc.Index.Has(id) {
			continue
		}
		const what = "remove the state of a pod without a record"
		needsNetNS := rc.Network.NeedsNetNS(id)
		err := errors.Join(
			rc.Parts.RemoveNamespaces(id), rc.Parts.UnmountFiles(id),
			rc.Storage.UnmountBelow(rc.Dirs.StatePod(id), points))
		switch {
		case needsNetNS: // the rest goes after its network, for which plugins are called while berthd serves
			rc.later(what, podID(id), func(ctx context.Context) error {
				if err := rc.Network.Leave(ctx, id); err != nil {
					return err
				}
				return errors.Join(rc.Parts.RemoveNamespaces(id), rootfs.Remove(ctx, rc.Dirs.StatePod(id)))
			})
		case err == nil:
			err = rootfs.Remove(rc.Ctx, rc.Dirs.StatePod(id))
		}
		rc.logFailure(what, podID(id), err)
	}
}

// reconcilePause corrects a running container's record if the record says that the container is paused and the kernel
// does not.
func (rc *Recovery) reconcilePause(ctx context.Context, c *index.Container) {
	if !c.Record().Paused {
		return // a pause is recorded before the container is frozen
	}
	st, err := rc.Keeper.Status(ctx, c.ID())
	if err == nil && !st.Paused {
		err = c.Update(record.Save, func(r *record.Container) { r.Paused = false })
	}
	rc.logFailure("find out whether a container is paused", containerID(c.ID()), err)
}
