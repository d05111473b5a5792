package apply

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/lookup"
	"berth/internal/cli/poddir"
	"berth/internal/cli/supervisor"
	"berth/internal/manifest"
)

// Applier keeps the pods of a directory.
type Applier struct {
	Conn      *connection.Connection
	Store     *poddir.Store
	Directory string // absolute, without symbolic links
	Options   manifest.Options
	Pull      func(ctx context.Context, image string, secrets [][]byte) (string, error)
	Notes     io.Writer // a line for each event
	// Once: the pods are started and left to themselves.
	Once bool
	// ShutsDown says whether the system is being shut down; nil: it never is.
	ShutsDown func(ctx context.Context) bool
	// StillStopping is called again and again while a shutdown waits for pods; nil: nobody wants to know.
	StillStopping func()

	launcher   *launch.Launcher
	supervisor *supervisor.Supervisor
	files      *directory
	// What follows belongs to the goroutine of Run.
	keepers []*keeper
	jobs    map[string]*jobKeeper // by owner
	told    told
	unread  error // why the directory could not be read when look read it last
	// leaving are the removals that go on, by the UIDs of their pods.
	mu       sync.Mutex // guards leaving and failures
	leaving  map[string]*removal
	failures []error        // of removals, with Once
	workers  sync.WaitGroup // removals
}

// removal is the removal of a pod.
type removal struct {
	name, owner string
	done        chan struct{}
}

// told is what has been noted, so that it is noted once.
type told struct {
	wrong   map[string]string // what is wrong, by the name of the file
	notes   map[string]bool
	blocked map[string]bool
	away    bool
	lost    string // why the directory cannot be read
}

func (a *Applier) note(format string, args ...any) { fmt.Fprintf(a.Notes, format+"\n", args...) }

// Run keeps the pods until ctx ends, and then leaves them running, unless the system shuts down. With Once it returns
// once all of them run or have failed; what has failed is the error.
func (a *Applier) Run(ctx context.Context) error {
	// The keepers leave their pods when they are told to, and not in the middle of a call.
	watchCtx, endWatch := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatch()
	watcher := launch.NewWatch(watchCtx, a.Conn.Runtime)
	watcher.Patience = -1
	a.launcher = &launch.Launcher{Runtime: a.Conn.Runtime, Images: a.Conn.Images, Store: a.Store,
		Watch: watcher, Pull: a.Pull, CreateWithVolumes: a.Conn.CreateWithVolumes, VolumePath: a.Conn.VolumePath,
		Repeatable: true}
	a.supervisor = &supervisor.Supervisor{Launcher: a.launcher, Notes: a.Notes, Once: a.Once, Lasting: !a.Once}
	a.Options.RestartPolicy, a.Options.MayBeEmpty = "Always", true
	a.files = &directory{path: a.Directory, options: a.Options}
	a.jobs, a.leaving = map[string]*jobKeeper{}, map[string]*removal{}
	if err := a.launcher.Sweep(ctx); err != nil && !connection.Away(err) {
		a.note("warning: what an earlier command left behind could not be removed: %v", err)
	}
	if a.Once {
		return a.once(ctx)
	}
	a.loop(ctx, watcher)
	if ctx := context.WithoutCancel(ctx); a.ShutsDown != nil && a.ShutsDown(ctx) {
		a.shutDown(ctx)
		return nil
	}
	a.leave()
	return nil
}

// loop looks at the pods whenever something may have changed, and at the directory once its changes have settled.
func (a *Applier) loop(ctx context.Context, watcher *launch.Watch) {
	files, err := watch(ctx, a.Directory)
	if err != nil {
		a.note("warning: changes of the directory are seen up to %v late: %v", blindPeriod, err)
	}
	a.look()
	for {
		events := watcher.Changed()
		err := a.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		a.noteTrouble(err)
		again := time.NewTimer(period)
		if connection.Away(err) {
			again.Reset(awayDelay)
		}
		select {
		case <-ctx.Done():
			return
		case <-files:
			a.look()
		case <-again.C:
		case <-events:
			select { // several events come together
			case <-ctx.Done():
				return
			case <-time.After(settle):
			}
		}
		again.Stop()
	}
}

// noteTrouble notes when berthd goes away and comes back, and what keeps the directory from being read.
func (a *Applier) noteTrouble(err error) {
	away := connection.Away(err)
	switch {
	case away && !a.told.away:
		a.note("berthd does not answer; pods run on, and are kept again once it does (%s)", connection.Message(err))
	case !away && a.told.away:
		a.note("berthd answers again")
	}
	a.told.away = away
	text := ""
	if err != nil && !away {
		text = connection.Message(err)
	}
	if text != "" && text != a.told.lost {
		a.note("%s; pods stay as they are", text)
	}
	a.told.lost = text
}

// look reads the directory. It is called at the beginning, and then only when watch says that the files have not
// changed for a while: a program that writes them may have removed one, or have written a part of it, and the pods of
// that file would be removed with their volumes.
func (a *Applier) look() {
	read, changed, err := a.files.read()
	a.unread = err
	if err == nil && changed && !a.Once {
		a.noteFiles(read)
	}
}

// sync makes the pods those that the directory described when look read it last. Where that could not be read, what
// was read before holds, and the error says why.
func (a *Applier) sync(ctx context.Context) error {
	read := a.files.reading
	if read == nil {
		return a.unread
	}
	asked := time.Now()
	sandboxes, err := a.own(ctx)
	if err != nil {
		return err
	}
	if err := a.syncJobs(ctx, read, sandboxes); err != nil {
		return err
	}
	want, err := a.wanted(read.documents)
	if err != nil {
		return err
	}
	a.carryOut(ctx, makePlan(want, a.present(asked, sandboxes), read.frozen))
	return a.unread
}

// wanted are the pods that the documents describe, without those of Jobs.
func (a *Applier) wanted(documents *manifest.Documents) ([]*wanted, error) {
	var all []*wanted
	for _, group := range documents.Groups {
		if a.keepsJob(group) {
			continue
		}
		var before *wanted
		for _, pod := range group.Pods {
			hash, err := pod.Hash()
			if err != nil {
				return nil, err
			}
			w := &wanted{pod: pod, hash: hash}
			if group.Ordered && !a.Once {
				w.before = before
			}
			all, before = append(all, w), w
		}
	}
	return all, nil
}

// keepsJob says whether the pods of a document are run as those of a Job: until enough have succeeded.
func (a *Applier) keepsJob(group *manifest.Group) bool { return group.Job != nil && !a.Once }

// present are the pods that are there, or are being started, without those of Jobs. Keepers learn how their pods are.
func (a *Applier) present(asked time.Time, sandboxes []*cri.PodSandbox) []*present {
	byUID := map[string]*cri.PodSandbox{}
	for _, sandbox := range sandboxes {
		uid := sandbox.GetMetadata().GetUid()
		if other := byUID[uid]; other == nil || other.GetState() != cri.PodSandboxState_SANDBOX_READY {
			byUID[uid] = sandbox
		}
	}
	var all []*present
	kept := map[string]bool{}
	for _, k := range a.keepers {
		uid := string(k.pod.UID)
		k.check(asked, byUID[uid])
		kept[uid] = true
		all = append(all, k.present(byUID[uid]))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(byUID)) {
		if kept[uid] || a.leaving[uid] != nil || !a.Once && isJob(byUID[uid]) {
			continue
		}
		all = append(all, newPresent(byUID[uid]))
	}
	return all
}

func isJob(sandbox *cri.PodSandbox) bool {
	return strings.HasPrefix(sandbox.GetAnnotations()[manifest.AnnotationOwner], "Job/")
}

// carryOut carries a plan out: removals go on in the background, and what takes their place waits for them.
func (a *Applier) carryOut(ctx context.Context, p *plan) {
	replaced := map[string]bool{} // owners that get new pods
	for _, w := range p.start {
		replaced[w.pod.Owner.String()] = true
	}
	for _, h := range p.stop {
		if replaced[h.owner] {
			a.note("pod %s has changed, and is replaced", h.name)
		} else {
			a.note("pod %s is stopped and removed: no manifest describes it any more", h.name)
		}
		a.retire(ctx, h)
	}
	keepers := map[*wanted]*keeper{}
	for w, h := range p.keep {
		if h.keeper == nil {
			h.keeper = a.newKeeper(ctx, w, h.sandbox, nil)
			a.keepers = append(a.keepers, h.keeper)
		}
		h.keeper.moved(w.pod.File)
		keepers[w] = h.keeper
	}
	for _, w := range p.start {
		after := a.removals(w.pod)
		if before := keepers[w.before]; w.before != nil && before != nil {
			after = append(after, before.ready)
		}
		k := a.newKeeper(ctx, w, nil, after)
		a.keepers, keepers[w] = append(a.keepers, k), k
	}
	for w, k := range keepers {
		k.before = keepers[w.before]
	}
	blocked := map[string]bool{}
	for _, w := range p.blocked {
		name := w.pod.FullName()
		if blocked[name] = true; !a.told.blocked[name] && !a.Once {
			a.note("pod %s of %s is not started: a pod of a file that is wrong has its name", name, w.pod.File)
		}
	}
	a.told.blocked = blocked
}

// removals are the ends of those removals that a pod has to wait for: of pods of its name or its document.
func (a *Applier) removals(pod *manifest.Pod) (after []<-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.leaving {
		if r.name == pod.FullName() || r.owner == pod.Owner.String() {
			after = append(after, r.done)
		}
	}
	return after
}

// retire stops and removes a pod in the background.
func (a *Applier) retire(ctx context.Context, h *present) {
	if k := h.keeper; k != nil {
		a.keepers = slices.DeleteFunc(a.keepers, func(other *keeper) bool { return other == k })
		a.background(ctx, string(k.pod.UID), &removal{name: h.name, owner: h.owner}, k.stop)
		return
	}
	a.background(ctx, h.sandbox.GetMetadata().GetUid(), &removal{name: h.name, owner: h.owner},
		func(ctx context.Context) error { return a.remove(ctx, h.sandbox) })
}

// background removes something, and tries again until it is gone or ctx has ended.
func (a *Applier) background(ctx context.Context, key string, r *removal, remove func(context.Context) error) {
	r.done = make(chan struct{})
	a.mu.Lock()
	a.leaving[key] = r
	a.mu.Unlock()
	a.workers.Go(func() {
		for {
			err := remove(ctx)
			if err == nil || ctx.Err() != nil {
				break
			}
			if a.Once {
				a.mu.Lock()
				a.failures = append(a.failures, err)
				a.mu.Unlock()
				break
			}
			wait := awayDelay
			if !connection.Away(err) {
				wait = period
				a.note("%s; tried again in %v", connection.Message(err), wait)
			}
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
		a.mu.Lock()
		delete(a.leaving, key)
		a.mu.Unlock()
		close(r.done)
	})
}

// syncJobs makes the Jobs that are kept those that the directory describes.
func (a *Applier) syncJobs(ctx context.Context, read *reading, sandboxes []*cri.PodSandbox) error {
	want := map[string]bool{}
	for _, group := range read.documents.Groups {
		if !a.keepsJob(group) {
			continue
		}
		hash, err := group.Job.Hash()
		if err != nil {
			return err
		}
		owner := group.Owner.String()
		want[owner] = true
		k := a.jobs[owner]
		if k != nil && k.hash == hash {
			k.moved(group.File)
			continue
		}
		if k != nil {
			a.note("job %s has changed", group.Owner.Name)
			k.leave()
		}
		var after []<-chan struct{}
		if r := a.removalOf(owner); r != nil {
			after = append(after, r.done)
		}
		a.jobs[owner] = a.newJobKeeper(ctx, group, hash, after)
	}
	for owner, k := range a.jobs {
		if want[owner] || read.frozen[k.inFile()] {
			continue
		}
		delete(a.jobs, owner)
		a.note("job %s is stopped, and its pods are removed: no manifest describes it any more", k.group.Owner.Name)
		a.background(ctx, owner, &removal{owner: owner}, k.stop)
	}
	if a.Once {
		return nil
	}
	for _, sandbox := range sandboxes {
		h := newPresent(sandbox)
		if !isJob(sandbox) || want[h.owner] || a.jobs[h.owner] != nil || read.frozen[h.file] ||
			a.removalOf(h.owner) != nil || a.removalOf(sandbox.GetMetadata().GetUid()) != nil {
			continue
		}
		a.note("pod %s is stopped and removed: no manifest describes it any more", lookup.PodName(sandbox))
		a.retire(ctx, h)
	}
	return nil
}

func (a *Applier) removalOf(key string) *removal {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.leaving[key]
}

// noteFiles notes what is wrong in files, what is right again, and what is left out.
func (a *Applier) noteFiles(read *reading) {
	wrong := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(read.wrong)) {
		wrong[name] = read.wrong[name].Error()
		if wrong[name] != a.told.wrong[name] {
			a.note("%s: %s; pods of this file stay as they are", name, wrong[name])
		}
	}
	for name := range a.told.wrong {
		if wrong[name] == "" {
			a.note("%s is right again, or gone", name)
		}
	}
	a.told.wrong = wrong
	notes := map[string]bool{}
	for _, text := range read.documents.Notes {
		if notes[text] = true; !a.told.notes[text] {
			a.note("note: %s", text)
		}
	}
	a.told.notes = notes
}

// leave ends all keepers. Their pods run on.
func (a *Applier) leave() {
	var leaves sync.WaitGroup
	for _, k := range a.keepers {
		leaves.Go(k.leave)
	}
	for _, k := range a.jobs {
		leaves.Go(k.leave)
	}
	leaves.Wait()
	a.workers.Wait()
	a.note("this command ends; its pods run on")
}
