package verifier

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth/internal/asroot"
	"berth/internal/metrics"
	"berth/internal/model"
)

const image = "registry.test/team/app:1"

var descriptor = ocispec.Descriptor{
	MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("app"), Size: 42,
	Annotations: map[string]string{"of": "the image"},
}

// fixture is a directory of verifiers.
type fixture struct {
	*Verifiers
	t    *testing.T
	dir  string // of programs
	out  string // for what they write
	logs bytes.Buffer
}

func newFixture(t *testing.T, edits ...func(*Config)) *fixture {
	t.Helper()
	asroot.Need(t, "PID namespaces, and programs of root")
	f := &fixture{t: t, dir: filepath.Join(t.TempDir(), "bin"), out: t.TempDir()}
	if err := os.Mkdir(f.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Dir: f.dir, Max: 10, Timeout: 20 * time.Second, Metrics: metrics.New("test"),
		Log: slog.New(slog.NewTextHandler(&f.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, edit := range edits {
		edit(&cfg)
	}
	f.Verifiers = New(cfg)
	return f
}

// program makes a verifier of a script of sh, which finds the directory for what it writes in $out.
func (f *fixture) program(name, script string) {
	f.t.Helper()
	text := fmt.Sprintf("#!/bin/sh\nout=%s\n%s\n", f.out, script)
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o755); err != nil {
		f.t.Fatal(err)
	}
}

// written is what a verifier has written to a file in $out; empty: there is none.
func (f *fixture) written(name string) string {
	text, _ := os.ReadFile(filepath.Join(f.out, name))
	return strings.TrimSpace(string(text))
}

func (f *fixture) verify() error { return f.Verify(f.t.Context(), image, descriptor) }

// refused wants an image to be refused with words in the text of the error.
func (f *fixture) refused(rejected bool, words ...string) {
	f.t.Helper()
	err := f.verify()
	var unverified *model.UnverifiedError
	if !errors.As(err, &unverified) {
		f.t.Fatalf("error %v", err)
	}
	if unverified.Rejected != rejected || unverified.Digest != descriptor.Digest.String() {
		f.t.Errorf("%+v", unverified)
	}
	for _, word := range append(words, descriptor.Digest.String()) {
		if !strings.Contains(err.Error(), word) {
			f.t.Errorf("the error has no %q: %v", word, err)
		}
	}
}

// TestAVerifierIsToldTheImage, as containerd's documentation of image verification says, and nothing of berthd's own:
// neither variables nor descriptors. Seen to fail with berthd's environment, and with the whole descriptor.
func TestAVerifierIsToldTheImage(t *testing.T) {
	t.Setenv("SECRET", "hunter2")
	f := newFixture(t, func(c *Config) { c.Env = []string{"HTTPS_PROXY=http://proxy.test"} })
	f.program("1", `echo "$@" > $out/args; cat > $out/stdin; env > $out/env; pwd > $out/pwd
ls -l /proc/self/fd > $out/fds; cat /proc/self/oom_score_adj > $out/oom; echo $$ > $out/pid`)
	if err := f.verify(); err != nil {
		t.Fatal(err)
	}
	want := "-name " + image + " -digest " + descriptor.Digest.String() +
		" -stdin-media-type application/vnd.oci.descriptor.v1+json"
	if got := f.written("args"); got != want {
		t.Errorf("arguments %q, want %q", got, want)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(f.written("stdin")), &got); err != nil || len(got) != 3 ||
		got["mediaType"] != descriptor.MediaType || got["digest"] != descriptor.Digest.String() || got["size"] != 42.0 {
		t.Errorf("the descriptor is %v, %v", got, err)
	}
	var names []string
	for _, variable := range strings.Split(f.written("env"), "\n") {
		name, _, _ := strings.Cut(variable, "=")
		if !slices.Contains([]string{"PWD", "SHLVL", "_", "OLDPWD"}, name) { // the shell's own
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if want := []string{"HOME", "HTTPS_PROXY", "PATH"}; !slices.Equal(names, want) {
		t.Errorf("variables %q, want %q", names, want)
	}
	if f.written("pwd") != "/" || f.written("oom") != "1000" || f.written("pid") != "1" {
		t.Errorf("directory %q, oom_score_adj %q, PID %q", f.written("pwd"), f.written("oom"), f.written("pid"))
	}
	// The standard streams, the directory that ls has open, and what this test itself was started with.
	plain, err := exec.Command("sh", "-c", "ls -l /proc/self/fd").Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(f.written("fds"), " -> "), strings.Count(string(plain), " -> "); got != want {
		t.Errorf("%d descriptors, want %d:\n%s", got, want, f.written("fds"))
	}
}

// TestAllHaveToAccept: the first that does not ends it, and those before are asked in the order of their names.
func TestAllHaveToAccept(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"30-c", "10-a", "20-b"} {
		f.program(name, "echo "+name+" >> $out/asked; echo fine")
	}
	if err := f.verify(); err != nil {
		t.Fatal(err)
	}
	if got := f.written("asked"); got != "10-a\n20-b\n30-c" {
		t.Errorf("asked were %q", got)
	}
	if !strings.Contains(f.logs.String(), "reason=fine") {
		t.Errorf("the log has no reason:\n%s", &f.logs)
	}
	f.program("20-b", "echo no signature of; echo the team; echo details >&2; exit 3")
	if err := os.Remove(filepath.Join(f.out, "asked")); err != nil {
		t.Fatal(err)
	}
	f.refused(true, `"20-b"`, "no signature of the team (exit code 3)")
	if got := f.written("asked"); got != "10-a" {
		t.Errorf("asked were %q", got)
	}
	if log := f.logs.String(); !strings.Contains(log, "stderr=details") || !strings.Contains(log, "plugin=20-b") {
		t.Errorf("the log does not tell of the rejection:\n%s", log)
	}
	families, err := f.cfg.Metrics.Registry().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"accepted", "rejected", "20-b"} {
		if !strings.Contains(fmt.Sprint(families), `value:"`+value+`"`) {
			t.Errorf("the metrics have no %s", value)
		}
	}
}

// TestAVerifierWithoutAnAnswerRefuses. Seen to fail for a program that a signal ends, whose exit code was taken for
// its answer.
func TestAVerifierWithoutAnAnswerRefuses(t *testing.T) {
	f := newFixture(t)
	bad := filepath.Join(f.dir, "1")
	f.program("1", "exec sh -c 'kill -9 $$' &\nwait $!; exit 0")
	if err := f.verify(); err != nil {
		t.Errorf("a child of the verifier has ended badly: %v", err)
	}
	if err := os.WriteFile(bad, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.refused(false, "could not be run")
	if err := os.WriteFile(bad, []byte("no program"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.refused(false, "could not be run")
	// The first process of a PID namespace is ended by a signal from outside only, or by a fault of its own.
	f.program("1", "exec sleep "+long)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for f.t.Context().Err() == nil {
			if pids := sleepers(t); len(pids) > 0 {
				_ = syscall.Kill(pids[0], syscall.SIGSEGV)
				_ = syscall.Kill(pids[0], syscall.SIGKILL)
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	f.refused(false, "ended by a signal")
	<-ended
}

// TestTooMuchOutputIsPassedOver, and control characters do not reach a terminal or a log.
func TestTooMuchOutputIsPassedOver(t *testing.T) {
	f := newFixture(t)
	f.program("1", `printf 'bad \033[31mimage '; head -c 9000000 /dev/zero | tr '\0' x; exit 1`)
	f.refused(true, "bad ?[31mimage xxx", "...", "(exit code 1)")
	if err := f.verify(); len(err.Error()) > maxReason+500 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
	f.program("1", `head -c 9000000 /dev/zero >&2; echo fine`)
	if err := f.verify(); err != nil {
		t.Error(err)
	}
}

// long is how long verifiers of this process sleep, and nobody else on the machine.
var long = fmt.Sprint(600_000_000 + os.Getpid())

// sleepers are the processes of verifiers that sleep. They are ended with the test.
func sleepers(t *testing.T) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")); string(line) == "sleep\x00"+long+"\x00" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// noSleepers checks that verifiers have left none, and ends those that they have left.
func noSleepers(t *testing.T) {
	t.Helper()
	for _, pid := range sleepers(t) {
		t.Errorf("process %d is left", pid)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// TestASlowVerifierEndsWithAllThatItHasStarted, also what has left its process group and its session. Seen to fail
// with a process group in place of the PID namespace.
func TestASlowVerifierEndsWithAllThatItHasStarted(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Timeout = 5 * time.Second })
	f.program("1", "setsid sh -c 'echo up > $0/up; exec sleep "+long+"' $out & sleep "+long)
	begin := time.Now()
	f.refused(false, `"1"`, "per_verifier_timeout, which is 5s")
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("it took %s", took)
	}
	if f.written("up") != "up" {
		t.Error("the verifier had not started its child")
	}
	noSleepers(t)
	// One that is done leaves nothing either, and what holds its pipes delays nothing.
	f.program("1", "setsid sh -c 'echo up > $0/up2; exec sleep "+long+"' $out & while [ ! -e $out/up2 ]; do :; done")
	if err := f.verify(); err != nil {
		t.Error(err)
	}
	noSleepers(t)
}

// TestACallThatIsCanceledEndsTheVerifier, and says why it was canceled.
func TestACallThatIsCanceledEndsTheVerifier(t *testing.T) {
	f := newFixture(t)
	f.program("1", "exec sleep "+long)
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("the client has left")
	go func() {
		for len(sleepers(t)) == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		cancel(reason)
	}()
	if err := f.Verify(ctx, image, descriptor); !errors.Is(err, reason) {
		t.Errorf("error %v", err)
	}
	noSleepers(t)
}

// TestOthersThanRootDecideNothing: neither by a program, nor by a directory or a link on the way to it. Seen to fail
// for each case without the check of it.
func TestOthersThanRootDecideNothing(t *testing.T) {
	const other = 4711
	for name, c := range map[string]struct {
		spoil func(f *fixture, dir, program string) error
		word  string
	}{
		"a program of another user": {func(_ *fixture, _, program string) error {
			return os.Chown(program, other, 0)
		}, "user 4711"},
		"a program for all to write": {func(_ *fixture, _, program string) error {
			return os.Chmod(program, 0o757)
		}, "mode 0757"},
		"a program for a group to write": {func(_ *fixture, _, program string) error {
			return os.Chmod(program, 0o775)
		}, "mode 0775"},
		"a directory of another user": {func(_ *fixture, dir, _ string) error { return os.Chown(dir, other, 0) },
			"user 4711"},
		"a directory for all to write": {func(_ *fixture, dir, _ string) error { return os.Chmod(dir, 0o777) }, "mode 0777"},
		"a directory above of another user": {func(_ *fixture, dir, _ string) error {
			return os.Chown(filepath.Dir(dir), other, 0)
		}, "user 4711"},
		"a link of another user": {func(f *fixture, _, program string) error {
			target := filepath.Join(f.out, "real")
			return errors.Join(os.Rename(program, target), os.Symlink(target, program), os.Lchown(program, other, 0))
		}, "user 4711"},
		"a link to a program of another user": {func(f *fixture, _, program string) error {
			target := filepath.Join(f.out, "real")
			return errors.Join(os.Rename(program, target), os.Symlink(target, program), os.Chown(target, other, 0))
		}, "user 4711"},
		"a link through a directory of another user": {func(f *fixture, _, program string) error {
			target := filepath.Join(f.out, "real")
			return errors.Join(os.Rename(program, target), os.Symlink(target, program), os.Chown(f.out, other, 0))
		}, "user 4711"},
		"a link to itself": {func(_ *fixture, _, program string) error {
			return errors.Join(os.Remove(program), os.Symlink(program, program))
		}, "too many levels"},
		"a directory in it": {func(_ *fixture, dir, _ string) error {
			return os.Mkdir(filepath.Join(dir, "sub"), 0o755)
		}, "no executable file"},
		"a file that is no program": {func(_ *fixture, _, program string) error { return os.Chmod(program, 0o644) },
			"no executable file"},
		"a FIFO": {func(_ *fixture, dir, _ string) error {
			return syscall.Mkfifo(filepath.Join(dir, "2"), 0o755)
		}, "no executable file"},
		"nothing":      {func(_ *fixture, _, program string) error { return os.Remove(program) }, "no image verifier"},
		"no directory": {func(_ *fixture, dir, _ string) error { return os.RemoveAll(dir) }, "no such file"},
		"a file in its place": {func(_ *fixture, dir, _ string) error {
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o755))
		}, "no directory"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.program("1", "echo > $out/ran")
			if err := f.verify(); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(f.out, "ran")); err != nil {
				t.Fatal(err)
			}
			if err := c.spoil(f, f.dir, filepath.Join(f.dir, "1")); err != nil {
				t.Fatal(err)
			}
			f.refused(false, c.word)
			if _, err := os.Stat(filepath.Join(f.out, "ran")); err == nil {
				t.Error("the program has run")
			}
			if r := f.Report(); r.Directory != f.dir || !strings.Contains(r.Failure, c.word) {
				t.Errorf("the report is %+v", r)
			}
		})
	}
}

// TestLinksOfRootAreFollowed, as those by which a package installs another version.
func TestLinksOfRootAreFollowed(t *testing.T) {
	f := newFixture(t)
	f.program("v2", "exit 7")
	if err := os.Rename(filepath.Join(f.dir, "v2"), filepath.Join(f.out, "v2")); err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(f.dir, f.out)
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"absolute": f.out + "/./v2", "relative": relative + "/v2"} {
		link := filepath.Join(f.dir, name)
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		f.refused(true, name, "exit code 7")
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTooManyVerifiersRefuse: to leave some of them out, as containerd does, would pull what they reject.
func TestTooManyVerifiersRefuse(t *testing.T) {
	f := newFixture(t, func(c *Config) { c.Max = 1 })
	f.program("1", "exit 0")
	if err := f.verify(); err != nil {
		t.Fatal(err)
	}
	f.program("2", "exit 0")
	f.refused(false, "2 image verifiers", "max_verifiers")
	f.cfg.Max = -1
	if err := f.verify(); err != nil {
		t.Fatal(err)
	}
	if r := f.Report(); !slices.Equal(r.Programs, []string{"1", "2"}) || r.Failure != "" {
		t.Errorf("the report is %+v", r)
	}
	if r := (*Verifiers)(nil).Report(); r != nil {
		t.Errorf("without verifiers there is the report %+v", r)
	}
}

func TestVerifiersReachRegistriesAsPullsDo(t *testing.T) {
	for _, name := range inherited {
		t.Setenv(name, "")
	}
	t.Setenv("HTTP_PROXY", "http://own.test")
	t.Setenv("no_proxy", "own.test")
	t.Setenv("SSL_CERT_DIR", "/certs")
	got := Environment("", "http://configured.test", "")
	want := []string{"HTTP_PROXY=http://own.test", "HTTPS_PROXY=http://configured.test",
		"https_proxy=http://configured.test", "no_proxy=own.test", "SSL_CERT_DIR=/certs"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
