package daemon

import (
	"errors"
	"fmt"
	"testing"

	"berth/internal/keeper/gate"

	"github.com/containerd/errdefs"
)

// What the keeper says of a start keeps its kind on the way to the client; only what the program itself causes is a
// start error. Seen to fail without ErrAborted: a client took an exec whose command may have run for a command that
// cannot be run.
func TestOnlyProgramsCauseStartErrors(t *testing.T) {
	for err, code := range map[error]int32{
		errUncertain: 0,
		fmt.Errorf("container c: %w", errdefs.ErrAlreadyExists):      0,
		fmt.Errorf("container c: %w", errdefs.ErrFailedPrecondition): 0,
		fmt.Errorf("spec: %w", errdefs.ErrInvalidArgument):           0,
		gate.ErrUpgrading: 0,
		errors.New(`exec: "nothing": executable file not found in $PATH`): 127,
		errors.New("exec /etc/passwd: permission denied"):                 126,
		errors.New("mount of /x: input/output error"):                     128,
	} {
		switch got := startError(err); {
		case got.GetExitCode() != code:
			t.Errorf("%v: exit code %d, want %d", err, got.GetExitCode(), code)
		case code != 0 && got.Message != err.Error():
			t.Errorf("%v: message %q", err, got.Message)
		}
	}
}
