package protocol

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// An error that callers act on is the same kind on both sides. Seen to fail without ErrAborted, which says that a
// command may have run.
func TestErrorsKeepTheirKind(t *testing.T) {
	for _, kind := range []error{
		errdefs.ErrNotFound, errdefs.ErrInvalidArgument, errdefs.ErrAlreadyExists, errdefs.ErrFailedPrecondition,
		errdefs.ErrResourceExhausted,
		errdefs.ErrAborted, errdefs.ErrUnavailable, errdefs.ErrNotImplemented, errdefs.ErrPermissionDenied,
		context.DeadlineExceeded, context.Canceled,
	} {
		err := Decode(Encode(fmt.Errorf("exec e: %w", kind)))
		if !errors.Is(err, kind) || err.Error() != "exec e: "+kind.Error() {
			t.Errorf("%v arrives as %v", kind, err)
		}
	}
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT} {
		if err := Decode(Encode(fmt.Errorf("log: %w", full))); !errdefs.IsResourceExhausted(err) {
			t.Errorf("%v arrives as %v", full, err)
		}
	}
	if err := Decode(Encode(nil)); err != nil {
		t.Error(err)
	}
	if err := Decode(Encode(errors.New("x"))); err == nil || err.Error() != "keeper: x" {
		t.Errorf("an error of no kind arrives as %v", err)
	}
}
