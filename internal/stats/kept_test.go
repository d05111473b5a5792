package stats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/asroot"
	"berth/internal/cgroup"
	"berth/internal/model"
)

// readUnified reads a directory as a cgroup of version 2.
func readUnified(dir string, buf []byte) (*Cgroup, error) {
	h := &cgroup.Hierarchies{Version: cgroup.V2, Unified: dir}
	return read(h, "/", all, func(string) (directory, error) { return openDirectory(dir, buf) })
}

// keeping is a sampler that may keep files open, whatever the limit of this process is.
func keeping(t *testing.T) *Sampler {
	t.Helper()
	s := sampler(t, Config{})
	s.descriptors = plenty()
	return s
}

func plenty() *descriptors { return newDescriptors(1 << 20) }

// openIn counts the files below a cgroup that this process has open.
func openIn(t *testing.T, path string) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	n := 0
	for _, entry := range list {
		link, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err == nil && strings.Contains(link, path+"/") {
			n++
		}
	}
	return n
}

// TestFilesAreKeptOpenForTheThirdReading: a single question keeps none.
func TestFilesAreKeptOpenForTheThirdReading(t *testing.T) {
	asroot.Need(t, "cgroups")
	path := group(t, "kept")
	s := keeping(t)
	target := Target{ID: "c", Cgroup: path}
	s.Container(t.Context(), target)
	if n := openIn(t, path); n != 0 {
		t.Errorf("one reading has left %d files open", n)
	}
	for range 3 {
		s.Container(t.Context(), target)
	}
	n := openIn(t, path)
	if n == 0 || int64(n) != s.descriptors.kept.Load() {
		t.Errorf("%d files are open, and %d are counted", n, s.descriptors.kept.Load())
	}
	for _, step := range []struct {
		what string
		do   func()
		want int
	}{
		{"somebody asks again and again", func() { s.sweep(time.Now().Add(keepFor / 2)) }, n},
		{"nobody has asked for a while", func() { s.sweep(time.Now().Add(keepFor + time.Second)) }, 0},
		{"somebody asks again", func() { s.Container(t.Context(), target) }, n},
		{"the container is forgotten", func() { s.Forget("c") }, 0},
	} {
		if step.do(); openIn(t, path) != step.want {
			t.Errorf("%s: %d files are open, want %d", step.what, openIn(t, path), step.want)
		}
	}
}

// TestACgroupMadeAnewIsReadAnew: what was kept of the one before at the same path is not read. The test fails without
// the check for ENODEV in readFrom, and without the second turn in readKept.
func TestACgroupMadeAnewIsReadAnew(t *testing.T) {
	asroot.Need(t, "cgroups")
	h := hierarchies(t)
	path := group(t, "anew")
	s := keeping(t)
	target := Target{ID: "c", Cgroup: path}
	t.Run("before", func(t *testing.T) {
		inside(t, path, "x=$(head -c 8000000 /dev/zero | tr '\\0' x); while :; do :; done")
		eventually(t, "the process uses CPU and memory", func() bool {
			u := s.Container(t.Context(), target)
			return u.CPU.UsageNanoSeconds > 50e6 && (u.Memory == nil || u.Memory.RSS > 8e6)
		})
	})
	if openIn(t, path) == 0 {
		t.Fatal("no file is kept open")
	}
	must(t, h.Remove(t.Context(), path))
	if u := s.Container(t.Context(), target); u.CPU != nil || u.Memory != nil {
		t.Errorf("a cgroup that is gone has %+v, %+v", u.CPU, u.Memory)
	}
	if n := openIn(t, path); n != 0 {
		t.Errorf("%d files of a cgroup that is gone are open", n)
	}
	for range 3 { // and where nobody has asked between the two
		must(t, h.Create(path))
		before := time.Now()
		u := s.Container(t.Context(), target)
		if u.CPU == nil || u.CPU.UsageNanoSeconds > 10e6 || u.Memory == nil || u.Memory.RSS > 4e6 || u.At.Before(before) {
			t.Errorf("an empty cgroup has %+v, %+v of %v", u.CPU, u.Memory, u.At)
		}
		must(t, h.Remove(t.Context(), path))
	}
	must(t, h.Create(path))
}

// TestAnotherPathOfTheSameContainerIsRead: the files of the cgroup that it had before are closed.
func TestAnotherPathOfTheSameContainerIsRead(t *testing.T) {
	asroot.Need(t, "cgroups")
	first, second := group(t, "first"), group(t, "second")
	s := keeping(t)
	for range 3 {
		s.Container(t.Context(), Target{ID: "c", Cgroup: first})
	}
	s.Container(t.Context(), Target{ID: "c", Cgroup: second})
	if openIn(t, first) != 0 || openIn(t, second) == 0 {
		t.Errorf("%d files of the cgroup before are open, and %d of this", openIn(t, first), openIn(t, second))
	}
}

// TestFilesAreKeptWithinALimit: readings of what is beyond it have the same figures.
func TestFilesAreKeptWithinALimit(t *testing.T) {
	asroot.Need(t, "cgroups")
	parent := group(t, "limit")
	h := hierarchies(t)
	var targets []Target
	for i := range 4 {
		path := fmt.Sprintf("%s/%d", parent, i)
		must(t, h.Create(path))
		targets = append(targets, Target{ID: path, Cgroup: path})
	}
	for name, limit := range map[string]*descriptors{
		"5 files": {most: 5, last: 1 << 20}, "no high numbers": {most: 100, last: 2}, "none": {last: 1 << 20},
	} {
		s := sampler(t, Config{})
		s.descriptors = limit
		for range 4 {
			for _, u := range s.Containers(t.Context(), targets) {
				if u.CPU == nil || u.Memory == nil || u.IO == nil {
					t.Errorf("%s: %+v", name, u)
				}
			}
			if n := int64(openIn(t, parent)); n != limit.kept.Load() || n > limit.most || limit.last == 2 && n > 0 {
				t.Errorf("%s: %d files are open, and %d are counted", name, n, limit.kept.Load())
			}
		}
		s.Close()
		if n := openIn(t, parent); n != 0 || limit.kept.Load() != 0 {
			t.Errorf("%s: %d files are open after Close, %d are counted", name, n, limit.kept.Load())
		}
	}
}

// TestALowLimitIsLeftToContainers: the files that are kept take nothing from the containers that it is enough for.
func TestALowLimitIsLeftToContainers(t *testing.T) {
	for limit, want := range map[uint64]int64{0: 0, 1024: 0, 16000: 0, 20000: 4000, 1 << 20: mostKept} {
		if got := newDescriptors(limit).most; got != want {
			t.Errorf("of %d descriptors %d are for files that are kept, want %d", limit, got, want)
		}
	}
}

// TestForgottenContainersLeaveNoFileOpen while others read them.
func TestForgottenContainersLeaveNoFileOpen(t *testing.T) {
	asroot.Need(t, "cgroups")
	path := group(t, "race")
	s := keeping(t)
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for i := range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				s.Container(t.Context(), Target{ID: fmt.Sprint(i % 2), Cgroup: path})
				if i == 0 {
					s.Forget("1")
					s.sweep(time.Now().Add(time.Hour))
				}
			}
		})
	}
	wg.Wait()
	s.Forget("0")
	s.Forget("1")
	if n := openIn(t, path); n != 0 || s.descriptors.kept.Load() != 0 {
		t.Errorf("%d files are open, %d are counted", n, s.descriptors.kept.Load())
	}
}

// TestKeptFilesHaveTheFiguresOfRead on a cgroup in which nothing happens, and on files as a kernel makes them of
// version 2.
func TestKeptFilesHaveTheFiguresOfRead(t *testing.T) {
	asroot.Need(t, "cgroups")
	unified := &cgroup.Hierarchies{Version: cgroup.V2, Unified: t.TempDir()}
	for name, content := range map[string]string{
		"cpu.stat": "usage_usec 2500\n", "cpu.pressure": "some avg10=1.50 avg60=0.20 avg300=0.00 total=12\n",
		"memory.current": "1000000\n", "memory.max": "2000000\n",
		"memory.swap.current": "4096\n", "memory.swap.max": "8192\n",
		"memory.stat": "anon 300000\ninactive_file 400000\npgfault 11\npgmajfault 2\n",
		"io.stat":     "8:0 rbytes=10 wbytes=20 rios=1 wios=2\n", "io.pressure": "full avg10=0.50 total=3\n",
		"pids.current": "3\n",
	} {
		must(t, os.WriteFile(filepath.Join(unified.Unified, name), []byte(content), 0o600))
	}
	real := group(t, "same")
	inside(t, real, "x=$(head -c 3000000 /dev/zero | tr '\\0' x); kill -STOP $$")
	eventually(t, "the process has stopped", func() bool {
		first, err := Read(hierarchies(t), real)
		must(t, err)
		time.Sleep(50 * time.Millisecond)
		second, err := Read(hierarchies(t), real)
		must(t, err)
		return first.Memory.RSS > 3e6 && reflect.DeepEqual(first.CPU, second.CPU)
	})
	for _, c := range []struct {
		h    *cgroup.Hierarchies
		path string
	}{{unified, "/"}, {hierarchies(t), real}} {
		whole, err := Read(c.h, c.path)
		must(t, err)
		for wanted, edit := range map[parts]func(*Cgroup){
			neededParts[usage]:    func(r *Cgroup) { r.Processes = nil },
			neededParts[podUsage]: func(r *Cgroup) { r.Swap = nil },
		} {
			k := &kept{limit: plenty(), hierarchies: c.h, path: c.path}
			for range 2 {
				got, err := readKept(k, wanted)
				must(t, err)
				want := *whole
				want.At, want.IO = got.At, &model.IOUsage{PSI: whole.IO.PSI}
				if edit(&want); !reflect.DeepEqual(*got, want) {
					t.Errorf("%s: %+v, want %+v", c.path, *got, want)
				}
			}
			k.close()
		}
	}
}

// TestAFileThatAppearsIsRead, once what is remembered of its absence is old.
func TestAFileThatAppearsIsRead(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "cpu.stat"), []byte("usage_usec 1\n"), 0o600))
	k := &kept{
		limit: plenty(), path: "/",
		hierarchies: &cgroup.Hierarchies{Version: cgroup.V2, Unified: dir},
	}
	defer k.close()
	read := func() *Cgroup {
		t.Helper()
		r, err := readKept(k, all)
		must(t, err)
		return r
	}
	if r := read(); r.Memory != nil || r.CPU == nil {
		t.Errorf("%+v", r)
	}
	must(t, os.WriteFile(filepath.Join(dir, "memory.current"), []byte("5\n"), 0o600))
	if r := read(); r.Memory != nil {
		t.Error("a file is looked for again at once")
	}
	for i := range k.files {
		k.files[i].at = k.files[i].at.Add(-lookAgain)
	}
	if r := read(); r.Memory == nil || r.Memory.Usage != 5 {
		t.Errorf("%+v", r)
	}
}
