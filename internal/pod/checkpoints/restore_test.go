package checkpoints

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/checkpoint"
	"berth/internal/model"
	"berth/internal/ocispec"
)

// Processes of a checkpoint go on as who they were, and execs are it too: an ID that means "no change" to the kernel
// would be root's. Seen to fail without the check in fit.
func TestACheckpointHasNoIDThatIsNone(t *testing.T) {
	for _, user := range []specs.User{{UID: 1<<32 - 1}, {GID: 1<<32 - 1}, {AdditionalGids: []uint32{5, 1 << 31}}} {
		old := &specs.Spec{Process: &specs.Process{User: user}, Linux: &specs.Linux{}, Root: &specs.Root{}}
		re := &Restoring{info: &checkpoint.Info{Spec: old, Streams: []string{"/dev/null", "", ""}}}
		out := &ocispec.Output{Spec: &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}, Root: &specs.Root{}}}
		if err := re.Fit(&model.ContainerConfig{}, out); !errors.Is(err, errdefs.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), "is not a number from 0 to 2147483647") {
			t.Errorf("%+v: %v", user, err)
		}
	}
}

// CRIU gives the mounts and the filter of a checkpoint back as they were, whatever the request says of them. Seen to
// fail without sameOptions, without the comparison of the default actions and with agents taken for none.
func TestARestoredProcessHasTheMountOptionsAndFilterThatTheRequestGives(t *testing.T) {
	filter := func(action specs.LinuxSeccompAction) *specs.LinuxSeccomp {
		return &specs.LinuxSeccomp{DefaultAction: action}
	}
	told := filter(specs.ActAllow)
	told.ListenerPath = "/run/agent.sock"
	spec := func(volume, own string, seccomp *specs.LinuxSeccomp) *specs.Spec {
		return &specs.Spec{
			Process: &specs.Process{}, Root: &specs.Root{}, Linux: &specs.Linux{Seccomp: seccomp},
			Mounts: []specs.Mount{
				{Destination: "/data/", Options: strings.Fields(volume)}, {Destination: "/sys", Options: strings.Fields(own)},
			},
		}
	}
	for what, test := range map[string]struct {
		was, is *specs.Spec
		refused string // a part of the error; empty: it is not refused
	}{
		"same":             {was: spec("rbind ro", "ro", nil), is: spec("ro rprivate rbind", "ro", nil)},
		"read-only":        {was: spec("", "", nil), is: spec("ro", "", nil), refused: "the option ro of the mount at /data"},
		"writable":         {was: spec("ro", "", nil), is: spec("rw", "", nil), refused: "option ro of the mount at /data"},
		"the last holds":   {was: spec("ro rw", "", nil), is: spec("", "", nil)},
		"recursively":      {was: spec("ro", "", nil), is: spec("ro rro", "", nil), refused: "rro of the mount at /data"},
		"as others say it": {was: spec("rro", "", nil), is: spec("ro rro", "", nil)},
		"noexec":           {was: spec("", "", nil), is: spec("noexec", "", nil), refused: "noexec of the mount at /data"},
		"nosuid":           {was: spec("", "", nil), is: spec("nosuid", "", nil), refused: "nosuid of the mount at /data"},
		"nodev":            {was: spec("nodev", "", nil), is: spec("", "", nil), refused: "nodev of the mount at /data"},
		"own mount, ro":    {was: spec("", "rw", nil), is: spec("", "ro", nil), refused: "ro of the mount at /sys"},
		"own mount, nodev": {was: spec("", "", nil), is: spec("", "nodev", nil)},
		"filter, same":     {was: spec("", "", filter(specs.ActErrno)), is: spec("", "", filter(specs.ActErrno))},
		"filter, stricter": {was: spec("", "", filter(specs.ActErrno)), is: spec("", "", filter(specs.ActAllow))},
		"filter of nothing": {was: spec("", "", filter(specs.ActAllow)), is: spec("", "", filter(specs.ActErrno)),
			refused: "the default action of the seccomp filter"},
		"filter that logs": {was: spec("", "", filter(specs.ActLog)), is: spec("", "", filter(specs.ActErrno)),
			refused: "the default action of the seccomp filter"},
		"filter with an agent": {was: spec("", "", told), is: spec("", "", filter(specs.ActAllow)), refused: "with an agent"},
		"request with an agent": {was: spec("", "", filter(specs.ActAllow)), is: spec("", "", told),
			refused: "with an agent"},
	} {
		re := &Restoring{info: &checkpoint.Info{Spec: test.was, Streams: []string{"/dev/null", "", ""}}}
		cfg := &model.ContainerConfig{Mounts: []model.Mount{{ContainerPath: "/data"}}}
		err := re.Fit(cfg, &ocispec.Output{Spec: test.is})
		switch refused := errors.Is(err, errdefs.ErrFailedPrecondition); {
		case test.refused == "" && err != nil, test.refused != "" && !refused,
			refused && !strings.Contains(err.Error(), test.refused):
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestWhatIsDeletedInAPipeIsNotWaitedFor: the writable layer of a checkpoint may have anything where a deleted file's
// directory was. Seen to fail with the directory opened as whatever it is: the pipe is waited for without an end.
func TestWhatIsDeletedInAPipeIsNotWaitedFor(t *testing.T) {
	asroot.Need(t, "devices")
	upper, dir := t.TempDir(), t.TempDir()
	if err := errors.Join(unix.Mkfifo(filepath.Join(upper, "pipe"), 0o600),
		unix.Mknod(filepath.Join(upper, "device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))),
		os.WriteFile(filepath.Join(upper, "file"), nil, 0o600), os.Symlink("pipe", filepath.Join(upper, "link")),
		os.WriteFile(filepath.Join(dir, checkpoint.DeletedFile),
			[]byte(`["pipe/a","device/a","file/a","file/a/b","link/a","d/e/f"]`), 0o600)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- deleteFiles(upper, dir) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits for somebody who writes to a pipe")
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(upper, "d/e/f"), &st); err != nil || st.Mode != unix.S_IFCHR || st.Rdev != 0 {
		t.Errorf("a whiteout of mode %o, device %d, %v", st.Mode, st.Rdev, err)
	}
}

// FuzzDeletedFiles: whatever names a checkpoint says are deleted, and whatever links its files are, nothing outside of
// the writable layer changes, and in it there are only more directories and whiteouts.
func FuzzDeletedFiles(f *testing.F) {
	if os.Geteuid() != 0 {
		f.Skip("needs root: whiteouts are devices")
	}
	f.Add([]byte(`["/a","b/c/d","../../canary","/link/x","link","."]`), "..")
	f.Add([]byte(`["link/canary","link/../canary","a\u0000b",""]`), "../")
	f.Add([]byte(`{"a":1}`), "/")
	f.Fuzz(func(t *testing.T, deleted []byte, link string) {
		top, err := os.MkdirTemp("/dev/shm", "berth-fuzz-deleted-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(top)
		upper, dir := filepath.Join(top, "c/upper"), filepath.Join(top, "c/restore")
		for _, d := range []string{upper, dir} {
			if err := os.MkdirAll(d, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for path, text := range map[string][]byte{
			filepath.Join(top, "canary"): []byte("canary"), filepath.Join(top, "c/canary"): []byte("canary"),
			filepath.Join(dir, checkpoint.DeletedFile): deleted,
		} {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		_ = os.Symlink(link, filepath.Join(upper, "link")) // not every text is a link's
		list := func() string {
			var all []string
			_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err != nil {
					return err
				}
				if path == upper {
					return fs.SkipDir
				}
				all = append(all, path+" "+d.Type().String())
				return nil
			})
			b, _ := json.Marshal(all)
			return string(b)
		}
		before := list()
		_ = deleteFiles(upper, dir) // names may be none that the kernel takes
		if after := list(); after != before {
			t.Errorf("outside there was %s and is %s", before, after)
		}
		_ = filepath.WalkDir(upper, func(path string, d fs.DirEntry, err error) error {
			var st unix.Stat_t
			switch {
			case err != nil, d.IsDir(), path == filepath.Join(upper, "link") && d.Type() == fs.ModeSymlink:
			case unix.Lstat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev != 0:
				t.Errorf("%s is %v", path, d.Type())
			}
			return nil
		})
	})
}
