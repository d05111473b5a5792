package pod

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/cgroup"
	"berth/internal/keeper"
	"berth/internal/model"
	"berth/internal/network"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
	"berth/internal/rootfs"
	"berth/internal/state"
)

// reconcile compares the records with reality, adopts what lives and removes what does not. It can be killed at any point
// and run again. What cannot be removed now is logged and tried again at the next start; it does not keep the node down.
func (m *Manager) reconcile(ctx context.Context) error {
	brokenPods, sparedPods, err := m.loadSandboxes()
	if err != nil {
		return err
	}
	brokenContainers, sparedContainers, err := m.loadContainers()
	if err != nil {
		return err
	}
	rows, err := m.keeperRows(ctx)
	if err != nil {
		return err
	}
	points, err := rootfs.Mounts(m.containers.Dir(), m.statePods())
	if err != nil {
		return err
	}
	mounted := make(map[string]bool, len(points))
	for _, p := range points {
		mounted[p] = true
	}
	m.adoptSpared(sparedPods, sparedContainers, rows)
	m.mendSeconds()
	// Removals that wait for something must not keep berthd from serving the pods that run.
	removals, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for _, c := range m.index.containers {
		m.reconcileContainer(ctx, removals, c, rows[c.id], mounted)
	}
	for _, s := range m.index.pods {
		m.reconcileSandbox(removals, s, rows[s.id])
	}
	var nobodys []lost
	for _, b := range brokenContainers {
		nobodys = append(nobodys, lost{id: b.ID, why: b.Err, dir: m.containers.Path(b.ID), row: rows[b.ID], points: points})
		delete(rows, b.ID)
	}
	for _, b := range brokenPods {
		nobodys = append(nobodys, lost{id: b.ID, why: b.Err, dir: m.pods.Path(b.ID), row: rows[b.ID], pod: true})
		delete(rows, b.ID)
	}
	// What the keeper runs and no record knows was started by nobody that can be told of it.
	for id, row := range rows {
		if m.index.containers[id] == nil && m.index.pods[id] == nil {
			nobodys = append(nobodys, lost{id: id, why: errNoRecord, row: row})
		}
	}
	m.endLost(removals, nobodys)
	m.quotas.Reconcile(func(id string) bool { return m.index.containers[id] != nil })
	m.reconcileDevices()
	m.removeStrayState(points)
	m.reconcileCgroups(brokenPods)

	var live []*network.Pod
	for _, s := range m.index.pods {
		r := s.Record()
		if r.NodeNetwork() {
			continue
		}
		switch r.Phase {
		case record.SandboxReady:
			live = append(live, m.joinedPod(&r))
		case record.SandboxCreating, record.SandboxRemoving: // it is being removed, and its network stays while its containers live
			if m.runsSomething(s) {
				live = append(live, m.joinedPod(&r))
			}
		case record.SandboxBroken: // StartSandbox gives it its address back
			pod := m.joinedPod(&r)
			pod.NetNS = ""
			live = append(live, pod)
		}
	}
	m.reconcileNetwork(ctx, live)
	if err := m.cfg.Images.Collect(ctx); err != nil {
		m.log.Error("collect image layers that nobody needs", "error", err)
	}
	return nil
}

// reconcileNetwork compares the network with the pods. One whose network is lost is not ready any more.
func (m *Manager) reconcileNetwork(ctx context.Context, live []*network.Pod) {
	lost, err := m.cfg.Network.Reconcile(ctx, live)
	if err != nil {
		m.log.Error("compare the network with the pods", "error", err) // Status says so, too
	}
	for id, why := range lost {
		m.log.Error("the network of a pod is lost", "pod_id", id, "error", why)
		if s := m.index.pods[id]; s.Record().Phase == record.SandboxReady {
			m.clean("record that a pod is broken", id, m.breakSandbox(s, "network"))
		}
	}
	// CNI plugins may wait for the cluster's API server, and that for its pod on this node: berthd serves meanwhile.
	m.unfinished = append(m.unfinished, func() {
		ctx, cancel := context.WithTimeout(m.ctx, steps.UndoTimeout)
		err := m.cfg.Network.Collect(ctx)
		cancel()
		if err != nil {
			const what = "collect what the network holds for pods that are gone"
			m.log.Error(what+": it is tried again", "error", err)
			m.repeat(what, "", m.cfg.Network.Collect)
		}
	})
}

// joinedPod is a pod with the network that it has by its record.
func (m *Manager) joinedPod(r *record.Sandbox) *network.Pod {
	pod := m.networkPod(r)
	if len(r.IPs) == 0 {
		return pod
	}
	pod.Before = &network.Result{Interface: r.Interface, CNI: r.Network}
	for _, text := range r.IPs {
		if ip, err := netip.ParseAddr(text); err == nil {
			pod.Before.IPs = append(pod.Before.IPs, ip)
		}
	}
	return pod
}

func (m *Manager) clean(what, id string, err error) {
	if err != nil {
		m.log.Error(what, "id", record.ShortID(id), "error", err)
	}
}

var errNoRecord = errors.New("there is no record")

func (m *Manager) loadSandboxes() ([]state.Broken, sparedRecords, error) {
	loaded, broken, spared, err := m.pods.Load()
	if err != nil {
		return nil, nil, err
	}
	for id, entry := range loaded {
		s := newSandbox(id, entry)
		r := s.Record()
		m.clean("reserve the SELinux label of a pod", id, r.Label.Reserve())
		m.cgroups.enter(m.podCgroupDir(r.CgroupParent), &r)
		m.clean("note the cgroup that a pod owns", id, s.Update(record.Draft, func(to *record.Sandbox) { to.OwnedCgroup = r.OwnedCgroup }))
		m.index.adoptSandbox(s)
	}
	return broken, m.noteSpared("pod", spared), nil
}

func (m *Manager) loadContainers() ([]state.Broken, sparedRecords, error) {
	loaded, broken, spared, err := m.containers.Load()
	if err != nil {
		return nil, nil, err
	}
	for id, entry := range loaded {
		r := entry.Record()
		s, _ := m.index.byID(r.SandboxID)
		if s == nil {
			broken = append(broken, state.Broken{ID: id, Err: fmt.Errorf("its pod %q has no record", r.SandboxID)})
			continue
		}
		if _, err := m.cfg.Images.Hold(r.ImageID, id); err != nil {
			m.log.Warn("hold the image of a container", "container", record.ShortID(id), "image", r.ImageID, "error", err)
		}
		for _, volume := range r.VolumeImages {
			_, err := m.cfg.Images.Hold(volume, id)
			m.clean("hold the image of a volume", id, err)
		}
		for _, mount := range r.Config.Mounts {
			if mount.Volume != "" && r.Phase != record.ContainerCreating {
				m.clean("hold the volume of a container", id, m.volumes.Hold(mount.Volume, id))
			}
		}
		m.index.adoptContainer(newContainer(id, entry, s))
	}
	return broken, m.noteSpared("container", spared), nil
}

func (m *Manager) keeperRows(ctx context.Context) (map[string]*keeper.Status, error) {
	list, err := m.cfg.Keeper.List(ctx)
	if err != nil {
		return nil, err
	}
	rows := make(map[string]*keeper.Status, len(list))
	for i := range list {
		rows[list[i].ID] = &list[i]
	}
	return rows, nil
}

// startWait is how long a start of berthd waits for the start of a container that is under way at the keeper, and hungStart how long that
// may take until it is ended.
const startWait, hungStart = 3 * time.Second, 20 * time.Second

// startDecided is a container's row once the keeper starts it no more: nil if there is none. It is false where the keeper does not tell, or
// goes on with the start for longer than that.
func (m *Manager) startDecided(ctx context.Context, id string, row *keeper.Status, wait time.Duration) (_ *keeper.Status, known bool) {
	for deadline := time.Now().Add(wait); row != nil && row.State == keeper.StateStarting; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) || ctx.Err() != nil {
			return nil, false
		}
		var err error
		if row, err = m.cfg.Keeper.Status(ctx, id); errors.Is(err, errdefs.ErrNotFound) {
			return nil, true
		} else if err != nil {
			m.clean("ask for a start that was cut off", id, err)
			return nil, false
		}
	}
	return row, true
}

// awaitStart goes on waiting for a start of which the keeper does not know the end, while berthd serves. One that takes too long is ended.
func (m *Manager) awaitStart(c *container) {
	m.later("decide a start that was under way", c.id, func(ctx context.Context) error {
		row, known := m.startDecided(ctx, c.id, &keeper.Status{State: keeper.StateStarting}, hungStart)
		if !known {
			if err := m.cfg.Keeper.Delete(ctx, c.id); err != nil {
				return fmt.Errorf("end a start that takes too long: %w", err)
			}
		}
		release, err := c.hold(ctx, "release")
		if err != nil {
			return err
		}
		defer release()
		if m.index.goneContainer(c) || c.Record().Phase != record.ContainerStarting && c.Record().Phase != record.ContainerRunning {
			return nil // it was removed, or its end was told
		}
		points, err := rootfs.Mounts(m.containers.Dir(), m.statePods())
		if err != nil {
			return err
		}
		mounted := make(map[string]bool, len(points))
		for _, p := range points {
			mounted[p] = true
		}
		over, err := m.adoptStarted(ctx, c, row, mounted)
		if over {
			err = m.releaseContainer(ctx, c)
		}
		return err
	})
}

// reconcileContainer brings a container's record in line with what is. The context removals ends early: see attempt.
func (m *Manager) reconcileContainer(ctx, removals context.Context, c *container, row *keeper.Status, mounted map[string]bool) {
	r := c.Record()
	if r.CheckpointTemp != "" {
		m.clean("let a container go on after a checkpoint that was cut off", c.id, m.cfg.Keeper.EndCheckpoint(removals, c.id))
		m.clean("remove what is left of a checkpoint", c.id, m.cleanCheckpoint(c))
	}
	if r.Restored != nil && r.Phase != record.ContainerCreated && r.Phase != record.ContainerStarting {
		m.dropCheckpoint(c)
	}
	switch r.Phase {
	case record.ContainerCreating, record.ContainerRemoving:
		m.attempt(removals, "finish the removal of a container", c.id, func(ctx context.Context) error { return m.finishContainer(ctx, c) })
	case record.ContainerCreated:
		// Its root file system went with the node, if that was down since.
		if err := m.remountRootfs(ctx, c, mounted); err != nil {
			m.clean("mount the root file system of a created container", c.id, err)
		}
	case record.ContainerStarting, record.ContainerRunning:
		if decided, known := m.startDecided(removals, c.id, row, startWait); known {
			m.adoptDecided(removals, c, decided, mounted)
		} else {
			m.awaitStart(c) // as it was, until the keeper says
		}
	case record.ContainerExited:
		c.ended()
		m.releaseEnded(removals, c)
	}
}

// finishLost tells a container as ended whose end nobody knows.
func (m *Manager) finishLost(c *container) {
	reason, message := model.ReasonKeeperLost, "the container is not running, and no keeper knows how it ended"
	if m.lostNamespace(c.sandbox) != "" {
		reason, message = model.ReasonRebooted, "the node went down while the container ran"
	}
	m.finish(c, func(r *record.Container) {
		r.ExitCode = 255
		r.Reason, r.Message = reason, message
		r.FinishedAt = time.Now()
	})
}

// unlistedPatience is how long what the keeper does not know may take to end once it is killed.
const unlistedPatience = 2 * time.Second

// endUnlisted ends the processes of a container that the keeper does not know: its rows are lost, and nobody will be told of its end or
// read its output. A container is not told as ended while they live. lived: there were some; ended: there are none any more.
func (m *Manager) endUnlisted(ctx context.Context, c *container) (lived, ended bool) {
	r := c.Record()
	host, err := cgroup.Host()
	if err != nil || r.Cgroup == "" {
		m.clean("look for processes of a container", c.id, err)
		return false, true
	}
	ctx, cancel := context.WithTimeout(ctx, unlistedPatience)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := host.Processes(r.Cgroup)
		if err != nil {
			m.clean("look for processes of a container", c.id, err)
			return lived, false
		}
		if len(pids) == 0 {
			return lived, true
		}
		if !lived {
			m.log.Error("end what runs of a container that the keeper does not know: nobody could be told of it", "container_id", c.id, "pids", pids)
			m.clean("end a container that the keeper does not know", c.id, m.cfg.Keeper.Delete(ctx, c.id))
		}
		lived = true
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		select {
		case <-ctx.Done():
			return lived, false
		case <-time.After(wait):
		}
	}
}

// adoptDecided is adoptStarted at the start of berthd, which does not wait for what takes long.
func (m *Manager) adoptDecided(removals context.Context, c *container, row *keeper.Status, mounted map[string]bool) {
	over, err := m.adoptStarted(removals, c, row, mounted)
	if over {
		m.releaseEnded(removals, c)
	}
	if err == nil {
		return
	}
	m.log.Error("end what the keeper does not know: it is tried again", "container_id", c.id, "error", err)
	m.later("end what the keeper does not know", c.id, func(ctx context.Context) error {
		if _, ended := m.endUnlisted(ctx, c); !ended {
			return errLives
		}
		release, err := c.hold(ctx, "release")
		if err != nil {
			return err
		}
		defer release()
		if p := c.Record().Phase; p != record.ContainerStarting && p != record.ContainerRunning {
			return nil // it was removed meanwhile
		}
		m.finishLost(c)
		return m.releaseContainer(ctx, c)
	})
}

var errLives = errors.New("processes of the container live")

// adoptStarted brings the record of a container that was started in line with its row (nil: the keeper has none). over: it has ended, and
// what it held is to be released. The error is that its processes live, and nobody knows them.
func (m *Manager) adoptStarted(ctx context.Context, c *container, row *keeper.Status, mounted map[string]bool) (over bool, err error) {
	if row == nil {
		return m.adoptUnlisted(ctx, c, mounted)
	}
	if row.State == keeper.StateExited {
		m.adoptExit(ctx, c, *row)
		return false, nil
	}
	err = c.Update(record.Save, func(r *record.Container) {
		r.Phase = record.ContainerRunning
		r.PID = row.PID
		r.StartedAt = row.StartedAt
		r.Setup = row.Setup
	})
	m.clean("record that a container runs", c.id, err)
	m.reconcilePause(ctx, c)
	m.logs.adopt(c.id, c.Record().LogPath)
	return false, nil
}

// adoptUnlisted is adoptStarted where the keeper has no row.
func (m *Manager) adoptUnlisted(ctx context.Context, c *container, mounted map[string]bool) (over bool, err error) {
	lived, ended := m.endUnlisted(ctx, c)
	switch {
	case !ended:
		return false, errLives
	case !lived && c.Record().Phase == record.ContainerStarting && m.lostNamespace(c.sandbox) == "":
		// The keeper has a row from a start's first moment on, until it has failed or been cut off: no program has run.
		m.clean("record that a start was cut off", c.id, c.Update(record.Save, func(r *record.Container) { r.Phase = record.ContainerCreated }))
		m.clean("mount the root file system of a created container", c.id, m.remountRootfs(ctx, c, mounted))
		return false, nil
	}
	m.finishLost(c)
	return true, nil
}

// remountRootfs makes sure that a container that was created and not started has its root file system.
func (m *Manager) remountRootfs(ctx context.Context, c *container, mounted map[string]bool) error {
	r, pod := c.Record(), c.sandbox.Record()
	at := m.rootPath(&pod, c.id)
	if mounted[at] {
		return nil
	}
	layers, err := m.cfg.Images.Hold(r.ImageID, c.id)
	if err != nil {
		return err
	}
	o := m.rootfsOptions(&pod, r.Label, m.containers.Path(c.id), layers)
	o.At = at
	if _, err = m.cfg.Rootfs.Mount(ctx, o); err != nil {
		return err
	}
	if err := c.Update(record.Draft, func(r *record.Container) { r.VolumeImages = nil }); err != nil {
		return err
	}
	_, err = m.mountImages(ctx, c, &pod)
	return err
}

func (m *Manager) reconcileSandbox(ctx context.Context, s *sandbox, row *keeper.Status) {
	r := s.Record()
	switch r.Phase {
	case record.SandboxCreating, record.SandboxRemoving:
		const what = "finish the removal of a pod"
		finish := func(ctx context.Context) error { return m.finishSandbox(ctx, s) }
		if m.runsSomething(s) {
			m.log.Warn("a pod whose removal has begun still runs containers: they are ended", "pod_id", s.id)
			m.later(what, s.id, finish)
			return
		}
		m.attempt(ctx, what, s.id, finish)
	case record.SandboxReady:
		lost := m.lostNamespace(s)
		if r.Config.Security.Namespaces.PID == model.NamespacePod && !reaperLives(row) {
			lost = lostInit
		}
		if lost != "" {
			m.clean("record that a pod is broken", s.id, m.breakSandbox(s, lost))
			return
		}
		m.clean("correct the directory of a pod that an earlier version of Berth has made", s.id, m.makeStatePod(&r))
		m.clean("make the files of a pod that an earlier version of Berth has made", s.id, m.adoptFiles(s))
	case record.SandboxStopped:
		// A stop writes its record last, so there is nothing to do.
	}
}

// removeStrayState removes what stands in the state directory for pods that have no record.
func (m *Manager) removeStrayState(points []string) {
	entries, err := os.ReadDir(m.statePods())
	if err != nil {
		m.log.Error("list the state of pods", "error", err)
		return
	}
	for _, e := range entries {
		if id := e.Name(); m.index.pods[id] == nil {
			err := errors.Join(m.namespaces(id).Remove(), m.unmountFiles(id), m.unmountBelow(m.statePod(id), points))
			if err == nil {
				err = rootfs.Remove(m.ctx, m.statePod(id))
			}
			m.clean("remove the state of a pod without a record", id, err)
		}
	}
}

// unmountLost unmounts what a container had mounted of which there is no record: not even of its pod.
func (m *Manager) unmountLost(id string, points []string) error {
	err := m.unmountBelow(m.containers.Path(id), points)
	for _, p := range points {
		if path.Base(p) == id && path.Base(path.Dir(p)) == rootsDir {
			err = errors.Join(err, m.unmountBelow(p, points), os.Remove(p))
		}
	}
	return err
}

// unmountBelow unmounts those of the given mount points that are at or in dir.
func (m *Manager) unmountBelow(dir string, points []string) error {
	var errs []error
	for _, p := range points {
		if within(p, dir) {
			errs = append(errs, m.cfg.Rootfs.Unmount(filepath.Dir(p), p))
		}
	}
	return errors.Join(errs...)
}

// emptyTrash removes, in the background, what discard has put aside, what a crash has left there included.
func (m *Manager) emptyTrash() {
	for {
		entries, err := os.ReadDir(m.trashDir())
		if err != nil {
			m.log.Error("read the trash", "error", err)
		}
		for _, e := range entries {
			if err := rootfs.Remove(m.ctx, path.Join(m.trashDir(), e.Name())); err != nil && m.ctx.Err() == nil {
				m.log.Error("remove a discarded directory", "error", err)
			}
		}
		select {
		case <-m.ctx.Done():
			return
		case <-m.trashed:
		}
	}
}
