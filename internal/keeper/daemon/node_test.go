package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	api "berth/api/keeper"
	keeper "berth/internal/keeper/client"
	"berth/internal/keeper/handover"
	"berth/internal/keeper/runtime"
	host "berth/test/node"
)

// TestMain lets this program stand for berth-keeper, where a keeper executes that.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "--state-format":
		fmt.Println(handover.Format)
	case "--" + EscrowFlag:
		ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer cancel()
		cfg := keeper.Config{Dir: os.Args[3], Logger: slog.New(slog.DiscardHandler)}
		if err := keeper.HoldEscrow(ctx, cfg, func() { fmt.Println("held"); os.Stdout.Close() }); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	default:
		os.Exit(m.Run())
	}
}

// node is a keeper in this process, which has an engine that needs no root, and a client of it. The keepers that follow
// one another in a directory are servers of their own.
type node struct {
	*testing.T
	dir    string
	binary string // what the keeper executes
	engine *engine
	server *Server
	client *keeper.Client
	log    *log
}

// log keeps what is logged.
type log struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) has(what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), what)
}

// start starts a keeper and connects to it. What it has at the end of the test is deleted.
func start(t *testing.T) *node {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{T: t, dir: filepath.Join(t.TempDir(), "keeper"), binary: self, engine: newEngine(t), log: &log{}}
	n.serve()
	n.connect()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the keeper's log:\n%s", n.log.text.String())
		}
		list, err := n.client.List(n.ctx())
		if err != nil {
			t.Error(err)
		}
		for _, c := range list {
			if err := n.client.Delete(n.ctx(), c.ID); err != nil {
				t.Errorf("delete %s at the end: %v", c.ID, err)
			}
		}
		n.client.Close()
		n.kill()
	})
	return n
}

// serve makes a keeper of the directory, which answers.
func (n *node) serve() {
	n.Helper()
	s, err := New(Config{
		Dir: n.dir, Binary: n.binary, Version: "1.2.3",
		Logger:  slog.New(slog.NewTextHandler(n.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Engines: func(runtime.Dir, runtime.Spawning) Engines { return n.engine },
	})
	if err != nil {
		n.Fatal(err)
	}
	if err := s.listen(); err != nil {
		n.Fatal(err)
	}
	n.server = s
}

func (n *node) connect() {
	n.Helper()
	var err error
	n.client, err = keeper.Connect(n.ctx(), keeper.Config{Dir: n.dir, Await: true, Logger: n.server.log})
	if err != nil {
		n.Fatal(err)
	}
}

// kill has the keeper do nothing any more, as one that was killed: connections end, nobody waits for its processes or
// reads their output, and others may have its lock. What it was about to do stays undone.
func (n *node) kill() {
	s := n.server
	s.gate.Close()
	s.sockets.rpc.Close()
	s.sockets.fds.Close()
	s.sockets.server.Close()
	for _, ses := range s.sessions.All() {
		ses.Close()
	}
	for _, c := range s.containers.all() {
		c.stop()
	}
	s.watching.Wait()
	n.free(s)
}

// free closes what the end of a keeper's process would close and others wait for.
func (n *node) free(s *Server) {
	s.sockets.rpc.Close()
	s.sockets.fds.Close()
	s.sockets.lock.file.Close()
	for _, c := range s.containers.all() {
		c.mu.Lock()
		stdin := c.stdin
		c.stdin, c.stdinClosed = -1, true // what is handed back to it from now on, a dead process would not have
		c.mu.Unlock()
		if stdin >= 0 {
			unix.Close(stdin)
		}
	}
	// A dead keeper does nothing for clients that do not come back.
	s.containers.mu.Lock()
	defer s.containers.mu.Unlock()
	clear(s.containers.byID)
}

// replace has another keeper in the place of one that is killed.
func (n *node) replace() {
	n.Helper()
	n.kill()
	n.serve()
}

// handOver has another keeper go on with the state and the descriptors of this one, as the next program of an upgrade
// does. The descriptors are duplicates, since this program has both keepers.
func (n *node) handOver() {
	n.Helper()
	s := n.server
	s.gate.Close()
	s.gate.Wait()
	s.disconnect()
	saved, err := (&upgrade{s}).save()
	if err != nil {
		n.Fatal(err)
	}
	b, err := json.Marshal(saved)
	if err != nil {
		n.Fatal(err)
	}
	var state handover.State
	if err := json.Unmarshal(b, &state); err != nil {
		n.Fatal(err)
	}
	state.Format = 0 // no descriptor
	duplicate(n, reflect.ValueOf(&state).Elem())
	state.Format = handover.Format
	if b, err = json.Marshal(state); err != nil {
		n.Fatal(err)
	}
	mem, err := unix.MemfdCreate("state", unix.MFD_CLOEXEC)
	if err != nil {
		n.Fatal(err)
	}
	if _, err := unix.Write(mem, b); err != nil {
		n.Fatal(err)
	}
	n.Setenv(handover.Environment, strconv.Itoa(mem))
	n.serve()
	n.free(s)
}

// duplicate duplicates every descriptor of a state: each number in it that is not in a record.
func duplicate(n *node, v reflect.Value) {
	switch v.Kind() {
	case reflect.Int:
		if fd := int(v.Int()); fd > 2 {
			next, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
			if err != nil {
				n.Fatalf("descriptor %d: %v", fd, err)
			}
			v.SetInt(int64(next))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			duplicate(n, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			duplicate(n, v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			one := reflect.New(v.Type().Elem()).Elem()
			one.Set(v.MapIndex(key))
			duplicate(n, one)
			v.SetMapIndex(key, one)
		}
	case reflect.Struct:
		if strings.HasSuffix(v.Type().PkgPath(), "/record") || v.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range v.NumField() {
			duplicate(n, v.Field(i))
		}
	}
}

// ctx bounds every call of a test.
func (n *node) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), host.Patience(time.Minute))
	n.Cleanup(cancel)
	return ctx
}

// until waits for something.
func (n *node) until(what string, is func() bool) {
	n.Helper()
	for deadline := time.Now().Add(host.Patience(3 * time.Minute)); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.Fatalf("not in time: %s", what)
		}
	}
}

func (n *node) logPath(id string) string { return filepath.Join(filepath.Dir(n.dir), id+".log") }

// shell is a container that runs a script.
func (n *node) shell(id, script string) *keeper.RunRequest {
	return &keeper.RunRequest{
		ID: id, PodID: "pod", Name: id, LogPath: n.logPath(id),
		Spec: &specs.Spec{
			Process: &specs.Process{Args: []string{"sh", "-c", script}, Cwd: "/"},
			Root:    &specs.Root{Path: n.TempDir()},
			Linux:   &specs.Linux{},
		},
	}
}

func (n *node) run(req *keeper.RunRequest) *keeper.RunResult {
	n.Helper()
	res, err := n.client.Run(n.ctx(), req)
	if err != nil {
		n.Fatalf("run %s: %v", req.ID, err)
	}
	return res
}

func (n *node) status(id string) keeper.Status {
	n.Helper()
	st, err := n.client.Status(n.ctx(), id)
	if err != nil {
		n.Fatalf("status of %s: %v", id, err)
	}
	return *st
}

// ended waits until a container has ended and its log is complete.
func (n *node) ended(id string) (st keeper.Status) {
	n.Helper()
	n.until(id+" has ended", func() bool { st = n.status(id); return st.LogDone })
	return st
}

// output is what is in a container's log of what it has written.
func (n *node) output(id string) string {
	n.Helper()
	b, err := os.ReadFile(n.logPath(id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(f) < 4 {
			continue // it is being written
		}
		out.WriteString(f[3])
		if f[2] == "F" {
			out.WriteByte('\n')
		}
	}
	return out.String()
}

// exec begins a command in a container and returns its output, which it has to close.
func (n *node) exec(id, exec, script string, timeout time.Duration) *os.File {
	n.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() { r.Close() })
	defer w.Close()
	_, err = n.client.Exec(n.ctx(), &keeper.ExecRequest{
		ContainerID: id, ExecID: exec, Stdout: w, Stderr: w, Timeout: timeout,
		Process: &specs.Process{Args: []string{"sh", "-c", script}, Cwd: "/"},
	})
	if err != nil {
		n.Fatalf("exec %s: %v", exec, err)
	}
	return r
}

// exit waits for an exec.
func (n *node) exit(id, exec string) keeper.ExecExit {
	n.Helper()
	exit, err := n.client.WaitExec(n.ctx(), id, exec)
	if err != nil {
		n.Fatalf("wait for exec %s: %v", exec, err)
	}
	return *exit
}

func read(t *testing.T, f *os.File) string {
	t.Helper()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func execID(container, exec string) *api.ExecID {
	return &api.ExecID{ContainerId: container, ExecId: exec}
}
