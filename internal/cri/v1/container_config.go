package v1

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strings"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func toContainerConfig(c *check, p path, in *api.ContainerConfig) *model.ContainerConfig {
	if in == nil {
		c.Fail(p, "is required")
		return nil
	}
	if in.WorkingDir != "" {
		c.Absolute(p.Field("working_dir"), in.WorkingDir)
	}
	c.Relative(p.Field("log_path"), in.LogPath)
	c.Keys(p.Field("labels"), in.Labels)
	c.Keys(p.Field("annotations"), in.Annotations)
	linux, at := in.GetLinux(), p.Field("linux")
	out := &model.ContainerConfig{
		Metadata:    toContainerMetadata(c, p.Field("metadata"), in.Metadata),
		Image:       toImageSpec(c, p.Field("image"), in.Image),
		Command:     slices.Clone(in.Command),
		Args:        slices.Clone(in.Args),
		WorkingDir:  in.WorkingDir,
		Env:         toEnv(c, p.Field("envs"), in.Envs),
		Mounts:      toMounts(c, p.Field("mounts"), in.Mounts),
		Devices:     toDevices(c, p.Field("devices"), in.Devices),
		CDIDevices:  toCDIDevices(c, p.Field("CDI_devices"), in.CDIDevices),
		Labels:      maps.Clone(in.Labels),
		Annotations: maps.Clone(in.Annotations),
		LogPath:     in.LogPath,
		Stdin:       in.Stdin,
		StdinOnce:   in.StdinOnce,
		TTY:         in.Tty,
		Resources:   toResources(c, at.Field("resources"), linux.GetResources()),
		Security:    toContainerSecurity(c, at.Field("security_context"), linux.GetSecurityContext()),
		StopSignal:  toSignal(c, p.Field("stop_signal"), in.StopSignal),
	}
	c.dialect.ReadContainer(c.Check, p, in, out)
	return out
}

// fromContainerConfig is the reverse, with what is deprecated in the fields that have taken its place.
func fromContainerConfig(d Dialect, c *model.ContainerConfig) *api.ContainerConfig {
	out := &api.ContainerConfig{
		Metadata:    fromContainerMetadata(c.Metadata),
		Image:       fromImageSpec(d, c.Image),
		Command:     c.Command,
		Args:        c.Args,
		WorkingDir:  c.WorkingDir,
		Labels:      c.Labels,
		Annotations: c.Annotations,
		LogPath:     c.LogPath,
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		StopSignal:  fromSignal(c.StopSignal),
		Linux: &api.LinuxContainerConfig{
			Resources:       fromResources(c.Resources),
			SecurityContext: fromContainerSecurity(c.Security),
		},
	}
	for _, v := range c.Env {
		out.Envs = append(out.Envs, &api.KeyValue{Key: v.Key, Value: []byte(v.Value)})
	}
	for _, m := range c.Mounts {
		out.Mounts = append(out.Mounts, fromMount(d, m))
	}
	for _, device := range c.Devices {
		out.Devices = append(out.Devices, &api.Device{
			ContainerPath: device.ContainerPath,
			HostPath:      device.HostPath,
			Permissions:   device.Permissions,
		})
	}
	for _, name := range c.CDIDevices {
		out.CDIDevices = append(out.CDIDevices, &api.CDIDevice{Name: name})
	}
	return out
}

func toContainerMetadata(c *check, p path, m *api.ContainerMetadata) model.ContainerMetadata {
	if m == nil {
		c.Fail(p, "is required")
		return model.ContainerMetadata{}
	}
	c.Name(p.Field("name"), m.Name)
	return model.ContainerMetadata{Name: m.Name, Attempt: m.Attempt}
}

func fromContainerMetadata(m model.ContainerMetadata) *api.ContainerMetadata {
	return &api.ContainerMetadata{Name: m.Name, Attempt: m.Attempt}
}

func toImageSpec(c *check, p path, in *api.ImageSpec) model.ImageSpec {
	if in.GetImage() == "" {
		c.Fail(p.Field("image"), "is required")
	}
	c.Keys(p.Field("annotations"), in.GetAnnotations())
	out := model.ImageSpec{
		Image:              in.GetImage(),
		UserSpecifiedImage: in.GetUserSpecifiedImage(),
		RuntimeHandler:     in.GetRuntimeHandler(),
		ImageRef:           in.GetImageRef(),
		Annotations:        maps.Clone(in.GetAnnotations()),
	}
	c.dialect.ReadImageSpec(c.Check, p, in, &out)
	return out
}

func fromImageSpec(d Dialect, s model.ImageSpec) *api.ImageSpec {
	out := &api.ImageSpec{
		Image:              s.Image,
		UserSpecifiedImage: s.UserSpecifiedImage,
		RuntimeHandler:     s.RuntimeHandler,
		ImageRef:           s.ImageRef,
		Annotations:        s.Annotations,
	}
	d.WriteImageSpec(&s, out)
	return out
}

// toEnv says nothing of a variable's value in an error.
func toEnv(c *check, p path, in []*api.KeyValue) []model.EnvVar {
	out := make([]model.EnvVar, 0, len(in))
	for i, kv := range in {
		key, value := kv.GetKey(), kv.GetValue()
		c.Env(p.At(i).Field("key"), key)
		if bytes.IndexByte(value, 0) >= 0 {
			c.Fail(p.At(i).Field("value"), "contains a NUL byte")
		}
		out = append(out, model.EnvVar{Key: key, Value: string(value)})
	}
	return out
}

func toMounts(c *check, p path, in []*api.Mount) []model.Mount {
	var out []model.Mount
	for i, m := range in {
		out = append(out, toMount(c, p.At(i), m))
	}
	return out
}

func toMount(c *check, p path, m *api.Mount) model.Mount {
	if m == nil {
		c.Fail(p, "is empty")
		return model.Mount{}
	}
	c.MountTarget(p.Field("container_path"), m.ContainerPath)
	if m.RecursiveReadOnly {
		if !m.Readonly {
			c.Fail(p.Field("recursive_read_only"), "needs readonly")
		}
		if m.Propagation != api.MountPropagation_PROPAGATION_PRIVATE {
			c.Fail(p.Field("recursive_read_only"), "needs propagation to be PROPAGATION_PRIVATE")
		}
	}
	out := model.Mount{
		ContainerPath:     m.ContainerPath,
		HostPath:          m.HostPath,
		Readonly:          m.Readonly,
		RecursiveReadOnly: m.RecursiveReadOnly,
		SELinuxRelabel:    m.SelinuxRelabel,
		Propagation:       propagations[m.Propagation],
		UIDMappings:       toMappings(c, p.Field("uidMappings"), m.UidMappings),
		GIDMappings:       toMappings(c, p.Field("gidMappings"), m.GidMappings),
		ImageSubPath:      m.ImageSubPath,
		Options:           toMountOptions(c, p.Field("mount_options"), m.MountOptions),
	}
	c.dialect.ReadMount(c.Check, p, m, &out)
	// An image message that names no image is as good as none.
	if m.GetImage().GetImage() == "" {
		if out.Volume == "" {
			c.Absolute(p.Field("host_path"), m.HostPath)
		}
		if m.ImageSubPath != "" {
			c.Fail(p.Field("image_sub_path"), "needs image")
		}
		return out
	}
	spec := toImageSpec(c, p.Field("image"), m.Image)
	out.Image = &spec
	if !c.Relative(p.Field("image_sub_path"), m.ImageSubPath) {
		c.imageVolume = true
	}
	if m.HostPath != "" {
		c.Fail(p.Field("host_path"), "cannot be set together with image")
	}
	if !m.Readonly {
		c.Fail(p.Field("readonly"), "must be set for an image, which nobody can write to")
		c.imageVolume = true
	}
	return out
}

// toMountOptions are the further options of a mount. Only those that take something from it are taken: others, such as
// rw and shared, have fields of their own.
func toMountOptions(c *check, p path, in []string) []string {
	for i, option := range in {
		if !slices.Contains([]string{"noexec", "nodev", "nosuid"}, option) {
			c.Fail(p.At(i), "%q is not noexec, nodev or nosuid", option)
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(in)))
}

// fromMounts are the mounts of a container. An image is named by its ID, by which a kubelet asks for its digest:
// another image may have the name by now that the client gave, which stands beside it.
func fromMounts(d Dialect, st *model.ContainerStatus) []*api.Mount {
	var out []*api.Mount
	ids := st.VolumeImages
	for _, m := range st.Mounts() {
		mount := fromMount(d, m)
		if m.Image != nil && len(ids) > 0 {
			spec := mount.Image
			spec.UserSpecifiedImage, spec.Image = cmp.Or(spec.UserSpecifiedImage, spec.Image), ids[0]
			spec.ImageRef = ids[0] // as PullImage answers
			ids = ids[1:]
		}
		out = append(out, mount)
	}
	return out
}

func fromMount(d Dialect, m model.Mount) *api.Mount {
	out := &api.Mount{
		ContainerPath:     m.ContainerPath,
		HostPath:          m.HostPath,
		Readonly:          m.Readonly,
		RecursiveReadOnly: m.RecursiveReadOnly,
		SelinuxRelabel:    m.SELinuxRelabel,
		Propagation:       propagationsOut[m.Propagation],
		UidMappings:       fromMappings(m.UIDMappings),
		GidMappings:       fromMappings(m.GIDMappings),
		ImageSubPath:      m.ImageSubPath,
		MountOptions:      m.Options,
	}
	if m.Image != nil {
		out.Image = fromImageSpec(d, *m.Image)
	}
	d.WriteMount(&m, out)
	return out
}

func toDevices(c *check, p path, in []*api.Device) []model.Device {
	var out []model.Device
	for i, d := range in {
		at := p.At(i)
		c.Absolute(at.Field("container_path"), d.GetContainerPath())
		c.Absolute(at.Field("host_path"), d.GetHostPath())
		if perm := d.GetPermissions(); perm == "" || strings.Trim(perm, "rwm") != "" {
			c.Fail(at.Field("permissions"), "%q is not made of r, w and m", perm)
		}
		out = append(out, model.Device{
			ContainerPath: d.GetContainerPath(),
			HostPath:      d.GetHostPath(),
			Permissions:   d.GetPermissions(),
		})
	}
	return out
}

func toCDIDevices(c *check, p path, in []*api.CDIDevice) []string {
	var out []string
	for i, d := range in {
		c.CDIDevice(p.At(i).Field("name"), d.GetName())
		out = append(out, d.GetName())
	}
	return out
}
