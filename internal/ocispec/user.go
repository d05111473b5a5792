package ocispec

import (
	"fmt"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
)

const (
	// MaxID is the largest user or group ID that a container's process gets: what Kubernetes allows, and other runtimes
	// take. Numbers above it are refused wherever they come from, since some programs keep IDs in 31 bits, and the kernel
	// reads the largest of 32 bits as "no change".
	MaxID = model.MaxID
	// maxGroups is how many supplementary groups a process can have (NGROUPS_MAX).
	maxGroups = 65536
)

func (b *builder) user() error {
	spec, err := b.userSpec()
	if err != nil {
		return err
	}
	who, home, err := lookUp(b.ctx, b.in.Rootfs, b.in.RemoteLayers, spec, !b.security.SupplementalGroupsStrict)
	if err != nil {
		return err
	}
	for i, gid := range b.security.SupplementalGroups {
		if gid < 0 || gid > MaxID {
			return (model.FieldContainerGroups + model.Field(fmt.Sprintf("[%d]", i))).Wrong(invalid("%d is not a group ID", gid))
		}
	}
	// The primary group is among the groups, so that a file of that group which denies it access does deny it.
	var all groupSet
	for _, groups := range [][]int64{{who.GID}, who.Groups, b.security.SupplementalGroups} {
		for _, gid := range groups {
			if !all.add(gid) {
				return invalid("user %d is in more than the %d groups that the kernel takes, by the container and by %s of the "+
					"image", who.UID, maxGroups, groupFile)
			}
		}
	}
	who.Groups = all.list
	if err := checkMapped(who, b.userNamespace()); err != nil {
		return err
	}
	b.who = who
	u := specs.User{UID: uint32(who.UID), GID: uint32(who.GID)}
	for _, gid := range who.Groups {
		u.AdditionalGids = append(u.AdditionalGids, uint32(gid))
	}
	b.spec.Process.User = u
	env := environment(b.spec.Process.Env)
	if !env.has("HOME") {
		env.set("HOME", home)
	}
	b.spec.Process.Env = env
	return nil
}

// checkMapped refuses a user whom the container's user namespace does not know: the kernel would refuse to change
// to it.
func checkMapped(who model.User, namespace *model.UserNamespace) error {
	if namespace == nil {
		return nil
	}
	if !mapped(namespace.UIDs, uint32(who.UID)) {
		return invalid("user ID %d is not mapped in the container's user namespace", who.UID)
	}
	for _, gid := range who.Groups {
		if !mapped(namespace.GIDs, uint32(gid)) {
			return invalid("group ID %d is not mapped in the container's user namespace", gid)
		}
	}
	return nil
}

// userSpec is the user as `name or number[:group]`: the client's, else the image's; empty is root.
func (b *builder) userSpec() (string, error) {
	s := b.security
	var spec string
	switch {
	case s.RunAsUser != nil && s.RunAsUsername != "":
		return "", model.FieldContainerRunAsUser.Wrong(invalid("a user's ID and name exclude one another"))
	case s.RunAsUser != nil:
		if *s.RunAsUser < 0 || *s.RunAsUser > MaxID {
			return "", model.FieldContainerRunAsUser.Wrong(invalid("%d is not a user ID", *s.RunAsUser))
		}
		spec = strconv.FormatInt(*s.RunAsUser, 10)
	case s.RunAsUsername != "":
		if strings.ContainsAny(s.RunAsUsername, ":\x00\n") {
			return "", model.FieldContainerRunAsUsername.Wrong(invalid("%q is not a user's name", s.RunAsUsername))
		}
		spec = s.RunAsUsername
	case s.RunAsGroup != nil:
		return "", model.FieldContainerRunAsGroup.Wrong(invalid("%d without a user", *s.RunAsGroup))
	default:
		return b.in.Image.User, nil
	}
	if s.RunAsGroup != nil {
		if *s.RunAsGroup < 0 || *s.RunAsGroup > MaxID {
			return "", model.FieldContainerRunAsGroup.Wrong(invalid("%d is not a group ID", *s.RunAsGroup))
		}
		spec += ":" + strconv.FormatInt(*s.RunAsGroup, 10)
	}
	return spec, nil
}
