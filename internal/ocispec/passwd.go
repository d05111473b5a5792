package ocispec

import (
	"context"
	"iter"
	"strings"

	"berth/internal/hostpath"
	"berth/internal/hostpath/inroot"
	"berth/internal/model"
)

// The user databases of an image are read here and not by moby/sys/user, which other runtimes use: that library takes a
// number that it cannot read for 0, which is root, and hands on numbers of 64 bits, which are cut to 32 later.

const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
	// maxDatabase bounds a user database: it comes from an image.
	maxDatabase = 8 << 20
	// maxHome bounds a home directory, which becomes part of the environment: longer ones are no path (PATH_MAX).
	maxHome = 4095
)

// Fields of a line of passwd(5) and group(5).
const (
	fieldName  = 0
	fieldID    = 2 // the user's in passwd, the group's in group
	fieldGroup = 3 // of passwd: the user's primary group
	fieldHome  = 5 // of passwd
	fieldList  = 3 // of group: its members, with commas between
)

// lookUp resolves a user in a root file system: its IDs, the groups that list it, and its home. remote: the file system
// may not answer.
func lookUp(ctx context.Context, root string, remote bool, spec string) (model.User, string, error) {
	if remote {
		files, err := hostpath.ReadInRoot(ctx, root, maxDatabase, passwdFile, groupFile)
		if err != nil {
			return model.User{}, "", err
		}
		return findUser(files[0], files[1], spec)
	}
	passwd, err := inroot.Read(root, passwdFile, maxDatabase)
	if err != nil {
		return model.User{}, "", err
	}
	group, err := inroot.Read(root, groupFile, maxDatabase)
	if err != nil {
		return model.User{}, "", err
	}
	return findUser(passwd, group, spec)
}

// findUser resolves `user[:group]` by the content of /etc/passwd and /etc/group. No user is root. A number needs
// no line, and of several lines the first counts. Only numbers that are used have to be right.
func findUser(passwd, group, spec string) (model.User, string, error) {
	user, groupName, _ := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	who, home := model.User{}, "/"
	uid, numeric, err := model.ParseSubject("user", user)
	if err != nil {
		return model.User{}, "", err
	}
	entry, found := find(passwdFile, passwd, user, uid, numeric)
	switch {
	case found:
		who.UID, err = entry.id("user", fieldID)
	case numeric:
		who.UID = uid
	default:
		err = invalid("user %.64q is not in %s of the image", user, passwdFile)
	}
	if err != nil {
		return model.User{}, "", err
	}
	switch {
	case groupName != "":
		who.GID, err = findGroup(group, groupName)
	case found:
		who.GID, err = entry.id("user", fieldGroup)
	}
	if err != nil || !found {
		return who, home, err
	}
	if given := entry.fields[fieldHome]; given != "" {
		home = given
	}
	if len(home) > maxHome || strings.IndexByte(home, 0) >= 0 {
		return model.User{}, "", invalid(
			"%s of the image, line %d: user %.64q has a home directory of %d bytes, or with a NUL "+
				"byte: %.64q", passwdFile, entry.line, entry.fields[fieldName], len(home), home)
	}
	who.Groups, err = groupsOf(group, entry.fields[fieldName])
	return who, home, err
}

func findGroup(group, name string) (int64, error) {
	gid, numeric, err := model.ParseSubject("group", name)
	if err != nil || numeric {
		return gid, err
	}
	entry, found := find(groupFile, group, name, 0, false)
	if !found {
		return 0, invalid("group %.64q is not in %s of the image", name, groupFile)
	}
	return entry.id("group", fieldID)
}

// groupsOf are the groups that list a user, in the order of the file.
func groupsOf(group, user string) ([]int64, error) {
	var out []int64
	if user == "" {
		return nil, nil
	}
	for entry := range entries(groupFile, group) {
		for member := range strings.SplitSeq(entry.fields[fieldList], ",") {
			if member != user {
				continue
			}
			gid, err := entry.id("group", fieldID)
			if err != nil {
				return nil, err
			}
			out = append(out, gid)
			break
		}
	}
	return out, nil
}

// find is the first line with a name, or with an ID.
func find(file, content, name string, id int64, numeric bool) (databaseEntry, bool) {
	for entry := range entries(file, content) {
		if !numeric {
			if entry.fields[fieldName] == name {
				return entry, true
			}
		} else if n, ok := model.ParseID(entry.fields[fieldID]); ok && n == id {
			return entry, true
		}
	}
	return databaseEntry{}, false
}

// databaseEntry is a line of a user database. Fields that the line lacks are empty.
type databaseEntry struct {
	file   string
	line   int
	fields [fieldHome + 1]string
}

// id is a user's or a group's number. No number at all is refused too: it would have to be guessed, and the guess
// be root.
func (e *databaseEntry) id(what string, field int) (int64, error) {
	id, ok := model.ParseID(e.fields[field])
	if ok {
		return id, nil
	}
	which := what
	if what == "user" && field == fieldGroup {
		which = "group"
	}
	return 0, invalid("%s of the image, line %d: %s %.64q has the %s ID %.64q, which is not a number from 0 to %d",
		e.file, e.line, what, e.fields[fieldName], which, e.fields[field], MaxID)
}

// entries are the lines of a user database that are neither empty nor comments. They share the memory of the content.
func entries(file, content string) iter.Seq[databaseEntry] {
	return func(yield func(databaseEntry) bool) {
		number := 0
		for line := range strings.Lines(content) {
			number++
			line = strings.TrimSpace(line)
			if line == "" || line[0] == '#' {
				continue
			}
			entry := databaseEntry{file: file, line: number}
			for i, more := 0, true; more && i < len(entry.fields); i++ {
				entry.fields[i], line, more = strings.Cut(line, ":")
			}
			if !yield(entry) {
				return
			}
		}
	}
}
