package shim

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	api "berth/api/shim"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/timerslack"
)

// publisher is the program that shims of containerd 1.2 run for each event, in place of containerd's own. Shims of 1.3
// and newer send events to TTRPC_ADDRESS, and only hand this name on. The keeper can do without events.
const publisher = "/bin/true"

// maxAddress is the longest path of a socket (unix(7)).
const maxAddress = 107

// address is the keeper's socket, where containerd has its API. No shim that is known here calls that, but it is on the
// command lines of all shims of this keeper, and in the names of their sockets.
func (b *Engine) address() string { return filepath.Join(string(b.dir), protocol.RPCSocket) }

// arguments are those of a shim for a container.
func (b *Engine) arguments(id string) []string {
	return []string{"-namespace", namespace, "-address", b.address(), "-publish-binary", publisher, "-id", id}
}

// run runs the shim's binary in the directory of the container's bundle, as containerd does. The end of the context
// does not end it: a binary that is killed half way leaves what nobody else removes.
func (b *Engine) run(ctx context.Context, id string, input []byte, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	defer b.spawning()()
	cmd := exec.CommandContext(ctx, b.path, append(b.arguments(id), args...)...)
	cmd.Dir = b.dir.Bundle(id)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "GOMAXPROCS=2", "MAX_SHIM_VERSION=2", "NAMESPACE=" + namespace,
		"TTRPC_ADDRESS=" + b.events(b.pod(id)), "GRPC_ADDRESS=" + b.address(),
	}
	for _, k := range []string{"XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"} {
		if v, ok := os.LookupEnv(k); ok {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &errs
	cmd.WaitDelay = time.Second // the shim itself must not keep this call waiting
	err := timerslack.AsUsual(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return out.Bytes(), nil
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("shim %s: %w: %w", b.path, err, errdefs.ErrFailedPrecondition)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: it has not ended within %s: %w", b.path, startLimit, ctx.Err())
	}
	text := strings.TrimSpace(errs.String())
	return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(b.path), args[len(args)-1], err, text[:min(len(text), 4096)])
}

// launch starts the pod's shim.
func (b *Engine) launch(ctx context.Context, c runtime.Container) error {
	params := &api.BootstrapParams{
		InstanceId: c.ID(), Namespace: namespace, ContainerdVersion: "2.3.0", ContainerdTtrpcAddress: b.events(c.ID()),
		ContainerdGrpcAddress: b.address(), ContainerdBinary: publisher,
	}
	var older []byte
	if options := b.options(); options != nil {
		params.Extensions = []*api.Extension{{Value: options}}
		var err error
		if older, err = proto.Marshal(&anypb.Any{TypeUrl: options.TypeUrl, Value: options.Value}); err != nil {
			return err
		}
	}
	input, err := proto.Marshal(params)
	if err != nil {
		return err
	}
	out, err := b.run(ctx, c.ID(), input, "start")
	if err != nil && !errdefs.IsFailedPrecondition(err) && ctx.Err() == nil {
		// A shim of containerd before 2.3 reads the options alone.
		var again error
		if out, again = b.run(ctx, c.ID(), older, "start"); again == nil {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	if err := b.parse(out); err != nil {
		return err
	}
	var connected api.ConnectResponse
	if err := b.call(ctx, callLimit, "Connect", &api.TaskRequest{Id: c.ID()}, &connected); err != nil {
		return err
	}
	pid := int(connected.ShimPid)
	if pid < 2 {
		return fmt.Errorf("shim %s: its process is %d: %w", b.path, pid, errdefs.ErrFailedPrecondition)
	}
	if b.shim.Start, err = pidfd.StartTime(pid); err != nil {
		return fmt.Errorf("shim %s: look for its process %d: %w", b.path, pid, err)
	}
	b.shim.PID = pid
	return nil
}

// parse reads what a shim has printed: how it is reached. Shims of containerd 2.3 and newer print a message of
// protobuf, others JSON, or the address alone.
func (b *Engine) parse(out []byte) error {
	var result api.BootstrapResult
	if err := proto.Unmarshal(out, &result); err != nil || result.Version == 0 || result.Address == "" {
		out = bytes.TrimSpace(out)
		var answer struct {
			Version           int32
			Address, Protocol string
		}
		if err := json.Unmarshal(out, &answer); err != nil || answer.Version < 2 {
			answer.Version, answer.Address, answer.Protocol = 2, string(out), "ttrpc"
		}
		result.Version, result.Address, result.Protocol = answer.Version, answer.Address, answer.Protocol
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("shim %s: %s: %w", b.path, fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
	}
	path, isPath := strings.CutPrefix(result.Address, "unix://")
	switch {
	case !strings.EqualFold(result.Protocol, "ttrpc"):
		return refuse("it speaks %.40q, and Berth only ttrpc", result.Protocol)
	case result.Version < 2 || result.Version > 3:
		return refuse("its task service is of version %d, and Berth knows 2 and 3", result.Version)
	case isPath && !filepath.IsAbs(path), result.Address == "", len(path) > maxAddress:
		return refuse("its address is %.200q, and not that of a socket", result.Address)
	case !isPath && strings.Contains(result.Address, "://"):
		return refuse("its address is %.200q, and Berth knows only unix sockets", result.Address)
	case !isPath:
		path = "@" + path // in the abstract namespace
	}
	b.shim.Address, b.shim.Version = path, int(result.Version)
	return nil
}

// events is the socket to which the shim of a pod sends events. The path of the bundle would be too long for some
// directories of keepers.
func (b *Engine) events(pod string) string {
	return filepath.Join(string(b.dir), fmt.Sprintf("events-%x", sha256.Sum256([]byte(pod)))[:7+16])
}

// pod is the ID of the pod that a container is in.
func (b *Engine) pod(id string) string { return cmp.Or(b.sandbox, id) }

// listen makes the socket for events, in place of one of an earlier start that was cut off.
func (b *Engine) listen(pod string) (*os.File, error) {
	path := b.events(pod)
	if len(path) > maxAddress {
		return nil, fmt.Errorf("shim %s: %s is too long for the address of a socket: %w", b.path, path,
			errdefs.ErrFailedPrecondition)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, err
	}
	defer l.Close()
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, err
	}
	return l.File()
}

// logPipe is how much a shim can write to its log while nobody reads it: until the proxy of the pod's init does.
const logPipe = 1 << 20

// openLog makes the named pipe that a shim writes its log to.
func (b *Engine) openLog(id string) (*os.File, error) {
	path := filepath.Join(b.dir.Bundle(id), "log")
	if err := unix.Mkfifo(path, 0o600); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mkfifo", Path: path, Err: err}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	_, _ = unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, logPipe)
	return f, nil
}
