package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/device/manager"
	"berth/internal/image"
	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/network"
	"berth/internal/pod/layout"
	"berth/internal/quota"
	"berth/internal/rootfs"
	"berth/internal/volume"
)

// memoryHost is all that a Manager asks of others, in memory: the kernel, the keeper, the network, the image store and
// devices. It outlives the Managers that a test makes of it, as a node outlives berthd.
type memoryHost struct {
	mu    sync.Mutex
	calls int // that may fail, so far
	fault fault

	things  map[string]bool // what is there, such as "mount /x"; what nobody has given back is left over
	running map[string]*memoryContainer
	watches []func(keeper.Event)
	pid     int

	attached map[string]bool              // clients that have not been detached
	grants   []quota.Grant                // disk quotas
	members  []int                        // the IDs of the processes in each cgroup
	sysctls  map[string]map[string]string // of the interfaces of pods, as the network was told of them last

	// plugins says that the network is that of CNI plugins, which need the namespace of a pod that they take out of it.
	plugins bool
	// uninstalled says that all that plugins are asked for fails.
	uninstalled bool
	dead        []*network.Pod // pods that plugins are to take out of the network
	leaks       []string       // pods that plugins have taken out of the network without their namespace

	beforeCall func() // called at the beginning of each call; nil: nothing is
	beforeRun  func() // called when a container is to be started; nil: nothing is
	// endStarting is called when a container is to be deleted whose start is under way; nil: nothing is.
	endStarting func(id string)
	checkpoint  func(context.Context) error // writes a container down; nil: it cannot be
}

// fault makes calls fail.
type fault struct {
	at   int  // the number of the call, from 1 on; 0: none
	late bool // what was asked for is done, and the answer is an error all the same
	kill bool // whoever makes it, or another call from then on, ends there, as if berthd had been killed
}

var errFault = errors.New("boom")

func newMemoryHost() *memoryHost {
	return &memoryHost{
		attached: map[string]bool{},
		things:   map[string]bool{}, running: map[string]*memoryContainer{}, pid: 1 << 22, // no process has such an ID
	}
}

// fail has the calls of one function fail.
func (h *memoryHost) fail(f fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls, h.fault = 0, f
}

// settle ends the fault, and tells whether it has happened.
func (h *memoryHost) settle() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	failed := h.fault.at > 0 && h.calls >= h.fault.at
	h.calls, h.fault = 0, fault{}
	return failed
}

// call is one that may fail. do has the lock.
func (h *memoryHost) call(do func() error) error {
	if h.beforeCall != nil {
		h.beforeCall()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	hit, late := h.calls == h.fault.at, h.fault.late
	if h.fault.kill && h.fault.at > 0 && h.calls > h.fault.at {
		hit, late = true, false
	}
	if !hit || late {
		if err := do(); err != nil || !hit {
			return err
		}
	}
	if h.fault.kill {
		runtime.Goexit()
	}
	return errFault
}

// make and drop are calls of which nothing but what is there then is of interest.
func (h *memoryHost) make(thing string) error {
	return h.call(func() error { h.things[thing] = true; return nil })
}

func (h *memoryHost) drop(thing string) error {
	return h.call(func() error { delete(h.things, thing); return nil })
}

func (h *memoryHost) has(thing string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.things[thing]
}

// left is what is there.
func (h *memoryHost) left() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Collect(maps.Keys(h.things))
	for id := range h.running {
		all = append(all, "container "+id)
	}
	slices.Sort(all)
	return all
}

// reboot ends berthd, and loses what a reboot loses.
func (n *memoryNode) reboot() {
	n.t.Helper()
	_ = n.Close()
	if err := os.RemoveAll(n.cfg.State); err != nil {
		n.t.Fatal(err)
	}
	n.host.reboot()
	n.restart()
}

func (h *memoryHost) reboot() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.running)
	for thing := range h.things {
		if kind, _, _ := strings.Cut(thing, " "); kind != "quota" && kind != "devices" {
			delete(h.things, thing)
		}
	}
}

type memoryNamespaces struct {
	*memoryHost
	dir string
}

func (n memoryNamespaces) Path(k namespace.Kind) string   { return filepath.Join(n.dir, string(k)) }
func (n memoryNamespaces) Target(k namespace.Kind) string { return n.Path(k) }
func (n memoryNamespaces) Pinned(k namespace.Kind) bool   { return n.has("namespace " + n.Path(k)) }
func (n memoryNamespaces) PinProcess(k namespace.Kind, pid int) error {
	return n.make("namespace " + n.Path(k))
}

func (n memoryNamespaces) Create(o namespace.Options) error {
	return n.call(func() error {
		for _, k := range o.Kinds {
			n.things["namespace "+n.Path(k)] = true
		}
		return nil
	})
}

func (n memoryNamespaces) Configure(namespace.Options) error {
	return n.call(func() error { return nil })
}

func (n memoryNamespaces) Remove() error {
	return n.call(func() error {
		for _, k := range []namespace.Kind{namespace.Network, namespace.IPC, namespace.UTS, namespace.PID, namespace.User} {
			delete(n.things, "namespace "+n.Path(k))
		}
		return nil
	})
}
func (n memoryNamespaces) RemoveOthers() error {
	return n.call(func() error {
		for _, k := range []namespace.Kind{namespace.IPC, namespace.UTS, namespace.PID, namespace.User} {
			delete(n.things, "namespace "+n.Path(k))
		}
		return nil
	})
}

type memoryTmpfs struct{ *memoryHost }

func (t memoryTmpfs) Mount(path, _ string) error   { return t.make("tmpfs " + path) }
func (t memoryTmpfs) Chown(string, int, int) error { return t.call(func() error { return nil }) }
func (t memoryTmpfs) Unmount(path string) error {
	return t.call(func() error {
		if !t.things["tmpfs "+path] {
			return syscall.EINVAL
		}
		delete(t.things, "tmpfs "+path)
		return errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)) // the mount point is empty again
	})
}

type memoryCgroups struct{ *memoryHost }

func (c memoryCgroups) Exists(cgroup string) bool {
	return cgroup == testCgroup || c.has("cgroup "+cgroup)
}

// put makes a cgroup with those above it. The caller has the lock.
func (c memoryCgroups) put(cgroup string) {
	for p := cgroup; p != "/" && p != testCgroup; p = path.Dir(p) {
		c.things["cgroup "+p] = true
	}
}

func (c memoryCgroups) Create(cgroup string) error {
	return c.call(func() error { c.put(cgroup); return nil })
}
func (c memoryCgroups) Limit(string, *specs.LinuxResources) error {
	return c.call(func() error { return nil })
}
func (c memoryCgroups) LimitSlice(string, *specs.LinuxResources) error {
	return c.call(func() error { return nil })
}
func (c memoryCgroups) Renew(cgroup string) error { return c.make("cgroup " + cgroup) }
func (c memoryCgroups) Rmdir(cgroup string) error { return c.drop("cgroup " + cgroup) }
func (c memoryCgroups) Remove(_ context.Context, cgroup string) error {
	return c.call(func() error {
		maps.DeleteFunc(c.things, func(thing string, _ bool) bool {
			return strings.HasPrefix(thing+"/", "cgroup "+cgroup+"/")
		})
		return nil
	})
}
func (c memoryCgroups) RemoveEmpty(_ context.Context, cgroup string) error {
	return c.drop("cgroup " + cgroup)
}
func (c memoryCgroups) RemoveSlice(ctx context.Context, cgroup string) error {
	return c.Remove(ctx, cgroup)
}
func (c memoryCgroups) RemoveEmptySlice(_ context.Context, cgroup string) error {
	return c.drop("cgroup " + cgroup)
}
func (c memoryCgroups) Processes(cgroup string) ([]int, error) { return c.members, nil }

// memoryRootfs has a directory for each mount.
type memoryRootfs struct{ *memoryHost }

func (r memoryRootfs) Mount(_ context.Context, o rootfs.Options) (string, error) {
	at := o.At
	if at == "" {
		at = rootfs.Path(o.Dir)
	}
	return at, r.call(func() error {
		r.things["mount "+at] = true
		return os.MkdirAll(filepath.Join(at, "etc"), 0o700)
	})
}

func (r memoryRootfs) Unmount(dir string, at ...string) error {
	return r.call(func() error {
		for _, point := range append(at, rootfs.Path(dir)) {
			delete(r.things, "mount "+point)
		}
		return nil
	})
}

func (r memoryRootfs) Mounts(roots ...string) ([]string, error) {
	var points []string
	for _, thing := range r.left() {
		if point, ok := strings.CutPrefix(thing, "mount "); ok {
			points = append(points, point)
		}
	}
	return points, nil
}

type memoryQuotas struct{ *memoryHost }

func (q memoryQuotas) Take(_ context.Context, holder string, w quota.Want) (*quota.Grant, error) {
	g := quota.Grant{ID: 5, Limit: w.Limit, Holders: map[string][]string{holder: w.Dirs}}
	return &g, q.call(func() error {
		q.things["quota of "+holder] = true
		q.grants = append(q.grants, g)
		return nil
	})
}
func (q memoryQuotas) Mark(context.Context, uint32, ...string) error {
	return q.call(func() error { return nil })
}
func (q memoryQuotas) Resize(holder, dir string, bytes uint64) (found bool, err error) {
	return found, q.call(func() error {
		for i, g := range q.grants {
			if slices.Contains(g.Holders[holder], dir) {
				q.grants[i].Limit, found = bytes, true
			}
		}
		return nil
	})
}
func (q memoryQuotas) Held(holder string) (all []*quota.Grant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, g := range q.grants {
		if g.Holders[holder] != nil {
			all = append(all, &g)
		}
	}
	return all
}
func (q memoryQuotas) Return(holder string, dirs ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.grants = slices.DeleteFunc(q.grants, func(g quota.Grant) bool { return slices.Equal(g.Holders[holder], dirs) })
}
func (q memoryQuotas) Release(holder string) { q.forget("quota of " + holder) }
func (q memoryQuotas) Reconcile(lives func(holder string) bool) {
	for _, thing := range q.left() {
		if holder, ok := strings.CutPrefix(thing, "quota of "); ok && !lives(holder) {
			q.forget(thing)
		}
	}
}
func (q memoryQuotas) Close() {}

// forget drops what is given back by a call that cannot fail.
func (h *memoryHost) forget(thing string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.things, thing)
}

// memoryVolumes has a directory for each volume. That a container uses one is known until berthd ends.
type memoryVolumes struct {
	*memoryHost
	dir string
}

func (v memoryVolumes) Path(name string) string { return filepath.Join(v.dir, name) }
func (v memoryVolumes) Use(ctx context.Context, name, user string, f volume.Fill) (string, error) {
	if err := v.make("volume of " + user); err != nil {
		return "", err
	}
	return v.Path(name), v.prepare(v.Path(name), f)
}

func (v memoryVolumes) prepare(dir string, f volume.Fill) error {
	if err := os.MkdirAll(dir, 0o700); err != nil || f.Prepare == nil {
		return err
	}
	return f.Prepare(dir)
}
func (v memoryVolumes) AddUser(_, user string) error { return v.make("volume of " + user) }
func (v memoryVolumes) Release(user string)          { v.forget("volume of " + user) }
func (v memoryVolumes) Create(_ context.Context, name string) error {
	return os.Mkdir(v.Path(name), 0o700)
}
func (v memoryVolumes) Remove(_ context.Context, name string) error {
	for _, thing := range v.left() {
		if user, ok := strings.CutPrefix(thing, "volume of "); ok {
			return &volume.InUseError{Name: name, Users: []string{user}}
		}
	}
	return os.RemoveAll(v.Path(name))
}
func (v memoryVolumes) Get(name string) (*model.Volume, error) {
	if _, err := os.Stat(v.Path(name)); err != nil {
		return nil, fmt.Errorf("volume %s: %w", name, errdefs.ErrNotFound)
	}
	return &model.Volume{Name: name, Path: v.Path(name)}, nil
}
func (v memoryVolumes) List() (all []*model.Volume) {
	entries, _ := os.ReadDir(v.dir)
	for _, e := range entries {
		all = append(all, &model.Volume{Name: e.Name(), Path: v.Path(e.Name())})
	}
	return all
}
func (v memoryVolumes) Populate(_ context.Context, dir string, f volume.Fill) error {
	return v.prepare(dir, f)
}

// memoryImages has each image that it is asked for but missing:1.
type memoryImages struct {
	*memoryHost
	dir     string
	collect func(context.Context) error // nil: nothing
}

func (s memoryImages) Get(_ context.Context, name string) (*model.Image, error) {
	if name == "missing:1" {
		return nil, fmt.Errorf("image %s: %w", name, errdefs.ErrNotFound)
	}
	return &model.Image{ID: "sha256:1", Config: imagespec.ImageConfig{
		Cmd: []string{"/bin/true"}, Volumes: map[string]struct{}{"/declared": {}},
	}}, nil
}

func (s memoryImages) AddReference(_, holder string) (*image.Layers, error) {
	return &image.Layers{Dirs: []string{s.dir}}, s.make("image of " + holder)
}
func (s memoryImages) Release(holder string) { s.forget("image of " + holder) }
func (s memoryImages) Collect(ctx context.Context) error {
	if s.collect == nil {
		return nil
	}
	return s.collect(ctx)
}
func (s memoryImages) UnpackTar(context.Context, string, io.Reader) error {
	return errdefs.ErrNotImplemented
}

// memoryDevices knows which containers have any.
type memoryDevices struct{ *memoryHost }

func (d memoryDevices) Allocate(_ context.Context, r manager.Request) ([]model.Edits, error) {
	return nil, d.make("devices of " + r.ContainerID)
}
func (d memoryDevices) Cancel(_, id string, _ bool) { d.forget("devices of " + id) }
func (d memoryDevices) PreStart(context.Context, string) error {
	return d.call(func() error { return nil })
}
func (d memoryDevices) Free(id string) { d.forget("devices of " + id) }
func (d memoryDevices) FreePod(string) {}
func (d memoryDevices) Reconcile(_, lives func(id string) bool) {
	for _, thing := range d.left() {
		if id, ok := strings.CutPrefix(thing, "devices of "); ok && !lives(id) {
			d.forget(thing)
		}
	}
}

var errUninstalled = errors.New("there is no such plugin")

// memoryNetwork gives every pod the same address.
type memoryNetwork struct {
	*memoryHost
	dirs *layout.Dirs
}

func (n memoryNetwork) Setup(_ context.Context, pod *network.Pod) (*network.Result, error) {
	ips := []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	if pod.Before != nil {
		ips = pod.Before.IPs
	}
	n.sysctls = map[string]map[string]string{pod.ID: pod.Sysctls}
	if n.uninstalled {
		return nil, errors.Join(n.make("network of "+pod.ID), errUninstalled)
	}
	if n.NeedsNetNS(pod.ID) { // the plugins would be asked to take the pod out of a namespace that it is not in
		n.mu.Lock()
		n.leaks = append(n.leaks, pod.ID)
		n.mu.Unlock()
	}
	return &network.Result{Interface: "eth0", IPs: ips}, n.make("network of " + pod.ID)
}
func (n memoryNetwork) Prepare(_ context.Context, pod *network.Pod) error {
	return n.make("network of " + pod.ID)
}
func (n memoryNetwork) Teardown(ctx context.Context, pod *network.Pod) error {
	if n.uninstalled && n.has("network of "+pod.ID) {
		return errUninstalled
	}
	return n.Forget(ctx, pod)
}

// Forget is of pods that have never got a network.
func (n memoryNetwork) Forget(_ context.Context, pod *network.Pod) error {
	return n.call(func() error {
		net := "namespace " + n.dirs.NetNS(pod.ID)
		if n.plugins && n.things["network of "+pod.ID] && !n.things[net] {
			n.leaks = append(n.leaks, pod.ID)
		}
		delete(n.things, "network of "+pod.ID)
		return nil
	})
}
func (n memoryNetwork) NeedsNetNS(id string) bool { return n.plugins && n.has("network of "+id) }
func (n memoryNetwork) Leave(ctx context.Context, id string) error {
	if !n.plugins {
		return nil
	}
	return n.Teardown(ctx, &network.Pod{ID: id})
}
func (n memoryNetwork) Status(ctx context.Context) network.Status {
	if end, bounded := ctx.Deadline(); bounded { // a caller of the tests sets none: this is the patience with another
		return network.Status{Message: fmt.Sprintf("it may answer until %v only", end)}
	}
	return network.Status{Ready: true}
}
func (n memoryNetwork) Reconcile(_ context.Context, live []*network.Pod) (map[string]error, error) {
	n.sysctls = map[string]map[string]string{}
	for _, pod := range live {
		n.sysctls[pod.ID] = pod.Sysctls
	}
	for _, thing := range n.left() {
		id, ok := strings.CutPrefix(thing, "network of ")
		if !ok || slices.ContainsFunc(live, func(p *network.Pod) bool { return p.ID == id }) {
			continue
		}
		if n.plugins {
			n.dead = append(n.dead, &network.Pod{ID: id})
			continue
		}
		n.forget(thing)
	}
	return nil, nil
}
func (n memoryNetwork) Collect(ctx context.Context) error {
	for _, pod := range n.dead {
		if err := n.Teardown(ctx, pod); err != nil {
			return err
		}
	}
	n.dead = nil
	return nil
}
func (n memoryNetwork) Expect(context.Context)                   {}
func (n memoryNetwork) SetPodCIDR(context.Context, string) error { return nil }
func (n memoryNetwork) Purge(context.Context) error              { return nil }
func (n memoryNetwork) Close() error                             { return nil }

// memoryContainer is what the keeper has of one. Its program ends with SIGTERM.
type memoryContainer struct {
	status   keeper.Status
	attached map[string]*os.File
	execs    map[string]*keeper.ExecExit
	pending  int // an exit code that waits for the end of a pause
	input    bool
	updated  *specs.LinuxResources // the last update
}

// memoryKeeper says that containers run.
type memoryKeeper struct{ *memoryHost }

func (k memoryKeeper) Run(_ context.Context, r *keeper.RunRequest) (*keeper.RunResult, error) {
	if k.beforeRun != nil {
		k.beforeRun()
	}
	var result *keeper.RunResult
	err := k.call(func() error {
		if r.Spec.Process.Args[0] == "/missing" {
			return &keeper.StartError{ExitCode: 127, Message: "no such program"}
		}
		k.pid++
		st := keeper.Status{ID: r.ID, PodID: r.PodID, State: keeper.StateRunning, PID: k.pid, StartedAt: time.Now()}
		k.running[r.ID] = &memoryContainer{status: st, attached: map[string]*os.File{}, execs: map[string]*keeper.ExecExit{},
			input: r.Stdin}
		memoryCgroups(k).put(r.Spec.Linux.CgroupsPath)
		result = &keeper.RunResult{PID: st.PID, StartedAt: st.StartedAt, Phases: []keeper.Phase{{Name: "fork"}}}
		if r.Attach != nil {
			return k.join(k.running[r.ID], r.Attach)
		}
		return nil
	})
	return result, err
}

// start starts a container that nobody has asked for, and tells of it.
func (k memoryKeeper) start(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pid++
	st := keeper.Status{ID: id, PodID: id, State: keeper.StateRunning, PID: k.pid, StartedAt: time.Now()}
	k.running[id] = &memoryContainer{status: st}
	for _, tell := range k.watches {
		go tell(keeper.Event{Status: st})
	}
}

// ran has started a container that nobody has asked for, which has ended at once, and tells of it.
func (k memoryKeeper) ran(id string, code int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	k.running[id] = &memoryContainer{status: keeper.Status{ID: id, PodID: id, State: keeper.StateExited, ExitCode: code,
		StartedAt: now, FinishedAt: now, LogDone: true}}
	for _, tell := range k.watches {
		go tell(keeper.Event{Status: k.running[id].status})
	}
}

// lose forgets a container that has no process any more, and tells of it, once somebody follows the events.
func (k memoryKeeper) lose(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.watches) == 0 {
		k.mu.Unlock()
		time.Sleep(time.Millisecond)
		k.mu.Lock()
	}
	delete(k.running, id)
	for _, tell := range k.watches {
		go tell(keeper.Event{Status: keeper.Status{ID: id}, Gone: true})
	}
}

// of runs do on a container, if the keeper has it.
func (k memoryKeeper) of(id string, do func(*memoryContainer) error) error {
	return k.call(func() error {
		c := k.running[id]
		if c == nil {
			return fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
		}
		return do(c)
	})
}

func (k memoryKeeper) Signal(_ context.Context, id string, sig syscall.Signal, _ bool) error {
	return k.of(id, func(c *memoryContainer) error {
		if c.pending = 128 + int(sig); !c.status.Paused {
			k.exit(c, c.pending)
		}
		return nil
	})
}

// exit ends a container. The caller has the lock.
func (k memoryKeeper) exit(c *memoryContainer, code int) {
	if c.status.State == keeper.StateExited {
		return
	}
	c.status.State, c.status.ExitCode, c.status.FinishedAt, c.status.LogDone = keeper.StateExited, code, time.Now(), true
	for _, f := range c.attached {
		f.Close()
	}
	for _, tell := range k.watches {
		go tell(keeper.Event{Status: c.status})
	}
}

func (k memoryKeeper) Delete(_ context.Context, id string) error {
	k.mu.Lock()
	c := k.running[id]
	starts := c != nil && c.status.State == keeper.StateStarting
	k.mu.Unlock()
	if starts && k.endStarting != nil {
		k.endStarting(id)
	}
	return k.call(func() error {
		delete(k.running, id)
		return nil
	})
}

func (k memoryKeeper) List(context.Context) ([]keeper.Status, error) {
	var all []keeper.Status
	return all, k.call(func() error {
		for _, c := range k.running {
			all = append(all, c.status)
		}
		return nil
	})
}

func (k memoryKeeper) Watch(ctx context.Context, tell func(keeper.Event)) error {
	k.mu.Lock()
	k.watches = append(k.watches, tell)
	for _, c := range k.running { // whoever comes later is told what has happened
		go tell(keeper.Event{Status: c.status})
	}
	k.mu.Unlock()
	<-ctx.Done()
	k.mu.Lock()
	k.watches = nil
	k.mu.Unlock()
	return ctx.Err()
}

func (k memoryKeeper) Status(_ context.Context, id string) (*keeper.Status, error) {
	var st keeper.Status
	err := k.of(id, func(c *memoryContainer) error { st = c.status; return nil })
	return &st, err
}

// Exec runs a command at once that writes its arguments, and ends with the number that its last argument is.
func (k memoryKeeper) Exec(_ context.Context, r *keeper.ExecRequest) (*keeper.ExecResult, error) {
	err := k.of(r.ContainerID, func(c *memoryContainer) error {
		fmt.Fprintln(r.Stdout, r.Process.Args)
		exit := &keeper.ExecExit{}
		if _, err := fmt.Sscan(r.Process.Args[len(r.Process.Args)-1], &exit.ExitCode); err != nil {
			exit.TimedOut = r.Timeout > 0 && r.Process.Args[0] == "sleep"
		}
		c.execs[r.ExecID] = exit
		return nil
	})
	return &keeper.ExecResult{PID: 1 << 22}, err
}

func (k memoryKeeper) WaitExec(_ context.Context, id, exec string) (exit *keeper.ExecExit, err error) {
	err = k.of(id, func(c *memoryContainer) error {
		if exit = c.execs[exec]; exit == nil {
			return errdefs.ErrNotFound
		}
		delete(c.execs, exec)
		return nil
	})
	return exit, err
}
func (k memoryKeeper) KillExec(context.Context, string, string) error { return nil }

func (k memoryKeeper) Attach(_ context.Context, r *keeper.AttachRequest) error {
	return k.of(r.ContainerID, func(c *memoryContainer) error { return k.join(c, r) })
}

// join gives a client a line of output.
func (k memoryKeeper) join(c *memoryContainer, r *keeper.AttachRequest) error {
	k.attached[r.AttachID] = true
	if r.Stdout == nil {
		return nil
	}
	fd, err := syscall.Dup(int(r.Stdout.Fd()))
	if err != nil {
		return err
	}
	c.attached[r.AttachID] = os.NewFile(uintptr(fd), "attached")
	_, err = c.attached[r.AttachID].WriteString("output\n")
	return err
}
func (k memoryKeeper) Detach(_ context.Context, _, attach string) error {
	return k.call(func() error { // the container may have gone
		if !k.attached[attach] {
			return fmt.Errorf("client %s: %w", attach, errdefs.ErrNotFound)
		}
		delete(k.attached, attach)
		return nil
	})
}

func (k memoryKeeper) Killed() <-chan struct{} { return nil }

// Input is read by nobody.
func (k memoryKeeper) Input(id string) (input *keeper.Input, err error) {
	err = k.of(id, func(c *memoryContainer) error {
		if !c.input {
			return fmt.Errorf("container %s has no open input: %w", id, errdefs.ErrFailedPrecondition)
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		r.Close()
		input = &keeper.Input{File: w}
		return nil
	})
	return input, err
}
func (k memoryKeeper) CloseStdin(_ context.Context, id string) error {
	return k.of(id, func(c *memoryContainer) error { c.input = false; return nil })
}

// replaced is another keeper, which knows nothing of the clients of the one before.
func (k memoryKeeper) replaced() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.attached)
	for _, c := range k.running {
		for _, f := range c.attached {
			f.Close()
		}
		clear(c.attached)
	}
}
func (k memoryKeeper) ReopenLog(_ context.Context, id string) error {
	return k.of(id, func(*memoryContainer) error { return nil })
}
func (k memoryKeeper) Update(_ context.Context, id string, limits *specs.LinuxResources) error {
	return k.of(id, func(c *memoryContainer) error { c.updated = limits; return nil })
}
func (k memoryKeeper) Pause(_ context.Context, id string) error {
	return k.of(id, func(c *memoryContainer) error { c.status.Paused = true; return nil })
}

// Resume also lets a signal through that came while the container was frozen.
func (k memoryKeeper) Resume(_ context.Context, id string) error {
	return k.of(id, func(c *memoryContainer) error {
		if c.status.Paused = false; c.pending > 0 {
			k.exit(c, c.pending)
		}
		return nil
	})
}
func (k memoryKeeper) Freeze(context.Context, string, time.Duration) (string, func(context.Context) error, error) {
	return "", nil, errdefs.ErrNotImplemented
}
func (k memoryKeeper) Checkpoint(ctx context.Context, _ *keeper.CheckpointRequest) (func(context.Context) error,
	error) {
	if k.checkpoint != nil {
		return nil, k.checkpoint(ctx)
	}
	return nil, errdefs.ErrNotImplemented
}
func (k memoryKeeper) EndCheckpoint(context.Context, string) error { return nil }

const testCgroup = "/berth-test"

// memoryNode is a Manager on a memoryHost.
type memoryNode struct {
	*Manager
	t    *testing.T
	host *memoryHost
	cfg  Config
}

func newMemoryNode(t *testing.T) *memoryNode {
	t.Helper()
	dir, h := t.TempDir(), newMemoryHost()
	pins := func(dir string) layout.Namespaces { return memoryNamespaces{h, dir} }
	dirs := &layout.Dirs{State: filepath.Join(dir, "state"), Pins: pins}
	n := &memoryNode{t: t, host: h, cfg: Config{
		Root: filepath.Join(dir, "root"), State: dirs.State, CgroupRoot: testCgroup,
		Settings: Settings{Handlers: map[string]Handler{"runc": {Name: "runc"}}, Default: "runc"},
		Keeper:   memoryKeeper{h}, Network: memoryNetwork{h, dirs},
		Images: memoryImages{memoryHost: h, dir: t.TempDir()}, Devices: memoryDevices{h},
		Host: Host{
			Namespaces: pins, Tmpfs: memoryTmpfs{h}, Cgroups: memoryCgroups{h}, Rootfs: memoryRootfs{h}, Quotas: memoryQuotas{h},
			Volumes: memoryVolumes{h, t.TempDir()},
		},
		Log: slog.New(slog.DiscardHandler),
	}}
	n.open()
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func (n *memoryNode) open() {
	n.t.Helper()
	m, err := New(n.t.Context(), n.cfg)
	if err != nil {
		n.t.Fatal(err)
	}
	n.Manager = m
}

// restart is another berthd on the same node, with an image store and volumes that do not know who uses what.
func (n *memoryNode) restart() {
	n.t.Helper()
	_ = n.Close()
	n.host.settle()
	for _, thing := range n.host.left() {
		if strings.HasPrefix(thing, "image of ") || strings.HasPrefix(thing, "volume of ") {
			n.host.forget(thing)
		}
	}
	n.open()
}

// left is all that pods and containers have left on the node and on disk.
func (n *memoryNode) left() []string {
	n.t.Helper()
	all := n.host.left()
	for _, dir := range []string{n.dirs.Pods(), n.dirs.Containers(), n.dirs.StatePods()} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, filepath.Join(dir, e.Name()))
		}
	}
	for _, s := range n.index.Sandboxes() {
		all = append(all, "pod "+s.ID())
	}
	for _, c := range n.index.Containers() {
		all = append(all, "container "+c.ID())
	}
	return all
}
