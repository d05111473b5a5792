package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// namespace is containerd's for Kubernetes. Some shims keep what they have below this name.
	namespace = "k8s.io"
	// namespaceKey is where a call has it.
	namespaceKey = "containerd-namespace-ttrpc"
)

// errGone is the error of a call whose shim has ended, or ended during the call.
var errGone = fmt.Errorf("the shim does not run any more: %w", errdefs.ErrUnavailable)

// service is the name of the shim's task service.
func (b *Engine) service() string {
	if b.shim.Version >= 3 {
		return "containerd.task.v3.Task"
	}
	return "containerd.task.v2.Task"
}

// call calls the shim, over a connection of its own: no state of the keeper's hangs on a shim.
func (b *Engine) call(ctx context.Context, limit time.Duration, method string, request, response proto.Message) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	wrap := func(err error) error {
		return fmt.Errorf("%s: %s: %w", filepath.Base(b.path), strings.ToLower(method), err)
	}
	if b.shim.Address == "" {
		return wrap(errGone)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", b.shim.Address)
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
			err = errGone
		}
		return wrap(err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	ctx = ttrpc.WithMetadata(ctx, ttrpc.MD{namespaceKey: {namespace}})
	if err := client.Call(ctx, b.service(), method, request, response); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return wrap(kindOf(err))
	}
	return nil
}

// kinds are the errors by the codes with which shims answer.
var kinds = map[codes.Code]error{
	codes.NotFound:           errdefs.ErrNotFound,
	codes.AlreadyExists:      errdefs.ErrAlreadyExists,
	codes.FailedPrecondition: errdefs.ErrFailedPrecondition,
	codes.InvalidArgument:    errdefs.ErrInvalidArgument,
	codes.Unimplemented:      errdefs.ErrNotImplemented,
	codes.Unavailable:        errdefs.ErrUnavailable,
}

// answer is an error of a shim's: its text, and its kind.
type answer struct {
	text string
	kind error
}

func (e *answer) Error() string { return e.text }
func (e *answer) Unwrap() error { return e.kind }

// kindOf returns the error of a call as one of its kind.
func kindOf(err error) error {
	if errors.Is(err, ttrpc.ErrClosed) {
		return errGone
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	text := st.Message()
	kind, known := kinds[st.Code()]
	if !known {
		// Some shims have no codes.
		switch {
		case strings.HasSuffix(text, errdefs.ErrNotImplemented.Error()):
			kind = errdefs.ErrNotImplemented
		case strings.HasSuffix(text, errdefs.ErrNotFound.Error()):
			kind = errdefs.ErrNotFound
		}
	}
	return &answer{text: text, kind: kind}
}

// stillRuns tells whether an error of Delete says that the container, or the exec, still runs.
func stillRuns(err error) bool {
	return errdefs.IsFailedPrecondition(err) || err != nil && (strings.Contains(err.Error(), "running") ||
		strings.Contains(err.Error(), "stopped"))
}
