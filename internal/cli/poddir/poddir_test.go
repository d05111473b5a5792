package poddir

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/manifest"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	s := &Store{Root: t.TempDir(), Address: "unix:///a.sock"}
	t.Cleanup(func() {
		entries, _ := os.ReadDir(s.pods())
		for _, entry := range entries {
			if err := remove(filepath.Join(s.pods(), entry.Name())); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

func create(t *testing.T, s *Store, name string) *Dir {
	t.Helper()
	dir, made, err := s.Create(Record{Namespace: "default", Name: name, UID: "uid-" + name})
	if err != nil {
		t.Fatal(err)
	}
	made()
	return dir
}

func mountsBelow(t *testing.T, path string) int {
	t.Helper()
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil {
		t.Fatal(err)
	}
	return len(infos)
}

func TestVolumesAreMadeMountedAndRemoved(t *testing.T) {
	s := newStore(t)
	dir := create(t, s, "p")
	size := resource.MustParse("1Mi")
	group := int64(1234)
	volumes, err := dir.MakeVolumes([]corev1.Volume{
		{Name: "disk", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "mem",
			VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory", SizeLimit: &size}}},
	}, &group, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, volume := range volumes {
		path := volume.Path
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		if st.Gid != 1234 || st.Mode&0o7777 != 0o2777 {
			t.Errorf("%s: group %d, mode %o", name, st.Gid, st.Mode&0o7777)
		}
	}
	if err := os.WriteFile(filepath.Join(volumes["mem"].Path, "big"), make([]byte, 2<<20), 0o600); err == nil {
		t.Error("the size limit of a volume in memory does not hold")
	}
	if mountsBelow(t, dir.Path) != 1 {
		t.Error("no tmpfs is mounted")
	}
	if err := dir.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir.Path); !os.IsNotExist(err) || mountsBelow(t, dir.Path) != 0 {
		t.Error("something is left")
	}
	if err := dir.Remove(); err != nil {
		t.Errorf("a second removal: %v", err)
	}
}

// TestADataDirectoryMayBeALink. Seen to fail where mounts were looked for by the path with the link: the volume in
// memory stayed, and the directory with it.
func TestADataDirectoryMayBeALink(t *testing.T) {
	s := newStore(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(s.Root, link); err != nil {
		t.Fatal(err)
	}
	linked := &Store{Root: link, Address: s.Address}
	dir := create(t, linked, "p")
	volume := corev1.Volume{Name: "mem",
		VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "Memory"}}}
	if _, err := dir.MakeVolumes([]corev1.Volume{volume}, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	if err := dir.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir.Path); !os.IsNotExist(err) || mountsBelow(t, s.Root) != 0 {
		t.Errorf("something is left: %v", err)
	}
}

// TestAVolumeInMemoryHasTheSmallerOfItsLimits: its own, or what the pod may use. Seen to fail while only its own held.
func TestAVolumeInMemoryHasTheSmallerOfItsLimits(t *testing.T) {
	s := newStore(t)
	dir := create(t, s, "p")
	memory := func(name, limit string) corev1.Volume {
		source := &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}
		if limit != "" {
			size := resource.MustParse(limit)
			source.SizeLimit = &size
		}
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: source}}
	}
	volumes, err := dir.MakeVolumes([]corev1.Volume{memory("none", ""), memory("less", "1Mi"), memory("more", "1Gi")}, nil,
		4<<20, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint64{"none": 4 << 20, "less": 1 << 20, "more": 4 << 20} {
		var st unix.Statfs_t
		if err := unix.Statfs(volumes[name].Path, &st); err != nil {
			t.Fatal(err)
		}
		if got := st.Blocks * uint64(st.Bsize); got != want {
			t.Errorf("%s has %d bytes, want %d", name, got, want)
		}
	}
}

// TestNobodyElseEntersTheDirectoryOfAPod: its volumes hold what containers write, and those of an earlier version
// were open.
func TestNobodyElseEntersTheDirectoryOfAPod(t *testing.T) {
	s := newStore(t)
	if err := os.Mkdir(s.pods(), 0o711); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{create(t, s, "p").Path, s.pods()} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v (%v)", dir, info.Mode(), err)
		}
	}
}

func TestASubPathCannotLeaveItsVolume(t *testing.T) {
	s := newStore(t)
	dir := create(t, s, "p")
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	volumes, err := dir.MakeVolumes([]corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}, nil, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	plain := func(text string) (string, error) { return text, nil }
	if err := os.Symlink(outside, filepath.Join(volumes["v"].Path, "evil")); err != nil {
		t.Fatal(err)
	}
	// the link is followed inside of the volume, to nothing
	for _, sub := range []string{"evil/x", "evil/secret", "evil"} {
		if mounts, err := dir.Mounts("c", 0, []corev1.VolumeMount{{Name: "v", MountPath: "/a", SubPath: sub}}, volumes,
			plain); err == nil {
			t.Errorf("%s was mounted: %v", sub, mounts)
		}
	}
	good := []corev1.VolumeMount{{Name: "v", MountPath: "/b", SubPathExpr: "good/$(X)"}}
	mounts, err := dir.Mounts("c", 0, good, volumes,
		func(text string) (string, error) { return map[string]string{"good/$(X)": "good/y"}[text], nil })
	if err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("something was made outside: %v", entries)
	}
	// Once it is pinned, the path may change as it likes.
	if err := os.RemoveAll(filepath.Join(volumes["v"].Path, "good")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(mounts[0].HostPath); err != nil || !info.IsDir() {
		t.Errorf("the pinned path: %v", err)
	}
	if _, err := dir.Mounts("c", 0, []corev1.VolumeMount{{Name: "none", MountPath: "/a"}}, volumes, plain); err == nil {
		t.Error("a volume that is not there was mounted")
	}
	if err := dir.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(outside, "secret")); err != nil {
		t.Errorf("the removal went outside: %v", err)
	}
}

// TestTheDirectoriesOfASubPathAreLikeTheirVolume: the user of a container that is not root can write to them, and so
// can the volume's group. Seen to fail with a fixed mode, and with a mode that the umask may change.
func TestTheDirectoriesOfASubPathAreLikeTheirVolume(t *testing.T) {
	s := newStore(t)
	dir := create(t, s, "p")
	defer unix.Umask(unix.Umask(0o077))
	group := int64(1234)
	for name, c := range map[string]struct {
		group *int64
		gid   uint32
		mode  uint32
	}{"open": {nil, 0, 0o777}, "grouped": {&group, 1234, 0o2777}} {
		volumes, err := dir.MakeVolumes([]corev1.Volume{
			{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}, c.group, 0, nil)
		if err != nil {
			t.Fatal(err)
		}
		root := volumes[name].Path
		if err := os.Mkdir(filepath.Join(root, "there"), 0o700); err != nil {
			t.Fatal(err)
		}
		for i, sub := range []string{"a", "b/c/d", "there/new/"} {
			if _, err := dir.Mounts(name, i, []corev1.VolumeMount{{Name: name, MountPath: "/a", SubPath: sub}}, volumes,
				nil); err != nil {
				t.Fatal(err)
			}
		}
		for _, made := range []string{"a", "b", "b/c", "b/c/d", "there/new"} {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(root, made), &st); err != nil {
				t.Fatal(err)
			}
			if st.Mode&0o7777 != c.mode || st.Gid != c.gid || st.Uid != 0 {
				t.Errorf("%s: %s has mode %o, user %d and group %d", name, made, st.Mode&0o7777, st.Uid, st.Gid)
			}
		}
		if info, err := os.Stat(filepath.Join(root, "there")); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: a directory that was there has mode %v (%v)", name, info.Mode(), err)
		}
	}
}

// TestAnAttemptThatIsTriedAgainKeepsTheFilesOfItsVolumes: a container that could not be made is tried again under the
// number of the same attempt, whose sub-paths are mounted already. Seen to fail while the place of the mount was opened
// like a new file: that emptied the file of the volume.
func TestAnAttemptThatIsTriedAgainKeepsTheFilesOfItsVolumes(t *testing.T) {
	s := newStore(t)
	dir := create(t, s, "p")
	volume := t.TempDir()
	file, directory := filepath.Join(volume, "file"), filepath.Join(volume, "directory")
	if err := errors.Join(os.WriteFile(file, []byte("data"), 0o644), os.Mkdir(directory, 0o700)); err != nil {
		t.Fatal(err)
	}
	pin := func() []*cri.Mount {
		t.Helper()
		mounts, err := dir.Mounts("c", 0, []corev1.VolumeMount{{Name: "v", MountPath: "/f", SubPath: "file"},
			{Name: "v", MountPath: "/d", SubPath: "directory"}}, Volumes{"v": {Path: volume}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return mounts
	}
	check := func(attempt int) {
		t.Helper()
		if data, err := os.ReadFile(file); err != nil || string(data) != "data" {
			t.Errorf("the file of the volume has %q (%v)", data, err)
		}
		if n := mountsBelow(t, dir.subPaths("c", attempt)); n != 2 {
			t.Errorf("attempt %d has %d mounts, want one for each of its two sub-paths", attempt, n)
		}
	}
	pin()
	pin()
	check(0)
	for range 2 {
		mounts := pin()
		if err := dir.Repin("c", 0, 1, mounts); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(mounts[0].HostPath); err != nil || string(data) != "data" {
			t.Errorf("the next attempt finds %q (%v)", data, err)
		}
	}
	check(1)
	// What was a file is a directory by now, and the other way round.
	if err := errors.Join(os.Remove(directory), os.Rename(file, directory), os.Mkdir(file, 0o700)); err != nil {
		t.Fatal(err)
	}
	mounts := pin()
	if info, err := os.Stat(mounts[0].HostPath); err != nil || !info.IsDir() {
		t.Errorf("a directory in the place of a file: %v", err)
	}
	if data, err := os.ReadFile(mounts[1].HostPath); err != nil || string(data) != "data" {
		t.Errorf("a file in the place of a directory: %q, %v", data, err)
	}
}

// TestTwoPodsMayMakeOneSubPath: the pods of a job with parallelism are started side by side, and both may find that the
// directory is missing. Seen to fail for the one that comes second.
func TestTwoPodsMayMakeOneSubPath(t *testing.T) {
	volume := t.TempDir()
	in, err := os.Open(volume)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for _, mode := range []uint32{0o755, 0o700} { // the second time it is there, with the mode of the first
		made, err := makeDirectory(in, "out", mode)
		if err != nil {
			t.Fatal(err)
		}
		info, err := made.Stat()
		made.Close()
		if err != nil || !info.IsDir() || info.Mode().Perm() != 0o755 {
			t.Errorf("it is %v, %v", info.Mode(), err)
		}
	}
	outside := t.TempDir()
	if err := errors.Join(os.Symlink(outside, filepath.Join(volume, "link")),
		os.WriteFile(filepath.Join(volume, "file"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"link", "file"} {
		if made, err := makeDirectory(in, name, 0o755); err == nil {
			made.Close()
			t.Errorf("a %s in its place is taken for a directory", name)
		}
	}
}

// TestVariablesCannotLeadASubPathOutOfItsVolume, nor can they make another path of one that a manifest asks for.
func TestVariablesCannotLeadASubPathOutOfItsVolume(t *testing.T) {
	s := newStore(t)
	dir := create(t, s, "p")
	volumes, err := dir.MakeVolumes([]corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}, nil, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	volumes["i"] = Volume{Image: "sha256:1"}
	for _, volume := range []string{"v", "i"} {
		for value, want := range map[string]string{
			"/etc": `"/etc" is not a path inside the volume`, "a/../..": `"a/../.." is not a path inside the volume`,
			"error": "no variable X", "a/b": "",
		} {
			expand := func(string) (string, error) {
				if value == "error" {
					return "", errors.New("no variable X")
				}
				return value, nil
			}
			_, err := dir.Mounts("c", len(value), []corev1.VolumeMount{{Name: volume, MountPath: "/a", SubPathExpr: "$(X)"}},
				volumes, expand)
			if want != "" {
				want = "volume " + volume + ": subPathExpr $(X): " + want
			}
			if err == nil && want != "" || err != nil && err.Error() != want {
				t.Errorf("%s: %s: %v", volume, value, err)
			}
		}
	}
}

func TestHostPathsAreCheckedByTheirType(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path string
		kind corev1.HostPathType
		good bool
	}{
		{dir, "", true}, {file, "", true}, {dir, "Directory", true}, {file, "Directory", false}, {file, "File", true},
		{dir, "File", false},
		// The daemon says what becomes of one without a type. Seen to fail where the path had to be there.
		{filepath.Join(dir, "none"), "", true}, {filepath.Join(dir, "none"), "Directory", false},
		{filepath.Join(dir, "new/dir"), "DirectoryOrCreate", true}, {filepath.Join(dir, "newfile"), "FileOrCreate", true},
		{dir, "FileOrCreate", false}, {file, "DirectoryOrCreate", false}, {"/dev/null", "CharDevice", true},
		{"/dev/null", "BlockDevice", false},
		{file, "Socket", false},
	} {
		err := checkHostPath(&corev1.HostPathVolumeSource{Path: c.path, Type: &c.kind})
		if (err == nil) != c.good {
			t.Errorf("%s as %q: %v", c.path, c.kind, err)
		}
	}
	if err := checkHostPath(&corev1.HostPathVolumeSource{Path: filepath.Join(dir, "none")}); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("it was made: %v", err)
	}
}

func TestASweepRemovesWhatHasNoPod(t *testing.T) {
	s := newStore(t)
	alive, dead := create(t, s, "alive"), create(t, s, "dead")
	other := create(t, &Store{Root: s.Root, Address: "unix:///b.sock"}, "other")
	half := s.Dir("default", "half", "uid-half") // its maker was killed before it wrote the record
	if err := os.Mkdir(half.Path, 0o700); err != nil {
		t.Fatal(err)
	}
	_, making, err := s.Create(Record{Namespace: "default", Name: "young", UID: "uid-young"})
	if err != nil {
		t.Fatal(err)
	}
	know := func() (map[string]bool, error) { return map[string]bool{"uid-alive": true, "uid-young": true}, nil }
	if err := s.Sweep(know); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead.Path); err != nil {
		t.Error("a sweep went on while a pod was being made")
	}
	making()
	if err := s.Sweep(know); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[*Dir]bool{alive: true, dead: false, other: true, half: false} {
		if _, err := os.Stat(dir.Path); (err == nil) != want {
			t.Errorf("%s: there: %v", dir.Path, err == nil)
		}
	}
}

// TestADirectoryWithoutAPodIsMadeAnew: `apply` starts a pod again under its UID, whoever has removed the pod.
func TestADirectoryWithoutAPodIsMadeAnew(t *testing.T) {
	s := newStore(t)
	record := Record{Namespace: "default", Name: "p", UID: "uid-p", Applied: "/manifests"}
	for what, c := range map[string]struct {
		store  *Store
		record Record
		goes   bool
	}{
		"its own":              {s, record, true},
		"of another directory": {s, Record{Namespace: "default", Name: "p", UID: "uid-p", Applied: "/other"}, false},
		"of `berth run`":       {s, Record{Namespace: "default", Name: "p", UID: "uid-p"}, false},
		"of another runtime":   {&Store{Root: s.Root, Address: "unix:///b.sock"}, record, false},
		"without a record":     {nil, record, true},
		"that is not there":    {nil, Record{}, true},
	} {
		path := s.dir(record).Path
		var err error
		switch {
		case c.store != nil:
			var made func()
			if _, made, err = c.store.Create(c.record); err == nil {
				made()
			}
		case c.record.UID != "": // its maker was killed before it wrote the record
			err = os.MkdirAll(path, 0o700)
		}
		if err != nil {
			t.Fatal(what, err)
		}
		if err := s.RemoveLost(record); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Lstat(path); os.IsNotExist(err) != c.goes {
			t.Errorf("one %s: %v", what, err)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
}

// TestATornRecordKeepsNoDirectory: a power failure may have emptied the record of an earlier version, or left a part of
// it or zeros. What is mounted in the directory is unmounted, and the directory of a pod that is there stays. Seen to
// fail where such a record is an error.
func TestATornRecordKeepsNoDirectory(t *testing.T) {
	for what, content := range map[string]string{
		"an empty": "", "a part of a": "{\n  \"address\": \"unix:///a", "a zeroed": string(make([]byte, 90)),
	} {
		s := newStore(t)
		tear := func(dir *Dir) *Dir {
			if err := os.WriteFile(filepath.Join(dir.Path, recordFile), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			volume := corev1.Volume{Name: "m", VolumeSource: corev1.VolumeSource{
				EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}
			if _, err := dir.MakeVolumes([]corev1.Volume{volume}, nil, 0, nil); err != nil {
				t.Fatal(err)
			}
			return dir
		}
		gone := func(how string, dir *Dir, err error) {
			if _, there := os.Lstat(dir.Path); err != nil || !os.IsNotExist(there) || mountsBelow(t, dir.Path) > 0 {
				t.Errorf("%s with %s record: %v, %v", how, what, err, there)
			}
		}
		removed, lost, alive, dead := tear(create(t, s, "removed")), tear(create(t, s, "lost")),
			tear(create(t, s, "alive")), tear(create(t, s, "dead"))
		if err := (&Dir{Path: alive.Path, uid: "another"}).Remove(); err == nil {
			t.Errorf("with %s record, the directory of another pod was removed", what)
		}
		gone("removal", removed, removed.Remove())
		gone("RemoveLost", lost, s.RemoveLost(Record{Namespace: "default", Name: "lost", UID: "uid-lost"}))
		gone("a sweep", dead, s.Sweep(func() (map[string]bool, error) { return map[string]bool{"uid-alive": true}, nil }))
		if _, err := os.Lstat(alive.Path); err != nil {
			t.Errorf("with %s record, a sweep removed the directory of a pod that is there: %v", what, err)
		}
	}
}

// TestADirectoryIsLockedByWhoMakesOrRemovesIt: `apply` makes a pod anew while `berth rm` still removes the directory of
// the one before, which has the same path. Seen to fail without the lock of either.
func TestADirectoryIsLockedByWhoMakesOrRemovesIt(t *testing.T) {
	s := newStore(t)
	record := Record{Namespace: "default", Name: "p", UID: "uid-p", Applied: "/manifests"}
	dir, made, err := s.Create(record)
	if err != nil {
		t.Fatal(err)
	}
	// waits says that a call does not return until another has.
	waits := func(what string, call func() error, until func()) {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- call() }()
		select {
		case err := <-ended:
			t.Fatalf("%s does not wait: %v", what, err)
		case <-time.After(100 * time.Millisecond):
		}
		until()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	var release func()
	waits("a removal of a pod that is being made", func() (err error) {
		release, err = dir.Lock()
		return err
	}, made)
	waits("a start of a pod that is being removed", func() error { return s.RemoveLost(record) }, func() {
		if err := dir.Remove(); err != nil {
			t.Error(err)
		}
		release()
	})
	create(t, s, "p")
}

func TestNamesOfOthersCannotLeaveTheStore(t *testing.T) {
	s := newStore(t)
	victim := t.TempDir()
	for _, dir := range []*Dir{s.Dir("..", "..", "../../"+victim), s.Dir("a/../..", "b", "c")} {
		if err := dir.Remove(); err != nil || dir.Path != "" {
			t.Errorf("got %q, %v", dir.Path, err)
		}
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
	mine := create(t, s, "p")
	if err := (&Dir{Path: mine.Path, uid: "another"}).Remove(); err == nil {
		t.Error("the directory of another pod was removed")
	}
}

// A kubelet's layout is what programs rely on that watch a volume: they wait until ..data changes.
func TestFilesOfAManifestAreWrittenAsAKubeletDoes(t *testing.T) {
	s := newStore(t)
	dir := create(t, s, "p")
	group := int64(1234)
	volumes, err := dir.MakeVolumes([]corev1.Volume{
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}},
		{Name: "map", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}}},
	}, &group, 0, func(v *corev1.Volume) (*Content, error) {
		return &Content{InMemory: v.Secret != nil, Files: []manifest.VolumeFile{
			{Path: "a", Data: []byte("one"), Mode: 0o400}, {Path: "d/b", Data: []byte("two"), Mode: 0o644},
			{Path: "d/c", Mode: 0o604},
		}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if mountsBelow(t, dir.Path) != 1 {
		t.Error("a secret is not in memory, or a ConfigMap is")
	}
	for name, volume := range volumes {
		path := volume.Path
		for file, want := range map[string]struct {
			mode uint32
			text string
		}{"a": {0o440, "one"}, "d/b": {0o644, "two"}, "d/c": {0o644, ""}, "d": {0o2755, ""}, ".": {0o2777, ""}} {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(path, file), &st); err != nil {
				t.Fatal(err)
			}
			if st.Mode&0o7777 != want.mode || st.Gid != 1234 {
				t.Errorf("%s: %s has mode %o and group %d", name, file, st.Mode&0o7777, st.Gid)
			}
			text, err := os.ReadFile(filepath.Join(path, file))
			if want.text != "" && (err != nil || string(text) != want.text) {
				t.Errorf("%s: %s holds %q, %v", name, file, text, err)
			}
		}
		stamp, err := os.Readlink(filepath.Join(path, "..data"))
		if err != nil || len(stamp) < 2 || stamp[:2] != ".." {
			t.Errorf("%s: ..data is %q, %v", name, stamp, err)
		}
		for entry, want := range map[string]string{"a": "..data/a", "d": "..data/d"} {
			if link, err := os.Readlink(filepath.Join(path, entry)); err != nil || link != want {
				t.Errorf("%s: %s is %q, %v", name, entry, link, err)
			}
		}
	}
	mounts, err := dir.Mounts("c", 0, []corev1.VolumeMount{{Name: "map", MountPath: "/m"}}, volumes, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(mounts) != 1 || !mounts[0].Readonly {
		t.Errorf("a container may write to a ConfigMap: %v", mounts)
	}
	if !mounts[0].SelinuxRelabel {
		t.Errorf("under SELinux a container may not read a ConfigMap: %v", mounts)
	}
	if err := dir.Remove(); err != nil || mountsBelow(t, dir.Path) != 0 {
		t.Errorf("removal: %v", err)
	}
}

// TestNoContainerKeepsADirectory: what it has left in a volume is removed, also more levels than this process may have
// open files, and a file that is marked immutable. Seen to fail with os.RemoveAll.
func TestNoContainerKeepsADirectory(t *testing.T) {
	s := newStore(t)
	d := create(t, s, "deep")
	volume := filepath.Join(d.Path, "volumes", "v")
	if err := os.MkdirAll(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Open(volume, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		err := unix.Mkdirat(at, "d", 0o755)
		below, openErr := unix.Openat(at, "d", unix.O_PATH|unix.O_CLOEXEC, 0)
		unix.Close(at)
		if err != nil || openErr != nil {
			t.Fatal(err, openErr)
		}
		at = below
	}
	unix.Close(at)
	if err := os.WriteFile(filepath.Join(volume, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chattr", "+i", filepath.Join(volume, "file")).CombinedOutput(); err != nil {
		t.Logf("without an immutable file: %v, %s", err, out)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 500
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	if err := d.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(d.Path); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}

// TestFilesThatContainersWriteToAreLimited: they are in no volume, and on the node's disk no limit would count them.
// They are removed with the pod's directory. Seen to fail without the tmpfs.
func TestFilesThatContainersWriteToAreLimited(t *testing.T) {
	s := newStore(t)
	dir := create(t, s, "p")
	hosts, err := dir.WriteHosts([]byte("127.0.0.1 localhost\n"))
	if err != nil {
		t.Fatal(err)
	}
	message, err := dir.MakeMessage("c", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{hosts.HostPath, message} {
		if err := os.WriteFile(path, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("2 MiB are written to %s: %v", path, err)
		}
		var fs unix.Statfs_t
		const want = unix.ST_NOSUID | unix.ST_NODEV | unix.ST_NOEXEC
		if err := unix.Statfs(path, &fs); err != nil || fs.Flags&want != want {
			t.Errorf("%s is on a file system with flags %#x, %v", path, fs.Flags, err)
		}
	}
	if _, err := dir.MakeMessage("c", 1); err != nil {
		t.Errorf("another attempt, with all room taken: %v", err)
	}
	if n := mountsBelow(t, dir.Path); n != 2 {
		t.Errorf("there are %d mounts", n)
	}
	if err := dir.Remove(); err != nil {
		t.Error(err)
	}
	if n := mountsBelow(t, dir.Path); n != 0 {
		t.Errorf("%d mounts are left", n)
	}
}

// TestThePodsFilesAreThereAfterAReboot: a reboot removes what is mounted. Seen to fail with Hosts that makes nothing.
func TestThePodsFilesAreThereAfterAReboot(t *testing.T) {
	s := newStore(t)
	dir := create(t, s, "p")
	const content = "127.0.0.1 localhost\n"
	if _, err := dir.WriteHosts([]byte(content)); err != nil {
		t.Fatal(err)
	}
	before, err := dir.MakeMessage("c", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{hosts, messages} {
		if err := unix.Unmount(dir.ownFiles(kind), 0); err != nil {
			t.Fatal(err)
		}
	}
	mount, err := dir.Hosts()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(mount.HostPath); string(got) != content || err != nil {
		t.Errorf("the hosts file has %q, %v", got, err)
	}
	if after, err := dir.MakeMessage("c", 0); err != nil || after != before {
		t.Errorf("the message is at %s, %v", after, err)
	}
	if n := mountsBelow(t, dir.Path); n != 2 {
		t.Errorf("there are %d mounts", n)
	}
}

// TestAPodOfAnEarlierVersionKeepsItsFiles: it has them in its directory, where its containers have them mounted. Later
// attempts have the new place. Seen to fail with the new places alone.
func TestAPodOfAnEarlierVersionKeepsItsFiles(t *testing.T) {
	s := newStore(t)
	dir := create(t, s, "p")
	old := filepath.Join(dir.Path, "messages", "c", "0")
	if err := os.MkdirAll(filepath.Dir(old), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{old, filepath.Join(dir.Path, "etc-hosts")} {
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if mount, err := dir.Hosts(); err != nil || mount == nil || mount.HostPath != filepath.Join(dir.Path, "etc-hosts") {
		t.Errorf("the hosts file is %v, %v", mount, err)
	}
	if got := dir.Message("c", 0); got != old {
		t.Errorf("the message is %s", got)
	}
	next, err := dir.MakeMessage("c", 1)
	if err != nil || !dir.IsMessage(next, "c", 1) || !dir.IsMessage(old, "c", 0) || dir.IsMessage(old, "c", 1) {
		t.Errorf("the next message is %s, %v", next, err)
	}
	if err := dir.ForgetBefore("c", 2); err != nil {
		t.Error(err)
	}
	for _, path := range []string{old, next} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}
