package model

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
)

// TestAnErrorSaysWhatItsFieldIsWithin: limits are checked by one piece of code for a pod, a container and an update.
func TestAnErrorSaysWhatItsFieldIsWithin(t *testing.T) {
	err := LimitCPUPeriod.Wrong(fmt.Errorf("5 is too low: %w", errdefs.ErrInvalidArgument))
	got := FieldUpdate.Within(err)
	if got.Error() != "update.cpuPeriod: 5 is too low: invalid argument" || !errdefs.IsInvalidArgument(got) {
		t.Errorf("%v", got)
	}
	if err.Error() != "cpuPeriod: 5 is too low: invalid argument" {
		t.Errorf("the error itself was changed: %v", err)
	}
	other := errors.New("no field")
	if got := FieldUpdate.Within(other); got != other {
		t.Errorf("an error about no field became %v", got)
	}
	if FieldUpdate.Within(nil) != nil {
		t.Error("no error became one")
	}
}
