package ocispec

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	mobyuser "github.com/moby/sys/user"

	"berth/internal/model"
)

// The library that other runtimes use takes each of these numbers for another one, most of them for root's 0.
// Seen to fail with moby's GetExecUser in place of findUser, which refuses none of the 44 cases.
func TestNumbersOfUserDatabasesAreNotGuessed(t *testing.T) {
	numbers := []string{"4294967296", "4294967295", "2147483648", "18446744073709551616", "-1", "+5", "abc", "", " 7",
		"0x0", "1e3"}
	for _, number := range numbers {
		for _, c := range []struct{ passwd, group, user, says string }{
			{fmt.Sprintf("a:x:1:1::/:\nweb:x:%s:5::/:\n", number), "", "web",
				fmt.Sprintf(`/etc/passwd of the image, line 2: user "web" has the user ID %q`, number)},
			{fmt.Sprintf("web:x:5:%s::/:\n", number),
				"", "5", fmt.Sprintf(`/etc/passwd of the image, line 1: user "web" has the group ID %q`, number)},
			{"web:x:5:5::/:\n", fmt.Sprintf("staff:x:%s:\n", number), "web:staff",
				fmt.Sprintf(`/etc/group of the image, line 1: group "staff" has the group ID %q`, number)},
			{"web:x:5:5::/:\n", fmt.Sprintf("#\nstaff:x:%s:a,web\n", number), "web:7",
				fmt.Sprintf(`/etc/group of the image, line 2: group "staff" has the group ID %q`, number)},
		} {
			in := input(t)
			write(t, filepath.Join(in.Rootfs, passwdFile), c.passwd)
			write(t, filepath.Join(in.Rootfs, groupFile), c.group)
			in.Image.User = c.user
			if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("user %s of %q and %q: error %v, want one that says %q", c.user, c.passwd, c.group, err, c.says)
			}
		}
	}
}

// A line with a number that is none is nobody's: user 0 is not found in it, and it does no harm to others.
func TestLinesOfOtherUsersDoNotMatter(t *testing.T) {
	in := input(t)
	write(t, filepath.Join(in.Rootfs, passwdFile), "evil:x:abc:7::/evil:\nshort\nweb:x:5:6::/web:\nlone:x:8\n")
	write(t, filepath.Join(in.Rootfs, groupFile), "evil:x:abc:a,b\nshort\nstaff:x:9:web")
	for user, want := range map[string]model.User{
		"":       {Groups: []int64{0}},
		"0":      {Groups: []int64{0}},
		"web":    {UID: 5, GID: 6, Groups: []int64{6, 9}},
		"5:":     {UID: 5, GID: 6, Groups: []int64{6, 9}},
		":staff": {GID: 9, Groups: []int64{9}},
		"lone:3": {UID: 8, GID: 3, Groups: []int64{3}}, // its missing group is not asked for
	} {
		in.Image.User = user
		out := build(t, in)
		if out.User.UID != want.UID || out.User.GID != want.GID || !slices.Equal(out.User.Groups, want.Groups) {
			t.Errorf("user %q is %+v, want %+v", user, out.User, want)
		}
	}
}

func TestUsersThatAreNoneAreRefused(t *testing.T) {
	for _, user := range []string{"4294967296",
		"4294967295", "2147483648", "99999999999999999999", "-1", "-0", "+5", "web:4294967296", "web:-1"} {
		in := input(t)
		in.Image.User = user
		if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), "is not a number from 0 to 2147483647") {
			t.Errorf("user %q: %v", user, err)
		}
		if uid, _, err := model.ImageUser(user); !strings.Contains(user,
			":") && (uid != nil || !errors.Is(err, errdefs.ErrInvalidArgument)) {
			t.Errorf("the image's user %q is told as %v, %v", user, uid, err)
		}
	}
	for name, change := range map[string]func(*model.ContainerSecurity){
		"security.runAsUser: ": func(s *model.ContainerSecurity) { s.RunAsUser = ptr(int64(1 << 31)) },
		"security.runAsGroup: ": func(s *model.ContainerSecurity) {
			s.RunAsUser, s.RunAsGroup = ptr(int64(1)), ptr(int64(1<<32))
		},
		"security.supplementalGroups[": func(s *model.ContainerSecurity) { s.SupplementalGroups = []int64{1, 1<<32 - 1} },
	} {
		in := input(t)
		change(&in.Container.Security)
		if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestUsersOutsideOfTheirNamespaceAreRefused(t *testing.T) {
	ids := []model.IDMapping{{HostID: 100000, Length: 1000}}
	for _, c := range []struct {
		security model.ContainerSecurity
		says     string
	}{
		{model.ContainerSecurity{RunAsUser: ptr(int64(1000))}, "user ID 1000 is not mapped"},
		{model.ContainerSecurity{RunAsUser: ptr(int64(5)), RunAsGroup: ptr(int64(1000))}, "group ID 1000 is not mapped"},
		{model.ContainerSecurity{SupplementalGroups: []int64{999, 1000}}, "group ID 1000 is not mapped"},
		{model.ContainerSecurity{RunAsUser: ptr(int64(999)), RunAsGroup: ptr(int64(999)),
			SupplementalGroups: []int64{999}}, ""},
	} {
		in := input(t)
		in.Container.Security = c.security
		in.Container.Security.Namespaces = model.NamespaceOptions{PID: model.NamespaceContainer,
			User: &model.UserNamespace{Mode: model.NamespacePod, UIDs: ids, GIDs: ids}}
		_, err := Build(t.Context(), in)
		if c.says == "" && err != nil || c.says != "" && (!errors.Is(err, errdefs.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: error %v, want one that says %q", c.security, err, c.says)
		}
	}
}

func TestTheGroupsOfAUserAreBounded(t *testing.T) {
	in := input(t)
	in.Image.User = "web"
	var group strings.Builder
	for gid := range maxGroups + 1 {
		fmt.Fprintf(&group, "g:x:%d:web\n", gid)
	}
	write(t, filepath.Join(in.Rootfs, groupFile), group.String())
	if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) ||
		!strings.Contains(err.Error(), "more than the 65536 groups") {
		t.Errorf("%v", err)
	}
}

// TestALongUserDatabaseTakesLittleMemory, though it lists a user in the same group half a million times. Seen to fail,
// with 50 MiB, where both databases were read as a whole and each of these lines was a group.
func TestALongUserDatabaseTakesLittleMemory(t *testing.T) {
	in := input(t)
	in.Image.User = "web:staff"
	const line = "g:x:77:a,web\n"
	write(t, filepath.Join(in.Rootfs, groupFile), "staff:x:9:\n"+strings.Repeat(line, (maxDatabase-64)/len(line)))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	out := build(t, in)
	runtime.ReadMemStats(&after)
	if want := []int64{9, 77}; !slices.Equal(out.User.Groups, want) {
		t.Errorf("groups %v, not %v", out.User.Groups, want)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 8<<20 {
		t.Errorf("it took %d MiB", took>>20)
	}
}

// TestALongLineOfAUserDatabaseIsRefused where it is read: a user that an earlier line has is found.
func TestALongLineOfAUserDatabaseIsRefused(t *testing.T) {
	in := input(t)
	write(t, filepath.Join(in.Rootfs, passwdFile), "web:x:5:5::/:\n"+strings.Repeat("x", maxEntry)+"\nlate:x:6:6::/:\n")
	in.Image.User = "web"
	build(t, in)
	in.Image.User = "late"
	if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) ||
		!strings.Contains(err.Error(), "line 2") {
		t.Errorf("%v", err)
	}
}

// TestGroupsThatAreNotUsedAreNotRead: a pod that takes none from its image may have one that lists a user in too many.
func TestGroupsThatAreNotUsedAreNotRead(t *testing.T) {
	in := input(t)
	in.Image.User = "web"
	in.Container.Security.SupplementalGroupsStrict = true
	write(t, filepath.Join(in.Rootfs, groupFile), "g:x:abc:web\n")
	build(t, in)
}

func TestAHomeThatIsNoPathIsRefused(t *testing.T) {
	for _, home := range []string{"/a\x00b", strings.Repeat("/a", 4096)} {
		in := input(t)
		in.Image.User = "web"
		write(t, filepath.Join(in.Rootfs, passwdFile), "web:x:5:5::"+home+":\n")
		if _, err := Build(t.Context(), in); !errors.Is(err, errdefs.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), `"web" has a home directory`) {
			t.Errorf("%.10q: %v", home, err)
		}
	}
}

// FuzzPasswd: whatever an image's databases hold, a user has the numbers that the files say, or there is an error.
// The same files are read by the library of other runtimes, without the lines that it misreads.
func FuzzPasswd(f *testing.F) {
	for _, user := range []string{"", "web", "1001", "web:staff", "1000:99", ":staff", "lone", "a:b:c"} {
		f.Add(passwd, group, user)
	}
	f.Add("web:x:4294967296:1::/:\nroot:x:abc:1::\n", "staff:x:4294967296:web", "web")
	f.Add("#a:x:1:1::/:\r\n\ta:x::::\n::::::::\n+\n", "a:x:1:a,a,,\n", "a:a")
	f.Add("a:x:00:+1::/\x00:", "a:x: 1:a", "a:-1")
	f.Fuzz(func(t *testing.T, passwd, group, user string) {
		who, home, err := findUser(inMemory(passwd, group), user, true)
		if err != nil {
			if !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Errorf("an error without a code: %v", err)
			}
			return
		}
		for _, id := range slices.Concat([]int64{who.UID, who.GID}, who.Groups) {
			if id < 0 || id > MaxID {
				t.Fatalf("%+v has an ID that is none", who)
			}
		}
		var known strings.Builder
		err = inMemory(passwd, "").each(passwdFile, func(entry *databaseEntry) (bool, error) {
			if _, ok := model.ParseID(entry.text(fieldID)); ok {
				fmt.Fprintf(&known, "%s:shell\n", bytes.Join(entry.fields[:], []byte{':'}))
			}
			return true, nil
		})
		if err != nil {
			return // a line that is too long, after the user's
		}
		find := func(spec string) (*mobyuser.ExecUser, error) {
			return mobyuser.GetExecUser(spec, &mobyuser.ExecUser{Home: "/"}, strings.NewReader(known.String()),
				strings.NewReader(group))
		}
		theirs, err := find(user)
		name, _, _ := strings.Cut(user, ":")
		listed, err2 := find(name) // with a group of its own, the library leaves out the others
		if err != nil || err2 != nil {
			return // the library reads no lines of 64 KiB
		}
		groups := make([]int64, 0, len(listed.Sgids))
		for _, gid := range listed.Sgids {
			if !slices.Contains(groups, int64(gid)) {
				groups = append(groups, int64(gid))
			}
		}
		if theirs.Home == "" {
			theirs.Home = "/"
		}
		if who.UID != int64(theirs.Uid) || who.GID != int64(theirs.Gid) || !slices.Equal(who.Groups, groups) ||
			home != theirs.Home {
			t.Errorf("%+v with the home %q, and another reader says %+v, groups %v", who, home, theirs, groups)
		}
	})
}

// FuzzGroup: a member has just the groups that list it, and a group is the number that its line says.
func FuzzGroup(f *testing.F) {
	f.Add(group, "web", "staff")
	f.Add("a:x:1:b\na:x:2:b,c\n#a:x:3:b\n", "b", "a")
	f.Add("a:x:4294967296:b\na:x:2:b", "c", "a")
	f.Add("a\na:x\na:x:\na:x:5\n", "", "a")
	f.Fuzz(func(t *testing.T, group, member, name string) {
		files := inMemory("", group)
		list, err := files.groupsOf(member)
		if err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("an error without a code: %v", err)
		}
		var want []int64
		readErr := files.each(groupFile, func(entry *databaseEntry) (bool, error) {
			if member == "" || !slices.Contains(strings.Split(entry.text(fieldList), ","), member) {
				return true, nil
			}
			gid, ok := model.ParseID(entry.text(fieldID))
			if err == nil && !ok {
				t.Fatalf("line %d is %q, and the groups are %v", entry.line, entry.fields, list)
			}
			if !slices.Contains(want, gid) {
				want = append(want, gid)
			}
			return true, nil
		})
		if err == nil && (readErr != nil || !slices.Equal(list, want)) {
			t.Errorf("%v, and the lines say %v, %v", list, want, readErr)
		}
		gid, err := files.findGroup(name)
		if err == nil && (gid < 0 || gid > MaxID) || err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("group %q is %d, %v", name, gid, err)
		}
	})
}

// BenchmarkUserDatabase: the time grows as the file does.
func BenchmarkUserDatabase(b *testing.B) {
	for _, lines := range []int{1000, 10000, 100000} {
		var passwd, group strings.Builder
		for i := range lines {
			fmt.Fprintf(&passwd, "user%d:x:%d:%d::/home/%d:/bin/sh\n", i, i, i, i)
			fmt.Fprintf(&group, "group%d:x:%d:user%d,last\n", i, i, i)
		}
		passwd.WriteString("last:x:7:7::/:\n")
		b.Run(fmt.Sprint(lines), func(b *testing.B) {
			b.SetBytes(int64(passwd.Len() + group.Len()))
			for b.Loop() {
				if _, _, err := findUser(inMemory(passwd.String(), group.String()), "last", true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
