package life

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	keeper "berth/internal/keeper/client"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// seccompAgent is an agent of seccomp profiles, as security-profiles-operator has one: it answers system calls of
// containers in the kernel's place.
type seccompAgent struct {
	socket   string
	listener *net.UnixListener
	states   chan specs.ContainerProcessState
	silent   bool // it takes descriptors and answers nothing
}

// newSeccompAgent listens until the test ends.
func newSeccompAgent(t *testing.T, silent bool) *seccompAgent {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent") // a short path
	if err != nil {
		t.Fatal(err)
	}
	a := &seccompAgent{
		socket: filepath.Join(dir, "agent.sock"), states: make(chan specs.ContainerProcessState, 100), silent: silent,
	}
	if a.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: a.socket, Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.listener.Close()
		os.RemoveAll(dir)
	})
	go a.serve(t)
	return a
}

func (a *seccompAgent) serve(t *testing.T) {
	for {
		conn, err := a.listener.AcceptUnix()
		if err != nil {
			return
		}
		state, fd, err := receiveNotifier(conn)
		conn.Close()
		if err != nil {
			t.Errorf("what the agent got: %v", err)
			continue
		}
		a.states <- state
		t.Cleanup(func() { unix.Close(fd) })
		if !a.silent {
			go answerCalls(fd)
		}
	}
}

func receiveNotifier(conn *net.UnixConn) (state specs.ContainerProcessState, fd int, err error) {
	buf, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return state, -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return state, -1, fmt.Errorf("%d control messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return state, -1, fmt.Errorf("%d descriptors, %v", len(fds), err)
	}
	rest, err := io.ReadAll(conn)
	if err != nil {
		return state, -1, err
	}
	return state, fds[0], json.Unmarshal(append(buf[:n], rest...), &state)
}

// answerCalls fails mkdir with EDQUOT, and answers umask with 017.
func answerCalls(fd int) {
	for {
		var call struct { // struct seccomp_notif
			ID         uint64
			PID, Flags uint32
			Number     int32
			Arch       uint32
			IP         uint64
			Args       [6]uint64
		}
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_RECV,
			uintptr(unsafe.Pointer(&call)))
		if errno == unix.ENOENT || errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return
		}
		answer := struct { // struct seccomp_notif_resp
			ID    uint64
			Value int64
			Error int32
			Flags uint32
		}{ID: call.ID, Error: -int32(unix.EDQUOT)}
		if call.Number == unix.SYS_UMASK {
			answer.Value, answer.Error = 0o17, 0
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SECCOMP_IOCTL_NOTIF_SEND,
			uintptr(unsafe.Pointer(&answer)))
	}
}

// told is a container whose seccomp profile has an agent told of calls.
func told(t *testing.T, socket string, calls ...string) (edit nodetest.ContainerEdit, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "profile.json")
	profile, err := json.Marshal(&specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow, ListenerPath: socket, ListenerMetadata: "more of it",
		Syscalls: []specs.LinuxSyscall{{Names: calls, Action: specs.ActNotify}},
	})
	if err == nil {
		err = os.WriteFile(file, profile, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: file}
	}), file
}

// TestTheAgentOfASeccompProfileAnswersSystemCalls of a container's program and of execs, while Berth's programs are
// killed and started again. Seen to fail where profiles with a listener were refused.
func TestTheAgentOfASeccompProfileAnswersSystemCalls(t *testing.T) {
	nodetest.BerthOnly(t, "kills its programs")
	n := nodetest.Start(t, node.Options{})
	a := newSeccompAgent(t, false)
	edit, _ := told(t, a.socket, "mkdir", "mkdirat", "umask")
	p := nodetest.RunPod(t, n)
	c := p.Run(edit, nodetest.Sh("while true; do mkdir /tmp/x 2>&1; umask; sleep 0.3; done"))
	next := func(status specs.ContainerState) {
		t.Helper()
		select {
		case s := <-a.states:
			pid, err := n.ContainerPID(c.ID)
			if err != nil {
				t.Fatal(err)
			}
			if s.State.ID != c.ID || s.State.Status != status || s.Metadata != "more of it" || s.State.Pid != pid ||
				(s.Pid == pid) != (status == specs.StateCreating) || !slices.Equal(s.Fds, []string{specs.SeccompFdName}) ||
				s.State.Bundle == "" || s.Version == "" {
				t.Errorf("the agent is told of %+v; the container has process %d", s, pid)
			}
		case <-time.After(time.Minute):
			t.Fatal("the agent is told of nothing")
		}
	}
	exec := func() {
		t.Helper()
		r, err := c.Exec(60, "sh", "-c", "mkdir /tmp/x 2>&1; umask; ls -d /tmp/x 2>/dev/null")
		if err != nil || !strings.Contains(string(r.Stdout), "uota exceeded\n0017\n") {
			t.Errorf("exec: %v, %v", r, err)
		}
		next(specs.StateRunning)
	}
	answered := func() {
		t.Helper()
		before := len(c.Stdout())
		nodetest.Eventually(t, time.Minute, "the agent answers", func() error {
			if log := c.Stdout()[before:]; !strings.Contains(log, "uota exceeded\n0017\n") {
				return errors.New(log)
			}
			return nil
		})
	}
	next(specs.StateCreating)
	answered()
	exec()
	if s := setupOf(t, n, c.ID); s.Engine != keeper.EngineLibcontainer || s.ExecEngine != keeper.EngineLibcontainer ||
		!strings.Contains(s.Reason, "a seccomp profile with a listener") {
		t.Errorf("the container was set up by %+v", s)
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	answered()
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	answered()
	exec()
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	exec()
	answered()
	for handler := range n.Handlers {
		if handler != "runc" {
			continue
		}
		other := nodetest.RunPodHandler(t, n, handler)
		if got := other.Output("umask", edit); got != "0017\n" {
			t.Errorf("with runc: %q", got)
		}
	}
}

// TestASeccompAgentThatFailsCostsOneStart: it is not there, takes no connection, or takes the descriptor and answers
// nothing. The error says so, and others start meanwhile. Seen to fail with the descriptor left to
// libcontainer.
func TestASeccompAgentThatFailsCostsOneStart(t *testing.T) {
	nodetest.BerthOnly(t, "is about its errors")
	n := nodetest.Shared(t)
	full := newFullSocket(t)
	silent := newSeccompAgent(t, true)
	absent := filepath.Join(t.TempDir(), "agent.sock")
	for claim, agent := range map[string]struct {
		socket string
		calls  []string
		act    string
	}{
		"not there":       {socket: absent, calls: []string{"mkdir"}, act: "connect: no such"},
		"no connections":  {socket: full, calls: []string{"mkdir"}, act: "connect: it accepts no connections"},
		"answers nothing": {socket: silent.socket, calls: []string{"capset"}, act: "answer system calls of the process"},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			p := nodetest.RunPod(t, n)
			edit, file := told(t, agent.socket, agent.calls...)
			c := p.Create(edit)
			failed := make(chan error, 1)
			go func() { failed <- c.TryStart() }()
			for range 3 {
				if got := p.Run().Sh("echo started"); got != "started" {
					t.Errorf("another container: %q", got)
				}
			}
			select {
			case err := <-failed:
				nodetest.WantCode(t, err, codes.FailedPrecondition)
				for _, part := range []string{file, agent.socket, agent.act} {
					if !strings.Contains(err.Error(), part) {
						t.Errorf("%v does not name %q", err, part)
					}
				}
			case <-time.After(node.Patience(40 * time.Second)):
				t.Fatal("the start hangs")
			}
			if s := c.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != 128 {
				t.Errorf("the container is %v, with exit code %d", s.State, s.ExitCode)
			}
		})
	}
}

// TestAnExecWhoseSeccompAgentIsGoneFails, and the container's program runs on: the agent has its descriptor.
func TestAnExecWhoseSeccompAgentIsGoneFails(t *testing.T) {
	nodetest.BerthOnly(t, "is about its errors")
	n := nodetest.Shared(t)
	a := newSeccompAgent(t, false)
	edit, file := told(t, a.socket, "mkdir", "mkdirat", "umask")
	c := nodetest.RunPod(t, n).Run(edit)
	a.listener.Close()
	_, err := c.Exec(60, "true")
	if err == nil || !strings.Contains(err.Error(), a.socket) || !strings.Contains(err.Error(), file) {
		t.Errorf("exec: %v", err)
	}
	if s := c.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the container is %v", s.State)
	}
}

// newFullSocket is a socket that takes no connection.
func newFullSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "full.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		t.Cleanup(func() { unix.Close(fd) })
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0))
	}
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return path
}
