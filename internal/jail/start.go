package jail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/jail/ring"
	"berth/internal/jail/wire"
)

// Spec says what a child is started with: its role, request, descriptors, directories and limits.
type Spec struct {
	Role *wire.Role
	Task any // sent as JSON; nil: the role needs none
	// Memory is how much the child's heap may have, in bytes: it works harder to keep to it, and is ended when it cannot.
	Memory uint64
	// FileSize is the most bytes that the child writes to files, to each and to all together; 0: it writes none.
	// What all together have is looked at each second.
	FileSize uint64
	// MaxAnswer is the most bytes of its answer; 0: a few kilobytes, for an error.
	MaxAnswer int64
	// Dirs are directories that it sees, each with what is below it on the same mount and nothing above it.
	Dirs []Dir
	// In and Out are rings to the child and from it, whose other ends are the caller's. The child's ends are closed
	// by Start.
	In, Out []*ring.Pair
	// Files are descriptors that it has as they are. They stay the caller's.
	Files []*os.File
	// Calls does what the child asks for about files of its own. It is called from one goroutine, with a file
	// that it does not keep and a call that it does not trust. Nil: the child has nobody to ask.
	Calls func(*wire.Call, *os.File) ([]byte, error)
}

// Dir is a directory that a child sees.
type Dir struct {
	File     *os.File // open, of the caller's mount namespace
	ReadOnly bool
	// Keep are names in it that the child can neither move nor remove. Files among them it cannot write either.
	Keep []string
}

// tree is a mount of a directory that is in no namespace yet.
type tree struct {
	mount    *os.File
	readOnly bool
	keep     []kept
}

// kept is a name of a directory that the child has to leave as it is, with a mount of what it names.
type kept struct {
	name        string
	mount, home *os.File // home is a second mount of the directory, where the first name of it is a directory
}

func (t *tree) close() {
	t.mount.Close()
	for _, k := range t.keep {
		k.mount.Close()
		if k.home != nil {
			k.home.Close()
		}
	}
}

// newTree takes a directory and what is kept of it.
func newTree(d Dir) (*tree, error) {
	mount, err := openTree(d.File)
	if err != nil {
		return nil, err
	}
	t := &tree{mount: mount, readOnly: d.ReadOnly}
	for _, name := range d.Keep {
		k, err := newKept(d.File, name)
		if err != nil {
			t.close()
			return nil, fmt.Errorf("keep %s: %w", name, err)
		}
		t.keep = append(t.keep, *k)
	}
	return t, nil
}

// newTrees takes all directories of a child, or none.
func newTrees(dirs []Dir) (trees []*tree, err error) {
	for _, d := range dirs {
		t, err := newTree(d)
		if err != nil {
			closeTrees(trees)
			return nil, fmt.Errorf("take %s into a jail: %w", d.File.Name(), err)
		}
		trees = append(trees, t)
	}
	return trees, nil
}

func closeTrees(trees []*tree) {
	for _, t := range trees {
		t.close()
	}
}

func newKept(dir *os.File, name string) (*kept, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	k := &kept{name: name}
	if k.mount, err = openTree(file); err != nil || !info.IsDir() {
		return k, err
	}
	if k.home, err = openTree(dir); err != nil {
		k.mount.Close()
	}
	return k, err
}

// Child is a process that a Jail has started. Wait has to be called.
type Child struct {
	jail    *Jail
	role    *wire.Role
	memory  uint64
	most    int64 // bytes of its answer
	process *os.Process
	ctx     context.Context
	stop    func() bool // of the watch over ctx
	work    sync.WaitGroup
	// Written by goroutines that work counts:
	answer    []byte
	answerErr error
	stderr    []byte
	callsErr  error
	wrote     error
	ended     chan struct{} // nil: nobody counts what it writes
}

const (
	maxStderr   = 16 << 10
	smallAnswer = 16 << 10
)

// Start starts a child. It is killed when ctx ends. An error that is errdefs.ErrFailedPrecondition says that this host
// cannot confine children.
func (j *Jail) Start(ctx context.Context, spec Spec) (*Child, error) {
	for _, pair := range slices.Concat(spec.In, spec.Out) {
		defer pair.ClosePeer()
	}
	c, err := j.start(ctx, &spec)
	if err != nil {
		return nil, fmt.Errorf("start a child of the role %s: %w", spec.Role.Name, err)
	}
	return c, nil
}

func (j *Jail) start(ctx context.Context, spec *Spec) (*Child, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	if len(spec.Dirs) > maxDirs {
		return nil, fmt.Errorf("%d directories, of at most %d: %w", len(spec.Dirs), maxDirs, errdefs.ErrResourceExhausted)
	}
	task, err := json.Marshal(spec.Task) // "null" for none
	if err != nil {
		return nil, err
	}
	s, err := j.ready()
	if err != nil {
		return nil, err
	}
	c := &Child{jail: j, role: spec.Role, memory: spec.Memory, most: max(spec.MaxAnswer, smallAnswer), ctx: ctx}
	var own files
	if err := c.begin(s, spec, task, &own); err != nil {
		own.close()
		j.alive.Done()
		return nil, err
	}
	return c, nil
}

// begin starts the child's process and what serves it. Berthd's ends of the child's pipes are added to own.
func (c *Child) begin(s *spawner, spec *Spec, task []byte, own *files) error {
	var theirs files
	defer theirs.close()
	request, err := theirs.pipe(own, true)
	if err != nil {
		return err
	}
	answer, err := theirs.pipe(own, false)
	if err != nil {
		return err
	}
	stderr, err := theirs.pipe(own, false)
	if err != nil {
		return err
	}
	calls, err := theirs.socket()
	if err != nil {
		return err
	}
	trees, err := newTrees(spec.Dirs)
	if err != nil {
		calls.Close()
		return err
	}
	defer closeTrees(trees)
	all := slices.Clone(theirs.list)
	for _, pair := range slices.Concat(spec.In, spec.Out) {
		all = append(all, pair.Memory, pair.Socket)
	}
	arguments := wire.Arguments{
		Role: spec.Role.Name, Memory: spec.Memory, FileSize: spec.FileSize, In: uint64(len(spec.In)),
		Out:   uint64(len(spec.Out)),
		Files: uint64(len(spec.Files)), Dirs: uint64(len(spec.Dirs)),
	}
	c.process, err = s.spawn(trees, arguments.List(), append(all, spec.Files...), spec.Role.Capabilities, c.jail.uid())
	if err != nil {
		calls.Close()
		return err
	}
	if err := first(c.process.Pid); err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		calls.Close()
		_ = c.process.Kill()
		_, _ = c.process.Wait()
		return err
	}
	c.stop = context.AfterFunc(c.ctx, c.Kill)
	c.work.Go(func() { _, _ = request.Write(task); request.Close() })
	c.work.Go(func() { c.readAnswer(answer) })
	c.work.Go(func() { c.readStderr(stderr) })
	c.work.Go(func() { c.serve(calls, spec.Calls) })
	if spec.FileSize > 0 {
		c.ended = make(chan struct{})
		c.work.Go(func() { c.count(spec.FileSize) })
	}
	return nil
}

// files are closed together.
type files struct{ list []*os.File }

func (f *files) close() {
	for _, file := range f.list {
		file.Close()
	}
}

// pipe makes a pipe, of which one end is the child's, and returns the other.
func (f *files) pipe(own *files, toChild bool) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	if toChild {
		r, w = w, r
	}
	f.list, own.list = append(f.list, w), append(own.list, r)
	return r, nil
}

// socket makes a socket for calls, of which one end is the child's, and returns the other.
func (f *files) socket() (*net.UnixConn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	f.list = append(f.list, os.NewFile(uintptr(fds[1]), "calls"))
	file := os.NewFile(uintptr(fds[0]), "calls")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// Kill ends the child, even one that is stopped.
func (c *Child) Kill() { _ = c.process.Kill() }

// PID is the child's number, for tests and for logs.
func (c *Child) PID() int { return c.process.Pid }

const (
	countEach = time.Second
	// otherWrites is what a child may write elsewhere than to files: tokens of rings, calls, an answer.
	otherWrites = 64 << 20
)

// count ends a child that writes more than it may. It counts system calls, of which no other kind than write puts bytes
// into files.
func (c *Child) count(most uint64) {
	tick := time.NewTicker(countEach)
	defer tick.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-tick.C:
		}
		if n, err := written(c.process.Pid); err == nil && n > most && n-most > otherWrites+uint64(c.most) {
			c.wrote = fmt.Errorf("it has written more than %d bytes, and was ended: %w", most, errdefs.ErrResourceExhausted)
			c.Kill()
			return
		}
	}
}

// written is how many bytes a process has passed to calls of the kind write.
func written(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/io")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "wchar:"); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, errors.New("the kernel does not count what processes write")
}

// readAnswer reads all that the child answers, of which there is a bound.
func (c *Child) readAnswer(f *os.File) {
	defer f.Close()
	c.answer, c.answerErr = io.ReadAll(io.LimitReader(f, c.most+1))
	if int64(len(c.answer)) > c.most {
		c.answerErr = fmt.Errorf("its answer has more than %d bytes: %w", c.most, errdefs.ErrResourceExhausted)
		c.Kill()
	}
}

// readStderr keeps the beginning of what the child's runtime says, and reads on.
func (c *Child) readStderr(f *os.File) {
	defer f.Close()
	c.stderr, _ = io.ReadAll(io.LimitReader(f, maxStderr))
	_, _ = io.Copy(io.Discard, f)
}

// serve answers calls until the child ends. A child that does not keep to the protocol is killed.
func (c *Child) serve(conn *net.UnixConn, handle func(*wire.Call, *os.File) ([]byte, error)) {
	defer conn.Close()
	data := make([]byte, wire.MaxCall+1)
	rights := make([]byte, unix.CmsgSpace(4)) // for one descriptor: the kernel closes any others
	for {
		n, oobn, flags, _, err := conn.ReadMsgUnix(data, rights)
		if err != nil || n == 0 {
			return
		}
		file, err := received(rights[:oobn], flags)
		if err == nil {
			err = c.reply(conn, handle, data[:n], file)
		}
		if file != nil {
			file.Close()
		}
		if err != nil {
			c.callsErr = err
			c.Kill()
			return
		}
	}
}

func (c *Child) reply(conn *net.UnixConn, handle func(*wire.Call, *os.File) ([]byte, error), data []byte,
	file *os.File) error {
	call, err := wire.ParseCall(data)
	if err != nil {
		return err
	}
	if handle == nil {
		return errors.New("a call of a role that has none")
	}
	value, err := handle(call, file)
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		return err
	}
	_, err = conn.Write(wire.Reply(errno, value))
	return err
}

// received takes the one descriptor out of a message.
func received(rights []byte, flags int) (*os.File, error) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, m := range messages {
		list, err := unix.ParseUnixRights(&m)
		if err != nil {
			return nil, err
		}
		fds = append(fds, list...)
	}
	if len(fds) != 1 || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, errors.New("a call that does not come with one descriptor")
	}
	return os.NewFile(uintptr(fds[0]), "file of a child"), nil
}

// Wait waits for the end of the child and decodes its result. The error is the child's own, with what errdefs calls
// its kind, or says how the child died. If the child's context has ended, that is the error.
func (c *Child) Wait(result any) error {
	state, err := c.process.Wait()
	if c.ended != nil {
		close(c.ended)
	}
	c.stop()
	c.work.Wait()
	c.jail.alive.Done()
	if err != nil {
		return fmt.Errorf("wait for a child of the role %s: %w", c.role.Name, err)
	}
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	if err := c.judge(state, result); err != nil {
		var told *wire.Error
		if errors.As(err, &told) {
			return err
		}
		return fmt.Errorf("the child that was to %s: %w", c.role.Name, err)
	}
	return nil
}

func (c *Child) judge(state *os.ProcessState, result any) error {
	switch {
	case c.callsErr != nil:
		return fmt.Errorf("it asked for what it must not: %w: %w", c.callsErr, errdefs.ErrInternal)
	case c.answerErr != nil:
		return c.answerErr
	case c.wrote != nil:
		return c.wrote
	}
	status := state.Sys().(syscall.WaitStatus)
	if status.Signaled() || status.ExitStatus() != 0 {
		return c.death(status)
	}
	var answer wire.Answer
	if err := wire.Decode(c.answer, &answer); err != nil {
		return fmt.Errorf("its answer cannot be read: %w: %w", err, errdefs.ErrInternal)
	}
	if answer.Error != nil {
		if err := answer.Error.Check(); err != nil {
			return fmt.Errorf("its answer cannot be read: %w: %w", err, errdefs.ErrInternal)
		}
		return answer.Error
	}
	if result == nil {
		return nil
	}
	if err := wire.Decode(answer.Result, result); err != nil {
		return fmt.Errorf("its answer cannot be read: %w: %w", err, errdefs.ErrInternal)
	}
	return nil
}

// death says how a child has died.
func (c *Child) death(status syscall.WaitStatus) error {
	first, _, _ := strings.Cut(strings.TrimSpace(string(c.stderr)), "\n")
	first = wire.Printable(first, 200)
	switch {
	case status.Signaled() && status.Signal() == unix.SIGKILL:
		return fmt.Errorf("it was killed from outside, as the kernel does where memory is short: %w",
			errdefs.ErrResourceExhausted)
	case status.Signaled() && status.Signal() == unix.SIGSYS:
		return fmt.Errorf("it made a system call that it has no use for, as one does that was taken over by what it read: %w",
			errdefs.ErrInternal)
	case status.Signaled():
		return fmt.Errorf("it ended by %v: %w", status.Signal(), errdefs.ErrInternal)
	case bytes.Contains(c.stderr, []byte("out of memory")), bytes.Contains(c.stderr, []byte("cannot allocate memory")):
		return fmt.Errorf("it needed more than its %d MiB of memory: %w", c.memory>>20, errdefs.ErrResourceExhausted)
	}
	return fmt.Errorf("it ended with status %d: %s: %w", status.ExitStatus(), first, errdefs.ErrInternal)
}
