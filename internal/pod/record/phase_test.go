package record

import (
	"testing"

	"github.com/containerd/errdefs"
)

func TestPhasesOnlyGoForward(t *testing.T) {
	for _, c := range []struct {
		from, to ContainerPhase
		ok       bool
	}{
		{ContainerCreated, ContainerStarting, true},
		{ContainerRunning, ContainerExited, true},
		{ContainerExited, ContainerExited, true},
		{ContainerExited, ContainerRunning, false},
		{ContainerRemoving, ContainerCreated, false},
		{ContainerCreated, ContainerRunning, false},
	} {
		err := checkPhase(containerNext, "x", c.from, c.to)
		if (err == nil) != c.ok {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
		if err != nil && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s to %s: %v is not FailedPrecondition", c.from, c.to, err)
		}
	}
}
