package v1

import (
	"slices"
	"strings"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

func toSandboxSecurity(c *check, p path, s *api.LinuxSandboxSecurityContext) model.SandboxSecurity {
	if s == nil {
		return model.SandboxSecurity{}
	}
	return model.SandboxSecurity{
		Namespaces:               toNamespaces(c, p.Field("namespace_options"), s.NamespaceOptions, false),
		SELinux:                  toSELinux(s.SelinuxOptions),
		RunAsUser:                toSubject(c, p.Field("run_as_user"), s.RunAsUser),
		RunAsGroup:               toSubject(c, p.Field("run_as_group"), s.RunAsGroup),
		ReadonlyRootfs:           s.ReadonlyRootfs,
		SupplementalGroups:       toGroups(c, p.Field("supplemental_groups"), s.SupplementalGroups),
		SupplementalGroupsStrict: s.SupplementalGroupsPolicy == api.SupplementalGroupsPolicy_Strict,
		Privileged:               s.Privileged,
		//lint:ignore SA1019 the interface wants the old field honoured where the new one is not set
		Seccomp:  toSeccomp(c, p, s.Seccomp, s.SeccompProfilePath),
		AppArmor: toAppArmor(c, p, s.Apparmor, ""),
	}
}

func toContainerSecurity(c *check, p path, s *api.LinuxContainerSecurityContext) model.ContainerSecurity {
	if s == nil {
		return model.ContainerSecurity{}
	}
	if s.RunAsUser != nil && s.RunAsUsername != "" {
		c.Fail(p.Field("run_as_username"), "cannot be set together with run_as_user")
	}
	if s.RunAsGroup != nil && s.RunAsUser == nil && s.RunAsUsername == "" {
		c.Fail(p.Field("run_as_group"), "needs run_as_user or run_as_username")
	}
	for field, paths := range map[string][]string{"masked_paths": s.MaskedPaths, "readonly_paths": s.ReadonlyPaths} {
		for i, path := range paths {
			c.Absolute(p.Field(field).At(i), path)
		}
	}
	return model.ContainerSecurity{
		Capabilities:             toCapabilities(c, p.Field("capabilities"), s.Capabilities),
		Privileged:               s.Privileged,
		Namespaces:               toNamespaces(c, p.Field("namespace_options"), s.NamespaceOptions, true),
		SELinux:                  toSELinux(s.SelinuxOptions),
		RunAsUser:                toSubject(c, p.Field("run_as_user"), s.RunAsUser),
		RunAsGroup:               toSubject(c, p.Field("run_as_group"), s.RunAsGroup),
		RunAsUsername:            s.RunAsUsername,
		ReadonlyRootfs:           s.ReadonlyRootfs,
		SupplementalGroups:       toGroups(c, p.Field("supplemental_groups"), s.SupplementalGroups),
		SupplementalGroupsStrict: s.SupplementalGroupsPolicy == api.SupplementalGroupsPolicy_Strict,
		NoNewPrivs:               s.NoNewPrivs,
		MaskedPaths:              slices.Clone(s.MaskedPaths),
		ReadonlyPaths:            slices.Clone(s.ReadonlyPaths),
		//lint:ignore SA1019 the interface wants the old field honoured where the new one is not set
		Seccomp: toSeccomp(c, p, s.Seccomp, s.SeccompProfilePath),
		//lint:ignore SA1019 the same
		AppArmor: toAppArmor(c, p, s.Apparmor, s.ApparmorProfile),
	}
}

func fromSandboxSecurity(s model.SandboxSecurity) *api.LinuxSandboxSecurityContext {
	return &api.LinuxSandboxSecurityContext{
		NamespaceOptions:         fromNamespaces(s.Namespaces),
		SelinuxOptions:           fromSELinux(s.SELinux),
		RunAsUser:                fromSubject(s.RunAsUser),
		RunAsGroup:               fromSubject(s.RunAsGroup),
		ReadonlyRootfs:           s.ReadonlyRootfs,
		SupplementalGroups:       s.SupplementalGroups,
		SupplementalGroupsPolicy: fromGroupsPolicy(s.SupplementalGroupsStrict),
		Privileged:               s.Privileged,
		Seccomp:                  fromProfile(s.Seccomp),
		Apparmor:                 fromProfile(s.AppArmor),
	}
}

func fromContainerSecurity(s model.ContainerSecurity) *api.LinuxContainerSecurityContext {
	out := &api.LinuxContainerSecurityContext{
		Privileged:               s.Privileged,
		NamespaceOptions:         fromNamespaces(s.Namespaces),
		SelinuxOptions:           fromSELinux(s.SELinux),
		RunAsUser:                fromSubject(s.RunAsUser),
		RunAsGroup:               fromSubject(s.RunAsGroup),
		RunAsUsername:            s.RunAsUsername,
		ReadonlyRootfs:           s.ReadonlyRootfs,
		SupplementalGroups:       s.SupplementalGroups,
		SupplementalGroupsPolicy: fromGroupsPolicy(s.SupplementalGroupsStrict),
		NoNewPrivs:               s.NoNewPrivs,
		MaskedPaths:              s.MaskedPaths,
		ReadonlyPaths:            s.ReadonlyPaths,
		Seccomp:                  fromProfile(s.Seccomp),
		Apparmor:                 fromProfile(s.AppArmor),
	}
	if c := s.Capabilities; len(c.Add)+len(c.Drop)+len(c.AddAmbient) > 0 {
		out.Capabilities = &api.Capability{
			AddCapabilities:        c.Add,
			DropCapabilities:       c.Drop,
			AddAmbientCapabilities: c.AddAmbient,
		}
	}
	return out
}

func fromSELinux(s *model.SELinux) *api.SELinuxOption {
	if s == nil {
		return nil
	}
	return &api.SELinuxOption{User: s.User, Role: s.Role, Type: s.Type, Level: s.Level}
}

func fromSubject(id *int64) *api.Int64Value {
	if id == nil {
		return nil
	}
	return &api.Int64Value{Value: *id}
}

func fromGroupsPolicy(strict bool) api.SupplementalGroupsPolicy {
	if strict {
		return api.SupplementalGroupsPolicy_Strict
	}
	return api.SupplementalGroupsPolicy_Merge
}

func fromProfile(p *model.SecurityProfile) *api.SecurityProfile {
	if p == nil {
		return nil
	}
	return &api.SecurityProfile{ProfileType: profileTypesOut[p.Type], LocalhostRef: p.LocalhostRef}
}

// toNamespaces translates namespace choices. A container may join the PID namespace of another one (TARGET); a pod, or
// another namespace than PID, may not.
func toNamespaces(c *check, p path, o *api.NamespaceOption, container bool) model.NamespaceOptions {
	if o == nil {
		return model.NamespaceOptions{}
	}
	noTarget := func(field string, mode api.NamespaceMode) {
		if mode == api.NamespaceMode_TARGET {
			c.Fail(p.Field(field), "TARGET is possible only for the PID namespace of a container")
		}
	}
	noTarget("network", o.Network)
	noTarget("ipc", o.Ipc)
	if !container {
		noTarget("pid", o.Pid)
	}
	if target := o.Pid == api.NamespaceMode_TARGET; target && o.TargetId == "" {
		c.Fail(p.Field("target_id"), "is required with TARGET")
	} else if !target && o.TargetId != "" {
		c.Fail(p.Field("target_id"), "needs pid to be TARGET")
	}
	return model.NamespaceOptions{
		Network:  namespaceModes[o.Network],
		PID:      namespaceModes[o.Pid],
		IPC:      namespaceModes[o.Ipc],
		TargetID: o.TargetId,
		User:     toUserNamespace(c, p.Field("userns_options"), o.UsernsOptions),
	}
}

func toUserNamespace(c *check, p path, u *api.UserNamespace) *model.UserNamespace {
	if u == nil {
		return nil
	}
	uids, gids := toMappings(c, p.Field("uids"), u.Uids), toMappings(c, p.Field("gids"), u.Gids)
	switch u.Mode {
	case api.NamespaceMode_POD:
		if len(uids) == 0 {
			c.Fail(p.Field("uids"), "are required with mode POD")
		}
		if len(gids) == 0 {
			c.Fail(p.Field("gids"), "are required with mode POD")
		}
	case api.NamespaceMode_NODE:
		if len(uids)+len(gids) > 0 {
			c.Fail(p, "mode NODE has no uids and gids")
		}
	default:
		c.Fail(p.Field("mode"), "%s is not possible for user namespaces", u.Mode)
	}
	return &model.UserNamespace{Mode: namespaceModes[u.Mode], UIDs: uids, GIDs: gids}
}

func toMappings(c *check, p path, in []*api.IDMapping) []model.IDMapping {
	var out []model.IDMapping
	for i, m := range in {
		host, inside, length := m.GetHostId(), m.GetContainerId(), m.GetLength()
		if length == 0 {
			c.Fail(p.At(i).Field("length"), "is 0")
		}
		const end = 1 << 32
		if uint64(host)+uint64(length) > end || uint64(inside)+uint64(length) > end {
			c.Fail(p.At(i), "reaches beyond the largest ID")
		}
		out = append(out, model.IDMapping{HostID: host, ContainerID: inside, Length: length})
	}
	return out
}

func fromMappings(in []model.IDMapping) []*api.IDMapping {
	var out []*api.IDMapping
	for _, m := range in {
		out = append(out, &api.IDMapping{HostId: m.HostID, ContainerId: m.ContainerID, Length: m.Length})
	}
	return out
}

func fromNamespaces(o model.NamespaceOptions) *api.NamespaceOption {
	out := &api.NamespaceOption{
		Network:  namespaceModesOut[o.Network],
		Pid:      namespaceModesOut[o.PID],
		Ipc:      namespaceModesOut[o.IPC],
		TargetId: o.TargetID,
	}
	if u := o.User; u != nil {
		out.UsernsOptions = &api.UserNamespace{
			Mode: namespaceModesOut[u.Mode],
			Uids: fromMappings(u.UIDs),
			Gids: fromMappings(u.GIDs),
		}
	}
	return out
}

func toSELinux(o *api.SELinuxOption) *model.SELinux {
	if o == nil {
		return nil
	}
	return &model.SELinux{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func toSubject(c *check, p path, v *api.Int64Value) *int64 {
	if v == nil {
		return nil
	}
	c.Subject(p, v.Value)
	id := v.Value
	return &id
}

func toGroups(c *check, p path, in []int64) []int64 {
	for i, id := range in {
		c.Subject(p.At(i), id)
	}
	return slices.Clone(in)
}

func toCapabilities(c *check, p path, in *api.Capability) model.Capabilities {
	names := func(field string, in []string) []string {
		c.Capabilities(p.Field(field), in)
		return slices.Clone(in)
	}
	return model.Capabilities{
		Add:        names("add_capabilities", in.GetAddCapabilities()),
		Drop:       names("drop_capabilities", in.GetDropCapabilities()),
		AddAmbient: names("add_ambient_capabilities", in.GetAddAmbientCapabilities()),
	}
}

func toSeccomp(c *check, p path, profile *api.SecurityProfile, old string) *model.SecurityProfile {
	out, at := toProfile(c, p.Field("seccomp"), profile, p.Field("seccomp_profile_path"), old)
	if out != nil && out.Type == model.ProfileLocalhost {
		c.Absolute(at, out.LocalhostRef)
	}
	return out
}

func toAppArmor(c *check, p path, profile *api.SecurityProfile, old string) *model.SecurityProfile {
	out, at := toProfile(c, p.Field("apparmor"), profile, p.Field("apparmor_profile"), old)
	if out != nil && out.Type == model.ProfileLocalhost {
		// Some clients, critest among them, write a name in the new field as the old one wants it.
		out.LocalhostRef = strings.TrimPrefix(out.LocalhostRef, localhost)
		c.Word(at, out.LocalhostRef)
	}
	return out
}

// localhost stands before the name of a profile in the deprecated fields.
const localhost = "localhost/"

// toProfile takes a profile from its field or, where that is unset, from the deprecated string, and says where it found
// the localhost reference. Nil is returned where neither says anything.
func toProfile(c *check, p path, profile *api.SecurityProfile, oldPath path,
	old string) (*model.SecurityProfile, path) {
	if profile != nil {
		at := p.Field("localhost_ref")
		if profile.ProfileType != api.SecurityProfile_Localhost && profile.LocalhostRef != "" {
			c.Fail(at, "needs profile_type to be Localhost")
		}
		return &model.SecurityProfile{
			Type:         profileTypes[profile.ProfileType],
			LocalhostRef: profile.LocalhostRef,
		}, at
	}
	switch {
	case old == "":
		return nil, oldPath
	case old == "runtime/default", old == "docker/default":
		return &model.SecurityProfile{Type: model.ProfileRuntimeDefault}, oldPath
	case old == "unconfined":
		return &model.SecurityProfile{Type: model.ProfileUnconfined}, oldPath
	case strings.HasPrefix(old, localhost):
		return &model.SecurityProfile{
			Type:         model.ProfileLocalhost,
			LocalhostRef: strings.TrimPrefix(old, localhost),
		}, oldPath
	}
	c.Fail(oldPath, "%q is not one of runtime/default, unconfined and localhost/…", old)
	return nil, oldPath
}
