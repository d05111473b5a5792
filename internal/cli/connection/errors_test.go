package connection

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestErrorsAreForPeople: the class that the runtime's errors end with is left out, and the words by which Kubernetes'
// tests know a call that is not there, and nothing else. Seen to fail without withoutClass, with one that does not look
// at the code, and without unknownMethod.
func TestErrorsAreForPeople(t *testing.T) {
	for _, c := range []struct {
		code       codes.Code
		text, want string
	}{
		{codes.FailedPrecondition, "container c is paused: failed precondition", "container c is paused"},
		{codes.InvalidArgument, `user "x" is unknown: invalid argument`, `user "x" is unknown`},
		{codes.InvalidArgument, "write f: invalid argument: invalid argument", "write f: invalid argument"},
		{codes.Internal, "mount /a: invalid argument", "mount /a: invalid argument"},
		{codes.NotFound, `image "x": not found`, `image "x": not found`},
		{codes.FailedPrecondition, "failed precondition", "failed precondition"},
		{codes.Unimplemented, "unknown method CheckpointContainer: criu is not installed: not implemented",
			"this runtime does not do that: criu is not installed"},
		{codes.Unimplemented, "unknown method X for service runtime.v1.RuntimeService",
			"this runtime does not do that: unknown method X for service runtime.v1.RuntimeService"},
	} {
		if got := Message(status.Error(c.code, c.text)); got != c.want {
			t.Errorf("%v %q: %q, want %q", c.code, c.text, got, c.want)
		}
	}
}
