package supervisor

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestAContainerWhoseStartIsNotAnsweredRunsOnce: berthd is killed after it has had the container started. Seen to fail
// where the next attempt began beside the first one, and where a pod of `berth run` was removed.
func TestAContainerWhoseStartIsNotAnsweredRunsOnce(t *testing.T) {
	for _, lasting := range []bool{true, false} {
		t.Run(fmt.Sprintf("lasting %v", lasting), func(t *testing.T) {
			n := &node{}
			n.after = once("StartContainer a", away())
			s, said := on(t, n, lasting)
			pod := run(t, s, document(t, "Always", "containers: [{name: a, image: /a}]"))
			n.mu.Lock()
			n.after = once("StartContainer a", away()) // of the second attempt
			n.mu.Unlock()
			for attempt := range 2 {
				id := fmt.Sprintf("a-%d", attempt)
				eventually(t, id+" is attended", said, func() bool { return pod.Last()["a"] != nil && pod.Last()["a"].ID == id })
				polls := n.count("ContainerStatus a")
				eventually(t, id+" is looked at", said, func() bool { return n.count("ContainerStatus a") > polls+3 })
				if made := n.count("CreateContainer a"); made != attempt+1 {
					t.Fatalf("%d attempts were made, want %d:\n%s", made, attempt+1, said)
				}
				_, c, err := n.find("", id)
				if err != nil {
					t.Fatal(err)
				}
				n.mu.Lock()
				n.exited(c, 1)
				n.mu.Unlock()
			}
		})
	}
}

// TestAContainerThatWasNotStartedIsRemoved before the next attempt: a runtime that has not answered could start it
// later. Seen to fail where the first attempt stayed.
func TestAContainerThatWasNotStartedIsRemoved(t *testing.T) {
	n := &node{}
	n.before = once("StartContainer a", away())
	s, said := on(t, n, true)
	run(t, s, document(t, "Always", "containers: [{name: a, image: /a}]"))
	eventually(t, "the second attempt runs", said, func() bool { return n.count("StartContainer a") >= 2 })
	if _, _, err := n.find("", "a-0"); err == nil || n.count("RemoveContainer a") != 1 {
		t.Errorf("the first attempt is there:\n%s", said)
	}
}

// TestAnotherAttemptWaitsUntilTheStateOfTheFirstIsKnown. Seen to fail where the first error of a status counts as an
// answer.
func TestAnotherAttemptWaitsUntilTheStateOfTheFirstIsKnown(t *testing.T) {
	n := &node{}
	n.after = once("StartContainer a", away())
	n.before = once("ContainerStatus a", status.Error(codes.Internal, "the record cannot be read"))
	s, said := on(t, n, true)
	pod := run(t, s, document(t, "Always", "containers: [{name: a, image: /a}]"))
	eventually(t, "the first attempt is attended", said, func() bool { return pod.Last()["a"] != nil })
	if made := n.count("CreateContainer a"); made != 1 {
		t.Errorf("%d attempts were made:\n%s", made, said)
	}
}

// TestTheExitCodeOfAProgramThatCannotBeStartedCounts: a runtime gives it as a shell would. Seen to fail where it was 1.
func TestTheExitCodeOfAProgramThatCannotBeStartedCounts(t *testing.T) {
	n := &node{ends: map[string]int32{"a": 127}}
	n.after = once("StartContainer a", status.Error(codes.NotFound, "no such program"))
	s, said := on(t, n, true)
	pod := run(t, s, document(t, "Never", "containers: [{name: a, image: /a}]"))
	<-pod.Done()
	if code := pod.Code(); code != 127 || n.count("CreateContainer a") != 1 {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

// TestARunEndsWhereItsPodCannotBeStarted: the runtime has said why a container does not start. Seen to fail where the
// container, which has ended, was attended and started again.
func TestARunEndsWhereItsPodCannotBeStarted(t *testing.T) {
	refused := status.Error(codes.NotFound, "no such program")
	n := &node{ends: map[string]int32{"a": 127}}
	n.after = once("StartContainer a", refused)
	s, _ := on(t, n, false)
	_, err := s.Run(t.Context(), document(t, "Always", "containers: [{name: a, image: /a}]"))
	if !errors.Is(err, refused) {
		t.Errorf("the error is %v", err)
	}
	if n.count("RemovePodSandbox") != 1 {
		t.Error("the pod is there")
	}
}
