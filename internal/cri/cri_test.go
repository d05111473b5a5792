package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"

	"berth/internal/asroot"
	"berth/internal/model"
	"berth/internal/unixsocket"
)

func TestASocketIsForRootAndItsGroup(t *testing.T) {
	asroot.Need(t, "chown")
	path := filepath.Join(t.TempDir(), "a", "s.sock")
	l, err := Listen("unix://"+path, 12345)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); info.Mode().Perm() != 0o660 || st.Gid != 12345 || st.Uid != 0 {
		t.Errorf("mode %v, owner %d:%d", info.Mode(), st.Uid, st.Gid)
	}
	if l.Addr().String() != path {
		t.Errorf("address %v", l.Addr())
	}
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(c, "hello")
	c.(*net.UnixConn).CloseWrite()
	if got, _ := io.ReadAll(c); string(got) != "hello" {
		t.Errorf("%q", got)
	}
	c.Close()
	l.Close()
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestASocketThatSomebodyAnswersOnIsNotTaken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	first, err := Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, -1); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("error %v", err)
	}
	// As if its daemon had been killed: the file stays and nobody answers.
	first.(*unixsocket.Listener).UnixListener.Close()
	second, err := Listen(path, -1)
	if err != nil {
		t.Fatalf("a stale socket: %v", err)
	}
	defer second.Close()
	// The first daemon's late end does not take the second's socket away.
	first.Close()
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestAFileThatIsNoSocketStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, -1); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("error %v", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "mine" {
		t.Errorf("it holds %q", got)
	}
}

func TestAddressesThatAreNone(t *testing.T) {
	for _, address := range []string{"",
		"s.sock", "tcp://127.0.0.1:1", "unix://s.sock", "/a\x00b", "/" + strings.Repeat("x", 110)} {
		if l, err := Listen(address, -1); !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: %v, %v", address, l, err)
		}
	}
}

// systemd passes descriptors from 3 on to a process that it names: the test runs itself as that process.
func TestASocketOfSystemdIsTaken(t *testing.T) {
	if path := os.Getenv("BERTH_TEST_PASSED_SOCKET"); path != "" {
		os.Setenv("LISTEN_PID", fmt.Sprint(os.Getpid()))
		l, err := Listen(path, -1)
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, "served")
		c.Close()
		l.Close()
		if _, err := os.Stat(path); err != nil {
			t.Errorf("systemd's socket is gone: %v", err)
		}
		return
	}
	path := filepath.Join(t.TempDir(), "s.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stored, w, err := os.Pipe() // a descriptor that is for somebody else
	if err != nil {
		t.Fatal(err)
	}
	defer stored.Close()
	defer w.Close()
	child := exec.Command(os.Args[0], "-test.run=^TestASocketOfSystemdIsTaken$")
	child.Env = append(os.Environ(), "BERTH_TEST_PASSED_SOCKET="+path, "LISTEN_FDS=2")
	child.ExtraFiles = []*os.File{stored, file}
	var out bytes.Buffer
	child.Stdout, child.Stderr = &out, &out
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := io.ReadAll(c); string(got) != "served" {
		t.Errorf("%q", got)
	}
	if err := child.Wait(); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
}

func TestEveryErrorHasACode(t *testing.T) {
	wrapped := func(err error) error { return fmt.Errorf("pod p: %w", err) }
	for _, tc := range []struct {
		err  error
		want codes.Code
	}{
		{errdefs.ErrNotFound, codes.NotFound},
		{errdefs.ErrInvalidArgument, codes.InvalidArgument},
		{errdefs.ErrConflict, codes.FailedPrecondition},
		{errdefs.ErrUnauthenticated, codes.Unauthenticated},
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
		{syscall.ENOSPC, codes.ResourceExhausted},
		{syscall.EDQUOT, codes.ResourceExhausted},
		{syscall.EPERM, codes.PermissionDenied},
		{&os.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}, codes.PermissionDenied},
		{errors.New("odd"), codes.Internal},
		{errdefs.ErrUnknown, codes.Internal},
		{fmt.Errorf("%w: %w", syscall.ENOSPC, errdefs.ErrResourceExhausted), codes.ResourceExhausted},
		{status.Error(codes.Unavailable, "the keeper"), codes.Unavailable},
	} {
		if got := status.Code(Status(wrapped(tc.err))); got != tc.want {
			t.Errorf("%v: %v, want %v", tc.err, got, tc.want)
		}
	}
	if Status(nil) != nil {
		t.Error("nil is an error")
	}
}

// TestAKubeletSeesThatAnImageIsNotVerified. Of the code Unknown alone, it sees the text without more, and compares the
// beginning. Seen to fail with FailedPrecondition.
func TestAKubeletSeesThatAnImageIsNotVerified(t *testing.T) {
	err := &model.UnverifiedError{Digest: "sha256:1", Verifier: "v", Rejected: true, Reason: "no"}
	st := status.Convert(Status(fmt.Errorf("pull a: %w", err)))
	want := crierrors.ErrSignatureValidationFailed.Error() + ": pull a: sha256:1 is not"
	if st.Code() != codes.Unknown || !strings.HasPrefix(st.Message(), want) {
		t.Errorf("%v, want Unknown and %s", st, want)
	}
}

// TestAKubeletSeesThatARegistryIsUnavailable, by the same rule. Other clients see the code on which they try again, and
// other errors of pulls stay as they are. Seen to fail with Unavailable for all.
func TestAKubeletSeesThatARegistryIsUnavailable(t *testing.T) {
	away := fmt.Errorf("pull a: registry.test: 503: %w: %w", errdefs.ErrUnavailable, model.ErrRegistryUnavailable)
	const prefix = "RegistryUnavailable: "
	for _, tc := range []struct {
		err    error
		want   codes.Code
		prefix string
	}{
		{&PullError{Err: away}, codes.Unknown, prefix + "pull a: registry.test: 503"},
		{away, codes.Unavailable, "pull a: registry.test: 503"},
		{&PullError{Err: fmt.Errorf("pull a: %w", errdefs.ErrUnavailable)}, codes.Unavailable, "pull a: "},
		{&PullError{Err: fmt.Errorf("pull a: %w", errdefs.ErrNotFound)}, codes.NotFound, "pull a: "},
		{&PullError{Err: fmt.Errorf("pull a: %w", syscall.ENOSPC)}, codes.ResourceExhausted, "pull a: "},
	} {
		if st := status.Convert(Status(tc.err)); st.Code() != tc.want || !strings.HasPrefix(st.Message(), tc.prefix) {
			t.Errorf("%v, want %v and %s", st, tc.want, tc.prefix)
		}
	}
}

func TestCallsAreMeasuredAndLoggedByOutcome(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := &calls{log: slog.New(slog.NewTextHandler(&out, nil)), metrics: m}
	info := &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/Version"}
	for _, err := range []error{nil, errdefs.ErrNotFound, errors.New("odd")} {
		_, _ = c.unary(t.Context(), nil, info, func(context.Context, any) (any, error) { return nil, err })
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(families)
	for _, part := range []string{"berth_cri_calls_total",
		"berth_cri_call_duration_seconds", `"NotFound"`, `"Version"`, `"runtime.v1.RuntimeService"`} {
		if !strings.Contains(text, part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
	log := out.String()
	if strings.Count(log, "\n") != 2 || !strings.Contains(log, "level=INFO") || !strings.Contains(log, "level=ERROR") {
		t.Errorf("log: %s", log)
	}
}

// TestAnExecThatMayHaveRunIsLogged although a command that has failed, which has the same code, is not.
func TestAnExecThatMayHaveRunIsLogged(t *testing.T) {
	for err, want := range map[error]string{
		&ExitError{3}: "",
		fmt.Errorf("exec: %w", errdefs.ErrAborted): "level=WARN",
	} {
		var out bytes.Buffer
		c := &calls{log: slog.New(slog.NewTextHandler(&out, nil))}
		info := &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/ExecSync"}
		_, _ = c.unary(t.Context(), nil, info, func(context.Context, any) (any, error) { return nil, err })
		if log := out.String(); (log == "") != (want == "") || !strings.Contains(log, want) {
			t.Errorf("%v: the log has %q, want %q", err, log, want)
		}
	}
}

// TestMonitorsThatAskForOthersContainersFillNoLog, and calls of containerd's API are logged with their service.
func TestMonitorsThatAskForOthersContainersFillNoLog(t *testing.T) {
	var out bytes.Buffer
	c := &calls{log: slog.New(slog.NewTextHandler(&out, nil))}
	info := &grpc.UnaryServerInfo{FullMethod: "/containerd.services.tasks.v1.Tasks/Get"}
	for _, err := range []error{errdefs.ErrNotFound, errdefs.ErrNotImplemented} {
		_, _ = c.unary(t.Context(), nil, info, func(context.Context, any) (any, error) { return nil, err })
	}
	log := out.String()
	if strings.Count(log, "\n") != 1 || !strings.Contains(log, "msg=containerd.services.tasks.v1.Tasks/Get") {
		t.Errorf("log: %s", log)
	}
}

// TestACallIsLoggedByAUniqueName. Seen to fail where calls of Berth's own API had the name of their method alone.
func TestACallIsLoggedByAUniqueName(t *testing.T) {
	for method, want := range map[string]string{
		"/runtime.v1.RuntimeService/RunPodSandbox":     "RunPodSandbox",
		"/berth.v1.Devices/List":                       "berth.v1.Devices/List",
		"/containerd.services.tasks.v1.Tasks/ListPids": "containerd.services.tasks.v1.Tasks/ListPids",
	} {
		if got := callName(method); got != want {
			t.Errorf("%s is %s in the log, not %s", method, got, want)
		}
	}
}

// BenchmarkInterceptor is what berthd does around each call, without a log line, on a node without metrics.address and
// on one with it.
func BenchmarkInterceptor(b *testing.B) {
	measured, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	info := &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/Version"}
	handler := func(context.Context, any) (any, error) { return nil, nil }
	for name, m := range map[string]*callMetrics{"measured=false": nil, "measured=true": measured} {
		b.Run(name, func(b *testing.B) {
			c := &calls{log: slog.New(slog.DiscardHandler), metrics: m}
			call := handler
			chain := []grpc.UnaryServerInterceptor{c.unary}
			if outer, _ := m.interceptors(); outer != nil {
				chain = append(outer, chain...)
			}
			for _, wrap := range slices.Backward(chain) {
				next := call
				call = func(ctx context.Context, req any) (any, error) { return wrap(ctx, req, info, next) }
			}
			b.ReportAllocs()
			for b.Loop() {
				_, _ = call(b.Context(), nil)
			}
		})
	}
}

// TestCallsHaveTheNamesThatGRPCServersShare, with the code that the client gets.
func TestCallsHaveTheNamesThatGRPCServersShare(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	c := &calls{log: slog.New(slog.DiscardHandler), metrics: m}
	outer, _ := m.interceptors()
	info := &grpc.UnaryServerInfo{FullMethod: "/runtime.v1.RuntimeService/PodSandboxStatus"}
	_, _ = outer[0](t.Context(), nil, info, func(ctx context.Context, req any) (any, error) {
		return c.unary(ctx, req, info, func(context.Context, any) (any, error) { return nil, errdefs.ErrNotFound })
	})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(families)
	for _, part := range []string{
		"grpc_server_started_total", "grpc_server_handled_total", "grpc_server_handling_seconds",
		`name:"grpc_code" value:"NotFound"`,
		`name:"grpc_method" value:"PodSandboxStatus"`, `name:"grpc_service" value:"runtime.v1.RuntimeService"`,
	} {
		if !strings.Contains(strings.ReplaceAll(text, "  ", " "), part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
}
