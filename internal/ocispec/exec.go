package ocispec

import (
	"context"
	"fmt"
	"path"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/model"
)

// ApplyExecAs changes a process that Exec has made. rootfs is the container's root file system, in whose /etc/passwd
// and /etc/group names are looked up; remote: it has remote layers. namespace is its user namespace, nil where it has
// none. A user's groups are those
// of /etc/group and no others: the first process's groups are another user's.
func ApplyExecAs(ctx context.Context, p *specs.Process, as *model.ExecAs, rootfs string, remote bool,
	namespace *model.UserNamespace) error {
	env := environment(p.Env)
	if as.User != "" {
		who, home, err := lookUp(ctx, rootfs, remote, as.User, true)
		if err != nil {
			return fmt.Errorf("user: %w", err)
		}
		groups := []int64{who.GID}
		for _, gid := range who.Groups {
			if gid != who.GID {
				groups = append(groups, gid)
			}
		}
		if len(groups) > maxGroups {
			return invalid("user: %d is in more than the %d groups that the kernel takes, by %s of the image", who.UID,
				maxGroups, groupFile)
		}
		who.Groups = groups
		if err := checkMapped(who, namespace); err != nil {
			return fmt.Errorf("user: %w", err)
		}
		p.User = specs.User{UID: uint32(who.UID), GID: uint32(who.GID), Umask: p.User.Umask}
		for _, gid := range groups {
			p.User.AdditionalGids = append(p.User.AdditionalGids, uint32(gid))
		}
		env.set("HOME", home)
	}
	for _, variable := range as.Env {
		name, value, ok := strings.Cut(variable, "=")
		if !ok || name == "" || strings.IndexByte(variable, 0) >= 0 {
			return invalid("env: %q is not NAME=value", variable)
		}
		env.set(name, value)
	}
	p.Env = env
	if as.Cwd != "" {
		if !path.IsAbs(as.Cwd) || strings.IndexByte(as.Cwd, 0) >= 0 {
			return invalid("cwd: %q is not an absolute path", as.Cwd)
		}
		p.Cwd = path.Clean(as.Cwd)
	}
	return nil
}
