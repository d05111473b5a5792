package libcontainer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/mountns"
)

// A seccomp profile can name an agent: a program of the node, which the kernel tells of the system calls that the
// profile lists (SCMP_ACT_NOTIFY), and which answers in the kernel's place. The process that loads the filter has a
// descriptor for that, and libcontainer sends it to the agent's socket (listenerPath) with the state of the container.
//
// libcontainer would do so without a limit of time, and within the start of the process. So it is given a socket of the
// keeper's instead, and the keeper hands on what comes there. An agent that is not there, takes nothing or does not
// answer what the process does before its program costs the start, and nothing else.

// How long an agent may take: less than an upgrade of the keeper waits for starts.
const (
	// processSends is how long libcontainer may set the process up. The filter may stop the process before it has sent its
	// descriptor, if it has the agent told of a call that Go's runtime makes.
	processSends = time.Minute
	// agentTakes is for the connection and the message.
	agentTakes = 10 * time.Second
	// agentAnswers is from then until the program begins. The process makes calls meanwhile of which the profile may have
	// the agent told.
	agentAnswers = 15 * time.Second
	// agentBusy is the time between two attempts to connect to a socket whose queue is full.
	agentBusy = 20 * time.Millisecond
)

// maxState limits what libcontainer sends: the annotations of a pod have 256 KiB at most.
const maxState = 4 << 20

// agent hands a descriptor of one process to the agent of its seccomp profile.
type agent struct {
	socket string // the agent's
	// path is that of the keeper's socket. It leads through a descriptor, so that nobody else finds the socket.
	path     string
	listener *net.UnixListener
	node     *os.File // the socket's file, which has no name any more

	ctx    context.Context // ends with the start, or with the reason why the agent has failed it
	fail   context.CancelCauseFunc
	handed chan struct{} // closed when the agent has the descriptor, or has failed
}

// notifies tells whether a profile has an agent told of calls.
func notifies(p *configs.Seccomp) bool {
	return p != nil && p.ListenerPath != "" &&
		slices.ContainsFunc(p.Syscalls, func(s *configs.Syscall) bool { return s != nil && s.Action == configs.Notify })
}

// newAgent prepares to hand the descriptor of a process that is about to start to the agent of a profile; nil: the
// profile has none. The caller gives libcontainer the profile with path as its listener, and calls Close when the start
// is over. What the container has of the keeper's files goes with it.
func (e *Engine) newAgent(ctx context.Context, c runtime.Container, p *configs.Seccomp) (a *agent, err error) {
	if !notifies(p) {
		return nil, nil
	}
	if !filepath.IsAbs(p.ListenerPath) {
		return nil, fmt.Errorf("seccomp profile: the agent's socket %q is not an absolute path: %w", p.ListenerPath,
			errdefs.ErrInvalidArgument)
	}
	a = &agent{socket: p.ListenerPath, handed: make(chan struct{})}
	if err := a.listen(e.dir.Bundle(c.ID())); err != nil {
		return nil, fmt.Errorf("socket for the seccomp agent's descriptor: %w", err)
	}
	a.ctx, a.fail = context.WithCancelCause(ctx)
	go a.run()
	return a, nil
}

// listen makes the keeper's socket. Its name is short by way of a descriptor of the directory, and is removed at once.
func (a *agent) listen(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	in, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer in.Close()
	name := "agent-" + rand.Text()
	short := fmt.Sprintf("/proc/self/fd/%d/%s", in.Fd(), name)
	if a.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"}); err != nil {
		return err
	}
	a.listener.SetUnlinkOnClose(false)
	err = a.listener.SetDeadline(time.Now().Add(processSends))
	fd, oerr := unix.Openat(int(in.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err = errors.Join(err, oerr, unix.Unlinkat(int(in.Fd()), name, 0)); err != nil {
		a.listener.Close()
		if oerr == nil {
			unix.Close(fd)
		}
		return err
	}
	a.node = os.NewFile(uintptr(fd), name)
	a.path = "/proc/self/fd/" + strconv.Itoa(fd)
	return nil
}

// Close ends the start. The agent keeps what it has.
func (a *agent) Close() {
	if a == nil {
		return
	}
	a.fail(nil)
	a.listener.Close()
	<-a.handed
	a.node.Close()
}

// context is that of the start: it ends if the agent fails. Without an agent it is the caller's.
func (a *agent) context(ctx context.Context) context.Context {
	if a == nil {
		return ctx
	}
	return a.ctx
}

// wait returns when the agent has the descriptor of a process that has loaded its filter, or has failed.
func (a *agent) wait() error {
	if a == nil {
		return nil
	}
	// What libcontainer has sent waits to be accepted by now.
	if err := a.listener.SetDeadline(time.Now().Add(time.Second)); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	<-a.handed
	return a.err()
}

// err is the reason why the agent has failed the start; nil: it has not.
func (a *agent) err() error {
	if a == nil || a.ctx.Err() == nil {
		return nil
	}
	return context.Cause(a.ctx)
}

// is returns the agent's failure in the place of the error of the start that it has failed.
func (a *agent) is(err error) error {
	if failed := a.err(); failed != nil && !errors.Is(failed, context.Canceled) {
		return failed
	}
	return err
}

// failed ends the start: an act has failed. The error of the system becomes words, since the file that is missing, for
// example, is not the container's program.
func (a *agent) failed(act string, err error) {
	a.fail(fmt.Errorf("seccomp agent at %s: %s: %v: %w", a.socket, act, err, errdefs.ErrFailedPrecondition))
}

func (a *agent) run() {
	defer close(a.handed)
	conn, err := a.listener.AcceptUnix()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		a.failed("receive the filter's descriptor", errors.New("the process has not sent it: the profile may have the agent "+
			"told of a call that the process makes before that"))
	}
	if err != nil {
		return // the start is over
	}
	state, fds, err := receiveState(conn)
	conn.Close()
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if err == nil && len(fds) != 1 {
		err = fmt.Errorf("libcontainer has sent %d descriptors", len(fds))
	}
	if err != nil {
		a.failed("receive the filter's descriptor", err)
		return
	}
	deadline := time.Now().Add(agentTakes)
	to, err := a.connect(deadline)
	if err != nil {
		a.failed("connect", err)
		return
	}
	defer to.Close()
	if err := sendState(to, state, fds[0], deadline); err != nil {
		a.failed("send the filter's descriptor", err)
		return
	}
	silent := time.AfterFunc(agentAnswers, func() {
		a.failed("answer system calls of the process", fmt.Errorf("the agent has the filter's descriptor, and the program "+
			"has not begun within %s", agentAnswers))
	})
	context.AfterFunc(a.ctx, func() { silent.Stop() })
}

// receiveState takes what libcontainer sends, until it closes its end.
func receiveState(conn *net.UnixConn) (state []byte, fds []int, err error) {
	if err := conn.SetReadDeadline(time.Now().Add(agentTakes)); err != nil {
		return nil, nil, err
	}
	buf, oob := make([]byte, 64<<10), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
		more, rerr := rights(oob[:oobn])
		fds = append(fds, more...)
		state = append(state, buf[:n]...)
		switch {
		case errors.Is(err, io.EOF) || err == nil && n == 0:
			return state, fds, rerr
		case err != nil || rerr != nil:
			return nil, fds, errors.Join(err, rerr)
		case len(state) > maxState:
			return nil, fds, fmt.Errorf("the state of the container has more than %d bytes", maxState)
		}
	}
}

func rights(oob []byte) (fds []int, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	for i := range messages {
		more, rerr := unix.ParseUnixRights(&messages[i])
		fds, err = append(fds, more...), errors.Join(err, rerr)
	}
	return fds, err
}

// connect reaches the agent where the node has its socket. The kernel refuses connections beyond those that wait to be
// accepted, and a file system that does not answer may hold the call: it is left behind then.
func (a *agent) connect(deadline time.Time) (*net.UnixConn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		err := mountns.OnNode(func() error {
			for {
				r.conn, r.err = net.Dial("unix", a.socket)
				if !errors.Is(r.err, unix.EAGAIN) || time.Now().Add(agentBusy).After(deadline) || a.ctx.Err() != nil {
					return nil
				}
				time.Sleep(agentBusy)
			}
		})
		var errno unix.Errno
		switch {
		case err != nil:
			r.err = err
		case errors.Is(r.err, unix.EAGAIN):
			r.err = errors.New("it accepts no connections, and as many wait as it lets")
		case errors.As(r.err, &errno):
			r.err = errno // without the path and the call once more
		}
		done <- r
	}()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case r := <-done:
		if r.err != nil {
			return nil, r.err
		}
		return r.conn.(*net.UnixConn), nil
	case <-timer.C:
	case <-a.ctx.Done():
	}
	go func() {
		if r := <-done; r.conn != nil {
			r.conn.Close()
		}
	}()
	return nil, fmt.Errorf("it does not answer within %s", agentTakes)
}

// sendState sends the state of the container and, with its first bytes, the descriptor.
func sendState(to *net.UnixConn, state []byte, fd int, deadline time.Time) error {
	if err := to.SetWriteDeadline(deadline); err != nil {
		return err
	}
	n, _, err := to.WriteMsgUnix(state, unix.UnixRights(fd), nil)
	if err == nil && n < len(state) {
		_, err = to.Write(state[n:])
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("it does not read the state of the container within %s", agentTakes)
	}
	return err
}

// withListener is a copy of a profile that names another socket.
func withListener(p *configs.Seccomp, path string) *configs.Seccomp {
	other := *p
	other.ListenerPath = path
	return &other
}

// nameAgent puts the agent's own socket into libcontainer's state of a container, which has the keeper's: execs find it
// there.
func (e *Engine) nameAgent(c runtime.Container, a *agent) error {
	return e.editState(c, func(config map[string]json.RawMessage) (changed bool, err error) {
		var profile configs.Seccomp
		if err := json.Unmarshal(config["seccomp"], &profile); err != nil {
			return false, err
		}
		config["seccomp"] = record.JSON(withListener(&profile, a.socket))
		return true, nil
	})
}
