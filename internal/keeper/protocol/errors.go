package protocol

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/disk"
)

// kinds pairs the errors that callers act on with the codes that they travel as. The first match counts.
var kinds = []struct {
	err  error
	code codes.Code
}{
	{errdefs.ErrNotFound, codes.NotFound},
	{errdefs.ErrInvalidArgument, codes.InvalidArgument},
	{errdefs.ErrAlreadyExists, codes.AlreadyExists},
	{errdefs.ErrFailedPrecondition, codes.FailedPrecondition},
	{errdefs.ErrResourceExhausted, codes.ResourceExhausted},
	{errdefs.ErrAborted, codes.Aborted},
	{errdefs.ErrUnavailable, codes.Unavailable},
	{errdefs.ErrNotImplemented, codes.Unimplemented},
	{errdefs.ErrPermissionDenied, codes.PermissionDenied},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{context.Canceled, codes.Canceled},
}

// Encode turns an error into one that crosses ttrpc with its kind.
func Encode(err error) error {
	if err == nil {
		return nil
	}
	for _, k := range kinds {
		if errors.Is(err, k.err) || k.code == codes.ResourceExhausted && disk.Full(err) {
			return status.Error(k.code, err.Error())
		}
	}
	return status.Error(codes.Unknown, err.Error())
}

// remote is an error that came over the wire: its text, and the sentinel it stands for.
type remote struct {
	msg  string
	kind error
}

func (e *remote) Error() string { return e.msg }
func (e *remote) Unwrap() error { return e.kind }

// Decode turns an error from ttrpc back into one that wraps its sentinel.
func Decode(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, k := range kinds {
		if st.Code() == k.code {
			return &remote{msg: st.Message(), kind: k.err}
		}
	}
	return fmt.Errorf("keeper: %s", st.Message())
}
