package pod

import (
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"

	keeper "berth/internal/keeper/client"
)

// TestAProgramThatIsMissingIsNoMissingContainer: a client that is told NotFound gives the container up.
func TestAProgramThatIsMissingIsNoMissingContainer(t *testing.T) {
	start := &keeper.StartError{ExitCode: 127, Message: "no such program"}
	err := fmt.Errorf("start container a: %w", notStarted(fmt.Errorf("the keeper: %w", start)))
	if !errdefs.IsFailedPrecondition(err) || errdefs.IsNotFound(err) ||
		err.Error() != "start container a: the keeper: no such program" {
		t.Errorf("told is %v", err)
	}
	other := errors.New("the keeper does not answer")
	if got := notStarted(other); !errors.Is(got, other) {
		t.Errorf("another error became %v", got)
	}
}
