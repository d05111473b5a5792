package nri

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/nri/pkg/adaptation"
	nrilog "github.com/containerd/nri/pkg/log"
	validator "github.com/containerd/nri/plugins/default-validator"
	"golang.org/x/sync/semaphore"

	"berth/internal/metrics"
	"berth/internal/model"
	"berth/internal/unixsocket"
)

// Config says where plugins are and how long they may take.
type Config struct {
	Version string // of berthd
	// Auto has plugins looked for, also while berthd runs: the interface starts when there is a plugin in PluginDir, or
	// when somebody has made the directory of Socket or ConfigDir. Else it starts at once.
	Auto                bool
	Socket              string
	PluginDir           string
	ConfigDir           string
	RegistrationTimeout time.Duration
	RequestTimeout      time.Duration
	DisableConnections  bool // only plugins in PluginDir
	Validator           Validator
	Metrics             *metrics.Set // nil: nothing is measured
	Log                 *slog.Logger
}

// Validator is the configuration of the built-in validator.
type Validator = validator.DefaultValidatorConfig

// Plugins are the node's NRI plugins. Its methods may be called concurrently.
type Plugins struct {
	cfg  Config
	log  *slog.Logger
	node Node

	// gate is held for reading by Hold, and for writing while the interface starts.
	gate    sync.RWMutex
	runtime atomic.Pointer[adaptation.Adaptation] // nil: the interface has not started, or has ended
	count   atomic.Int64                          // of plugins that are connected and know what is there

	// turn lets one event at a time go to the plugins, which have an order. To wait for it honours deadlines, which the
	// library's own lock does not.
	turn *semaphore.Weighted
	mu   sync.Mutex // guards what follows
	// known is how far plugins know of a pod's or container's life, by ID.
	known map[string]knowledge
	// addresses are those that pods had when they were stopped, by ID: plugins are told of them at the removal, too.
	addresses map[string][]string
	failure   string // why the interface did not start when this was tried last; empty: it started, or was not tried
	// joined are the plugins that have ever joined, by their names with an index.
	joined map[string]bool
	// failed are the plugins that have failed in this turn, by their names with an index. answered are those that have
	// answered, and lost those that the library has dropped, by both of their names: 10-name and name.
	failed         map[string]error
	answered, lost map[string]bool

	background sync.WaitGroup
	ctx        context.Context
	stop       context.CancelFunc
}

// knowledge is what plugins were told of a pod or a container last. One that they know nothing of has no entry.
type knowledge int

const (
	lives knowledge = iota + 1
	stopped
)

// applyPatience is how long an update of a plugin waits for what else happens to its container.
const applyPatience = 10 * time.Second

// lookForPlugins is how often a node that has none is looked at, with Config.Auto.
const lookForPlugins = 3 * time.Second

// New makes the interface. It does nothing before Serve.
func New(cfg Config) *Plugins {
	p := &Plugins{cfg: cfg, log: cfg.Log, turn: semaphore.NewWeighted(1), known: map[string]knowledge{},
		addresses: map[string][]string{}, failed: map[string]error{}, answered: map[string]bool{}, lost: map[string]bool{},
		joined: map[string]bool{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

// Serve starts the interface for a node, or looks for plugins from now on. With Config.Auto, an interface that cannot
// start, such as for a program among the plugins that is none, keeps no node from running pods: the start is tried
// again.
func (p *Plugins) Serve(node Node) error {
	p.node = node
	if !p.cfg.Auto {
		return p.start()
	}
	said := ""
	if p.cfg.wanted() {
		err := p.start()
		p.keepFailure(err)
		switch {
		case err == nil:
			return nil
		case errdefs.IsAlreadyExists(err):
			p.log.Warn("NRI plugins are another runtime's: berthd takes them when it has gone", "error", err)
		default:
			said = p.sayNotStarted(err, said)
		}
	}
	p.background.Go(func() { p.look(said) })
	return nil
}

// sayNotStarted logs why the interface has not started, unless that is what was said before, and returns what was said.
func (p *Plugins) sayNotStarted(err error, before string) string {
	text := err.Error()
	if text != before {
		p.log.Error("start the interface for NRI plugins: it is tried again", "error", err)
	}
	return text
}

// wanted tells whether somebody has made a place for plugins on the node.
func (c *Config) wanted() bool {
	for _, dir := range []string{c.ConfigDir, filepath.Dir(c.Socket)} {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return true
		}
	}
	entries, err := os.ReadDir(c.PluginDir)
	return err == nil && len(entries) > 0
}

// look starts the interface once there is a plugin. said is the last error that the log has.
func (p *Plugins) look(said string) {
	tick := time.NewTicker(lookForPlugins)
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
		}
		if !p.cfg.wanted() {
			continue
		}
		err := p.start()
		p.keepFailure(err)
		if err == nil {
			return
		}
		if !errdefs.IsAlreadyExists(err) {
			said = p.sayNotStarted(err, said)
		}
	}
}

func (p *Plugins) start() error {
	if !p.cfg.DisableConnections {
		// The library would take the socket of another runtime away.
		if err := unixsocket.CheckStale(p.cfg.Socket); err != nil {
			return fmt.Errorf("nri: %w", err)
		}
	}
	adaptation.SetPluginRegistrationTimeout(p.cfg.RegistrationTimeout)
	adaptation.SetPluginRequestTimeout(p.cfg.RequestTimeout)
	nrilog.Set(library{p.log})
	options := []adaptation.Option{
		adaptation.WithPluginPath(p.cfg.PluginDir), adaptation.WithPluginConfigPath(p.cfg.ConfigDir),
		adaptation.WithSocketPath(p.cfg.Socket), adaptation.WithDefaultValidator(&p.cfg.Validator),
		adaptation.WithMetrics(observer{p}),
	}
	if p.cfg.DisableConnections {
		options = append(options, adaptation.WithDisabledExternalConnections())
	}
	runtime, err := adaptation.New("berth", p.cfg.Version, p.synchronize, p.updateUnsolicited, options...)
	if err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	p.gate.Lock()
	defer p.gate.Unlock()
	if err := runtime.Start(); err != nil {
		runtime.Stop()
		return fmt.Errorf("nri: %w", err)
	}
	if !p.cfg.DisableConnections {
		// A plugin can do what root can, whatever umask and directory the socket was made with and in.
		if err := os.Chmod(p.cfg.Socket, 0o600); err != nil {
			runtime.Stop()
			return fmt.Errorf("nri: %w", err)
		}
	}
	p.runtime.Store(runtime)
	p.log.Info("NRI plugins may connect", "path", p.cfg.Socket)
	return nil
}

// keepFailure keeps why the interface has not started, for Report. nil: it has started.
func (p *Plugins) keepFailure(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failure = ""
	if err != nil {
		p.failure = err.Error()
	}
}

// Report is the state of the interface, for people.
type Report struct {
	Serving bool   `json:"serving"`
	Socket  string `json:"socket,omitempty"` // empty: plugins cannot connect
	Plugins int    `json:"plugins"`          // that are connected, the built-in validator included
	Failure string `json:"failure,omitempty"`
	// NotRunning are the programs of the plugin directory that have not joined, or that were dropped. One that has ended
	// while no call waited for it is not among them.
	NotRunning []string `json:"notRunning,omitempty"`
}

// Report tells whether the interface runs, and why not where it should.
func (p *Plugins) Report() Report {
	r := Report{Serving: p.runtime.Load() != nil, Plugins: int(p.count.Load())}
	var programs []string
	if r.Serving {
		programs = p.cfg.programs()
	}
	if !p.cfg.DisableConnections {
		r.Socket = p.cfg.Socket
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r.Failure = p.failure
	for _, name := range programs {
		if !p.joined[name] || p.lost[name] {
			r.NotRunning = append(r.NotRunning, name)
		}
	}
	return r
}

// programs are the names of the programs in the directory of plugins, as the library finds them.
func (c *Config) programs() (names []string) {
	entries, err := os.ReadDir(c.PluginDir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && !e.IsDir() && info.Mode().Perm()&0o111 != 0 {
			names = append(names, e.Name())
		}
	}
	return names
}

// Close ends the plugins that berthd has started, and lets the others go.
func (p *Plugins) Close() error {
	p.stop()
	p.background.Wait()
	if runtime := p.runtime.Swap(nil); runtime != nil {
		runtime.Stop()
	}
	return nil
}

// heldKey marks a context whose owner holds plugins back: to do so twice could wait for ever for a plugin that joins.
type heldKey struct{}

// Hold keeps plugins from joining until release is called, so that one that joins is told once of each pod and
// container: of those that are there, or of those that come. present is false where there is no plugin to be told of
// anything. The error is that ctx has ended before a plugin that joins did.
func (p *Plugins) Hold(ctx context.Context) (held context.Context, release func(), present bool, err error) {
	if ctx.Value(heldKey{}) != nil {
		return ctx, func() {}, p.count.Load() > 0, nil
	}
	held = context.WithValue(ctx, heldKey{}, true)
	taken := p.gate.TryRLock()
	if taken && p.runtime.Load() == nil {
		return held, sync.OnceFunc(p.gate.RUnlock), false, nil
	}
	got := make(chan func(), 1)
	go func() {
		if !taken {
			p.gate.RLock()
		}
		runtime := p.runtime.Load()
		if runtime == nil {
			got <- p.gate.RUnlock
			return
		}
		block := runtime.BlockPluginSync()
		got <- func() { block.Unblock(); p.gate.RUnlock() }
	}()
	select {
	case unlock := <-got:
		return held, sync.OnceFunc(unlock), p.count.Load() > 0, nil
	case <-ctx.Done():
		go func() { (<-got)() }()
		return ctx, func() {}, false, fmt.Errorf("wait for an NRI plugin that joins: %w", ctx.Err())
	}
}

// synchronize tells a plugin that joins what is there.
func (p *Plugins) synchronize(ctx context.Context, tell adaptation.SyncCB) error {
	pods, containers := p.node.Present()
	var toldPods []*adaptation.PodSandbox
	var toldContainers []*adaptation.Container
	p.mu.Lock()
	for i := range pods {
		toldPods = append(toldPods, podOf(&pods[i]))
		p.meet(pods[i].ID)
	}
	for i := range containers {
		toldContainers = append(toldContainers, containerOf(&containers[i]))
		p.meet(containers[i].ID)
	}
	p.mu.Unlock()
	updates, err := tell(ctx, toldPods, toldContainers)
	if err != nil {
		return err
	}
	// Nobody may hold a container and wait for this plugin to have joined, while this waits for the container.
	p.background.Go(func() { p.apply(p.ctx, updates, "", applyPatience) })
	return nil
}

// meet notes that plugins know of a pod or container. The caller holds mu.
func (p *Plugins) meet(id string) {
	if p.known[id] == 0 {
		p.known[id] = lives
	}
}

// updateUnsolicited does what a plugin asks for by itself. It returns what could not be done.
func (p *Plugins) updateUnsolicited(ctx context.Context,
	updates []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
	failed, err := p.apply(ctx, updates, "", applyPatience)
	return failed, err
}

// apply changes containers as plugins want, each within patience, but for the one that the caller holds.
func (p *Plugins) apply(ctx context.Context, updates []*adaptation.ContainerUpdate, but string,
	patience time.Duration) (failed []*adaptation.ContainerUpdate, err error) {
	for _, u := range updates {
		if u == nil || u.ContainerId == but {
			continue
		}
		p.sayUnsettable(u)
		bounded, cancel := context.WithTimeout(ctx, patience)
		one := p.node.Apply(bounded, Update{
			ContainerID: u.ContainerId, Resources: resourcesOf(u.GetLinux().GetResources(), nil),
		})
		cancel()
		if errdefs.IsNotFound(one) {
			// The plugin has not been told yet. containerd and CRI-O count it as done, too.
			p.log.Info("an NRI plugin updates a container that is gone or has ended", "container_id", u.ContainerId,
				"reason", one)
			continue
		}
		if one == nil || u.IgnoreFailure {
			continue
		}
		p.log.Warn("an update that an NRI plugin wants failed", "container_id", u.ContainerId, "error", one)
		failed = append(failed, u)
		if err == nil {
			err = fmt.Errorf("update container %s: %w", u.ContainerId, one)
		}
	}
	return failed, err
}

// sayUnsettable logs what of an update is left out. The rest is done: plugins send the classes of a container, which
// hold from its start on, with limits that change.
func (p *Plugins) sayUnsettable(u *adaptation.ContainerUpdate) {
	if names := unsettable(u.GetLinux().GetResources(), true); len(names) > 0 {
		p.log.Warn("limits that an NRI plugin wants of a container that exists are left out", "container_id",
			u.GetContainerId(), "problem", "not supported: "+strings.Join(names, ", "))
	}
}

// inTurn tells plugins of something when it is its turn. It does nothing where the interface does not run.
func (p *Plugins) inTurn(ctx context.Context, tell func(*adaptation.Adaptation) error) error {
	runtime := p.runtime.Load()
	if runtime == nil {
		return nil
	}
	if err := p.turn.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait until NRI plugins have answered to others: %w", err)
	}
	defer p.turn.Release(1)
	p.beginTurn()
	defer p.endTurn(ctx, p.count.Load())
	return tell(runtime)
}

// pass notes that plugins are being told of the next part of an object's life, and tells whether they are to be told:
// whether they know the object, and not yet of that part. 0 is that it is gone.
func (p *Plugins) pass(id string, next knowledge) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	was := p.known[id]
	switch next {
	case lives:
		p.known[id] = lives
		return true
	case stopped:
		if was == lives {
			p.known[id] = stopped
		}
		return was == lives
	}
	delete(p.known, id)
	return was != 0
}

// Forget drops what is known of a pod or container that is gone, of whose removal plugins were not told.
func (p *Plugins) Forget(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.known, id)
	delete(p.addresses, id)
}

func (p *Plugins) keepAddresses(id string, ips []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addresses[id] = ips
}

func (p *Plugins) takeAddresses(id string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ips := p.addresses[id]
	delete(p.addresses, id)
	return ips
}

// Tell tells plugins of an event of a pod, or of a container in it. The error of RunPod and of StartContainer is that a
// plugin does not want it to happen, or that a required one has not answered.
func (p *Plugins) Tell(ctx context.Context, event Event, pod *Pod, c *Container) error {
	return p.inTurn(ctx, func(runtime *adaptation.Adaptation) error {
		toldPod := podOf(pod)
		var told *adaptation.Container
		if c != nil {
			told = containerOf(c)
		}
		switch event {
		case RunPod:
			p.pass(pod.ID, lives)
			if err := runtime.RunPodSandbox(ctx, &adaptation.RunPodSandboxRequest{Pod: toldPod}); err != nil {
				return err
			}
			return p.requireAnswers(toldPod, "")
		case PodUpdated:
			return runtime.PostUpdatePodSandbox(ctx, &adaptation.PostUpdatePodSandboxRequest{Pod: toldPod})
		case StopPod:
			if p.pass(pod.ID, stopped) {
				p.keepAddresses(pod.ID, toldPod.Ips)
				return runtime.StopPodSandbox(ctx, &adaptation.StopPodSandboxRequest{Pod: toldPod})
			}
		case RemovePod:
			ips := p.takeAddresses(pod.ID)
			if p.pass(pod.ID, 0) {
				toldPod.Ips = ips
				return runtime.RemovePodSandbox(ctx, &adaptation.RemovePodSandboxRequest{Pod: toldPod})
			}
		case ContainerCreated:
			return runtime.PostCreateContainer(ctx, &adaptation.PostCreateContainerRequest{Pod: toldPod, Container: told})
		case StartContainer:
			err := runtime.StartContainer(ctx, &adaptation.StartContainerRequest{Pod: toldPod, Container: told})
			if err != nil {
				return err
			}
			return p.requireAnswers(toldPod, told.Name)
		case ContainerStarted:
			return runtime.PostStartContainer(ctx, &adaptation.PostStartContainerRequest{Pod: toldPod, Container: told})
		case ContainerUpdated:
			return runtime.PostUpdateContainer(ctx, &adaptation.PostUpdateContainerRequest{Pod: toldPod, Container: told})
		case RemoveContainer:
			if p.pass(c.ID, 0) {
				return runtime.RemoveContainer(ctx, &adaptation.RemoveContainerRequest{Pod: toldPod, Container: told})
			}
		}
		return nil
	})
}

// UpdatePod asks plugins whether the limits of a pod may change.
func (p *Plugins) UpdatePod(ctx context.Context, pod *Pod, overhead, resources *model.Resources) error {
	return p.inTurn(ctx, func(runtime *adaptation.Adaptation) error {
		_, err := runtime.UpdatePodSandbox(ctx, &adaptation.UpdatePodSandboxRequest{
			Pod: podOf(pod), OverheadLinuxResources: limitsOf(overhead), LinuxResources: limitsOf(resources),
		})
		return err
	})
}

// Create asks plugins about a container that is being created, and writes what they change to its specification. Other
// containers are changed as they want. changed are the limits among it; nil: none. An error is that a plugin refuses
// the container, wants what cannot be done, or is required and has not answered.
func (p *Plugins) Create(ctx context.Context, pod *Pod, c *Container,
	means Means) (changed *model.Resources, err error) {
	var reply *adaptation.CreateContainerResponse
	request := &adaptation.CreateContainerRequest{Pod: podOf(pod), Container: containerOf(c)}
	err = p.inTurn(ctx, func(runtime *adaptation.Adaptation) (err error) {
		p.pass(c.ID, lives)
		if reply, err = runtime.CreateContainer(ctx, request); err != nil {
			return err
		}
		return p.requireAnswers(request.Pod, request.Container.Name)
	})
	if err != nil || reply == nil {
		return nil, err
	}
	_, _ = p.apply(ctx, reply.Update, c.ID, p.cfg.RequestTimeout)
	if reply.Adjust == nil {
		return nil, nil
	}
	if err := adjust(c.Spec, reply.Adjust, request.Container, means); err != nil {
		return nil, err
	}
	if r := reply.Adjust.GetLinux().GetResources(); r != nil {
		changed = resourcesOf(r, nil)
	}
	return changed, nil
}

// Update asks plugins about new limits of a container, and returns those that they make of them.
func (p *Plugins) Update(ctx context.Context, pod *Pod, c *Container,
	wanted *model.Resources) (*model.Resources, error) {
	var reply *adaptation.UpdateContainerResponse
	err := p.inTurn(ctx, func(runtime *adaptation.Adaptation) (err error) {
		reply, err = runtime.UpdateContainer(ctx, &adaptation.UpdateContainerRequest{
			Pod: podOf(pod), Container: containerOf(c), LinuxResources: limitsOf(wanted),
		})
		return err
	})
	if err != nil || reply == nil {
		return wanted, err
	}
	_, _ = p.apply(ctx, reply.Update, c.ID, p.cfg.RequestTimeout)
	for _, u := range reply.Update {
		if u.GetContainerId() == c.ID {
			p.sayUnsettable(u)
			wanted = resourcesOf(u.GetLinux().GetResources(), wanted)
		}
	}
	return wanted, nil
}

// Stop tells plugins once that a container ends or has ended. Other containers are changed as they want.
func (p *Plugins) Stop(ctx context.Context, pod *Pod, c *Container) error {
	var reply *adaptation.StopContainerResponse
	err := p.inTurn(ctx, func(runtime *adaptation.Adaptation) (err error) {
		if !p.pass(c.ID, stopped) {
			return nil
		}
		reply, err = runtime.StopContainer(ctx, &adaptation.StopContainerRequest{Pod: podOf(pod), Container: containerOf(c)})
		return err
	})
	if err != nil || reply == nil {
		return err
	}
	_, _ = p.apply(ctx, reply.Update, c.ID, p.cfg.RequestTimeout)
	return nil
}

// Knows tells whether plugins know a pod or container, and were not told that it has ended.
func (p *Plugins) Knows(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[id] == lives
}
