package supervisor

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/cli/launch"
)

var inTurn = []string{"initContainers: [{name: i, image: /a}, {name: j, image: /a}]",
	"containers: [{name: a, image: /a}]"}

// TestAPodLastsThoughAnInitContainerIsNotStartedAtOnce: what the init containers before have done stays. Seen to fail
// where the pod was removed with all that it had, and where an init container whose start was not answered ran twice.
func TestAPodLastsThoughAnInitContainerIsNotStartedAtOnce(t *testing.T) {
	failure := status.Error(codes.ResourceExhausted, "the disk is full")
	for what, c := range map[string]struct {
		before, after func(string) error
		made          int // attempts of the second init container
	}{
		"it is not created":             {once("CreateContainer j", failure), nil, 2},
		"it is not started":             {once("StartContainer j", failure), nil, 2},
		"berthd is killed before":       {once("StartContainer j", away()), nil, 2},
		"berthd is killed after":        {nil, once("StartContainer j", away()), 1},
		"others are not listed":         {once("ListContainers", failure), nil, 1},
		"the creation is not answered":  {nil, once("CreateContainer j", away()), 2},
		"its state cannot be asked for": {once("ContainerStatus j", away()), nil, 1},
	} {
		t.Run(what, func(t *testing.T) {
			n := &node{ends: map[string]int32{"i": 0, "j": 0}, before: c.before, after: c.after}
			s, said := on(t, n, true)
			run(t, s, document(t, "Always", inTurn...))
			if n.count("RemovePodSandbox") != 0 || n.count("StartContainer i") != 1 || n.count("CreateContainer j") != c.made {
				t.Errorf("the calls are %v:\n%s", n.calls, said)
			}
			if n.count("StartContainer a") != 1 {
				t.Errorf("the container does not run:\n%s", said)
			}
		})
	}
}

// TestAPodWhoseInitContainerCannotBeStartedIsMadeAnew, as where its sandbox is gone meanwhile. Seen to fail where the
// start was tried again for ever.
func TestAPodWhoseInitContainerCannotBeStartedIsMadeAnew(t *testing.T) {
	for what, failure := range map[string]error{
		"an image is gone":    status.Error(codes.NotFound, "no such image"),
		"the sandbox is gone": status.Error(codes.FailedPrecondition, "the sandbox is not ready"),
	} {
		t.Run(what, func(t *testing.T) {
			n := &node{}
			n.before = func(call string) error {
				if call != "CreateContainer i" {
					return nil
				}
				n.mu.Lock()
				n.gone = status.Code(failure) == codes.FailedPrecondition
				n.mu.Unlock()
				return failure
			}
			s, _ := on(t, n, true)
			if _, err := s.Run(t.Context(), document(t, "Always", inTurn...)); !errors.Is(err, failure) {
				t.Errorf("the error is %v", err)
			}
			if n.count("CreateContainer i") != 1 || n.count("RemovePodSandbox") != 1 {
				t.Errorf("the calls are %v", n.calls)
			}
		})
	}
}

// TestAnInitContainerThatFailsForGoodStopsItsPod, which is kept. Seen to fail where a program that cannot be started
// was an error of the pod's, which was made anew.
func TestAnInitContainerThatFailsForGoodStopsItsPod(t *testing.T) {
	n := &node{ends: map[string]int32{"i": 127}}
	n.after = once("StartContainer i", status.Error(codes.NotFound, "no such program"))
	s, _ := on(t, n, true)
	_, err := s.Run(t.Context(), document(t, "Never", inTurn...))
	var failed *launch.InitError
	if !errors.As(err, &failed) || failed.Status.GetExitCode() != 127 {
		t.Errorf("the error is %v", err)
	}
	if n.count("StopPodSandbox") != 1 || n.count("RemovePodSandbox") != 0 || n.count("CreateContainer j") != 0 {
		t.Errorf("the calls are %v", n.calls)
	}
}

// TestAnInitContainerThatWasRemovedIsStartedAgain. Seen to fail where the pod was removed.
func TestAnInitContainerThatWasRemovedIsStartedAgain(t *testing.T) {
	n := &node{}
	s, said := on(t, n, true)
	go func() {
		for n.count("StartContainer i") == 0 {
			time.Sleep(time.Millisecond)
		}
		n.mu.Lock()
		n.ends = map[string]int32{"i": 0, "j": 0}
		n.mu.Unlock()
		n.removed("i-0")
	}()
	run(t, s, document(t, "Always", inTurn...))
	if n.count("StartContainer i") != 2 || n.count("StartContainer a") != 1 {
		t.Errorf("the calls are %v:\n%s", n.calls, said)
	}
}
