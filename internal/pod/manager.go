package pod

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"syscall"

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
	"berth/internal/pod/record"
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

// Rootfs is what the domain asks of whoever mounts root file systems.
type Rootfs interface {
	// Mount mounts a root file system and returns where.
	Mount(context.Context, rootfs.Options) (string, error)
	// Unmount unmounts what Mount has mounted for a directory, there and at further mount points. It is idempotent.
	Unmount(dir string, at ...string) error
}

// overlays is the Rootfs of a node: package rootfs.
type overlays struct{}

func (overlays) Mount(ctx context.Context, o rootfs.Options) (string, error) {
	return rootfs.Mount(ctx, o)
}
func (overlays) Unmount(dir string, at ...string) error { return rootfs.Unmount(dir, at...) }

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
	Rootfs        Rootfs     // nil: package rootfs
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
	pods       *record.Sandboxes
	containers *record.Containers
	index      *index
	logs       *logs
	sampler    *stats.Sampler
	left       state.Records // leftCgroups, by pod
	volumes    *volume.Store
	quotas     *quota.Ledger
	cgroups    cgroupUse

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
	if cfg.Rootfs == nil {
		cfg.Rootfs = overlays{}
	}
	m := &Manager{
		cfg:        cfg,
		log:        cfg.Log,
		containers: record.NewContainers(filepath.Join(cfg.Root, "containers"), cfg.Log),
		index:      newIndex(),
		logs:       newLogs(),
		left:       state.Records{Dir: filepath.Join(cfg.Root, "cgroups"), File: "left.json"},
		cgroups:    newCgroupUse(),
	}
	netns := func(id string) string { return m.namespaces(id).Path(namespace.Network) }
	m.pods = record.NewSandboxes(filepath.Join(cfg.Root, "pods"), netns, cfg.Log)
	m.trashed = make(chan struct{}, 1)
	m.events.init()
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := m.makeDirs(); err != nil {
		return nil, err
	}
	for _, dir := range []string{m.pods.Dir(), m.containers.Dir(), m.statePods()} {
		state.Spread(dir)
	}
	var err error
	if m.sampler, err = stats.New(stats.Config{Measure: rootfs.Usage, Mountpoint: m.containers.Dir(), Logger: cfg.Log}); err != nil {
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
		if err := quota.Check(m.containers.Dir()); err != nil {
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

func toJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("%q", err.Error())
	}
	return string(b)
}
