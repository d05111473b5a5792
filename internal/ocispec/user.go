package ocispec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	"github.com/moby/sys/user"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/model"
)

func (b *builder) user() error {
	spec, err := b.userSpec()
	if err != nil {
		return err
	}
	who, home, err := lookUp(b.in.Rootfs, spec)
	if err != nil {
		return err
	}
	if b.security.SupplementalGroupsStrict {
		who.Groups = nil
	}
	for i, gid := range b.security.SupplementalGroups {
		if gid < 0 || gid > maxID {
			return invalid("security context: supplemental group %d: %d is not a group ID", i, gid)
		}
	}
	// The primary group is among the groups, so that a file of that group which denies it access does deny it.
	groups := slices.Concat([]int64{who.GID}, who.Groups, b.security.SupplementalGroups)
	who.Groups = groups[:0]
	for _, gid := range groups {
		if !slices.Contains(who.Groups, gid) {
			who.Groups = append(who.Groups, gid)
		}
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

// userSpec is the user as `name or number[:group]`: the client's, else the image's; empty is root.
func (b *builder) userSpec() (string, error) {
	s := b.security
	var spec string
	switch {
	case s.RunAsUser != nil && s.RunAsUsername != "":
		return "", invalid("security context: run_as_user and run_as_username exclude one another")
	case s.RunAsUser != nil:
		if *s.RunAsUser < 0 || *s.RunAsUser > maxID {
			return "", invalid("security context: run_as_user: %d is not a user ID", *s.RunAsUser)
		}
		spec = strconv.FormatInt(*s.RunAsUser, 10)
	case s.RunAsUsername != "":
		if strings.ContainsAny(s.RunAsUsername, ":\x00\n") {
			return "", invalid("security context: run_as_username: %q is not a user's name", s.RunAsUsername)
		}
		spec = s.RunAsUsername
	case s.RunAsGroup != nil:
		return "", invalid("security context: run_as_group %d without run_as_user or run_as_username", *s.RunAsGroup)
	default:
		return b.in.Image.User, nil
	}
	if s.RunAsGroup != nil {
		if *s.RunAsGroup < 0 || *s.RunAsGroup > maxID {
			return "", invalid("security context: run_as_group: %d is not a group ID", *s.RunAsGroup)
		}
		spec += ":" + strconv.FormatInt(*s.RunAsGroup, 10)
	}
	return spec, nil
}

const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
	// maxDatabase bounds a user database: it comes from an image.
	maxDatabase = 8 << 20
)

// lookUp resolves a user in a root file system: its IDs, the groups that list it, and its home.
func lookUp(root, spec string) (model.User, string, error) {
	passwd, err := readDatabase(root, passwdFile)
	if err != nil {
		return model.User{}, "", err
	}
	group, err := readDatabase(root, groupFile)
	if err != nil {
		return model.User{}, "", err
	}
	find := func(spec string) (*user.ExecUser, error) {
		found, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, bytes.NewReader(passwd), bytes.NewReader(group))
		switch {
		case errors.Is(err, user.ErrNoPasswdEntries):
			name, _, _ := strings.Cut(spec, ":")
			return nil, invalid("user %q is not in %s of the image", name, passwdFile)
		case errors.Is(err, user.ErrNoGroupEntries):
			_, name, _ := strings.Cut(spec, ":")
			return nil, invalid("group %q is not in %s of the image", name, groupFile)
		case err != nil:
			return nil, invalid("user %q: %s and %s of the image: %v", spec, passwdFile, groupFile, err)
		}
		return found, nil
	}
	found, err := find(spec)
	if err != nil {
		return model.User{}, "", err
	}
	who := model.User{UID: int64(found.Uid), GID: int64(found.Gid)}
	// With an explicit group the library leaves out the groups that list the user.
	if name, _, explicit := strings.Cut(spec, ":"); explicit {
		if found, err = find(name); err != nil {
			return model.User{}, "", err
		}
	}
	for _, gid := range found.Sgids {
		who.Groups = append(who.Groups, int64(gid))
	}
	if found.Home == "" {
		found.Home = "/"
	}
	return who, found.Home, nil
}

// readDatabase reads a file of an image, whose links lead nowhere but into the image. A file that is missing is empty.
func readDatabase(root, name string) ([]byte, error) {
	handle, err := pathrs.OpenInRoot(root, name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, unable("%s of the image: %v", name, err)
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, fmt.Errorf("%s of the image: %w", name, err)
	}
	// Only a regular file is opened: a pipe would wait for a writer, and a device would do something.
	if !info.Mode().IsRegular() {
		return nil, invalid("%s of the image is not a regular file", name)
	}
	if info.Size() > maxDatabase {
		return nil, invalid("%s of the image has %d bytes, over the limit of %d", name, info.Size(), maxDatabase)
	}
	file, err := pathrs.Reopen(handle, unix.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("%s of the image: %w", name, err)
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxDatabase))
	if err != nil {
		return nil, fmt.Errorf("%s of the image: %w", name, err)
	}
	return content, nil
}
