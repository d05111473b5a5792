package apparmor

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
)

// TestAppArmorIsOutOfReachWithoutItsFiles: the kernel has it, and securityfs is not mounted, as in a container. Seen to
// fail where only the kernel was asked, and where only the files were looked for.
func TestAppArmorIsOutOfReachWithoutItsFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		enabled            string // of the kernel's module; empty: there is none
		files              bool   // securityfs has them
		usable, outOfReach bool
	}{
		"a node with AppArmor":       {"Y\n", true, true, false},
		"a node in a container":      {"Y\n", false, false, true},
		"AppArmor is off":            {"N\n", true, false, false},
		"AppArmor is off, no files":  {"N\n", false, false, false},
		"a kernel without it":        {"", false, false, false},
		"a kernel without it, files": {"", true, false, false},
	} {
		sysfs := t.TempDir()
		if tc.enabled != "" {
			write(t, filepath.Join(sysfs, "module/apparmor/parameters/enabled"), tc.enabled)
		}
		if tc.files {
			write(t, filepath.Join(sysfs, "kernel/security/apparmor/profiles"), "")
		}
		if usable, out := usable(sysfs), outOfReach(sysfs); usable != tc.usable || out != tc.outOfReach {
			t.Errorf("%s: usable %v, out of reach %v", name, usable, out)
		}
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// node is a kernel's files of AppArmor, and a program that changes them as apparmor_parser has the kernel change them.
type node struct {
	t     *testing.T
	sysfs string
	log   strings.Builder
	*Default
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, sysfs: t.TempDir()}
	write(t, filepath.Join(n.sysfs, "module/apparmor/parameters/enabled"), "Y\n")
	n.policy(1, "other (enforce)\n")
	dir := n.sysfs + directory
	program := filepath.Join(t.TempDir(), "apparmor_parser")
	script := fmt.Sprintf("#!/bin/sh\nset -e\ntest \"$1\" = -Kr\ncat >>%[1]s/text\necho run >>%[1]s/runs\nsleep 0.1\n"+
		"echo 'berth-test (enforce)' >>%[1]s/profiles\necho $(($(cat %[1]s/revision) + 1)) >%[1]s/revision\n", dir)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	n.Default = NewDefault("berth-test", func() (string, error) { return "the text", nil },
		slog.New(slog.NewTextHandler(&n.log, nil)))
	n.Default.sysfs, n.parser = n.sysfs, func() (string, error) { return program, nil }
	return n
}

func (n *node) policy(revision int, profiles string) {
	n.t.Helper()
	write(n.t, n.sysfs+directory+"/revision", fmt.Sprintln(revision))
	write(n.t, n.sysfs+directory+"/profiles", profiles)
}

func (n *node) runs() int {
	text, _ := os.ReadFile(n.sysfs + directory + "/runs")
	return strings.Count(string(text), "run")
}

func (n *node) ensure(what string, runs int) {
	n.t.Helper()
	if err := n.Ensure(n.t.Context(), "berth-test"); err != nil {
		n.t.Errorf("%s: %v", what, err)
	}
	if got := n.runs(); got != runs {
		n.t.Errorf("%s: the program ran %d times by then, want %d", what, got, runs)
	}
}

// TestAProfileThatWasUnloadedIsLoadedAgain, once for all that wait for it. While the policy stays as it is, its list of
// profiles is not read.
func TestAProfileThatWasUnloadedIsLoadedAgain(t *testing.T) {
	n := newNode(t)
	if ok, err := n.Load(t.Context()); !ok || err != nil || n.runs() != 1 {
		t.Fatalf("at the start: %v, %v, %d runs", ok, err, n.runs())
	}
	if text, err := os.ReadFile(n.sysfs + directory + "/text"); err != nil || string(text) != "the text" {
		t.Errorf("the program read %q, %v", text, err)
	}
	n.ensure("loaded", 1)
	if err := os.Remove(n.sysfs + directory + "/profiles"); err != nil {
		t.Fatal(err)
	}
	n.ensure("the policy is as it was", 1)
	n.policy(7, "other (enforce)\nberth-test2 (enforce)\n")
	if err := n.Ensure(t.Context(), "other"); err != nil || n.runs() != 1 {
		t.Errorf("for a process with another profile: %v, %d runs", err, n.runs())
	}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { n.ensure("unloaded", 2) })
	}
	all.Wait()
	if got := strings.Count(n.log.String(), "it is loaded again"); got != 1 {
		t.Errorf("the log says it %d times:\n%s", got, &n.log)
	}
	n.policy(20, "berth-test (enforce)\n")
	n.ensure("the policy has changed, and the profile is there", 2)
	if err := os.Remove(n.sysfs + directory + "/revision"); err != nil {
		t.Fatal(err)
	}
	n.ensure("a kernel that tells no revision", 2)
	write(t, n.sysfs+directory+"/profiles", "")
	write(t, n.sysfs+directory+"/revision", "30\n")
	n.ensure("unloaded again", 3)
}

// TestWithoutTheProgramNoProfileIsLoaded, and one that the kernel has is used.
func TestWithoutTheProgramNoProfileIsLoaded(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	empty, full := t.TempDir(), t.TempDir()
	n := newNode(t)
	n.parser = func() (string, error) { return parser(empty) }
	if ok, err := n.Load(t.Context()); ok || !errors.Is(err, ErrNoParser) {
		t.Errorf("there is no program: %v, %v", ok, err)
	}
	if got := strings.Count(n.log.String(), "there is no program apparmor_parser"); got != 1 {
		t.Errorf("the log says it %d times:\n%s", got, &n.log)
	}
	n.policy(2, "berth-test (enforce)\n")
	if ok, err := n.Load(t.Context()); !ok || err != nil {
		t.Errorf("there is no program, and the profile is loaded: %v, %v", ok, err)
	}
	program := filepath.Join(full, "apparmor_parser")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := parser(empty, full); got != program || err != nil {
		t.Errorf("beside PATH: %q, %v", got, err)
	}
	t.Setenv("PATH", full)
	if got, err := parser(empty); got != program || err != nil {
		t.Errorf("in PATH: %q, %v", got, err)
	}
}

// TestWhatTheProgramSaysIsInTheError, and a caller that gives up does not wait for it.
func TestWhatTheProgramSaysIsInTheError(t *testing.T) {
	n := newNode(t)
	program := filepath.Join(t.TempDir(), "apparmor_parser")
	n.parser = func() (string, error) { return program, nil }
	script := func(text string) {
		if err := os.WriteFile(program, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script("echo syntax error >&2; exit 1")
	err := n.Ensure(t.Context(), "berth-test")
	if err == nil || !strings.Contains(err.Error(), "exit status 1: syntax error") ||
		!strings.Contains(err.Error(), "AppArmor profile berth-test") {
		t.Errorf("the error is %v", err)
	}
	script("sleep 0.5")
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := n.Ensure(ctx, "berth-test"); !errors.Is(err, ctx.Err()) || time.Since(begin) > 400*time.Millisecond {
		t.Errorf("after %v: %v", time.Since(begin), err)
	}
	_ = n.Ensure(t.Context(), "berth-test") // waits for the program's end
}

// BenchmarkEnsure is what a start and an exec pay for the look at the kernel's policy: on files that look as the
// kernel's, and on its own where it has AppArmor. The list of profiles is what would be read without the revision.
func BenchmarkEnsure(b *testing.B) {
	files := b.TempDir()
	write(b, filepath.Join(files, directory, "revision"), "100\n")
	write(b, filepath.Join(files, directory, "profiles"), strings.Repeat("/usr/bin/some-program (enforce)\n", 120))
	for name, sysfs := range map[string]string{"files": files, "kernel": sysfs} {
		if !seen(sysfs) {
			continue
		}
		b.Run(name+"/revision", func(b *testing.B) {
			d := NewDefault("berth-none", nil, slog.Default())
			d.sysfs = sysfs
			d.loadedAt.Store(d.revision())
			for b.Loop() {
				if err := d.Ensure(b.Context(), "berth-none"); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/profiles", func(b *testing.B) {
			for b.Loop() {
				if _, err := loaded(sysfs, "berth-none"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
