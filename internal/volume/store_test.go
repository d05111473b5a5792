package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir, Discard: os.RemoveAll, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// from is a Fill whose source is a directory.
func from(dir string) Fill {
	return Fill{Source: func(context.Context) (*os.File, error) { return os.Open(dir) }}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func use(t *testing.T, s *Store, name, user string, f Fill) string {
	t.Helper()
	dir, err := s.Use(context.Background(), name, user, f)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAVolumeIsCreatedOnceAndFilledLater. Seen to fail without the look at whether it is there.
func TestAVolumeIsCreatedOnceAndFilledLater(t *testing.T) {
	asroot.Need(t, "chown")
	dir, image := t.TempDir(), t.TempDir()
	write(t, image+"/file", "of the image")
	s := open(t, dir)
	if err := s.Create(t.Context(), "a/b"); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	if err := s.Create(t.Context(), "data"); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Store{s, open(t, dir)} { // and after a restart
		if err := s.Create(t.Context(), "data"); !errdefs.IsAlreadyExists(err) {
			t.Error(err)
		}
		if v, err := s.Get("data"); err != nil || len(v.Containers) != 0 {
			t.Errorf("%+v, %v", v, err)
		}
	}
	if got := read(t, use(t, s, "data", "c", from(image))+"/file"); got != "of the image" {
		t.Errorf("the first user finds %q", got)
	}
	if err := s.Create(t.Context(), "data"); !errdefs.IsAlreadyExists(err) {
		t.Error(err)
	}
}

func TestNamesAreChecked(t *testing.T) {
	asroot.Need(t, "chown")
	s := open(t, t.TempDir())
	for _, good := range []string{"a", "A-1_b.c", strings.Repeat("x", 128)} {
		use(t, s, good, "c", Fill{})
	}
	for _, bad := range []string{"", ".", "..", "../x", "a/b", "-a", "_a", ".a", "a b",
		"a\x00", "ä", strings.Repeat("x", 129)} {
		if _, err := s.Use(context.Background(), bad, "c", Fill{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("use %q: %v", bad, err)
		}
		if err := s.Remove(context.Background(), bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("remove %q: %v", bad, err)
		}
	}
}

func TestACopyKeepsWhatFilesCarry(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("owners and devices need root")
	}
	source := t.TempDir()
	write(t, filepath.Join(source, "sub", "file"), "content")
	file := filepath.Join(source, "sub", "file")
	for _, err := range []error{
		os.Link(file, filepath.Join(source, "hard")),
		os.Symlink("sub/file", filepath.Join(source, "soft")),
		os.Symlink("/no/such/place", filepath.Join(source, "dangling")),
		unix.Mknod(filepath.Join(source, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))),
		unix.Mkfifo(filepath.Join(source, "pipe"), 0o600),
		os.Lchown(file, 1001, 1002),
		os.Lchown(filepath.Join(source, "soft"), 1003, 1004),
		unix.Chmod(file, 0o4751),
		os.Lchown(filepath.Join(source, "sub"), 1005, 1006),
		unix.Chmod(filepath.Join(source, "sub"), 0o3777),
		os.Lchown(source, 70, 71),
		unix.Chmod(source, 0o1770),
		unix.Lsetxattr(file, "trusted.mark", []byte("m\x00k"), 0),
		// cap_net_bind_service=ep
		unix.Lsetxattr(file, "security.capability",
			[]byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0),
		os.Truncate(filepath.Join(source, "sub", "file"), 3<<20),
		unix.UtimesNanoAt(unix.AT_FDCWD, file, []unix.Timespec{{Sec: 1, Nsec: 2}, {Sec: 3, Nsec: 4}},
			unix.AT_SYMLINK_NOFOLLOW),
		unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(source, "soft"), []unix.Timespec{{Sec: 11}, {Sec: 13}},
			unix.AT_SYMLINK_NOFOLLOW),
		unix.UtimesNanoAt(unix.AT_FDCWD, source, []unix.Timespec{{Sec: 5}, {Sec: 7, Nsec: 8}}, unix.AT_SYMLINK_NOFOLLOW),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	// Truncation takes file capabilities away.
	if err := unix.Lsetxattr(file, "security.capability",
		[]byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0); err != nil {
		t.Fatal(err)
	}
	want := describe(t, source)
	s := open(t, t.TempDir())
	got := describe(t, use(t, s, "v", "c", from(source)))
	for name, line := range want {
		if got[name] != line {
			t.Errorf("%s is %s, want %s", name, got[name], line)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files, want %d", len(got), len(want))
	}
}

// describe says all that a copy must keep, by name.
func describe(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	inodes := map[uint64]string{}
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		line := fmt.Sprintf("mode %o owner %d:%d device %d size %d time %d.%d", st.Mode, st.Uid, st.Gid, st.Rdev,
			st.Size*int64(st.Mode&unix.S_IFREG/unix.S_IFREG), st.Mtim.Sec, st.Mtim.Nsec)
		for _, key := range []string{"trusted.mark", "security.capability"} {
			value := make([]byte, 100)
			if n, err := unix.Lgetxattr(path, key, value); err == nil {
				line += fmt.Sprintf(" %s=%q", key, value[:n])
			}
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " to " + target
		case unix.S_IFREG:
			line += " " + fmt.Sprint(len(read(t, path)))
			if first := inodes[st.Ino]; first != "" {
				line += " is " + first
			}
			inodes[st.Ino] = name
		}
		out[name] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAVolumeIsFilledWhileItIsEmpty(t *testing.T) {
	asroot.Need(t, "chown")
	s := open(t, t.TempDir())
	one, two, none := t.TempDir(), t.TempDir(), t.TempDir()
	write(t, filepath.Join(one, "f"), "one")
	write(t, filepath.Join(two, "f"), "two")
	dir := use(t, s, "v", "first", from(none))
	if dir != use(t, s, "v", "second", from(one)) {
		t.Error("a name has two directories")
	}
	if _, err := os.Stat(filepath.Join(dir, "f")); err == nil {
		t.Error("a volume that another one uses was filled")
	}
	s.Release("first")
	s.Release("second")
	use(t, s, "v", "third", from(one))
	if got := read(t, filepath.Join(dir, "f")); got != "one" {
		t.Errorf("an empty volume holds %q after its next use", got)
	}
	s.Release("third")
	use(t, s, "v", "fourth", from(two))
	if got := read(t, filepath.Join(dir, "f")); got != "one" {
		t.Errorf("a volume with content was filled again: %q", got)
	}
}

// TestAnEmptyVolumeHasTheOwnerOfAnEmptyDirectory: an image often has an empty directory of the user whose service keeps
// its data there. Seen to fail for a volume that was there before: the service could not write to it.
func TestAnEmptyVolumeHasTheOwnerOfAnEmptyDirectory(t *testing.T) {
	asroot.Need(t, "chown")
	s := open(t, t.TempDir())
	image := filepath.Join(t.TempDir(), "data")
	if err := errors.Join(os.Mkdir(image, 0o700), os.Chown(image, 1000, 1001)); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(t.Context(), "created"); err != nil {
		t.Fatal(err)
	}
	// The image of an earlier container has nothing at the path.
	use(t, s, "used", "before", Fill{Source: func(context.Context) (*os.File, error) { return nil, nil }})
	s.Release("before")
	for _, name := range []string{"created", "used", "new"} {
		var st unix.Stat_t
		if err := unix.Stat(use(t, s, name, "c", from(image)), &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != 1000 || st.Gid != 1001 || st.Mode&0o7777 != 0o700 {
			t.Errorf("volume %s has owner %d:%d and mode %o", name, st.Uid, st.Gid, st.Mode&0o7777)
		}
	}
}

// TestOnlyContentIsBroughtToTheDisk: that writes all of the file system, which takes long right after a pull, and the
// volume of most images begins empty. Seen to fail where each new volume of a container was synced.
func TestOnlyContentIsBroughtToTheDisk(t *testing.T) {
	asroot.Need(t, "chown")
	synced := 0
	defer func(sync func(string) error) { syncAll = sync }(syncAll)
	syncAll = func(string) error { synced++; return nil }
	s := open(t, t.TempDir())
	image := t.TempDir()
	use(t, s, "none", "c", Fill{Source: func(context.Context) (*os.File, error) { return nil, nil }})
	use(t, s, "empty", "c", from(image))
	if synced != 0 {
		t.Errorf("volumes without content were synced %d times", synced)
	}
	write(t, image+"/file", "of the image")
	use(t, s, "full", "c", from(image))
	if synced != 1 {
		t.Errorf("a volume with content was synced %d times", synced)
	}
}

func TestAVolumeInUseIsNotRemoved(t *testing.T) {
	asroot.Need(t, "chown")
	dir := t.TempDir()
	s := open(t, dir)
	use(t, s, "v", "one", Fill{})
	use(t, s, "v", "two", Fill{})
	s.Release("one")
	var used *InUseError
	if err := s.Remove(context.Background(), "v"); !errors.As(err, &used) || !errdefs.IsFailedPrecondition(err) ||
		used.Users[0] != "two" {
		t.Errorf("remove: %v", err)
	}
	// The users of a store that is opened again come from their own records.
	s = open(t, dir)
	if err := s.AddUser("v", "two"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(context.Background(), "v"); !errors.As(err, &used) {
		t.Errorf("remove after a restart: %v", err)
	}
	s.Release("two")
	if err := s.Remove(context.Background(), "v"); err != nil {
		t.Errorf("remove once nobody uses it: %v", err)
	}
	if err := s.Remove(context.Background(), "v"); !errdefs.IsNotFound(err) {
		t.Errorf("remove again: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestARemovalHoldsNobodyElseUp: on a full disk it removes all files of the volume before it returns. Seen to fail
// where the store stayed locked meanwhile, so that no container could be removed.
func TestARemovalHoldsNobodyElseUp(t *testing.T) {
	asroot.Need(t, "chown")
	removing, goOn := make(chan struct{}), make(chan struct{})
	s, err := Open(Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Discard: func(dir string) error {
		close(removing)
		<-goOn
		return os.RemoveAll(dir)
	}})
	if err != nil {
		t.Fatal(err)
	}
	use(t, s, "full", "gone", Fill{})
	use(t, s, "other", "c", Fill{})
	s.Release("gone")
	removed := make(chan error, 1)
	go func() { removed <- s.Remove(context.Background(), "full") }()
	<-removing
	rest := make(chan struct{})
	go func() {
		defer close(rest)
		s.List()
		s.Release("c")
	}()
	select {
	case <-rest:
	case <-time.After(time.Minute):
		close(goOn)
		<-removed
		t.Fatal("the store is locked while a volume is removed")
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Use(ended, "full", "late", Fill{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a volume that is being removed is used: %v", err)
	}
	close(goOn)
	if err := <-removed; err != nil {
		t.Error(err)
	}
	<-rest
	if _, err := s.Get("full"); !errdefs.IsNotFound(err) {
		t.Errorf("the volume is there: %v", err)
	}
}

func TestAVolumeThatCannotBeFilledIsNotThere(t *testing.T) {
	asroot.Need(t, "chown")
	dir := t.TempDir()
	s := open(t, dir)
	refused := errors.New("refused")
	for claim, f := range map[string]Fill{
		"no source":   from(filepath.Join(dir, "none")),
		"the finder":  {Source: func(context.Context) (*os.File, error) { return nil, refused }},
		"the prepare": {Prepare: func(string) error { return refused }},
	} {
		if _, err := s.Use(context.Background(), "v", "c", f); err == nil {
			t.Errorf("%s: it is there", claim)
		}
		if len(s.List()) != 0 {
			t.Errorf("%s: it is listed", claim)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left: %v, %v", claim, left, err)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	source := t.TempDir()
	write(t, filepath.Join(source, "f"), "x")
	if _, err := s.Use(ended, "v", "c", from(source)); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
	use(t, s, "v", "c", from(source))
}

// TestTheMemoryOfACopyIsBounded: an image may have millions of files with several names. Seen to fail without the
// bound.
func TestTheMemoryOfACopyIsBounded(t *testing.T) {
	asroot.Need(t, "chown")
	defer func(most int) { mostLinks = most }(mostLinks)
	mostLinks = 8 << 10
	s := open(t, t.TempDir())
	source := t.TempDir()
	for i := range 30 {
		name := filepath.Join(source, fmt.Sprint("f", i))
		write(t, name, "x")
		if err := os.Link(name, name+"-too"); err != nil {
			t.Fatal(err)
		}
	}
	use(t, s, "v", "c", from(source))
	for i := range 40 {
		name := filepath.Join(source, fmt.Sprint("g", i))
		write(t, name, "x")
		if err := os.Link(name, name+"-too"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Use(context.Background(), "w", "c", from(source)); !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Error(err)
	}
}

func TestOpenFinishesWhatACrashHasLeft(t *testing.T) {
	asroot.Need(t, "chown")
	dir := t.TempDir()
	s := open(t, dir)
	source := t.TempDir()
	write(t, filepath.Join(source, "f"), "x")
	whole := use(t, s, "whole", "c", from(source))
	// Killed after the record; while it was being filled; before the record was on disk.
	for _, name := range []string{"recorded", "filling"} {
		if err := s.records.Save(name, Record{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(s.filling("filling"), "half"), "x")
	write(t, filepath.Join(s.filling("whole"), "half"), "x")
	write(t, filepath.Join(dir, "torn", dataDir, "precious"), "x")
	write(t, filepath.Join(dir, "torn", recordFile), `{"name": "to`)
	for _, others := range []string{"lost+found", "not a volume"} {
		write(t, filepath.Join(dir, others, "precious"), "x")
	}
	s = open(t, dir)
	var names []string
	for _, v := range s.List() {
		names = append(names, v.Name)
	}
	if strings.Join(names, " ") != "torn whole" {
		t.Errorf("volumes are %v", names)
	}
	if read(t, filepath.Join(whole, "f")) != "x" || read(t, filepath.Join(s.Path("torn"), "precious")) != "x" {
		t.Error("content is lost")
	}
	for _, others := range []string{"lost+found", "not a volume"} { // of a disk that is mounted there
		if read(t, filepath.Join(dir, others, "precious")) != "x" {
			t.Errorf("%s has lost its content", others)
		}
	}
	for _, gone := range []string{"recorded", "filling", "whole/filling"} {
		if _, err := os.Lstat(filepath.Join(dir, gone)); err == nil {
			t.Errorf("%s is still there", gone)
		}
	}
	if v, err := open(t, dir).Get("torn"); err != nil || v.CreatedAt.IsZero() {
		t.Errorf("a record that was torn: %v, %v", v, err)
	}
}

func TestManyContainersMakeOneVolume(t *testing.T) {
	asroot.Need(t, "chown")
	s := open(t, t.TempDir())
	source := t.TempDir()
	for i := range 50 {
		write(t, filepath.Join(source, fmt.Sprint(i)), "x")
	}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 10 {
				user := fmt.Sprint(i)
				dir, err := s.Use(context.Background(), "v", user, from(source))
				if err != nil {
					t.Error(err)
					return
				}
				if entries, err := os.ReadDir(dir); err != nil || len(entries) != 50 {
					t.Errorf("a user finds %d files, %v", len(entries), err)
				}
				s.Release(user)
				err = s.Remove(context.Background(), "v")
				if err != nil && !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// TestACopyOfWhatChangesStaysInside: while a volume is filled, a directory and a file of the source change places
// with links that lead out of it. It was seen to fail with a copy by paths.
func TestACopyOfWhatChangesStaysInside(t *testing.T) {
	source, outside := t.TempDir(), t.TempDir()
	write(t, filepath.Join(outside, "f"), "secret")
	write(t, filepath.Join(source, "a/f"), "content")
	write(t, filepath.Join(source, "f"), "content")
	for name, target := range map[string]string{"link": outside, "flink": filepath.Join(outside, "f")} {
		if err := os.Symlink(target, filepath.Join(source, name)); err != nil {
			t.Fatal(err)
		}
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for a, b := range map[string]string{"a": "link", "f": "flink"} {
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(source, a), unix.AT_FDCWD, filepath.Join(source, b),
					unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(stop); <-ended }()
	top := t.TempDir()
	for i := range 1000 {
		dir := filepath.Join(top, fmt.Sprint(i))
		_ = Populate(context.Background(), dir, from(source))
		for _, name := range []string{"f", "a/f", "flink", "link/f"} {
			at := filepath.Join(dir, name)
			if st, err := os.Lstat(filepath.Dir(at)); err != nil || !st.IsDir() {
				continue
			}
			if st, err := os.Lstat(at); err == nil && st.Mode().IsRegular() && read(t, at) == "secret" {
				t.Fatalf("%s is a file from outside the source", name)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, filepath.Join(outside, "f")) != "secret" {
		t.Error("the file outside has changed")
	}
}
