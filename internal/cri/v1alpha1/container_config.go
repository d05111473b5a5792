package v1alpha1

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
	"berth/internal/model"
)

// toContainerConfig leaves the container's namespaces open: they are its pod's.
func toContainerConfig(c *check, p path, in *api.ContainerConfig) *model.ContainerConfig {
	if in == nil {
		c.Fail(p, "is required")
		return nil
	}
	c.Name(p.Field("name"), in.GetName())
	if dir := in.GetWorkingDir(); dir != "" {
		c.Absolute(p.Field("working_dir"), dir)
	}
	c.Relative(p.Field("log_path"), in.GetLogPath())
	c.Keys(p.Field("labels"), in.Labels)
	c.Keys(p.Field("annotations"), in.Annotations)
	linux, at := in.GetLinux(), p.Field("linux")
	out := &model.ContainerConfig{
		Name:        in.GetName(),
		Metadata:    model.ContainerMetadata{Name: labelled(in.Labels, containerName, in.GetName())},
		Image:       toImageSpec(c, p.Field("image"), in.Image),
		Command:     slices.Clone(in.Command),
		Args:        slices.Clone(in.Args),
		WorkingDir:  in.GetWorkingDir(),
		Env:         toEnv(c, p.Field("envs"), in.Envs),
		Mounts:      toMounts(c, p.Field("mounts"), in.Mounts),
		Labels:      maps.Clone(in.Labels),
		Annotations: maps.Clone(in.Annotations),
		LogPath:     in.GetLogPath(),
		Stdin:       in.GetStdin(),
		StdinOnce:   in.GetStdinOnce(),
		TTY:         in.GetTty(),
		Resources:   toResources(c, at.Field("resources"), linux.GetResources()),
	}
	security := &out.Security
	security.Privileged = in.GetPrivileged()
	security.ReadonlyRootfs = in.GetReadonlyRootfs()
	security.Capabilities = toCapabilities(c, at.Field("capabilities"), linux.GetCapabilities())
	if o := linux.GetSelinuxOptions(); o != nil {
		security.SELinux = &model.SELinux{User: o.GetUser(), Role: o.GetRole(), Type: o.GetType(), Level: o.GetLevel()}
	}
	toUser(c, at.Field("user"), linux.GetUser(), security)
	return out
}

func toImageSpec(c *check, p path, in *api.ImageSpec) model.ImageSpec {
	if in.GetImage() == "" {
		c.Fail(p.Field("image"), "is required")
	}
	return model.ImageSpec{Image: in.GetImage()}
}

// containerImage is a container's image as a person named it, where the client tells.
func containerImage(st *model.ContainerStatus) *api.ImageSpec {
	return &api.ImageSpec{Image: proto.String(st.ImageName())}
}

// toEnv says nothing of a variable's value in an error.
func toEnv(c *check, p path, in []*api.KeyValue) []model.EnvVar {
	out := make([]model.EnvVar, 0, len(in))
	for i, kv := range in {
		c.Env(p.At(i).Field("key"), kv.GetKey())
		out = append(out, model.EnvVar{Key: kv.GetKey(), Value: kv.GetValue()})
	}
	return out
}

func toMounts(c *check, p path, in []*api.Mount) []model.Mount {
	var out []model.Mount
	for i, m := range in {
		at := p.At(i)
		c.MountTarget(at.Field("container_path"), m.GetContainerPath())
		c.Absolute(at.Field("host_path"), m.GetHostPath())
		out = append(out, model.Mount{
			Name:           m.GetName(),
			ContainerPath:  m.GetContainerPath(),
			HostPath:       m.GetHostPath(),
			Readonly:       m.GetReadonly(),
			SELinuxRelabel: m.GetSelinuxRelabel(),
			Propagation:    model.PropagationPrivate,
		})
	}
	return out
}

func fromMount(m model.Mount) *api.Mount {
	out := &api.Mount{
		ContainerPath:  proto.String(m.ContainerPath),
		HostPath:       proto.String(m.HostPath),
		Readonly:       proto.Bool(m.Readonly),
		SelinuxRelabel: proto.Bool(m.SELinuxRelabel),
	}
	if name := m.Name + m.Volume; name != "" { // a volume of the node's store is known by its name
		out.Name = proto.String(name)
	}
	return out
}

func toResources(c *check, p path, r *api.LinuxContainerResources) *model.Resources {
	if r == nil {
		return nil
	}
	c.Resources(p, r)
	return &model.Resources{
		CPUPeriod:   r.GetCpuPeriod(),
		CPUQuota:    r.GetCpuQuota(),
		CPUShares:   r.GetCpuShares(),
		MemoryLimit: r.GetMemoryLimitInBytes(),
		OOMScoreAdj: r.GetOomScoreAdj(),
	}
}

func toCapabilities(c *check, p path, in *api.Capability) model.Capabilities {
	c.Capabilities(p.Field("add_capabilities"), in.GetAddCapabilities())
	c.Capabilities(p.Field("drop_capabilities"), in.GetDropCapabilities())
	return model.Capabilities{Add: slices.Clone(in.GetAddCapabilities()), Drop: slices.Clone(in.GetDropCapabilities())}
}

// toUser tells a user ID of 0, which is root, from none, which is the image's.
func toUser(c *check, p path, in *api.LinuxUser, out *model.ContainerSecurity) {
	if in == nil {
		return
	}
	subject := func(field string, id *int64) *int64 {
		if id == nil {
			return nil
		}
		c.Subject(p.Field(field), *id)
		return proto.Int64(*id)
	}
	out.RunAsUser, out.RunAsGroup = subject("uid", in.Uid), subject("gid", in.Gid)
	if in.Gid != nil && in.Uid == nil {
		c.Fail(p.Field("gid"), "needs uid")
	}
	for i, id := range in.AdditionalGids {
		c.Subject(p.Field("additional_gids").At(i), id)
	}
	out.SupplementalGroups = slices.Clone(in.AdditionalGids)
}
