package metrics

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// reasons are the values of the label reason, in the order in which an error is compared with them.
var reasons = []struct {
	name string
	is   func(error) bool
}{
	{"canceled", func(err error) bool { return errors.Is(err, context.Canceled) || errdefs.IsCanceled(err) }},
	{"deadline_exceeded", func(err error) bool {
		return errors.Is(err, context.DeadlineExceeded) || errdefs.IsDeadlineExceeded(err)
	}},
	{"aborted", errdefs.IsAborted},
	{"unverified", func(err error) bool { return errors.As(err, new(*model.UnverifiedError)) }},
	{"unauthenticated", errdefs.IsUnauthorized},
	{"permission_denied", errdefs.IsPermissionDenied},
	{"resource_exhausted", errdefs.IsResourceExhausted},
	{"invalid_argument", errdefs.IsInvalidArgument},
	{"not_found", errdefs.IsNotFound},
	{"failed_precondition", errdefs.IsFailedPrecondition},
	{"unavailable", errdefs.IsUnavailable},
}

// reason is why something failed, as one of a few words. An error that has none is "unknown".
func reason(err error) string {
	for _, r := range reasons {
		if r.is(err) {
			return r.name
		}
	}
	return "unknown"
}
