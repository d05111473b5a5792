package recovery

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/network"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/pod/watch"
	"berth/internal/state"
	"berth/internal/undo"
)

// If the newest file of a record is damaged, the record is read from its second file. In each lasting phase both files
// have the same content. Otherwise the second file is older and misses the last change. Its phase is then corrected
// here by the state of the keeper and the kernel, and nothing that is alive is ended because of it. Facts that neither
// of them knows are reported as lost.

// sparedRecords are objects whose records were read from their second files, and whether these are older.
type sparedRecords map[string]bool

func noteSpared(list []state.Spared) sparedRecords {
	out := sparedRecords{}
	for _, s := range list {
		out[s.ID] = s.Older
	}
	return out
}

// adoptSpared corrects records that were read from their second files by what the keeper and the kernel say, and writes
// them again.
func (rc *Recovery) adoptSpared(pods, containers sparedRecords, statuses map[string]*keeper.Status) {
	for id, older := range pods {
		s, _ := rc.Index.ByID(id)
		if s == nil {
			continue // its record is reported as broken
		}
		rc.logFailure("write the record of a pod again", podID(id), s.Update(record.Repair, func(r *record.Sandbox) {
			if older {
				rc.adoptOlderSandbox(r, statuses[id])
			}
		}))
	}
	for id, older := range containers {
		_, c := rc.Index.ByID(id)
		if c == nil {
			continue
		}
		err := c.Update(record.Repair, func(r *record.Container) {
			if older {
				rc.adoptOlderContainer(c, r, statuses[id])
			}
		})
		rc.logFailure("write the record of a container again", containerID(id), err)
	}
}

// mendSpares returns what writes second files of the records that are there now again if they are damaged or missing.
// Otherwise such a record would have only one file until its next change. The records of a thousand pods take 40 ms to
// look at, so clients are served meanwhile: a record that is being removed is not in a phase that lasts, and is left
// alone.
func (rc *Recovery) mendSpares() func() {
	pods, containers := rc.Index.Sandboxes(), rc.Index.Containers()
	return func() {
		for _, s := range pods {
			rc.mend("pod", podID(s.ID()), s.Mend)
		}
		for _, c := range containers {
			rc.mend("container", containerID(c.ID()), c.Mend)
		}
	}
}

// mend writes the second file of a record again, unless berthd ends.
func (rc *Recovery) mend(noun string, of slog.Attr, do func() (mended bool, err error)) {
	if rc.Ctx.Err() != nil {
		return
	}
	mended, err := do()
	if mended {
		rc.Log.Warn("the second file of a record is spoilt or not there, and is written again", of)
	}
	rc.logFailure("write the record of a "+noun+" again", of, err)
}

// adoptOlderSandbox corrects the older version of a pod's record. The record is written once while the pod is being
// made, and the version after that says that the pod is ready. So an older version of the phase creating becomes ready,
// and its other fields come from the parts of the pod: reconcileSandbox checks that these exist. A removal that has
// begun is finished. A new field of the record that a later write sets has to be restored here too.
func (rc *Recovery) adoptOlderSandbox(r *record.Sandbox, status *keeper.Status) {
	if watch.InitLives(status) {
		r.ReaperPID, r.ReaperSetup = status.PID, status.Setup
	}
	if r.Phase != record.SandboxCreating {
		return
	}
	r.Phase = record.SandboxReady
	if _, err := os.Lstat(filepath.Join(rc.Dirs.Files(r.ID), layout.ShmDir)); err == nil || !r.Config.OwnIPC() {
		r.SharedTmpfs = true
	}
	set := rc.Dirs.Namespaces(r.ID)
	if r.NodeNetwork() || !set.Pinned(namespace.Network) {
		return
	}
	found, err := network.Addresses(set.Path(namespace.Network))
	if err != nil {
		rc.Log.Error("read the addresses of a pod whose record is spoilt", "pod_id", r.ID, "error", err)
		return
	}
	r.IPs, r.Interface = nil, found.Interface
	for _, ip := range found.IPs {
		r.IPs = append(r.IPs, ip.String())
	}
}

// adoptOlderContainer does for a container what adoptOlderSandbox does for a pod.
func (rc *Recovery) adoptOlderContainer(c *index.Container, r *record.Container, status *keeper.Status) {
	if r.Phase == record.ContainerRemoving || r.Phase == record.ContainerExited && status == nil {
		return
	}
	if r.Process == nil {
		if spec, err := c.ReadSpec(); err == nil && spec.Process != nil {
			r.SetProcess(spec.Process)
			r.User = model.User{UID: int64(spec.Process.User.UID), GID: int64(spec.Process.User.GID)}
			for _, gid := range spec.Process.User.AdditionalGids {
				r.User.Groups = append(r.User.Groups, int64(gid))
			}
		}
	}
	switch {
	case status != nil:
		r.Phase = record.ContainerRunning
		r.PID, r.StartedAt, r.Setup = status.PID, status.StartedAt, status.Setup
		r.Paused = true // reconcilePause asks
	case r.Phase == record.ContainerCreating && r.Process != nil:
		r.Phase = record.ContainerCreated // the specification is what is made last
	case r.Phase == record.ContainerCreated:
		// A start comes after it, and its end may: reconcileContainer says that nobody knows it.
		r.Phase = record.ContainerStarting
	}
}

// lost is a container or a pod that runs, or has a directory, and of whose record no version can be read. No client can
// be told of it. A client that does not find its pod starts another one, and two pods that write to one volume would do
// more harm than the end of one. So the lost one is ended at once, with an error in the log, and its directory is kept
// for people who want the files in it.
type lost struct {
	id     string
	why    error
	dir    string         // its directory in the root; empty: it has none
	status *keeper.Status // nil: the keeper does not know it
	points []string       // mount points below it
	pod    bool
}

// key says of which object a log line speaks.
func (l *lost) key() slog.Attr {
	if l.pod {
		return podID(l.id)
	}
	return containerID(l.id)
}

// endLost ends containers and pods without a readable record. Those that do not end soon are ended in the background.
func (rc *Recovery) endLost(ctx context.Context, all []lost) {
	var g errgroup.Group
	errs := make([]error, len(all))
	for i, l := range all {
		log := rc.Log.With(l.key())
		if !l.pod && l.status != nil {
			log = log.With("pod_id", l.status.PodID)
		}
		if l.status != nil && l.status.State != keeper.StateExited {
			log.Error("end what runs without a record: no version of it can be read, and nobody could be told of it",
				"pid", l.status.PID, "kept", rc.keptSpoilt(&l), "error", l.why)
		} else {
			log.Warn("remove a pod or container that has no record", "error", l.why)
		}
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, attemptPatience)
			defer cancel()
			errs[i] = rc.Keeper.Delete(ctx, l.id)
			return nil
		})
	}
	_ = g.Wait()
	for i, l := range all {
		if errs[i] != nil {
			rc.Log.Error("end a pod or container that has no record: it is tried again", l.key(), "error", errs[i])
			rc.later("end a pod or container that has no record", l.key(), func(ctx context.Context) error {
				return errors.Join(rc.Keeper.Delete(ctx, l.id), rc.putAway(&l))
			})
			continue
		}
		rc.logFailure("remove a pod or container that has no record", l.key(), rc.putAway(&l))
	}
}

// putAway moves the directory of an object that has ended out of the way.
func (rc *Recovery) putAway(l *lost) error {
	if l.dir == "" {
		return nil
	}
	if !l.pod {
		if err := rc.Storage.UnmountLost(l.id, l.points); err != nil {
			return err
		}
	}
	kept := rc.keptSpoilt(l)
	if kept == "" {
		return rc.Trash.Discard(l.dir)
	}
	if err := state.MakeDir(filepath.Dir(kept), 0o700); err != nil {
		return err
	}
	if err := os.Rename(l.dir, kept); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// keptSpoilt is where the directory of a lost container or pod is kept; empty: it is removed, because nothing of it
// ran.
func (rc *Recovery) keptSpoilt(l *lost) string {
	if l.dir == "" || l.status == nil || l.status.State == keeper.StateExited {
		return ""
	}
	return filepath.Join(rc.Dirs.Root, "spoilt", filepath.Base(filepath.Dir(l.dir))+"-"+l.id)
}

// How long the removal of one object, and of all objects, may delay berthd's start. Removals that take longer continue
// while berthd serves.
const attemptPatience, startPatience = 3 * time.Second, 10 * time.Second

// attempt runs a removal during berthd's start. If it fails or takes too long, it is repeated in the background.
func (rc *Recovery) attempt(ctx context.Context, what string, of slog.Attr, do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, attemptPatience)
	defer cancel()
	if err := do(ctx); err != nil {
		rc.Log.Error(what+": it is tried again", of, "error", err)
		rc.later(what, of, do)
	}
}

// later repeats do in the background until it succeeds or Ctx ends. That begins once the keeper's events are followed.
func (rc *Recovery) later(what string, of slog.Attr, do func(context.Context) error) {
	rc.Unfinished = append(rc.Unfinished, func() { rc.repeat(what, of, do) })
}

// retryFirst and retryLast are the shortest and the longest time between two tries of repeat.
const retryFirst, retryLast = time.Second, time.Minute

// repeat calls do until it succeeds or Ctx ends.
func (rc *Recovery) repeat(what string, of slog.Attr, do func(context.Context) error) {
	for wait := retryFirst; rc.Ctx.Err() == nil; wait = min(2*wait, retryLast) {
		ctx, cancel := context.WithTimeout(rc.Ctx, undo.Timeout)
		err := do(ctx)
		cancel()
		if err == nil {
			rc.Log.Info("succeeded at last: "+what, of)
			return
		}
		rc.Log.Warn(what, of, "error", err)
		select {
		case <-rc.Ctx.Done():
		case <-time.After(wait):
		}
	}
}

// finishContainer removes a container whose record says that its removal has begun, or that its creation has not ended.
func (rc *Recovery) finishContainer(ctx context.Context, c *index.Container) error {
	releasePod, err := c.LockPod(ctx, "remove")
	if err != nil {
		return err
	}
	defer releasePod()
	release, err := c.Lock(ctx, "release")
	if err != nil {
		return err
	}
	defer release()
	if rc.Index.GoneContainer(c) {
		return nil
	}
	return rc.Teardown.DropContainer(ctx, c)
}

// releaseEnded releases the resources of a container that has ended.
func (rc *Recovery) releaseEnded(ctx context.Context, c *index.Container) {
	rc.attempt(ctx, "release a container that has ended", containerID(c.ID()), func(ctx context.Context) error {
		release, err := c.Lock(ctx, "release")
		if err != nil {
			return err
		}
		defer release()
		if c.Record().Phase != record.ContainerExited {
			return nil // its removal gives back the same
		}
		return rc.Teardown.ReleaseContainer(ctx, c)
	})
}

// finishSandbox does for a pod what finishContainer does for a container.
func (rc *Recovery) finishSandbox(ctx context.Context, s *index.Sandbox) error {
	release, err := s.Lock(ctx, "remove")
	if err != nil {
		return err
	}
	defer release()
	if rc.Index.Gone(s) {
		return nil
	}
	err = rc.Teardown.RemoveSandbox(ctx, s)
	if err != nil && s.Record().Phase == record.SandboxCreating {
		// Clients see the pod from now on. Its name is taken, which they could not know otherwise.
		err = errors.Join(err, s.Update(record.Happened, func(r *record.Sandbox) { r.Phase = record.SandboxRemoving }))
	}
	return err
}

// runsSomething tells whether a container of a pod is running, or may be after a start that is not decided yet. Only
// the keeper's events tell of its end.
func (rc *Recovery) runsSomething(s *index.Sandbox) bool {
	for _, c := range rc.Index.ContainersOf(s.ID()) {
		if p := c.Record().Phase; p == record.ContainerRunning || p == record.ContainerStarting {
			return true
		}
	}
	return false
}
