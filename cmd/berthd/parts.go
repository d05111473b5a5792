package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"berth/internal/apparmor"
	"berth/internal/audit"
	"berth/internal/blockio"
	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/cri/berthv1"
	"berth/internal/cri/containerd"
	criv1 "berth/internal/cri/v1"
	criv1alpha1 "berth/internal/cri/v1alpha1"
	"berth/internal/cri/v1alpha2"
	"berth/internal/device/manager"
	"berth/internal/health"
	"berth/internal/image"
	"berth/internal/image/export"
	"berth/internal/image/preload"
	"berth/internal/jail"
	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/protocol"
	"berth/internal/metrics"
	"berth/internal/network"
	"berth/internal/nri"
	"berth/internal/ocispec"
	"berth/internal/pod"
	"berth/internal/pod/layout"
	"berth/internal/pod/rootid"
	"berth/internal/snapshotter"
	"berth/internal/state"
	"berth/internal/stream"
)

// parts are what the daemon is made of. Each method makes one of them, from those that were made before it.
type parts struct {
	cfg     *config.Config // as it was at the start, and without links in root and state
	sources config.Sources
	now     atomic.Pointer[config.Loaded] // with what was reloaded since
	// appArmorInfo says what the handlers have that are in force.
	appArmorInfo atomic.Pointer[appArmorInfo]
	begun        time.Time
	opened       chan struct{} // closed once all parts are made
	log          *slog.Logger
	// changeLog gives the log another level and format.
	changeLog func(level, format string) error
	systemd   bool // the pods' cgroups are systemd's
	closers   []func() error

	metrics  *metrics.Set // nil: nothing is measured
	ahead    *pod.Ahead
	children *jail.Jail
	confined chan error // what a first child has found: see checkJail
	images   *image.Store
	network  network.Provider
	keeper   *keeper.Client
	audit    *audit.Log
	bounding []string         // the capabilities that the keeper has to give
	devices  *manager.Manager // nil: the configuration has none
	plugins  *nri.Plugins     // nil: likewise
	appArmor *apparmor.Default
	owners   func() error // see probeOwners
	pods     *pod.Manager
	streams  *stream.Server
	server   *grpc.Server
	calls    cri.InFlight
	checks   *health.Checker
	disk     *state.Probe // of the root's file system
}

// onClose has fn called when the daemon ends, before what was given here earlier.
func (d *parts) onClose(fn func() error) { d.closers = append(d.closers, fn) }

func (d *parts) close() (err error) {
	for _, fn := range slices.Backward(d.closers) {
		err = errors.Join(err, fn())
	}
	return err
}

// measure makes the metrics, where the configuration says at which address they are served.
func (d *parts) measure(context.Context) error {
	if d.cfg.Metrics.Address != "" {
		d.metrics = metrics.New(version)
	}
	return nil
}

// lock makes this the only daemon of its root and of its state directory: the keeper there serves any berthd.
func (d *parts) lock(context.Context) error {
	unlockRoot, err := state.Lock(d.cfg.Root)
	if err != nil {
		return err
	}
	d.onClose(func() error { unlockRoot(); return nil })
	if err := protocol.MakeDir(d.keeperDir()); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	unlockState, err := state.LockDir(d.keeperDir())
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	d.onClose(func() error { unlockState(); return nil })
	d.disk = state.NewProbe(d.cfg.Root)
	return nil
}

// readAhead begins to read the records of pods while the other parts are made: with many pods, most of a start of
// berthd is that.
func (d *parts) readAhead(context.Context) (err error) {
	d.ahead, err = pod.ReadAhead(&pod.Config{
		Root: d.cfg.Root, State: d.cfg.State, NetNSDir: d.cfg.Network.NetNSDir, Log: d.log,
	})
	return err
}

func (d *parts) claimCgroups(ctx context.Context) error {
	d.systemd = systemdCgroups(d.cfg)
	release, err := claimCgroups(ctx, d.cfg, d.systemd, d.log)
	if err != nil {
		return err
	}
	d.onClose(release)
	return nil
}

func (d *parts) sendSpans(ctx context.Context) error {
	stop, err := sendSpans(ctx, d.cfg, d.log)
	if err != nil {
		return err
	}
	d.onClose(stop)
	return nil
}

func (d *parts) openJail(ctx context.Context) (err error) {
	if d.children, err = openJail(d.cfg); err != nil {
		return err
	}
	d.onClose(d.children.Close)
	// Other parts are made meanwhile: on a node with a thousand pods a first child takes 20 ms, for a copy of all mounts.
	d.confined = make(chan error, 1)
	go func() { d.confined <- d.children.Check(ctx) }()
	return nil
}

// checkJail tells whether the children that parse images can be confined: an operator should know before the first
// pull.
func (d *parts) checkJail(ctx context.Context) error {
	select {
	case err := <-d.confined:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *parts) openImages(ctx context.Context) (err error) {
	cfg := image.Config{
		Settings:  imageSettings(d.cfg),
		Children:  image.ChildrenOf(d.children),
		Root:      filepath.Join(d.cfg.Root, "images"),
		UserAgent: "berth/" + version,
		Metrics:   d.metrics,
		Logger:    d.log,
	}
	if s := &d.cfg.Snapshotter; s.Name != "" {
		client, err := snapshotter.New(snapshotter.Config{
			Name: s.Name, Address: strings.TrimPrefix(s.Address, "unix://"), Namespace: s.Namespace,
			Timeout: time.Duration(s.Timeout),
		})
		if err != nil {
			return err
		}
		d.onClose(client.Close)
		cfg.Snapshotter = client
	}
	if d.images, err = image.Open(ctx, cfg); err != nil {
		return fmt.Errorf("open the image store: %w", err)
	}
	d.onClose(d.images.Close)
	return nil
}

// preload imports the archives of the node in the background.
func (d *parts) preload(ctx context.Context) {
	cfg := &d.cfg.Image
	if cfg.PreloadDir == "" {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		preload.Run(ctx, preload.Config{
			Dir: cfg.PreloadDir, Record: filepath.Join(d.cfg.Root, "images", "preload.json"), Pin: cfg.PreloadPin,
			Store: d.images, Log: d.log,
		})
	}()
	d.onClose(func() error { cancel(); <-done; return nil })
}

func (d *parts) openNetwork(context.Context) (err error) {
	cfg := &d.cfg.Network
	d.network, err = network.New(network.Config{
		CNIConfDir:     cfg.CNIConfDir,
		CNIBinDirs:     cfg.CNIBinDirs,
		CNINetwork:     cfg.CNINetwork,
		RequireCNI:     cfg.RequireCNI,
		CNICacheDir:    filepath.Join(d.cfg.Root, "cni"),
		StateDir:       filepath.Join(d.cfg.Root, "network"),
		Bridge:         cfg.Bridge,
		PodCIDRs:       cfg.PodCIDRs(),
		RequirePodCIDR: cfg.RequirePodCIDR,
		NonMasquerade:  cfg.NonMasquerades(),
		MTU:            cfg.MTU,
		Metrics:        d.metrics,
		Logger:         d.log,
	})
	if err != nil {
		return fmt.Errorf("make the pods' network: %w", err)
	}
	d.onClose(d.network.Close)
	return nil
}

func (d *parts) reachKeeper(ctx context.Context) error {
	binary, err := keeperBinary(d.cfg)
	if err != nil {
		return err
	}
	d.keeper, err = keeper.Connect(ctx, keeper.Config{
		Dir:    d.keeperDir(),
		Binary: binary,
		Await:  binary == "",
		// Those of a keeper that is started again after a reload, too.
		Args:        func() []string { return []string{"--log-level=" + d.now.Load().LogLevel} },
		EscrowAfter: d.opened,
		Logger:      d.log,
	})
	if binary == "" && errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("reach the keeper: %w: state is %s, so the service that starts the keeper has to give it --dir %s",
			err, d.cfg.State, d.keeperDir())
	}
	if err != nil {
		return fmt.Errorf("reach the keeper: %w", err)
	}
	d.onClose(d.keeper.Close)
	if err := rootid.Match(ctx, &layout.Dirs{Root: d.cfg.Root, State: d.cfg.State}, d.keeper, d.log); err != nil {
		return err
	}
	return d.moveKeeper(ctx)
}

func (d *parts) openDevices(context.Context) (err error) {
	if d.devices, err = deviceManager(d.cfg, d.log); err != nil || d.devices == nil {
		return err
	}
	d.onClose(d.devices.Close)
	return nil
}

// openPlugins makes the interface for NRI plugins, where the configuration has one.
func (d *parts) openPlugins(context.Context) error {
	cfg := &d.cfg.NRI
	if cfg.Enable == config.NRIOff {
		return nil
	}
	v := &cfg.DefaultValidator
	d.plugins = nri.New(nri.Config{
		// The validator refuses containers also where no plugin has ever been, since it may ask for some.
		Version: version, Auto: cfg.Enable == config.NRIAuto && !v.Enable,
		Socket: cfg.SocketPath, PluginDir: cfg.PluginPath,
		ConfigDir: cfg.PluginConfigPath, RegistrationTimeout: time.Duration(cfg.RegistrationTimeout),
		RequestTimeout: time.Duration(cfg.RequestTimeout), DisableConnections: cfg.DisableConnections,
		Validator: nri.Validator{
			Enable: v.Enable, RejectOCIHookAdjustment: v.RejectHooks,
			RejectRuntimeDefaultSeccompAdjustment: v.RejectSeccompDefault,
			RejectUnconfinedSeccompAdjustment:     v.RejectUnconfined,
			RejectCustomSeccompAdjustment:         v.RejectCustomSeccomp,
			RejectNamespaceAdjustment:             v.RejectNamespaces, RejectSysctlAdjustment: v.RejectSysctls,
			RequiredPlugins: v.RequiredPlugins, TolerateMissingAnnotation: v.TolerateMissingPlugin,
		},
		Metrics: d.metrics, Log: d.log,
	})
	return nil
}

func (d *parts) openPods(ctx context.Context) error {
	info, err := d.keeper.Info(ctx)
	if err != nil {
		return fmt.Errorf("reach the keeper: %w", err)
	}
	d.bounding, err = ocispec.Bounding(info.PID)
	if err != nil {
		return fmt.Errorf("read the capabilities of the keeper: %w", err)
	}
	d.openAppArmor()
	confinement, err := d.loadAppArmor(ctx)
	if err != nil {
		return err
	}
	d.appArmorInfo.Store(confinement)
	host, err := ocispec.Detect()
	if err != nil {
		return err
	}
	known, err := handlers(d.cfg, host, d.bounding, confinement.DefaultProfile)
	if err != nil {
		return err
	}
	warnOfOldKeeper(info, known, d.cfg, d.log)
	if d.audit, err = audit.Open(d.cfg.Audit.File, d.log); err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	d.onClose(d.audit.Close)
	classes, err := blockio.Load(d.cfg.BlockIOClasses, d.log)
	if err != nil {
		return fmt.Errorf("block_io_classes_file: %w", err)
	}
	d.owners = d.probeOwners(ctx)
	cfg := pod.Config{
		OwnersMapped:  d.owners,
		Settings:      podSettings(d.cfg, known, classes),
		Root:          d.cfg.Root,
		State:         d.cfg.State,
		NetNSDir:      d.cfg.Network.NetNSDir,
		CgroupRoot:    cgroupRoot(d.cfg, d.systemd),
		SystemdCgroup: d.systemd,
		ScopeAfter:    scopeAfter(info.PID),
		Audit:         d.audit,
		AppArmor:      d.appArmor,
		Keeper:        d.keeper,
		Images:        d.images,
		Network:       d.network,
		Disk:          d.disk,
		PreparedPods:  d.cfg.Network.PreparedPods,
		Jail:          d.children,
		Ahead:         d.ahead,
		Metrics:       d.metrics,
		Log:           d.log,
	}
	if d.devices != nil {
		cfg.Devices = d.devices
	}
	if d.plugins != nil {
		cfg.Plugins = d.plugins
	}
	if d.pods, err = pod.New(ctx, cfg); err != nil {
		return err
	}
	d.onClose(d.pods.Close)
	open, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var ahead sync.WaitGroup
	ahead.Go(func() { compileSeccomp(open, d.keeper, known, d.log) })
	ahead.Go(warmUp)
	d.onClose(func() error {
		cancel()
		ahead.Wait()
		return nil
	})
	if d.plugins != nil {
		// Only now there is something to tell them of.
		if err := d.plugins.Serve(d.pods); err != nil {
			return err
		}
		d.onClose(d.plugins.Close)
	}
	if d.devices != nil {
		// Only now it knows which devices are held.
		if err := d.devices.Serve(); err != nil {
			return fmt.Errorf("device_plugins: %w", err)
		}
	}
	return nil
}

func (d *parts) openStreams(context.Context) (err error) {
	if d.streams, err = newStreams(d.cfg, d.pods, d.metrics, d.log); err != nil {
		return err
	}
	d.onClose(func() error {
		end, cancel := context.WithTimeout(context.Background(), time.Duration(d.now.Load().ShutdownTimeout))
		defer cancel()
		return d.streams.Close(end)
	})
	return d.pods.ReserveStreams(d.streams.Address())
}

func (d *parts) serveMetrics(context.Context) error {
	if d.metrics == nil {
		return nil
	}
	err := d.metrics.Add(metrics.Sources{
		Pods: d.pods.CountSandboxes, Containers: d.pods.CountContainers, Readings: d.pods.OldestReadings,
		Images: func() metrics.ImageNumbers { return d.images.Numbers(context.Background()) },
		Keeper: d.keeperNumbers,
	})
	if err != nil {
		return err
	}
	if d.devices != nil {
		if err := d.metrics.Registry().Register(d.devices); err != nil {
			return err
		}
	}
	end, err := serveMetrics(d.cfg, d.metrics.Registry(), d.log)
	if err != nil {
		return err
	}
	d.onClose(end)
	return nil
}

func (d *parts) keeperNumbers(ctx context.Context) (*metrics.KeeperNumbers, error) {
	info, err := d.keeper.Info(ctx)
	if err != nil {
		return nil, err
	}
	n := &metrics.KeeperNumbers{StartedAt: info.StartedAt, Upgrades: info.Upgrades, Containers: info.Containers}
	if c := info.Counts; c != nil {
		n.Counts = &metrics.KeeperCounts{
			Execs: c.Execs, Holders: c.Holders, Queue: c.Queue, Backlog: c.Backlog,
			LogBytes: c.LogBytes, LogLinesCut: c.LogLinesCut, LogDropped: c.LogDropped,
			LogRotations: c.LogRotations, LogRemovedBytes: c.LogRemovedBytes, LogLimitedLines: c.LogLimitedLines,
			LogLimitedBytes: c.LogLimitedBytes, LogHeld: c.LogHeld,
		}
	}
	return n, nil
}

// register makes the server with all APIs.
func (d *parts) register(context.Context) (err error) {
	server := cri.ServerConfig{Log: d.log, Names: fieldNames(), InFlight: &d.calls, Failed: d.disk.Suspect}
	if d.metrics != nil {
		server.Metrics = d.metrics.Registry()
	}
	if d.server, err = cri.NewServer(server); err != nil {
		return err
	}
	named := version
	if d.cfg.RuntimeName == config.NameContainerd {
		named = containerd.Version(version)
	}
	deps := criv1.Deps{
		Runtime:     d.pods,
		Images:      d.images,
		Streams:     d.streams,
		Version:     version,
		Name:        d.cfg.RuntimeName,
		NameVersion: named,
		Info:        d.info,
		Log:         d.log,
	}
	deps.CreateHostPaths = d.createsHostPaths(config.APIv1)
	criv1.Register(d.server, deps)
	deps.CreateHostPaths = d.createsHostPaths(config.APIv1alpha2)
	v1alpha2.Register(d.server, deps, d.pods, d.pods)
	criv1alpha1.Register(d.server, criv1alpha1.Deps{
		Runtime: d.pods, Images: d.images, Version: version, Name: d.cfg.RuntimeName, NameVersion: named,
		CreateHostPaths: d.createsHostPaths(config.APIv1alpha1),
	})
	own := berthv1.Deps{
		Images: d.images, Archive: export.New(d.images, image.ChildrenOf(d.children), d.log),
		Containers: d.pods, Streams: d.streams, Volumes: d.pods, Audit: d.audit,
	}
	if d.devices != nil {
		own.Devices = d.devices
	}
	berthv1.Register(d.server, own)
	monitors := containerd.New(containerd.Deps{
		Runtime: d.pods, Images: d.images, Version: version, UUID: nodeUUID(d.cfg.Root), Log: d.log,
	})
	monitors.Register(d.server)
	d.onClose(monitors.Close)
	return nil
}

// createsHostPaths tells whether a version of the CRI has missing host paths made, at the time of a call.
func (d *parts) createsHostPaths(api string) func() bool {
	return func() bool { return d.now.Load().CreatesHostPaths(api) }
}

// keeperPatience is how long the keeper may take to tell of itself in a Status, which is of use without that.
const keeperPatience = 2 * time.Second

// info is what a verbose Status tells of the daemon.
func (d *parts) info(ctx context.Context) map[string]any {
	info := map[string]any{
		"pid": os.Getpid(), "config": d.now.Load().Config, "streaming": d.streams.Address(),
		"images":   map[string]any{"unsynced": d.images.Unsynced()},
		"apparmor": d.appArmorInfo.Load(),
	}
	if err := d.owners(); err != nil {
		info["user_namespaces"] = map[string]string{"reason": err.Error()}
	}
	if d.plugins != nil {
		info["nri"] = d.plugins.Report()
	}
	if v := d.images.Verifiers(); v != nil {
		info["image_verifiers"] = v
	}
	ctx, cancel := context.WithTimeout(ctx, keeperPatience)
	defer cancel()
	if k, err := d.keeper.Info(ctx); err == nil {
		info["keeper"] = k
	}
	return info
}
