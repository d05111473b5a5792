package pod

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/audit"
	"berth/internal/blockio"
	"berth/internal/image"
	"berth/internal/jail"
	keeper "berth/internal/keeper/client"
	"berth/internal/loglimit"
	"berth/internal/metrics"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/network"
	"berth/internal/ocispec"
	"berth/internal/pod/background"
	"berth/internal/pod/cgroups"
	"berth/internal/pod/checkpoints"
	"berth/internal/pod/devices"
	"berth/internal/pod/events"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/logs"
	"berth/internal/pod/parts"
	"berth/internal/pod/plugins"
	"berth/internal/pod/prepared"
	"berth/internal/pod/record"
	"berth/internal/pod/recovery"
	"berth/internal/pod/stdio"
	"berth/internal/pod/storage"
	"berth/internal/pod/teardown"
	"berth/internal/pod/trash"
	"berth/internal/pod/usage"
	"berth/internal/pod/watch"
	"berth/internal/quota"
	"berth/internal/resolvconf"
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
	// Killed is closed when the keeper was killed and keeps what it was given, since it does not end.
	Killed() <-chan struct{}
	Input(id string) (*keeper.Input, error)
	CloseStdin(ctx context.Context, id string) error
	ReopenLog(ctx context.Context, id string) error
	Update(ctx context.Context, id string, resources *specs.LinuxResources) error
	Pause(ctx context.Context, id string) error
	Resume(ctx context.Context, id string) error
	Status(ctx context.Context, id string) (*keeper.Status, error)
	Freeze(ctx context.Context, id string, timeout time.Duration) (nonce string, thaw func(context.Context) error,
		err error)
	Checkpoint(context.Context, *keeper.CheckpointRequest) (thaw func(context.Context) error, err error)
	EndCheckpoint(ctx context.Context, id string) error
}

// Images is what the domain asks of the image store.
type Images interface {
	Get(ctx context.Context, refOrID string) (*model.Image, error)
	// AddReference keeps an image's layers, whatever becomes of its record, until Release of the same holder.
	AddReference(imageID, holder string) (*image.Layers, error)
	Release(holder string)
	// UnpackTar unpacks a tar that nobody has checked into an empty directory, within the limits of a layer.
	UnpackTar(ctx context.Context, dir string, r io.Reader) error
	Collect(context.Context) error
}

// AppArmor has the default profile of the node.
type AppArmor interface {
	// Ensure loads the profile again if a process is about to have it and somebody has unloaded it.
	Ensure(ctx context.Context, profile string) error
}

// ensureProfile sees to it that the kernel has the AppArmor profile of a process that is about to begin, as far as the
// node can load it: the kernel would refuse the process.
func (m *Manager) ensureProfile(ctx context.Context, p *specs.Process) error {
	if m.cfg.AppArmor == nil || p == nil || p.ApparmorProfile == "" {
		return nil
	}
	return m.cfg.AppArmor.Ensure(ctx, p.ApparmorProfile)
}

// Handler is a runtime handler as the node's configuration has it.
type Handler struct {
	Name string
	// RuntimePath is an OCI runtime binary; empty: the keeper's own engines, of which Setup chooses one.
	RuntimePath  string
	RuntimeRoot  string
	RuntimeFlags []string // come before each command of the binary
	// Shim says that the binary is one of containerd's shims, and has its options; nil: it is an OCI runtime.
	// SandboxContainer is set then.
	Shim *keeper.Shim
	// NodeProcesses: the processes of containers in a sandbox are processes of the node's kernel, as with runc's shim.
	NodeProcesses bool
	// SandboxContainer: the runtime runs the containers of a pod in a sandbox, which the pod's init makes.
	// LacksSandboxContainer: the runtime needs that, and the configuration does not say it.
	SandboxContainer, LacksSandboxContainer bool
	// Setup is what sets its containers up, where RuntimePath is empty, and the init of its pods.
	Setup keeper.SetupChoice
	Spec  ocispec.Handler
	// Sysctls are those that its pods have where they ask for no other value.
	Sysctls map[string]string
	// UserNamespaces and RecursiveReadOnly are what the runtime can do. Config.OwnersMapped says what the node can do for
	// the former.
	UserNamespaces, RecursiveReadOnly bool
	// IgnoreDeclaredVolumes: containers have no volumes of their own at the paths that images declare.
	IgnoreDeclaredVolumes bool
	// AllowedAnnotations are those of package annotation that work on its pods, by name.
	AllowedAnnotations []string
	// DiskQuota limits the writable layer of a container that does not ask for a limit itself, in bytes; 0: no limit.
	DiskQuota uint64
}

// Config is the configuration of a Manager.
type Config struct {
	Settings
	Root          string // records, writable layers: what outlives a reboot
	State         string // namespaces, shm: what does not
	NetNSDir      string // where network namespaces are pinned; empty: in State
	CgroupRoot    string // parent of the cgroups of pods that name none: /berth, or a slice with SystemdCgroup
	SystemdCgroup bool
	// ScopeAfter are the systemd units that a shutdown of the node stops after containers.
	ScopeAfter []string
	Keeper     Keeper
	Images     Images
	Network    network.Provider
	AppArmor   AppArmor // nil: the node has no default profile
	// OwnersMapped waits for the answer whether this node can mount root file systems for pods with user namespaces. An
	// error says why it cannot. Nil: it can.
	OwnersMapped func() error
	Disk         *state.Probe // says whether the root takes writes; nil: nobody looks
	PreparedPods int          // so many pods' namespaces and networks are made ahead
	Host         Host
	Devices      devices.Manager // nil: the node has no device manager
	Plugins      plugins.Plugins // nil: the node has none
	Jail         *jail.Jail      // in which archives of checkpoints are read
	Ahead        *Ahead          // what ReadAhead has begun to read; nil: New reads it
	Metrics      *metrics.Set    // nil: nothing is counted
	Audit        *audit.Log      // nil: nothing is written down
	Log          *slog.Logger
}

// Settings are what of a Manager's configuration can be changed while pods run. A call reads them once.
type Settings struct {
	Handlers      map[string]Handler // by name
	Default       string             // the handler of requests that name none
	BlockIO       *blockio.Classes   // nil: no class of block I/O is known
	CRIU          string             // the program; empty: the one in PATH
	RestoreImages bool               // containers are created from images that are checkpoints
	// CheckpointBytes is the most bytes that an archive of a checkpoint is unpacked to.
	CheckpointBytes uint64
	// AttachBacklog is how many bytes are kept for an attached client that does not take them; 0: the keeper's default.
	AttachBacklog int64
	AttachTotal   int64 // likewise for all clients together
	// Log are the limits of the logs of containers that ask for no others.
	Log loglimit.Limits
}

// ApplySettings puts other settings into force, for calls that begin from then on. A pod keeps the name of its runtime
// handler, and its later containers are made by what that name means then.
func (m *Manager) ApplySettings(s Settings) {
	m.settings.Store(&s)
	s.warnOfQuotas(m.containers.Dir(), m.log)
	lost := map[string]int{}
	for _, pod := range m.index.Sandboxes() {
		r := pod.Record()
		if _, err := s.handlerOf(&r); err != nil {
			lost[r.RuntimeName()]++
		}
	}
	for name, pods := range lost {
		m.log.Warn("pods get no new containers: their runtime handler is not configured any more",
			"handler", name, "pods", pods)
	}
}

// warnOfQuotas says at once, and not only when containers are refused, that disk quotas cannot be kept in the directory
// of containers.
func (s *Settings) warnOfQuotas(containers string, log *slog.Logger) {
	for name, h := range s.Handlers {
		if h.DiskQuota == 0 {
			continue
		}
		if err := quota.Check(containers); err != nil {
			log.Error("containers of this runtime handler will be refused: their disk quota cannot be kept",
				"handler", name, "error", err)
		}
	}
}

// handler finds the runtime handler that a client has asked for; empty: the default one. One that is not configured is
// errdefs.ErrNotFound.
func (s *Settings) handler(name string) (Handler, error) {
	name = cmp.Or(name, s.Default)
	found, ok := s.Handlers[name]
	if !ok {
		return Handler{}, fmt.Errorf("runtime handler %q is not configured on this node: %w", name, errdefs.ErrNotFound)
	}
	return found, nil
}

// handlerOf finds the runtime handler of a pod. One that was removed from the configuration is
// errdefs.ErrFailedPrecondition: with NotFound, a client would understand that the pod or its container does not exist.
func (s *Settings) handlerOf(pod *record.Sandbox) (Handler, error) {
	name := cmp.Or(pod.RuntimeName(), s.Default)
	found, ok := s.Handlers[name]
	if !ok {
		return Handler{}, fmt.Errorf("runtime handler %q of the pod is not configured on this node any more: %w", name,
			errdefs.ErrFailedPrecondition)
	}
	return found, nil
}

// parts is what the handler says of the parts of its pods.
func (h *Handler) parts() parts.Handler {
	out := parts.Handler{Setup: h.Setup, Sysctls: h.Sysctls, ShmSize: h.Spec.ShmSize}
	if h.SandboxContainer {
		out.Sandbox = &parts.Sandbox{RuntimePath: h.RuntimePath, RuntimeRoot: h.RuntimeRoot, RuntimeFlags: h.RuntimeFlags,
			Shim: h.Shim, Annotations: h.Spec.Annotations}
	}
	return out
}

// Host is what the kernel does for pods and containers. What is nil is this node's own.
type Host struct {
	Namespaces func(dir string) layout.Namespaces // those of a pod, pinned in a directory
	Cgroups    cgroups.Tree
	Tmpfs      parts.Tmpfs
	Rootfs     storage.Rootfs
	Quotas     storage.Quotas
	Volumes    storage.Volumes
}

// orNode fills in what this node has, with its records in the configuration's root. Namespaces and cgroups stay nil,
// which their callers know.
func (h Host) orNode(
	ctx context.Context, cfg *Config, dirs *layout.Dirs, discard func(dir string) error,
) (Host, error) {
	if h.Tmpfs == nil {
		h.Tmpfs = parts.NodeTmpfs{}
	}
	if h.Rootfs == nil {
		h.Rootfs = storage.Overlays{}
	}
	if h.Quotas == nil {
		quotas, err := quota.Open(ctx, filepath.Join(cfg.Root, "quotas"), cfg.Log)
		if err != nil {
			return h, err
		}
		h.Quotas = quotas
	}
	if h.Volumes == nil {
		volumes, err := volume.Open(volume.Config{Dir: dirs.Volumes(), Discard: discard, Log: cfg.Log})
		if err != nil {
			return h, err
		}
		h.Volumes = storage.NodeVolumes{Store: volumes}
	}
	return h, nil
}

// Manager runs the node's pods: its methods are the calls of the CRI and of the other APIs. The package's comment says
// in which files they are. They may be called concurrently. A call of several steps is a type of its own with a method
// for each: creation, start, execution, attachment, update. What the calls work with is owned by the types of the
// fields.
type Manager struct {
	cfg      Config // but for its Settings: those are in settings
	log      *slog.Logger
	settings atomic.Pointer[Settings]

	pods       *record.Sandboxes
	containers *record.Containers
	index      *index.Index
	logs       *logs.Claims
	events     *events.Feed

	dirs        *layout.Dirs
	cgroups     *cgroups.Driver
	parts       *parts.Maker
	storage     *storage.Store
	devices     *devices.Allocator
	checkpoints *checkpoints.Checkpointer
	readings    *usage.Reader
	teardown    *teardown.Teardown
	watch       *watch.Watcher
	prepared    *prepared.Pool
	relay       *plugins.Relay

	outputs    stdio.Shared     // of ExecSync
	background background.Group // what no call waits for
	stop       context.CancelFunc
	ctx        context.Context // ends with Close
}

// New reads the records, compares them with the kernel and the keeper, adopts what lives, removes what does not, and
// follows the keeper's events from then on. The caller holds the lock of Config.Root.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	m, err := newManager(ctx, cfg)
	if err != nil {
		return nil, err
	}
	cfg.Settings.warnOfQuotas(m.containers.Dir(), m.log)
	r := m.recovery()
	err = r.Reconcile(ctx)
	*m.cfg.Ahead = Ahead{} // the list of mounts is long
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("compare the records with what runs: %w", err)
	}
	m.background.Go(m.watch.FollowKeeper)
	m.background.Go(m.watch.LookAtNamespaces)
	m.background.Go(m.teardown.Trash.Empty)
	m.background.Go(func() { m.prepared.Run(m.ctx) })
	for _, work := range r.Unfinished {
		m.background.Go(work)
	}
	return m, nil
}

// newManager makes a Manager that knows no pod yet, and the directories and stores that it works with.
func newManager(ctx context.Context, cfg Config) (*Manager, error) {
	ahead := cfg.Ahead
	if ahead == nil {
		var err error
		if ahead, err = ReadAhead(&cfg); err != nil {
			return nil, err
		}
	}
	dirs := ahead.dirs
	if cfg.NetNSDir != "" {
		if err := namespace.Share(cfg.NetNSDir); err != nil {
			return nil, fmt.Errorf("network.netns_dir: %w", err)
		}
	}
	m := &Manager{
		cfg:        cfg,
		log:        cfg.Log,
		pods:       ahead.pods,
		containers: ahead.containers,
		index:      index.New(),
		logs:       logs.New(cfg.Root),
		dirs:       dirs,
	}
	m.cfg.Ahead = ahead
	m.settings.Store(&cfg.Settings)
	m.pods.Metrics, m.containers.Metrics = cfg.Metrics, cfg.Metrics
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	m.events = events.New(m.index)
	trash := trash.New(m.ctx, dirs.Trash(), cfg.Log)
	host, err := cfg.Host.orNode(ctx, &cfg, dirs, trash.Discard)
	if err != nil {
		return nil, err
	}
	m.cgroups = cgroups.New(m.ctx, cgroups.Config{
		Tree: cfg.Host.Cgroups, Root: cfg.CgroupRoot, Systemd: cfg.SystemdCgroup, Records: filepath.Join(cfg.Root, "cgroups"),
		Background: &m.background, Log: cfg.Log,
	})
	m.devices = &devices.Allocator{Manager: cfg.Devices, Index: m.index}
	m.parts = &parts.Maker{
		Dirs: dirs, Cgroups: m.cgroups, Keeper: cfg.Keeper, Network: cfg.Network, Systemd: cfg.SystemdCgroup,
		Tmpfs: host.Tmpfs, ResolvConf: resolvconf.Host,
	}
	m.prepared = prepared.New(prepared.Config{
		Size: cfg.PreparedPods, Maker: m.parts, NewID: record.NewID, InUse: func() bool { return !m.index.Empty() },
		Log: cfg.Log,
	})
	sampler, err := stats.New(stats.Config{Measure: usage.Written(dirs), Mountpoint: dirs.Containers(), Logger: cfg.Log})
	if err != nil {
		return nil, err
	}
	m.readings = &usage.Reader{Sampler: sampler, Index: m.index, Dirs: dirs, Cgroups: m.cgroups, Log: cfg.Log}
	m.storage = &storage.Store{
		Dirs: dirs, Images: cfg.Images, Rootfs: host.Rootfs, Quotas: host.Quotas, Volumes: host.Volumes,
		Names: m.index.ContainerNames,
	}
	m.checkpoints = &checkpoints.Checkpointer{
		Containers: m.containers, Keeper: cfg.Keeper, Images: cfg.Images, Jail: cfg.Jail, Log: cfg.Log,
		Settings: func() checkpoints.Settings {
			s := m.settings.Load()
			return checkpoints.Settings{CRIU: s.CRIU, RestoreImages: s.RestoreImages, MaxBytes: s.CheckpointBytes}
		},
	}
	m.relay = &plugins.Relay{Plugins: cfg.Plugins, Dirs: dirs, Cgroups: m.cgroups, Background: &m.background, Log: cfg.Log}
	if cfg.Plugins == nil {
		m.relay.Plugins = plugins.None{}
	}
	m.teardown = &teardown.Teardown{
		Keeper: cfg.Keeper, Pods: m.pods, Containers: m.containers, Index: m.index, Logs: m.logs, Events: m.events,
		Dirs: dirs, Trash: trash, Cgroups: m.cgroups, Parts: m.parts, Storage: m.storage, Devices: m.devices,
		Sampler: sampler, Plugins: m.relay, Metrics: cfg.Metrics, Log: cfg.Log,
	}
	m.watch = &watch.Watcher{
		Keeper: cfg.Keeper, Index: m.index, Dirs: dirs, Events: m.events, Teardown: m.teardown,
		Ctx: m.ctx, Background: &m.background, Log: cfg.Log,
	}
	return m, nil
}

// recovery is what brings the records in line with what runs.
func (m *Manager) recovery() *recovery.Recovery {
	return &recovery.Recovery{
		Keeper: m.cfg.Keeper, Images: m.cfg.Images, Network: m.cfg.Network, Pods: m.pods, Containers: m.containers,
		Index: m.index, Logs: m.logs, Dirs: m.dirs, Cgroups: m.cgroups, Parts: m.parts, Storage: m.storage,
		Devices: m.devices, Checkpoints: m.checkpoints, Trash: m.teardown.Trash, Teardown: m.teardown, Watch: m.watch,
		Mounts: m.cfg.Ahead.mounts, Hidden: m.cfg.Ahead.hidden, Ctx: m.ctx, Log: m.log,
	}
}

// Close stops following the keeper and waits for the manager's own work. Pods live on.
func (m *Manager) Close() error {
	m.stop()
	m.background.Close()
	m.storage.Quotas.Close()
	m.events.Close()
	m.readings.Sampler.Close()
	return nil
}

// lockContainer takes the lock of a container for a call. One that was removed while the call waited is
// errdefs.ErrNotFound, as for a call that comes later.
func (m *Manager) lockContainer(ctx context.Context, c *index.Container, act string) (release func(), err error) {
	if release, err = c.Lock(ctx, act); err != nil {
		return nil, err
	}
	if m.index.GoneContainer(c) {
		release()
		return nil, fmt.Errorf("container %q: %w", c.ID(), errdefs.ErrNotFound)
	}
	return release, nil
}
