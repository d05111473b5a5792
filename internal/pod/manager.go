package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/device/manager"
	"berth/internal/image"
	"berth/internal/jail"
	"berth/internal/keeper"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/network"
	"berth/internal/ocispec"
	"berth/internal/quota"
	"berth/internal/rootfs"
	"berth/internal/state"
	"berth/internal/stats"
	"berth/internal/volume"
)

// Keeper is what the domain asks of the keeper.
type Keeper interface {
	Run(context.Context, *keeper.RunRequest) (*keeper.RunResult, error)
	Signal(ctx context.Context, id string, sig syscall.Signal, all bool) error
	Delete(ctx context.Context, id string) error
	List(context.Context) ([]keeper.Status, error)
	Watch(context.Context, func(keeper.Event)) error
	Exec(context.Context, *keeper.ExecRequest) (*keeper.ExecResult, error)
	WaitExec(ctx context.Context, containerID, execID string) (*keeper.ExecExit, error)
	KillExec(ctx context.Context, containerID, execID string) error
	Attach(context.Context, *keeper.AttachRequest) error
	Detach(ctx context.Context, containerID, attachID string) error
	Input(id string) (*keeper.Input, error)
	CloseStdin(ctx context.Context, id string) error
	ReopenLog(ctx context.Context, id string) error
	Update(ctx context.Context, id string, resources *specs.LinuxResources) error
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
	Status(ctx context.Context, id string) (*keeper.Status, error)
	Checkpoint(context.Context, *keeper.CheckpointRequest) (goOn func(context.Context) error, err error)
	EndCheckpoint(ctx context.Context, id string) error
}

// Images is what the domain asks of the image store.
type Images interface {
	Get(ctx context.Context, refOrID string) (*model.Image, error)
	// Hold keeps an image's layers, whatever becomes of its record, until Release of the same holder.
	Hold(imageID, holder string) (*image.Layers, error)
	Release(holder string)
	// UnpackTar unpacks a tar that nobody has checked into an empty directory, within the limits of a layer.
	UnpackTar(ctx context.Context, dir string, r io.Reader) error
	Collect(context.Context) error
}

// Devices is what the domain asks of the node's device manager.
type Devices interface {
	// Allocate gives a container its devices, and returns what they add to it. After an error it holds none.
	Allocate(context.Context, manager.Request) ([]model.Edits, error)
	// Cancel gives back what was allocated for a container that could not be made.
	Cancel(sandboxID, containerID string)
	// PreStart prepares a container's devices for its start.
	PreStart(ctx context.Context, containerID string) error
	// Free gives a container's devices back, and FreePod forgets a pod.
	Free(containerID string)
	FreePod(sandboxID string)
	// Reconcile frees what pods and containers hold that are not there any more.
	Reconcile(podLives, containerLives func(id string) bool)
}

// Handler is a runtime handler as the node's configuration has it.
type Handler struct {
	Name string
	// RuntimePath is an OCI runtime binary; empty: the keeper's own libcontainer.
	RuntimePath string
	RuntimeRoot string
	// Setup is what sets its containers up, where RuntimePath is empty, and the init of its pods.
	Setup keeper.SetupChoice
	Spec  ocispec.Handler
	// UserNamespaces and RecursiveReadOnly are what the runtime can do.
	UserNamespaces, RecursiveReadOnly bool
	// AllowedAnnotations are those of package annotation that work on its pods, by name.
	AllowedAnnotations []string
	// DiskQuota limits the writable layer of a container that does not ask for a limit itself, in bytes; 0: no limit.
	DiskQuota uint64
}

// Config is what a Manager is made of.
type Config struct {
	Root          string // records, writable layers: what outlives a reboot
	State         string // namespaces, shm: what does not
	CgroupRoot    string // parent of the cgroups of pods that name none: /berth, or a slice with SystemdCgroup
	SystemdCgroup bool
	Handlers      map[string]Handler // by name
	Default       string             // the handler of requests that name none
	Keeper        Keeper
	Images        Images
	Network       network.Provider
	Devices       Devices    // nil: the node has no device manager
	CRIU          string     // the program; empty: the one in PATH
	RestoreImages bool       // containers are created from images that are checkpoints
	Jail          *jail.Jail // in which archives of checkpoints are read
	// CheckpointBytes is the most bytes that an archive of a checkpoint is unpacked to.
	CheckpointBytes uint64
	AttachBacklog   int64 // bytes that are kept for an attached client that does not take them; 0: the keeper's default
	AttachTotal     int64 // likewise for all clients together
	Log             *slog.Logger
}

// Manager runs the node's pods. Its methods may be called concurrently.
type Manager struct {
	cfg        Config
	log        *slog.Logger
	pods       state.Records
	containers state.Records
	sampler    *stats.Sampler
	left       state.Records // leftCgroups, by pod
	volumes    *volume.Store
	quotas     *quota.Ledger
	cgroups    cgroupUse

	mu    sync.RWMutex // guards the maps, not what they point to, and lastCreated
	pod   map[string]*sandbox
	ctr   map[string]*container
	names map[string]string // sandboxName or containerName to ID
	logs  map[string]string // log paths of containers that run, to ID
	// lastCreated is the latest creation time of any pod or container.
	lastCreated time.Time

	events hub

	unfinished []func() // what New has found and not brought to its end; see later

	trashed    chan struct{} // something is in the trash
	background sync.WaitGroup
	stop       context.CancelFunc
	ctx        context.Context // ends with Close
}

// New reads the records, compares them with the kernel and the keeper, adopts what lives, removes what does not, and follows
// the keeper's events from then on. The caller holds the lock of Config.Root.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	m := &Manager{
		cfg:        cfg,
		log:        cfg.Log,
		pods:       state.Records{Dir: filepath.Join(cfg.Root, "pods"), File: "pod.json"},
		containers: state.Records{Dir: filepath.Join(cfg.Root, "containers"), File: "container.json"},
		left:       state.Records{Dir: filepath.Join(cfg.Root, "cgroups"), File: "left.json"},
		pod:        map[string]*sandbox{},
		ctr:        map[string]*container{},
		names:      map[string]string{},
		logs:       map[string]string{},
		cgroups:    cgroupUse{below: map[string]int{}, owned: map[string]int{}},
	}
	m.trashed = make(chan struct{}, 1)
	m.events.init()
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := m.makeDirs(); err != nil {
		return nil, err
	}
	for _, dir := range []string{m.pods.Dir, m.containers.Dir, m.statePods()} {
		state.Spread(dir)
	}
	var err error
	if m.sampler, err = stats.New(stats.Config{Measure: rootfs.Usage, Mountpoint: m.containers.Dir, Logger: cfg.Log}); err != nil {
		return nil, err
	}
	if m.quotas, err = quota.Open(ctx, filepath.Join(cfg.Root, "quotas"), cfg.Log); err != nil {
		return nil, err
	}
	m.volumes, err = volume.Open(volume.Config{Dir: filepath.Join(cfg.Root, "volumes"), Discard: m.discard, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	for name, h := range cfg.Handlers {
		if h.DiskQuota == 0 {
			continue
		}
		if err := quota.Check(m.containers.Dir); err != nil {
			m.log.Error("containers of this runtime handler will be refused: their disk quota cannot be kept", "handler", name, "error", err)
		}
	}
	if err := m.reconcile(ctx); err != nil {
		m.Close()
		return nil, fmt.Errorf("compare the records with what runs: %w", err)
	}
	m.background.Go(m.watchKeeper)
	m.background.Go(m.watchNamespaces)
	m.background.Go(m.emptyTrash)
	for _, work := range m.unfinished {
		m.background.Go(work)
	}
	m.unfinished = nil
	return m, nil
}

// Close stops following the keeper and waits for the manager's own work. Pods live on.
func (m *Manager) Close() error {
	m.stop()
	m.background.Wait()
	m.quotas.Close()
	m.events.close()
	m.sampler.Close()
	return nil
}

func (m *Manager) trashDir() string { return filepath.Join(m.cfg.Root, "trash") }

func (m *Manager) namespaces(id string) namespace.Set {
	return namespace.Set{Dir: filepath.Join(m.statePod(id), namespacesDir)}
}

func (m *Manager) handler(name string) (Handler, error) {
	if name == "" {
		name = m.cfg.Default
	}
	h, ok := m.cfg.Handlers[name]
	if !ok {
		return Handler{}, fmt.Errorf("runtime handler %q is not configured on this node: %w", name, errdefs.ErrNotFound)
	}
	return h, nil
}

func (m *Manager) findSandbox(id string) (*sandbox, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return resolve("pod sandbox", m.pod, id)
}

func (m *Manager) findContainer(id string) (*container, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return resolve("container", m.ctr, id)
}

// containersOf returns the containers of a sandbox, in no order.
func (m *Manager) containersOf(sandboxID string) []*container {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var list []*container
	for _, c := range m.ctr {
		if c.sandbox.id == sandboxID {
			list = append(list, c)
		}
	}
	return list
}

func (m *Manager) newSandbox(id string) *sandbox {
	return &sandbox{id: id, netns: m.namespaces(id).Path(namespace.Network), op: newOpLock()}
}

// reserve takes a name for an ID, or says which ID has it.
func (m *Manager) reserve(kind, name, id string) error {
	if other, taken := m.names[name]; taken && other != id {
		return fmt.Errorf("%s name %s is taken by %s: %w", kind, strings.ReplaceAll(name, "\x00", "_"), shortID(other), errdefs.ErrAlreadyExists)
	}
	m.names[name] = id
	return nil
}

// setSandbox changes a sandbox's record on disk and in memory, in that order. When the disk refuses, nothing is changed.
func (m *Manager) setSandbox(s *sandbox, change func(*SandboxRecord)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.rec
	change(&next)
	if err := checkPhase(sandboxNext, "pod sandbox "+s.id, s.rec.Phase, next.Phase); err != nil {
		return err
	}
	save := m.pods.Save
	if next.Phase != s.rec.Phase && next.Phase.settled() {
		save = m.pods.SaveTwice
	}
	if err := save(s.id, &next); err != nil {
		return noSpace(err)
	}
	s.rec = next
	s.publish()
	return nil
}

// setContainer does for a container what setSandbox does for a sandbox.
func (m *Manager) setContainer(c *container, change func(*ContainerRecord)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.rec
	change(&next)
	if err := checkPhase(containerNext, "container "+c.id, c.rec.Phase, next.Phase); err != nil {
		return err
	}
	save := m.containers.Save
	if next.Phase != c.rec.Phase && next.Phase.settled() {
		save = m.containers.SaveTwice
	}
	if err := save(c.id, &next); err != nil {
		return noSpace(err)
	}
	c.rec = next
	c.publish()
	return nil
}

// noteSandbox is setSandbox for what is true already. Where it cannot be recorded, since the disk is full or gone, memory has it:
// nobody can be kept from stopping and removing by that. The next start of berthd learns from the kernel that the pod is not ready.
func (m *Manager) noteSandbox(s *sandbox, change func(*SandboxRecord)) error {
	err := m.setSandbox(s, change)
	if err == nil || errdefs.IsFailedPrecondition(err) {
		return err
	}
	m.log.Error("record what a pod has become", "pod_id", s.id, "error", err)
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.rec)
	s.publish()
	return nil
}

// noteContainer does for a container what noteSandbox does for a sandbox. Of its end the keeper and the kernel tell again.
func (m *Manager) noteContainer(c *container, change func(*ContainerRecord)) error {
	err := m.setContainer(c, change)
	if err == nil || errdefs.IsFailedPrecondition(err) {
		return err
	}
	m.log.Error("record what a container has become", "container_id", c.id, "error", err)
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.rec)
	c.publish()
	return nil
}

func (s *sandbox) record() SandboxRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

func (c *container) record() ContainerRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec
}

// noSpace gives a full disk the code that clients act on.
func noSpace(err error) error {
	if state.Full(err) && !errdefs.IsResourceExhausted(err) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
	}
	return err
}

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%q", err.Error())
	}
	return string(b)
}
