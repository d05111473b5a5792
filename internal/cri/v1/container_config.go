package v1

import (
	"bytes"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func toContainerConfig(c *check, p path, in *api.ContainerConfig) *model.ContainerConfig {
	if in == nil {
		c.fail(p, "is required")
		return nil
	}
	if in.WorkingDir != "" {
		c.absolute(p.field("working_dir"), in.WorkingDir)
	}
	c.relative(p.field("log_path"), in.LogPath)
	c.keys(p.field("labels"), in.Labels)
	c.keys(p.field("annotations"), in.Annotations)
	linux, at := in.GetLinux(), p.field("linux")
	return &model.ContainerConfig{
		Metadata:    toContainerMetadata(c, p.field("metadata"), in.Metadata),
		Image:       toImageSpec(c, p.field("image"), in.Image),
		Command:     slices.Clone(in.Command),
		Args:        slices.Clone(in.Args),
		WorkingDir:  in.WorkingDir,
		Env:         toEnv(c, p.field("envs"), in.Envs),
		Mounts:      toMounts(c, p.field("mounts"), in.Mounts),
		Devices:     toDevices(c, p.field("devices"), in.Devices),
		CDIDevices:  toCDIDevices(c, p.field("CDI_devices"), in.CDIDevices),
		Labels:      maps.Clone(in.Labels),
		Annotations: maps.Clone(in.Annotations),
		LogPath:     in.LogPath,
		Stdin:       in.Stdin,
		StdinOnce:   in.StdinOnce,
		TTY:         in.Tty,
		Resources:   toResources(c, at.field("resources"), linux.GetResources()),
		Security:    toContainerSecurity(c, at.field("security_context"), linux.GetSecurityContext()),
		StopSignal:  toSignal(c, p.field("stop_signal"), in.StopSignal),
	}
}

func toContainerMetadata(c *check, p path, m *api.ContainerMetadata) model.ContainerMetadata {
	if m == nil {
		c.fail(p, "is required")
		return model.ContainerMetadata{}
	}
	c.name(p.field("name"), m.Name)
	return model.ContainerMetadata{Name: m.Name, Attempt: m.Attempt}
}

func fromContainerMetadata(m model.ContainerMetadata) *api.ContainerMetadata {
	return &api.ContainerMetadata{Name: m.Name, Attempt: m.Attempt}
}

func toImageSpec(c *check, p path, in *api.ImageSpec) model.ImageSpec {
	if in.GetImage() == "" {
		c.fail(p.field("image"), "is required")
	}
	c.keys(p.field("annotations"), in.GetAnnotations())
	return model.ImageSpec{
		Image:              in.GetImage(),
		UserSpecifiedImage: in.GetUserSpecifiedImage(),
		RuntimeHandler:     in.GetRuntimeHandler(),
		ImageRef:           in.GetImageRef(),
		Annotations:        maps.Clone(in.GetAnnotations()),
	}
}

func fromImageSpec(s model.ImageSpec) *api.ImageSpec {
	return &api.ImageSpec{
		Image:              s.Image,
		UserSpecifiedImage: s.UserSpecifiedImage,
		RuntimeHandler:     s.RuntimeHandler,
		ImageRef:           s.ImageRef,
		Annotations:        s.Annotations,
	}
}

// toEnv says nothing of a variable's value in an error.
func toEnv(c *check, p path, in []*api.KeyValue) []model.EnvVar {
	out := make([]model.EnvVar, 0, len(in))
	for i, kv := range in {
		key, value := kv.GetKey(), kv.GetValue()
		if key == "" || strings.Contains(key, "=") {
			c.fail(p.at(i).field("key"), "%q is empty or has = in it", key)
		}
		if bytes.IndexByte(value, 0) >= 0 {
			c.fail(p.at(i).field("value"), "contains a NUL byte")
		}
		out = append(out, model.EnvVar{Key: key, Value: string(value)})
	}
	return out
}

func toMounts(c *check, p path, in []*api.Mount) []model.Mount {
	var out []model.Mount
	for i, m := range in {
		out = append(out, toMount(c, p.at(i), m))
	}
	return out
}

func toMount(c *check, p path, m *api.Mount) model.Mount {
	if m == nil {
		c.fail(p, "is empty")
		return model.Mount{}
	}
	c.absolute(p.field("container_path"), m.ContainerPath)
	if filepath.Clean(m.ContainerPath) == "/" {
		c.fail(p.field("container_path"), "%q is the root file system", m.ContainerPath)
	}
	if m.RecursiveReadOnly {
		if !m.Readonly {
			c.fail(p.field("recursive_read_only"), "needs readonly")
		}
		if m.Propagation != api.MountPropagation_PROPAGATION_PRIVATE {
			c.fail(p.field("recursive_read_only"), "needs propagation to be PROPAGATION_PRIVATE")
		}
	}
	out := model.Mount{
		ContainerPath:     m.ContainerPath,
		HostPath:          m.HostPath,
		Readonly:          m.Readonly,
		RecursiveReadOnly: m.RecursiveReadOnly,
		SELinuxRelabel:    m.SelinuxRelabel,
		Propagation:       propagations[m.Propagation],
		UIDMappings:       toMappings(c, p.field("uidMappings"), m.UidMappings),
		GIDMappings:       toMappings(c, p.field("gidMappings"), m.GidMappings),
		ImageSubPath:      m.ImageSubPath,
	}
	// An image message that names no image is as good as none.
	if m.GetImage().GetImage() == "" {
		c.absolute(p.field("host_path"), m.HostPath)
		if m.ImageSubPath != "" {
			c.fail(p.field("image_sub_path"), "needs image")
		}
		return out
	}
	spec := toImageSpec(c, p.field("image"), m.Image)
	out.Image = &spec
	c.relative(p.field("image_sub_path"), m.ImageSubPath)
	if m.HostPath != "" {
		c.fail(p.field("host_path"), "cannot be set together with image")
	}
	return out
}

func fromMount(m model.Mount) *api.Mount {
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
	}
	if m.Image != nil {
		out.Image = fromImageSpec(*m.Image)
	}
	return out
}

func toDevices(c *check, p path, in []*api.Device) []model.Device {
	var out []model.Device
	for i, d := range in {
		at := p.at(i)
		c.absolute(at.field("container_path"), d.GetContainerPath())
		c.absolute(at.field("host_path"), d.GetHostPath())
		if perm := d.GetPermissions(); perm == "" || strings.Trim(perm, "rwm") != "" {
			c.fail(at.field("permissions"), "%q is not made of r, w and m", perm)
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
		c.cdiDevice(p.at(i).field("name"), d.GetName())
		out = append(out, d.GetName())
	}
	return out
}
