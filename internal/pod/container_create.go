package pod

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/annotation"
	"berth/internal/blockio"
	"berth/internal/checkpoint"
	"berth/internal/disk"
	"berth/internal/image"
	keeper "berth/internal/keeper/client"
	"berth/internal/loglimit"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/nri"
	"berth/internal/ocispec"
	"berth/internal/pod/checkpoints"
	"berth/internal/pod/index"
	"berth/internal/pod/layout"
	"berth/internal/pod/operation"
	"berth/internal/pod/parts"
	"berth/internal/pod/prepared"
	"berth/internal/pod/record"
	"berth/internal/pod/steps"
	"berth/internal/pod/storage"
	"berth/internal/quota"
)

// CreateContainer prepares a container in a pod: its root file system and its specification. It returns the
// container's ID. What it makes, and how that is undone when it fails, is in creation.steps.
//
// A sandbox that is not ready is errdefs.ErrFailedPrecondition, an image that is not on the node errdefs.ErrNotFound, a
// name in use errdefs.ErrAlreadyExists.
func (m *Manager) CreateContainer(ctx context.Context, sandboxID string, cfg *model.ContainerConfig) (string, error) {
	s, err := m.index.Sandbox(sandboxID)
	if err != nil {
		return "", err
	}
	return m.createContainer(ctx, &creation{m: m, id: record.NewID(), sandbox: s, cfg: cfg})
}

func (m *Manager) createContainer(ctx context.Context, cr *creation) (string, error) {
	cfg, s := cr.cfg, cr.sandbox
	release, err := s.Share(ctx, "create container in")
	if err != nil {
		return "", err
	}
	defer release()
	defer m.prepared.Busy(prepared.PodStep)()
	if m.index.Gone(s) {
		return "", fmt.Errorf("pod sandbox %q: %w", s.ID(), errdefs.ErrNotFound)
	}
	cr.pod = s.Record()
	if err := cr.check(); err != nil {
		return "", err
	}
	log := m.log.With("container", cfg.Metadata.Name, "container_id", cr.id)
	defer cr.unlock()
	if _, err := steps.Run(ctx, log, cr.steps(), cr.finish); err != nil {
		return "", fmt.Errorf("create container %s: %w", cfg.Metadata.Name, disk.Exhausted(err))
	}
	for _, w := range cr.out.Warnings {
		log.Warn(w)
	}
	if !s.Making() {
		m.events.Tell(s, cr.id, model.EventCreated)
	}
	cr.letJoin()
	m.relay.Tell(ctx, nri.ContainerCreated, s, cr.container)
	return cr.id, nil
}

// creation is a container that is being created. Its fields are filled by its steps, in their order.
type creation struct {
	m       *Manager
	sandbox *index.Sandbox
	pod     record.Sandbox // as it is while the container is created, which keeps it from changing
	id      string

	cfg     *model.ContainerConfig // as it was asked for; check and register make copies
	handler Handler
	rec     record.Container // what check knows of the record; register makes it whole
	quotaID quota.ID

	img       *model.Image
	restoring *checkpoints.Restoring // nil: the container is not made from a checkpoint

	// member is what the checkpoint of a pod, in the directory memberOf, has of the container; nil: the pod is not made
	// from one.
	member   *checkpoint.PodContainer
	memberOf string

	container *index.Container
	release   func() // lets others have the container; nil: it is not registered

	layers *image.Layers
	root   string // where its root file system is mounted
	limits *storage.Limits
	mounts []model.Mount
	images map[string]ocispec.ImageMount // by container path
	edits  []model.Edits                 // what its devices add to it
	out    *ocispec.Output

	classLimits *model.BlockIO // of the class of block I/O that a plugin has chosen; nil: none

	joinable      func()         // lets plugins join; nil: they were not kept from it
	pluginTimings []steps.Timing // how long plugins took
}

// check refuses what needs no resource to be refused.
func (cr *creation) check() (err error) {
	cfg, pod := cr.cfg, &cr.pod
	if pod.Phase != record.SandboxReady {
		return fmt.Errorf("create container %s in pod sandbox %s: %w", cfg.Metadata.Name, record.ShortID(pod.ID),
			errSandboxNotReady)
	}
	if cfg.Security.Privileged && !pod.Config.Security.Privileged && !cfg.PodPrivileged {
		return fmt.Errorf(
			"create container %s in pod sandbox %s: it is privileged, and the sandbox was not made for that: %w",
			cfg.Metadata.Name, record.ShortID(pod.ID), errdefs.ErrInvalidArgument)
	}
	if cfg.Security.Privileged && pod.Config.UserNamespace() != nil { // checkUserNamespace refuses such pods as a whole
		return fmt.Errorf(
			"create container %s in pod sandbox %s: it is privileged, and the pod has a user namespace: %w",
			cfg.Metadata.Name, record.ShortID(pod.ID), errdefs.ErrInvalidArgument)
	}
	if err := checkNamespaces(cfg, pod.Config); err != nil {
		return fmt.Errorf("create container %s in pod sandbox %s: %w", cfg.Metadata.Name, record.ShortID(pod.ID), err)
	}
	if cr.handler, err = cr.m.settings.Load().handlerOf(pod); err != nil {
		return fmt.Errorf("create container %s in pod sandbox %s: %w", cfg.Metadata.Name, record.ShortID(pod.ID), err)
	}
	if err := cr.checkEnv(); err != nil {
		return err
	}
	if cfg, cr.rec.Ignored, err = annotation.Apply(cfg, pod.Config, cr.handler.AllowedAnnotations); err != nil {
		return fmt.Errorf("create container: %w", err)
	}
	if cfg, err = cr.classify(cfg); err != nil {
		return fmt.Errorf("create container %s: %w", cfg.Metadata.Name, err)
	}
	for key, why := range cr.rec.Ignored {
		cr.m.log.Warn("an annotation is ignored", "container", cfg.Metadata.Name, "pod_id", pod.ID, "annotation", key,
			"reason", why)
	}
	if cr.rec.LogPath, err = logPath(pod.Config.LogDirectory, cfg.LogPath); err != nil {
		return err
	}
	if cr.rec.LogLimits, err = logLimits(cr.m.settings.Load().Log, cfg.Log, cfg.RotateLog); err != nil {
		return fmt.Errorf("create container %s: %w", cfg.Metadata.Name, err)
	}
	if err := storage.CheckVolumes(cfg); err != nil {
		return err
	}
	if cr.quotaID, err = storage.CheckQuotas(cfg); err != nil {
		return err
	}
	if cr.rec.Label, err = pod.Label.Of(cfg.Security.SELinux); err != nil {
		return err
	}
	cr.cfg = withPodPID(cfg, pod.Config)
	return nil
}

// classify returns the configuration with the limits of the class of block I/O that an annotation names. Limits of the
// container's own hold against those of a class.
func (cr *creation) classify(cfg *model.ContainerConfig) (*model.ContainerConfig, error) {
	class, key := blockio.Of(cfg.Metadata.Name, cfg.Annotations, cr.pod.Config.Annotations)
	if class == "" || cfg.Resources != nil && cfg.Resources.BlockIO != nil {
		return cfg, nil
	}
	classes := cr.m.settings.Load().BlockIO
	if classes == nil {
		if cr.rec.Ignored == nil {
			cr.rec.Ignored = map[string]string{}
		}
		cr.rec.Ignored[key] = "block_io_classes_file is empty: this node has no classes of block I/O"
		return cfg, nil
	}
	limits, err := classes.Get(class)
	if err != nil {
		return cfg, fmt.Errorf("annotation %s: %w", key, err)
	}
	out, resources := *cfg, model.Resources{}
	if cfg.Resources != nil {
		resources = *cfg.Resources
	}
	resources.BlockIO = limits
	out.Resources = &resources
	return &out, nil
}

// steps are the parts of a creation. steps.Run undoes them.
func (cr *creation) steps() []steps.Step {
	m := cr.m
	return []steps.Step{
		{Do: cr.findImage, Undo: cr.releaseImages},
		{Do: cr.register, Undo: cr.forget},
		{Name: "write the container's record", Do: cr.writeRecord},
		{Name: "add a reference to the image's layers", Do: cr.addReference, Undo: cr.releaseImages},
		{Name: "unpack the checkpoint", Do: cr.unpackCheckpoint},
		{
			Name: "mount the root file system", Do: cr.mountRoot,
			Undo: func(context.Context) error { return m.storage.UnmountRoot(&cr.pod, cr.id) },
		},
		{
			Name: "take disk quotas", Do: cr.takeQuotas,
			Undo: func(context.Context) error { m.storage.Quotas.Release(cr.id); return nil },
		},
		{
			Name: "fill the volumes", Do: cr.fillVolumes,
			Undo: func(context.Context) error { m.storage.Volumes.Release(cr.id); return nil },
		},
		{
			Name: "mount the images of volumes", Do: cr.mountImages,
			Undo: func(context.Context) error { return m.storage.UnmountImages(cr.id, cr.cfg) },
		},
		{
			Name: "allocate devices", Do: cr.allocateDevices,
			Undo: func(context.Context) error { m.devices.Cancel(cr.container); return nil },
		},
		{Name: buildStep, Do: cr.buildSpec, Undo: cr.forgetByPlugins},
	}
}

// buildStep is the step that plugins are asked in.
const buildStep = "build the specification"

// findImage finds the image of the root file system, and the checkpoint that the container is made from, whose layer
// it holds.
func (cr *creation) findImage(ctx context.Context) (err error) {
	if cr.member != nil {
		cr.img, cr.restoring, err = cr.m.checkpoints.FindIn(ctx, cr.cfg, cr.memberOf, cr.member)
	} else {
		cr.img, cr.restoring, err = cr.m.checkpoints.Find(ctx, cr.cfg, cr.id)
	}
	if err == nil && cr.img.Artifact != "" {
		err = model.FieldContainerImage.Wrong(fmt.Errorf("%s is not an image but an artifact of type %s: it has no root "+
			"file system that a container could run from, and can only be mounted as an image volume: %w", cr.cfg.Image.Image,
			cr.img.Artifact, errdefs.ErrInvalidArgument))
	}
	if err != nil || cr.restoring == nil {
		return err
	}
	return cr.restorable()
}

// releaseImages ends the references to images that the container has.
func (cr *creation) releaseImages(context.Context) error {
	cr.m.cfg.Images.Release(cr.id)
	return nil
}

// register gives the container its name and makes it known, locked until the creation has ended.
func (cr *creation) register(context.Context) error {
	m := cr.m
	r := cr.rec
	r.ID, r.SandboxID, r.Phase = cr.id, cr.sandbox.ID(), record.ContainerCreating
	r.Config, r.Resources = cr.cfg, cr.cfg.Resources
	r.ImageID, r.ImageRef, r.Volumes = cr.img.ID, imageRef(cr.img), storage.DeclaredVolumes(cr.img)
	r.ImageTag = imageTag(cr.cfg.Image.Image, cr.img)
	r.Cgroup = m.cgroups.Dir(cr.pod.CgroupParent, cr.id)
	if cr.restoring != nil {
		cr.restoring.Dir = m.checkpoints.RestoreDir(cr.id)
		r.Restored = &cr.restoring.Restored
	}
	op, release := operation.Taken()
	c, err := m.index.AddContainer(m.containers, r, cr.sandbox, op)
	if err != nil {
		return err
	}
	cr.container, cr.release, cr.cfg = c, release, c.Record().Config
	return nil
}

// unlock lets others have the container, be it created or forgotten.
func (cr *creation) unlock() {
	cr.letJoin()
	if cr.release != nil {
		cr.release()
	}
}

// forget drops a container of which all later steps are undone. A mount that could not be undone is tried once more.
func (cr *creation) forget(context.Context) error {
	if cr.container == nil {
		return nil // its name was taken
	}
	err := cr.m.storage.UnmountContainer(cr.container.ContainerEntry, &cr.pod)
	cr.m.teardown.ForgetContainer(cr.container)
	return err
}

func (cr *creation) writeRecord(context.Context) error {
	return cr.container.Update(record.Save, func(*record.Container) {})
}

func (cr *creation) addReference(context.Context) (err error) {
	cr.layers, err = cr.m.cfg.Images.AddReference(cr.img.ID, cr.id)
	if err != nil || cr.layers.Remote == nil {
		return err
	}
	return cr.container.Update(record.Draft, func(r *record.Container) { r.RemoteLayers = true })
}

func (cr *creation) unpackCheckpoint(ctx context.Context) error {
	if cr.restoring == nil {
		return nil
	}
	hostname, err := parts.Hostname(cr.pod.Config)
	if err != nil {
		return err
	}
	// The root looks as in the image unless the checkpoint says otherwise.
	if err := cr.m.storage.MakeUpper(ctx, &cr.pod, cr.id, cr.rec.Label, cr.layers); err != nil {
		return err
	}
	return cr.m.checkpoints.Unpack(ctx, cr.id, hostname, cr.restoring)
}

func (cr *creation) mountRoot(ctx context.Context) (err error) {
	cr.root, err = cr.m.storage.MountRoot(ctx, &cr.pod, cr.id, cr.rec.Label, cr.layers)
	return err
}

// takeQuotas decides which declared volumes the container has of its own, and takes the quotas of all that it writes
// to.
func (cr *creation) takeQuotas(ctx context.Context) error {
	var own []string
	if !cr.handler.IgnoreDeclaredVolumes {
		var err error
		if own, err = storage.OwnVolumes(ctx, storage.DeclaredVolumes(cr.img), cr.root, cr.cfg); err != nil {
			return err
		}
	}
	if err := cr.container.Update(record.Draft, func(r *record.Container) { r.ImageVolumes = own }); err != nil {
		return err
	}
	var err error
	cr.limits, err = cr.m.storage.TakeQuotas(ctx, cr.container.ContainerEntry, cr.quotaID, cr.handler.DiskQuota)
	return err
}

func (cr *creation) fillVolumes(ctx context.Context) (err error) {
	m := cr.m
	cr.mounts, err = m.storage.FillVolumes(ctx, cr.container.ContainerEntry, &cr.pod, cr.layers, cr.root,
		cr.limits.Prepare(m.storage.Quotas))
	if err != nil {
		return err
	}
	return cr.limits.Mark(ctx, m.storage.Quotas)
}

func (cr *creation) mountImages(ctx context.Context) (err error) {
	cr.images, err = cr.m.storage.MountImages(ctx, cr.container.ContainerEntry, &cr.pod)
	return err
}

func (cr *creation) allocateDevices(ctx context.Context) (err error) {
	cr.edits, err = cr.m.devices.Allocate(ctx, cr.container, &cr.pod)
	return err
}

// buildSpec builds the specification and writes it beside the record.
func (cr *creation) buildSpec(ctx context.Context) error {
	built := *cr.cfg
	if cr.restoring != nil {
		built = *cr.restoring.AsWritten(cr.cfg)
	}
	built.Mounts = cr.mounts
	in, err := cr.specInput(&built)
	if err != nil {
		return err
	}
	if cr.out, err = ocispec.Build(ctx, *in); err != nil {
		return err
	}
	if cr.restoring != nil {
		if err := cr.restoring.Fit(cr.cfg, cr.out); err != nil {
			return err
		}
	}
	if err := cr.askPlugins(ctx); err != nil {
		return err
	}
	return cr.container.SaveSpec(cr.out.Spec)
}

// specInput is what the specification is built from.
func (cr *creation) specInput(cfg *model.ContainerConfig) (*ocispec.Input, error) {
	m, pod := cr.m, &cr.pod
	ns := m.dirs.NamespacePaths(pod)
	var err error
	if ns.PID, err = cr.pidNamespace(cfg); err != nil {
		return nil, err
	}
	shm := "/dev/shm"
	if pod.Config.OwnIPC() {
		shm = m.dirs.Shm(pod)
	}
	handler := cr.handler.Spec
	handler.InSandbox = pod.SandboxContainer && cr.handler.Shim == nil // shims are told as containerd tells them
	var scope *ocispec.Scope
	if m.cfg.SystemdCgroup {
		scope = &ocispec.Scope{After: m.cfg.ScopeAfter}
	}
	return &ocispec.Input{
		SandboxID:    pod.ID,
		Scope:        scope,
		ContainerID:  cr.id,
		Sandbox:      pod.Config,
		Container:    cfg,
		Image:        cr.img.Config,
		ImageName:    cfg.Image.Image,
		Rootfs:       cr.root,
		RemoteLayers: cr.layers.Remote != nil,
		Namespaces:   ns,
		CgroupsPath:  m.cgroups.Path(pod.CgroupParent, cr.id),
		Files: ocispec.PodFiles{
			Hosts:      m.dirs.File(pod.ID, layout.HostsFile),
			ResolvConf: m.dirs.File(pod.ID, layout.ResolvFile),
			Hostname:   m.dirs.File(pod.ID, layout.HostnameFile),
			Shm:        shm,
		},
		ImageMounts: cr.images,
		Edits:       cr.edits,
		Label:       cr.rec.Label,
		Handler:     handler,
	}, nil
}

// checkEnv refuses variables that the handler's engine cannot pass to a process, because it reads them from JSON.
func (cr *creation) checkEnv() error {
	var by string
	switch h := cr.handler; {
	case h.RuntimePath != "":
		by = "the config.json of " + h.RuntimePath
	case h.Setup == keeper.SetupLibcontainer:
		by = "libcontainer"
	default:
		return nil
	}
	for i, v := range cr.cfg.Env {
		if !utf8.ValidString(v.Value) {
			return fmt.Errorf("create container %s: config.envs[%d].value: the value of %s is not UTF-8, and %s, by which "+
				"runtime handler %q starts containers, has no place for it: %w", cr.cfg.Metadata.Name, i, v.Key, by,
				cr.handler.Name, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// finish records that the container is created.
func (cr *creation) finish(timings []steps.Timing) error {
	timings = append(timings, cr.pluginTimings...)
	cr.m.measureSteps("CreateContainer", timings)
	c, process := cr.container, *cr.out.Spec.Process
	return c.Update(record.Save, func(r *record.Container) {
		r.Phase = record.ContainerCreated
		r.User = cr.out.User
		r.StopSignal = cr.out.StopSignal
		r.SetProcess(&process)
		r.Timings = steps.NewHistory(timings)
	})
}

// imageRef is what a status reports as the reference of an image: a digest that a registry knows it by, else its ID.
func imageRef(img *model.Image) string {
	if len(img.RepoDigests) > 0 {
		return img.RepoDigests[0]
	}
	return img.ID
}

// imageTag is the first tag of an image that a client names by its ID, or by the beginning of it, as kubelets do. It
// is empty where the image has none, or is named otherwise.
func imageTag(named string, img *model.Image) string {
	id := strings.TrimPrefix(img.ID, "sha256:")
	if len(img.RepoTags) == 0 || !strings.HasPrefix(id, strings.TrimPrefix(named, "sha256:")) {
		return ""
	}
	return img.RepoTags[0]
}

// logPath is where a container's log goes: a path relative to the pod's log directory, and inside it. Empty: nowhere.
func logPath(dir, rel string) (string, error) {
	if dir == "" || rel == "" {
		return "", nil
	}
	if !filepath.IsAbs(dir) {
		return "", model.FieldSandboxLogDirectory.Wrong(fmt.Errorf("%q is not absolute: %w", dir, errdefs.ErrInvalidArgument))
	}
	path := filepath.Join(dir, rel)
	if !strings.HasPrefix(path, filepath.Clean(dir)+"/") {
		return "", model.FieldContainerLogPath.Wrong(fmt.Errorf("%q leaves the pod's log directory: %w",
			rel, errdefs.ErrInvalidArgument))
	}
	if err := pathLength(path); err != nil {
		return "", model.FieldContainerLogPath.Wrong(err)
	}
	return path, nil
}

// pathLength refuses a path that no file can have. The container would start, and have no log.
func pathLength(path string) error {
	if len(path) >= unix.PathMax {
		return fmt.Errorf("its path has %d bytes, and the kernel takes %d: %w", len(path), unix.PathMax-1,
			errdefs.ErrInvalidArgument)
	}
	for name := range strings.SplitSeq(path, "/") {
		if len(name) > unix.NAME_MAX {
			return fmt.Errorf("a name in its path has %d bytes, and may have %d: %w", len(name), unix.NAME_MAX,
				errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// logLimits are the limits of a container's log: those of the node, but for what the container asks for. rotate has the
// log rotated, at the size of a kubelet, where neither says at which.
func logLimits(l loglimit.Limits, asked *model.LogLimits, rotate bool) (loglimit.Limits, error) {
	if rotate && l.MaxSize == 0 {
		l.MaxSize = loglimit.DefaultSize
	}
	if asked != nil {
		set(&l.MaxSize, asked.MaxSize)
		set(&l.MaxFiles, asked.MaxFiles)
		if asked.Rate != nil && asked.Burst == nil {
			l.Burst = 0 // the node's burst is for the node's rate
		}
		set(&l.Rate, asked.Rate)
		set(&l.Burst, asked.Burst)
		if asked.Over != "" {
			l.Over = loglimit.Over(asked.Over)
		}
		if asked.Burst != nil && l.Rate == 0 {
			return l, fmt.Errorf("limits of its log: burst needs a rate, and there is none: %w", errdefs.ErrInvalidArgument)
		}
	}
	l = l.Complete()
	return l, l.Check()
}

// set sets a value that is asked for.
func set[T any](to, value *T) {
	if value != nil {
		*to = *value
	}
}

// withPodPID is a container's configuration with the PID mode of its pod where it names none, or the pod's while that
// lives in the node's.
func withPodPID(cfg *model.ContainerConfig, pod *model.SandboxConfig) *model.ContainerConfig {
	mode := pod.Security.Namespaces.PID
	if own := cfg.Security.Namespaces.PID; own != "" && (own != model.NamespacePod || mode != model.NamespaceNode) {
		return cfg
	}
	out := *cfg
	out.Security.Namespaces.PID = mode
	return &out
}

// pidNamespace is the PID namespace that a container joins, or ocispec.Fresh.
func (cr *creation) pidNamespace(cfg *model.ContainerConfig) (string, error) {
	options := cfg.Security.Namespaces
	switch options.PID {
	case model.NamespaceNode, model.NamespaceContainer:
		return "", nil // the mode says it all
	case model.NamespaceTarget:
		if cr.pod.SandboxContainer && !cr.handler.NodeProcesses {
			return "", model.FieldContainerPIDTarget.Wrong(fmt.Errorf("the pod's containers are in a sandbox of %s, which has "+
				"no PID namespace of one container for another: %w", cr.handler.RuntimePath, errdefs.ErrFailedPrecondition))
		}
		pid, err := cr.m.pidTarget(cr.pod.ID, options.TargetID)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("/proc/%d/ns/pid", pid), nil
	}
	if set := cr.m.dirs.Namespaces(cr.pod.ID); set.Pinned(namespace.PID) {
		return set.Path(namespace.PID), nil
	}
	// The pod was run with a PID namespace for each container.
	return ocispec.Fresh, nil
}

// pidTarget is the process of the container whose PID namespace a container of the pod is to join: it has to run.
func (m *Manager) pidTarget(podID, targetID string) (int, error) {
	const field = model.FieldContainerPIDTarget
	target, err := m.index.Container(targetID)
	if err != nil {
		return 0, field.Wrong(err)
	}
	r := target.Record()
	if r.SandboxID != podID {
		return 0, field.Wrong(fmt.Errorf("container %s is in another pod: %w", record.ShortID(target.ID()),
			errdefs.ErrInvalidArgument))
	}
	if r.Phase != record.ContainerRunning {
		return 0, field.Wrong(fmt.Errorf("container %s is not running: %w", record.ShortID(target.ID()),
			errdefs.ErrFailedPrecondition))
	}
	return r.PID, nil
}

// restorable tells whether the pod can have a container from a checkpoint.
func (cr *creation) restorable() error {
	switch h := cr.handler; {
	case h.RuntimePath != "":
		return fmt.Errorf("restore %s: the runtime handler %s is %s, and only the built-in runtime restores: %w",
			cr.restoring.Source, h.Name, h.RuntimePath, errdefs.ErrFailedPrecondition)
	case cr.pod.Config.UserNamespace() != nil:
		return fmt.Errorf("restore %s: the pod has a user namespace, and CRIU does not join one: %w",
			cr.restoring.Source, errdefs.ErrFailedPrecondition)
	}
	return nil
}
