package ocispec

import (
	"maps"
	"slices"

	"berth/internal/cdi"
	"berth/internal/model"
)

// edit adds to the configuration what others than the client bring to the container: this is the one place where they
// do. The client's own variables win. Two that disagree, or a path that is mounted already, are errors.
func (b *builder) edit() error {
	if len(b.in.Edits) == 0 {
		return nil
	}
	config := *b.config
	var env []model.EnvVar
	from := map[string]string{}
	config.Mounts, config.Devices = slices.Clone(config.Mounts), slices.Clone(config.Devices)
	config.CDIDevices = slices.Clone(config.CDIDevices)
	for _, e := range b.in.Edits {
		for _, v := range e.Env {
			i := slices.IndexFunc(env, func(other model.EnvVar) bool { return other.Key == v.Key })
			if i < 0 {
				env, from[v.Key] = append(env, v), e.Source
			} else if env[i].Value != v.Value {
				return unable("environment: %s sets %s to %q, and %s to %q", from[v.Key], v.Key, env[i].Value, e.Source, v.Value)
			}
		}
		for _, m := range e.Mounts {
			same := func(other model.Mount) bool {
				return other.ContainerPath == m.ContainerPath && other.HostPath == m.HostPath && other.Readonly == m.Readonly
			}
			if slices.ContainsFunc(config.Mounts, same) {
				continue
			}
			if slices.ContainsFunc(config.Mounts, func(other model.Mount) bool {
				return other.ContainerPath == m.ContainerPath
			}) {
				return unable("mount at %q: %s brings one, and there is another", m.ContainerPath, e.Source)
			}
			config.Mounts = append(config.Mounts, m)
		}
		for _, d := range e.Devices {
			if !slices.Contains(config.Devices, d) {
				config.Devices = append(config.Devices, d)
			}
		}
		config.CDIDevices = append(config.CDIDevices, e.CDIDevices...)
		for key, value := range e.Annotations {
			if b.brought == nil {
				b.brought = map[string]string{}
			}
			if other, ok := b.brought[key]; ok && other != value {
				return unable("annotation %s: %s sets it to %q, and there is another: %q", key, e.Source, value, other)
			}
			b.brought[key] = value
		}
	}
	config.Env = append(env, config.Env...)
	b.config = &config
	return nil
}

// cdi injects the devices that the configuration names, in its field and in annotations of the container.
func (b *builder) cdi() error {
	names := b.config.CDIDevices
	for _, annotations := range []map[string]string{b.config.Annotations, b.brought} {
		annotated, err := cdi.Annotated(annotations)
		if err != nil {
			return invalid("CDI devices: annotations: %v", err)
		}
		names = append(names[:len(names):len(names)], annotated...)
	}
	if len(names) == 0 {
		return nil
	}
	var once []string // the kubelet says the same in both
	for _, name := range names {
		if !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	sources, err := cdi.Open(b.in.Handler.CDISpecDirs).Inject(b.spec, once)
	if err != nil {
		return unable("CDI devices: %v", err)
	}
	maps.Copy(b.sources, sources)
	sortMounts(b.spec.Mounts)
	return b.broughtGroups()
}

// broughtGroups checks the groups that CDI devices have added to the process, and tells of them with the others.
func (b *builder) broughtGroups() error {
	groups := b.spec.Process.User.AdditionalGids
	for _, gid := range groups[min(len(b.who.Groups), len(groups)):] {
		if gid > MaxID {
			return invalid("CDI devices: additional group %d is not a number from 0 to %d", gid, MaxID)
		}
		b.who.Groups = append(b.who.Groups, int64(gid))
	}
	return checkMapped(b.who, b.userNamespace())
}
