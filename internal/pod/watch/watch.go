// Package watch reacts to events that no call has caused: ends of containers and of pods' init processes, and lost
// namespaces.
package watch

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/pod/background"
	"berth/internal/pod/events"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/record"
	"berth/internal/pod/teardown"
)

// Keeper is what a Watcher asks of the keeper.
type Keeper interface {
	Lister
	// Status is of one container. The error is errdefs.ErrNotFound if the keeper has none of this ID.
	Status(ctx context.Context, id string) (*keeper.Status, error)
	// Delete ends a container and removes all of it.
	Delete(ctx context.Context, id string) error
	// Watch calls its function with an event for every container, and then with one for each change, until the context
	// ends. Several changes of a container may make one event. After the keeper was killed or upgraded, there is an event
	// for every container again, and for each that has gone meanwhile.
	Watch(context.Context, func(keeper.Event)) error
}

// Lister lists all containers and inits of pods that the keeper knows.
type Lister interface {
	List(context.Context) ([]keeper.Status, error)
}

// Watcher follows the keeper's events and the namespaces of pods. Its methods may be called concurrently, unless their
// comment names a lock that the caller holds.
type Watcher struct {
	Keeper     Keeper
	Index      *index.Index
	Dirs       *layout.Dirs
	Events     *events.Feed
	Teardown   *teardown.Teardown
	Ctx        context.Context   // ends what follows something
	Background *background.Group // has each goroutine that an event starts
	Log        *slog.Logger
}

// LostInit is the part that a pod has lost when its init has ended.
const LostInit = "init"

// lookEvery is how often the namespaces of ready pods are checked if the node's mounts have changed meanwhile: a
// namespace stays as long as its mount does. A check is a statfs for each namespace, some microseconds for a pod.
const lookEvery = 5 * time.Second

// lookAnyway is how often they are checked in any case. A directory that is moved takes the mounts in it along.
const lookAnyway = 5 * time.Minute

// InitLives tells whether the keeper says that the init of a pod lives.
func InitLives(status *keeper.Status) bool {
	return status != nil && status.State != keeper.StateExited
}

// BreakSandbox marks a ready pod of which a part is gone. Its address stays its own, for StartSandbox. The caller holds
// the pod's lock.
func (w *Watcher) BreakSandbox(s *index.Sandbox, lost string) error {
	metadata := s.Record().Config.Metadata
	w.Log.Warn("a pod is not ready: a part of it is gone",
		"pod_id", s.ID(), "pod", metadata.Namespace+"/"+metadata.Name, "part", lost)
	return s.Update(record.Happened, func(r *record.Sandbox) { r.Phase = record.SandboxBroken; r.ReaperPID = 0 })
}

// CheckParts finds out whether a ready sandbox has lost a part of it since somebody last looked.
func (w *Watcher) CheckParts(ctx context.Context, s *index.Sandbox) error {
	r := s.Record()
	if r.Phase != record.SandboxReady {
		return nil
	}
	lost := w.Dirs.LostNamespace(new(s.Record()))
	if lost == "" && r.HasInit() {
		statuses, err := Statuses(ctx, w.Keeper)
		if err != nil {
			return err
		}
		if !InitLives(statuses[s.ID()]) {
			lost = LostInit
		}
	}
	if lost == "" {
		return nil
	}
	return w.BreakSandbox(s, lost)
}

// LookAtNamespaces marks ready pods whose namespaces somebody has taken away. No call waits for it.
func (w *Watcher) LookAtNamespaces() {
	mounts, err := openMounts()
	if err != nil {
		w.Log.Warn("changes of the node's mounts cannot be followed: namespaces of pods are checked anyway", "error", err)
	}
	defer mounts.close()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	looked := time.Now() // when recovery did
	again := false
	for {
		select {
		case <-w.Ctx.Done():
			return
		case <-tick.C:
		}
		// Asked before the check: what changes during it counts for the next one.
		if !mounts.changed() && !again && time.Since(looked) < lookAnyway {
			continue
		}
		looked, again = time.Now(), false
		for _, s := range w.Index.Sandboxes() {
			if s.Status().State == model.SandboxReady && !w.CheckNamespaces(s) {
				again = true
			}
		}
	}
}

// CheckNamespaces checks one pod. During a run, a stop or a removal, namespaces come and go while the record says
// ready. So a pod whose lock is held has to be checked another time, as has one whose record cannot be written: false.
func (w *Watcher) CheckNamespaces(s *index.Sandbox) bool {
	if w.Dirs.LostNamespace(new(s.Record())) == "" {
		return true
	}
	release := s.TryShare()
	if release == nil {
		return false
	}
	defer release()
	lost := w.Dirs.LostNamespace(new(s.Record()))
	if lost == "" || s.Record().Phase != record.SandboxReady || w.Index.Gone(s) {
		return true
	}
	if err := w.BreakSandbox(s, lost); err != nil {
		w.Log.Error("record that a pod is broken", "pod_id", s.ID(), "error", err)
		return false
	}
	w.Events.Tell(s, s.ID(), model.EventStopped)
	return true
}

// FollowKeeper follows the keeper's events until Ctx ends.
func (w *Watcher) FollowKeeper() {
	for w.Ctx.Err() == nil {
		err := w.Keeper.Watch(w.Ctx, w.keeperEvent)
		if w.Ctx.Err() != nil {
			return
		}
		w.Log.Warn("the keeper's events stopped; following them again", "error", err)
		select {
		case <-w.Ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// keeperEvent must not block: it is called for all containers in turn.
func (w *Watcher) keeperEvent(e keeper.Event) {
	if e.Gone {
		switch s, c := w.Index.ByID(e.Status.ID); {
		case c != nil && c.Record().Phase == record.ContainerRunning:
			w.Background.Go(func() { w.retry(func() bool { return w.endLost(c) }) })
		case s != nil && s.Record().Phase == record.SandboxReady:
			w.Background.Go(func() { w.retry(func() bool { return w.initLost(s) }) })
		}
		return
	}
	exited := e.Status.State == keeper.StateExited
	switch s, c := w.Index.ByID(e.Status.ID); {
	case c == nil && s == nil:
		w.Background.Go(func() { w.endStray(e.Status.ID) })
	case c != nil && exited:
		w.Background.Go(func() { w.containerExited(c, e.Status) })
	case c != nil && idle(c):
		w.Background.Go(func() { w.endUnasked(c) })
	case s != nil && exited:
		w.Background.Go(func() { w.initExited(s, e.Status) })
	}
}

// strayPatience is how long an event may be older than the removal of its container.
const strayPatience = 2 * time.Second

// endStray ends what the keeper has and no record knows. A berthd that was killed may have asked for a start that the
// keeper reads only when the next berthd has removed the pod. What is to be started is in the index before that, so
// nothing comes into it later.
func (w *Watcher) endStray(id string) {
	select {
	case <-time.After(strayPatience):
	case <-w.Ctx.Done():
		return
	}
	st, err := w.Keeper.Status(w.Ctx, id)
	if errdefs.IsNotFound(err) || w.Ctx.Err() != nil || w.Index.Has(id) {
		return // the event was that of a removal
	}
	log := w.Log.With("container_id", id)
	if err == nil {
		log.Warn("end a container of which there is no record: the berthd that asked for its start was killed",
			"pod_id", st.PodID, "pid", st.PID)
		err = w.Keeper.Delete(w.Ctx, id)
	}
	if err != nil {
		log.Error("end a container of which there is no record: the next start of berthd ends it", "error", err)
	}
}

// idle tells whether nothing of a container runs, by its record.
func idle(c *index.Container) bool {
	phase := c.Record().Phase
	return phase == record.ContainerCreated || phase == record.ContainerExited
}

// errLateStart is what the record says of a container that endUnasked has ended.
var errLateStart = errors.New("the start was cut off when berthd was killed, and the keeper began it afterwards: " +
	"the container was ended")

// endUnasked ends a container that the keeper runs and that has not been started, by its record, or has ended. A berthd
// that was killed may have asked for a start that the keeper reads only when the next berthd has found that it does not
// know the container. Clients have been told so, and a stop of it may have been answered. Its program may have run, and
// is not to be run once more.
func (w *Watcher) endUnasked(c *index.Container) {
	// A start that is on its way records that the container runs.
	release, err := c.Lock(w.Ctx, "end")
	if err != nil {
		return
	}
	defer release()
	if !idle(c) || w.Index.GoneContainer(c) {
		return
	}
	log := w.Log.With("container_id", c.ID())
	st, err := w.Keeper.Status(w.Ctx, c.ID())
	if errdefs.IsNotFound(err) || err == nil && st.State == keeper.StateExited {
		return // the event was that of an earlier time
	}
	if err == nil {
		log.Warn("end a container that runs against its record: a start of it was cut off", "pod_id", st.PodID, "pid", st.PID)
		if c.Record().Phase == record.ContainerCreated {
			err = c.Update(record.Happened, func(r *record.Container) { r.Phase = record.ContainerStarting })
		}
	}
	switch {
	case err != nil:
	case c.Record().Phase == record.ContainerStarting:
		w.Teardown.StartFailed(w.Ctx, c, errLateStart)
	default:
		err = w.Keeper.Delete(w.Ctx, c.ID())
	}
	if err != nil {
		log.Error("end a container that runs against its record: the next start of berthd ends it", "error", err)
	}
}

// lostRetry is how long retry waits between two tries.
const lostRetry = time.Second

// retry calls a function until it says that nothing is left to do, or berthd ends.
func (w *Watcher) retry(try func() (done bool)) {
	for w.Ctx.Err() == nil && !try() {
		select {
		case <-w.Ctx.Done():
		case <-time.After(lostRetry):
		}
	}
}

// endLost ends a container that runs, by its record, and that the keeper does not know any more: it was killed, and
// cannot read its record or take it back. Nobody would learn of the container's end, and a stop would wait in vain. It
// tells whether nothing is left to do.
func (w *Watcher) endLost(c *index.Container) bool {
	release, err := c.Lock(w.Ctx, "record the end of")
	if err != nil {
		return true // berthd ends
	}
	defer release()
	if c.Record().Phase != record.ContainerRunning || w.Index.GoneContainer(c) {
		return true
	}
	if _, err := w.Keeper.Status(w.Ctx, c.ID()); !errdefs.IsNotFound(err) {
		return err == nil // it was handed back; or the keeper does not answer
	}
	if _, ended := w.Teardown.EndUnlisted(w.Ctx, c); !ended {
		return false
	}
	w.Teardown.FinishLost(c)
	if err := w.Teardown.ReleaseContainer(w.Ctx, c); err != nil {
		w.Log.Warn("release a container that the keeper has lost: its removal does it", "container_id", c.ID(), "error", err)
	}
	return true
}

// initExited marks a pod whose init has ended: the kernel has killed all processes of the pod's PID namespace.
func (w *Watcher) initExited(s *index.Sandbox, st keeper.Status) {
	release, err := s.Lock(w.Ctx, "record the end of")
	if err != nil {
		return
	}
	defer release()
	// The init may be that of the pod before StartSandbox.
	if r := s.Record(); r.Phase != record.SandboxReady || r.ReaperPID != st.PID {
		return
	}
	if err := w.BreakSandbox(s, LostInit); err != nil {
		w.Log.Error("record that a pod is broken", "pod_id", s.ID(), "error", err)
		return
	}
	w.Events.Tell(s, s.ID(), model.EventStopped)
}

// initLost marks a ready pod whose init the keeper does not know any more, for the reasons of endLost. The init has
// ended, or the keeper has killed it, and no container of the pod runs or starts any more. initLost tells whether
// nothing is left to do.
func (w *Watcher) initLost(s *index.Sandbox) (done bool) {
	release, err := s.Lock(w.Ctx, "record the end of")
	if err != nil {
		return true // berthd ends
	}
	defer release()
	if r := s.Record(); r.Phase != record.SandboxReady || !r.HasInit() {
		return true
	}
	if _, err := w.Keeper.Status(w.Ctx, s.ID()); !errdefs.IsNotFound(err) {
		return err == nil // the init is another one, or was handed back; or the keeper does not answer
	}
	if err := w.BreakSandbox(s, LostInit); err != nil {
		w.Log.Error("record that a pod is broken", "pod_id", s.ID(), "error", err)
		return false
	}
	w.Events.Tell(s, s.ID(), model.EventStopped)
	return true
}

// logPatience is how long the end of a container waits for the last of its output to be in its log. A process outside
// the container that holds the pipe open must not keep the container from ending.
const logPatience = 2 * time.Second

// containerExited takes over how a container ended. The event comes twice, before and after the log is complete.
func (w *Watcher) containerExited(c *index.Container, st keeper.Status) {
	if !st.LogDone {
		select {
		case <-c.Exited(): // the second event did it
			return
		case <-w.Ctx.Done():
			return
		case <-time.After(logPatience):
			w.Log.Warn("a container has ended, but something still holds its output open", "container_id", c.ID())
		}
	}
	// A start that is on its way records its own end first.
	release, err := c.Lock(w.Ctx, "record the end of")
	if err != nil {
		return
	}
	defer release()
	w.Teardown.AdoptExit(w.Ctx, c, st)
}

// Statuses is what the keeper says of each container and each pod's init, by ID.
func Statuses(ctx context.Context, k Lister) (map[string]*keeper.Status, error) {
	list, err := k.List(ctx)
	if err != nil {
		return nil, err
	}
	statuses := make(map[string]*keeper.Status, len(list))
	for i := range list {
		statuses[list[i].ID] = &list[i]
	}
	return statuses, nil
}
