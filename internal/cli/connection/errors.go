package connection

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Message is an error as a person should read it: without the words of gRPC, and with what to try where that is known.
func Message(err error) string {
	if err == nil {
		return ""
	}
	var unreachable *UnreachableError
	if errors.As(err, &unreachable) {
		return unreachable.Error()
	}
	st, ok := direct(err)
	if !ok {
		return err.Error()
	}
	return wording(st)
}

// Plain takes the words of gRPC off an error, so that it can be wrapped in others. Its code can still be read by Code.
func Plain(err error) error {
	if st, ok := direct(err); ok {
		return &callError{text: wording(st), err: err}
	}
	return err
}

// callError is an error of a call, worded for people.
type callError struct {
	text string
	err  error
}

func (e *callError) Error() string { return e.text }
func (e *callError) Unwrap() error { return e.err }

// direct is the status of an error that came from gRPC as it is.
func direct(err error) (*status.Status, bool) {
	if _, ok := err.(interface{ GRPCStatus() *status.Status }); !ok {
		return nil, false
	}
	return status.FromError(err)
}

func wording(st *status.Status) string {
	text := withoutClass(st)
	switch st.Code() {
	case codes.Unavailable:
		// gRPC's own words say that the connection broke. The runtime's are about something else that cannot be reached, such
		// as a registry, and say what it is.
		if brokeOff(text) {
			return "the runtime went away: it was stopped, or is being restarted (`systemctl status berthd`)\n(" + text + ")"
		}
	case codes.Unimplemented:
		return "this runtime does not do that: " + unknownMethod.ReplaceAllString(text, "")
	case codes.ResourceExhausted:
		return text + "\n(The node has run out of something. `berth doctor` checks disk space and limits.)"
	case codes.Unauthenticated, codes.PermissionDenied:
		return text +
			"\n(Credentials: berth pull --username NAME --password-stdin, or a docker config.json with --auth-file.)"
	case codes.DeadlineExceeded:
		return "no answer in time: " + text
	}
	return text
}

// classes are how the runtime's errors name their codes at the end of a text.
var classes = map[codes.Code]error{
	codes.FailedPrecondition: errdefs.ErrFailedPrecondition, codes.InvalidArgument: errdefs.ErrInvalidArgument,
	codes.Unavailable: errdefs.ErrUnavailable, codes.ResourceExhausted: errdefs.ErrResourceExhausted,
	codes.Unimplemented: errdefs.ErrNotImplemented,
}

// unknownMethod begins an error of Berth's by which Kubernetes' tests know that a call cannot work on a node. The
// reason follows, other than in gRPC's own "unknown method X for service Y".
var unknownMethod = regexp.MustCompile(`^unknown method \w+: `)

// withoutClass is what the runtime says without the class of the error at its end, which is for programs: the code of
// gRPC says the same. An end that is another code's, such as the kernel's "invalid argument" of an internal error,
// stays.
func withoutClass(st *status.Status) string {
	text := st.Message()
	if class := classes[st.Code()]; class != nil {
		text = strings.TrimSuffix(text, ": "+class.Error())
	}
	return text
}

// brokeOff tells gRPC's own messages about a connection from those of a runtime.
func brokeOff(text string) bool {
	for _, start := range []string{"connection error:", "error reading from server", "closing transport",
		"transport is closing", "keepalive", "the connection is draining", "last connection error:"} {
		if strings.HasPrefix(text, start) {
			return true
		}
	}
	return false
}

// Away says whether an error is that nobody answers on the runtime's socket. A runtime itself says Unavailable of
// others, such as a registry.
func Away(err error) bool {
	var unreachable *UnreachableError
	if errors.As(err, &unreachable) {
		return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
	}
	var withStatus interface{ GRPCStatus() *status.Status }
	return errors.As(err, &withStatus) && withStatus.GRPCStatus().Code() == codes.Unavailable &&
		brokeOff(withStatus.GRPCStatus().Message())
}

// Code is the gRPC code of an error, Unknown for one that is no call's.
func Code(err error) codes.Code {
	var withStatus interface{ GRPCStatus() *status.Status }
	if errors.As(err, &withStatus) {
		return withStatus.GRPCStatus().Code()
	}
	switch {
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	return codes.Unknown
}
