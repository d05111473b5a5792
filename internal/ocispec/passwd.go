package ocispec

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	// maxEntry bounds a line of a user database. One line at a time is in memory.
	maxEntry = 1 << 20
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

// lookUp resolves a user in a root file system: its IDs, the groups that list it, and its home. Without listed, the
// groups are left out. remote: the file system may not answer.
func lookUp(ctx context.Context, root string, remote bool, spec string, listed bool) (model.User, string, error) {
	if remote {
		files, err := hostpath.ReadInRoot(ctx, root, maxDatabase, passwdFile, groupFile)
		if err != nil {
			return model.User{}, "", err
		}
		return findUser(inMemory(files[0], files[1]), spec, listed)
	}
	return findUser(func(name string) (io.ReadCloser, error) {
		file, err := inroot.OpenIfThere(root, name, maxDatabase)
		if err != nil {
			return nil, err
		}
		if file == nil {
			return io.NopCloser(strings.NewReader("")), nil
		}
		return file, nil
	}, spec, listed)
}

// databases opens a user database, by its name in the image. One that is missing is empty.
type databases func(name string) (io.ReadCloser, error)

// inMemory are user databases that have been read.
func inMemory(passwd, group string) databases {
	return func(name string) (io.ReadCloser, error) {
		content := passwd
		if name == groupFile {
			content = group
		}
		return io.NopCloser(strings.NewReader(content)), nil
	}
}

// findUser resolves `user[:group]` by /etc/passwd and /etc/group. No user is root. A number needs no line, and of
// several lines the first counts. Only numbers that are used have to be right.
func findUser(files databases, spec string, listed bool) (model.User, string, error) {
	user, groupName, _ := strings.Cut(spec, ":")
	if user == "" {
		user = "0"
	}
	who, home := model.User{}, "/"
	uid, numeric, err := model.ParseSubject("user", user)
	if err != nil {
		return model.User{}, "", err
	}
	entry, err := files.find(passwdFile, user, uid, numeric)
	switch {
	case err != nil:
	case entry != nil:
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
		who.GID, err = files.findGroup(groupName)
	case entry != nil:
		who.GID, err = entry.id("user", fieldGroup)
	}
	if err != nil || entry == nil {
		return who, home, err
	}
	if given := entry.text(fieldHome); given != "" {
		home = given
	}
	if len(home) > maxHome || strings.IndexByte(home, 0) >= 0 {
		return model.User{}, "", invalid(
			"%s of the image, line %d: user %.64q has a home directory of %d bytes, or with a NUL "+
				"byte: %.64q", passwdFile, entry.line, entry.text(fieldName), len(home), home)
	}
	if listed {
		who.Groups, err = files.groupsOf(entry.text(fieldName))
	}
	return who, home, err
}

func (files databases) findGroup(name string) (int64, error) {
	gid, numeric, err := model.ParseSubject("group", name)
	if err != nil || numeric {
		return gid, err
	}
	entry, err := files.find(groupFile, name, 0, false)
	if err != nil {
		return 0, err
	}
	if entry == nil {
		return 0, invalid("group %.64q is not in %s of the image", name, groupFile)
	}
	return entry.id("group", fieldID)
}

// groupsOf are the groups that list a user, each once, in the order of the file.
func (files databases) groupsOf(user string) ([]int64, error) {
	if user == "" {
		return nil, nil
	}
	var groups groupSet
	err := files.each(groupFile, func(entry *databaseEntry) (bool, error) {
		if !entry.lists(user) {
			return true, nil
		}
		gid, err := entry.id("group", fieldID)
		if err == nil && !groups.add(gid) {
			err = invalid("user %.64q is in more than the %d groups that the kernel takes, by %s of the image", user, maxGroups,
				groupFile)
		}
		return true, err
	})
	return groups.list, err
}

// groupSet is a list of groups without doubles. It grows with the groups that differ: an image may list a user in one
// group a million times.
type groupSet struct {
	list []int64
	seen map[int64]struct{}
}

// add adds a group, unless it would be one more than a process can have.
func (s *groupSet) add(gid int64) bool {
	if _, ok := s.seen[gid]; ok {
		return true
	}
	if len(s.list) == maxGroups {
		return false
	}
	if s.seen == nil {
		s.seen = map[int64]struct{}{}
	}
	s.seen[gid] = struct{}{}
	s.list = append(s.list, gid)
	return true
}

// find is the first line with a name, or with an ID; nil: there is none.
func (files databases) find(file, name string, id int64, numeric bool) (found *databaseEntry, err error) {
	err = files.each(file, func(entry *databaseEntry) (bool, error) {
		hit := !numeric && string(entry.fields[fieldName]) == name
		if numeric {
			n, ok := model.ParseID(entry.text(fieldID))
			hit = ok && n == id
		}
		if hit {
			found = entry
		}
		return !hit, nil
	})
	return found, err
}

// databaseEntry is a line of a user database. Fields that the line lacks are empty.
type databaseEntry struct {
	file   string
	line   int
	fields [fieldHome + 1][]byte
}

func (e *databaseEntry) text(field int) string { return string(e.fields[field]) }

// id is a user's or a group's number. No number at all is refused too: it would have to be guessed, and the guess
// be root.
func (e *databaseEntry) id(what string, field int) (int64, error) {
	id, ok := model.ParseID(e.text(field))
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

// lists tells whether a line of a group has a user among its members.
func (e *databaseEntry) lists(user string) bool {
	for member := range bytes.SplitSeq(e.fields[fieldList], []byte{','}) {
		if string(member) == user {
			return true
		}
	}
	return false
}

// each calls a function with each line of a user database that is neither empty nor a comment, until it returns false
// or an error. The next line is read into the same memory.
func (files databases) each(name string, do func(*databaseEntry) (more bool, err error)) error {
	file, err := files(name)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(io.LimitReader(file, maxDatabase))
	lines.Buffer(nil, maxEntry)
	entry := &databaseEntry{file: name} // one for all: a file may have a million lines
	for lines.Scan() {
		entry.line++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		clear(entry.fields[:])
		for i, more := 0, true; more && i < len(entry.fields); i++ {
			entry.fields[i], line, more = bytes.Cut(line, []byte{':'})
		}
		if more, err := do(entry); err != nil || !more {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return invalid("%s of the image, line %d: it has more than %d bytes", name, entry.line+1, maxEntry)
	}
	if lines.Err() != nil {
		return fmt.Errorf("%s of the image: %w", name, lines.Err())
	}
	return nil
}
