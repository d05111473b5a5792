package pod

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/annotation"
	"berth/internal/image"
	"berth/internal/model"
	"berth/internal/namespace"
	"berth/internal/ocispec"
	"berth/internal/rootfs"
)

// specFile is a container's specification, beside its record.
const specFile = "spec.json"

// CreateContainer prepares a container in a pod: its root file system and its specification. It returns the container's ID.
//
// A sandbox that is not ready is errdefs.ErrFailedPrecondition, an image that is not on the node errdefs.ErrNotFound, a
// name in use errdefs.ErrAlreadyExists.
func (m *Manager) CreateContainer(ctx context.Context, sandboxID string, cfg *model.ContainerConfig) (string, error) {
	s, err := m.findSandbox(sandboxID)
	if err != nil {
		return "", err
	}
	if err := s.op.sem.Acquire(ctx, 1); err != nil {
		return "", fmt.Errorf("create container in pod sandbox %s: another operation holds it: %w", shortID(s.id), err)
	}
	defer s.op.sem.Release(1)
	pod := s.record()
	if m.gone(s) {
		return "", fmt.Errorf("pod sandbox %q: %w", sandboxID, errdefs.ErrNotFound)
	}
	if pod.Phase != SandboxReady {
		return "", fmt.Errorf("create container %s in pod sandbox %s: %w", cfg.Metadata.Name, shortID(s.id), errSandboxNotReady)
	}
	if cfg.Security.Privileged && !pod.Config.Security.Privileged {
		return "", fmt.Errorf("create container %s in pod sandbox %s: it is privileged, and the sandbox was not made for that: %w",
			cfg.Metadata.Name, shortID(s.id), errdefs.ErrInvalidArgument)
	}
	handler, err := m.handler(pod.Handler)
	if err != nil {
		return "", err
	}
	cfg, ignored, err := annotation.Apply(cfg, pod.Config, handler.AllowedAnnotations)
	if err != nil {
		return "", fmt.Errorf("create container: %w", err)
	}
	for key, why := range ignored {
		m.log.Warn("an annotation is ignored", "container", cfg.Metadata.Name, "pod", shortID(s.id), "annotation", key, "reason", why)
	}
	id := newID()
	img, re, err := m.checkpointOf(ctx, cfg, id)
	if err == nil && re != nil {
		err = m.restorable(re, &pod, handler)
	}
	if err != nil {
		m.cfg.Images.Release(id)
		return "", fmt.Errorf("create container %s: %w", cfg.Metadata.Name, err)
	}
	logPath, err := logPath(pod.Config.LogDirectory, cfg.LogPath)
	if err != nil {
		m.cfg.Images.Release(id)
		return "", err
	}
	if err := checkVolumes(cfg); err != nil {
		m.cfg.Images.Release(id)
		return "", err
	}
	quotaID, err := checkQuotas(cfg)
	if err != nil {
		m.cfg.Images.Release(id)
		return "", err
	}

	label, err := pod.Label.Of(cfg.Security.SELinux)
	if err != nil {
		m.cfg.Images.Release(id)
		return "", err
	}

	cfg = withPodPID(cfg, pod.Config)
	c := newContainer(id, s)
	c.rec = ContainerRecord{
		ID:        c.id,
		SandboxID: s.id,
		Config:    cfg,
		Phase:     ContainerCreating,
		ImageID:   img.ID,
		ImageRef:  imageRef(img),
		Volumes:   declaredVolumes(img),
		LogPath:   logPath,
		Cgroup:    m.cgroupDir(pod.CgroupParent, c.id),
		Label:     label,
		Resources: cfg.Resources,
		Ignored:   ignored,
	}
	if re != nil {
		re.Dir = filepath.Join(m.containers.Path(id), restoreDir)
		c.rec.Restored = &re.Restored
	}
	_ = c.op.sem.Acquire(ctx, exclusive) // nobody else has it
	defer c.op.sem.Release(exclusive)
	m.mu.Lock()
	if err = m.nameContainer(c); err == nil {
		cfg = c.rec.Config
		c.rec.CreatedAt = m.containerCreated(s, cfg.Metadata.Name)
		c.publish()
		m.ctr[c.id] = c
	}
	m.mu.Unlock()
	if err != nil {
		m.cfg.Images.Release(id)
		return "", err
	}

	var (
		layers *image.Layers
		root   string
		out    *ocispec.Output
		// images are the host directories of image mounts, by container path.
		images map[string]string
		mounts []model.Mount
		limits *quotas
		edits  []model.Edits
	)
	dir := m.containers.Path(c.id)
	timings, undone, err := runSteps(ctx, m.log.With("container", cfg.Metadata.Name, "id", shortID(c.id)), []step{
		{
			name: "write the container's record",
			do:   func(context.Context) error { return m.setContainer(c, func(*ContainerRecord) {}) },
		},
		{
			name: "hold the image's layers",
			do:   func(context.Context) (err error) { layers, err = m.cfg.Images.Hold(img.ID, c.id); return err },
			undo: func(context.Context) error { m.cfg.Images.Release(c.id); return nil },
		},
		{
			name: "unpack the checkpoint",
			do: func(ctx context.Context) error {
				if re == nil {
					return nil
				}
				return m.unpackCheckpoint(ctx, c, re)
			},
		},
		{
			name: "mount the root file system",
			do: func(ctx context.Context) (err error) {
				o := m.rootfsOptions(&pod, label, dir, layers)
				o.At = m.rootPath(&pod, c.id)
				root, err = rootfs.Mount(ctx, o)
				return err
			},
			undo: func(context.Context) error { return m.unmountRoot(&pod, c.id) },
		},
		{
			name: "take disk quotas",
			do: func(ctx context.Context) (err error) {
				own, err := imageVolumes(c.rec.Volumes, root, cfg)
				if err != nil {
					return err
				}
				c.mu.Lock()
				c.rec.ImageVolumes = own
				c.mu.Unlock()
				limits, err = m.takeQuotas(ctx, c, quotaID, handler.DiskQuota)
				return err
			},
			undo: func(context.Context) error { m.quotas.Release(c.id); return nil },
		},
		{
			name: "fill the volumes",
			do: func(ctx context.Context) (err error) {
				if mounts, err = m.fillVolumes(ctx, c, &pod, layers, root, limits.prepare(m)); err != nil {
					return err
				}
				return limits.mark(ctx, m)
			},
			undo: func(context.Context) error { m.volumes.Release(c.id); return nil },
		},
		{
			name: "mount the images of volumes",
			do:   func(ctx context.Context) (err error) { images, err = m.mountImages(ctx, c, &pod); return err },
			undo: func(context.Context) error { return m.unmountImages(c.id, cfg) },
		},
		{
			name: "allocate devices",
			do:   func(ctx context.Context) (err error) { edits, err = m.allocateDevices(ctx, c, &pod); return err },
			undo: func(context.Context) error { m.cancelDevices(c); return nil },
		},
		{
			name: "build the specification",
			do: func(ctx context.Context) (err error) {
				built := cfg
				if re != nil {
					built = re.asWritten(cfg)
				}
				out, err = m.buildSpec(ctx, c, built, &pod, img, root, mounts, images, edits, handler)
				if err == nil && re != nil {
					err = re.fit(cfg, out)
				}
				if err != nil {
					return err
				}
				return m.containers.SaveFile(c.id, specFile, out.Spec)
			},
		},
	})
	if err == nil {
		process := *out.Spec.Process
		err = m.setContainer(c, func(r *ContainerRecord) {
			r.Phase = ContainerCreated
			r.User = out.User
			r.StopSignal = out.StopSignal
			r.Process = &process
			r.Timings = timings
		})
		undone = err == nil
	}
	if err != nil {
		m.cancelDevices(c) // where it is the record that could not be written, no step has been undone
		if !undone {
			clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
			defer cancel()
			if rmErr := m.releaseContainer(clean, c); rmErr != nil {
				m.log.Error("remove a container that failed to be created", "id", shortID(c.id), "error", rmErr)
			}
		}
		m.forgetContainer(c)
		return "", fmt.Errorf("create container %s: %w", cfg.Metadata.Name, noSpace(err))
	}
	for _, w := range out.Warnings {
		m.log.Warn(w, "container", cfg.Metadata.Name, "id", shortID(c.id))
	}
	c.mu.Lock()
	c.spec = out.Spec
	c.mu.Unlock()
	m.tell(s, c.id, model.EventCreated)
	return c.id, nil
}

// imageRef is what a status reports as the reference of an image: a digest that a registry knows it by, else its ID.
func imageRef(img *model.Image) string {
	if len(img.RepoDigests) > 0 {
		return img.RepoDigests[0]
	}
	return img.ID
}

// logPath is where a container's log goes: a path relative to the pod's log directory, and inside it. Empty: nowhere.
func logPath(dir, rel string) (string, error) {
	if dir == "" || rel == "" {
		return "", nil
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("sandbox_config.log_directory %q is not absolute: %w", dir, errdefs.ErrInvalidArgument)
	}
	path := filepath.Join(dir, rel)
	if !strings.HasPrefix(path, filepath.Clean(dir)+"/") {
		return "", fmt.Errorf("config.log_path %q leaves the pod's log directory: %w", rel, errdefs.ErrInvalidArgument)
	}
	return path, nil
}

func (m *Manager) buildSpec(ctx context.Context, c *container, cfg *model.ContainerConfig, pod *SandboxRecord, img *model.Image,
	root string, mounts []model.Mount, images map[string]string, edits []model.Edits, h Handler) (*ocispec.Output, error) {
	mounted := *cfg
	mounted.Mounts = mounts
	ns := m.namespacePaths(pod)
	var err error
	if ns.PID, err = m.pidNamespace(pod, cfg); err != nil {
		return nil, err
	}
	shm := "/dev/shm"
	if ownShm(pod.Config) {
		shm = m.shmPath(pod)
	}
	return ocispec.Build(ctx, ocispec.Input{
		SandboxID:   pod.ID,
		ContainerID: c.id,
		Sandbox:     pod.Config,
		Container:   &mounted,
		Image:       img.Config,
		ImageName:   cfg.Image.Image,
		Rootfs:      root,
		Namespaces:  ns,
		CgroupsPath: m.cgroupPath(pod.CgroupParent, c.id),
		Files: ocispec.PodFiles{
			Hosts:      m.podFile(pod.ID, hostsFile),
			ResolvConf: m.podFile(pod.ID, resolvFile),
			Hostname:   m.podFile(pod.ID, hostnameFile),
			Shm:        shm,
		},
		ImageMounts: images,
		Edits:       edits,
		Label:       c.record().Label,
		Handler:     h.Spec,
	})
}

// rootfsOptions is a root file system for a container of a pod.
func (m *Manager) rootfsOptions(pod *SandboxRecord, label ocispec.Label, dir string, layers *image.Layers) rootfs.Options {
	o := rootfs.Options{Dir: dir, Lowers: layers.Dirs, Label: label.Mount}
	if user := userNamespace(pod.Config); user != nil {
		o.UIDs, o.GIDs, o.UserNS = user.UIDs, user.GIDs, m.namespaces(pod.ID).Path(namespace.User)
	}
	return o
}

// withPodPID is a container's configuration with the PID mode of its pod where it names none, or the pod's while that lives in
// the node's.
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
func (m *Manager) pidNamespace(pod *SandboxRecord, cfg *model.ContainerConfig) (string, error) {
	const field = "config.linux.security_context.namespace_options.target_id"
	options := cfg.Security.Namespaces
	switch options.PID {
	case model.NamespaceNode, model.NamespaceContainer:
		return "", nil // the mode says it all
	case model.NamespaceTarget:
		target, err := m.findContainer(options.TargetID)
		if err != nil {
			return "", fmt.Errorf("%s: %w", field, err)
		}
		r := target.record()
		if r.SandboxID != pod.ID {
			return "", fmt.Errorf("%s: container %s is in another pod: %w", field, shortID(target.id), errdefs.ErrInvalidArgument)
		}
		if r.Phase != ContainerRunning {
			return "", fmt.Errorf("%s: container %s does not run: %w", field, shortID(target.id), errdefs.ErrFailedPrecondition)
		}
		return fmt.Sprintf("/proc/%d/ns/pid", r.PID), nil
	}
	if set := m.namespaces(pod.ID); set.Pinned(namespace.PID) {
		return set.Path(namespace.PID), nil
	}
	// The pod was run with a PID namespace for each container.
	return ocispec.Fresh, nil
}
