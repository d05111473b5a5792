package supervisor

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestAContainerWhoseProbeFailsIsKilledUntilItEnds: as by a kubelet, which looks at the result again and again. Seen to
// fail where a kill that failed was the last, and where a kill that can never succeed held up the next attempt.
func TestAContainerWhoseProbeFailsIsKilledUntilItEnds(t *testing.T) {
	failure := status.Error(codes.Internal, "the cgroup is busy")
	for _, probe := range []string{"livenessProbe", "startupProbe"} {
		for what, fail := range map[string]func(string) error{
			"one kill fails": once("StopContainer a", failure),
			"all fail": func(call string) error {
				if call == "StopContainer a" {
					return failure
				}
				return nil
			},
		} {
			t.Run(probe+", "+what, func(t *testing.T) {
				n := &node{before: fail}
				s, said := on(t, n, true)
				run(t, s, document(t, "Always", "containers: [{name: a, image: /a, "+probe+
					": {exec: {command: [x]}, periodSeconds: 1, failureThreshold: 1}}]"))
				eventually(t, "the container is killed again", said, func() bool { return n.count("StopContainer a") >= 2 })
				if strings.HasPrefix(what, "all") { // it ends by itself
					_, c, err := n.find("", "a-0")
					if err != nil {
						t.Fatal(err)
					}
					n.mu.Lock()
					n.exited(c, 0)
					n.mu.Unlock()
				}
				eventually(t, "the next attempt runs", said, func() bool { return n.count("StartContainer a") >= 2 })
			})
		}
	}
}

var two = "containers: [{name: a, image: /a}, {name: b, image: /a}]"

// TestAContainerThatWasRemovedIsStartedAgain: somebody types `crictl rm -f`. Seen to fail where that ended the
// supervision of the container.
func TestAContainerThatWasRemovedIsStartedAgain(t *testing.T) {
	n := &node{}
	s, said := on(t, n, true)
	pod := run(t, s, document(t, "Always", two))
	n.removed("a-0")
	eventually(t, "the next attempt runs", said, func() bool { return n.count("StartContainer a") >= 2 })
	if n.count("StartContainer b") != 1 || pod.Last()["a"].ID != "a-1" {
		t.Errorf("the calls are %v:\n%s", n.calls, said)
	}
}

// TestAContainerThatWasRemovedHasFailed where its restart policy starts nothing again.
func TestAContainerThatWasRemovedHasFailed(t *testing.T) {
	n := &node{ends: map[string]int32{"b": 0}}
	s, said := on(t, n, true)
	pod := run(t, s, document(t, "Never", two))
	n.removed("a-0")
	<-pod.Done()
	if pod.Code() != 1 || n.count("CreateContainer a") != 1 {
		t.Errorf("exit code %d:\n%s", pod.Code(), said)
	}
}

// TestAContainerIsKeptThoughItsStateCannotBeRead for a while. Seen to fail where the first error ended the supervision
// of the container.
func TestAContainerIsKeptThoughItsStateCannotBeRead(t *testing.T) {
	n := &node{before: once("ContainerStatus a", status.Error(codes.Internal, "the record cannot be read"))}
	s, said := on(t, n, true)
	run(t, s, document(t, "Always", two))
	eventually(t, "its state is read again", said, func() bool { return n.count("ContainerStatus a") > 2 })
	_, c, err := n.find("", "a-0")
	if err != nil {
		t.Fatal(err)
	}
	n.mu.Lock()
	n.exited(c, 0)
	n.mu.Unlock()
	eventually(t, "the next attempt runs", said, func() bool { return n.count("StartContainer a") >= 2 })
}

// TestAPodWhoseSandboxIsGoneEnds, so that it is made anew: also while the startup probe of a sidecar has not succeeded.
// Seen to fail where the containers were started again and again, and where the start of the pod waited for the
// sidecar.
func TestAPodWhoseSandboxIsGoneEnds(t *testing.T) {
	for _, removed := range []bool{false, true} {
		n := &node{}
		s, said := on(t, n, true)
		go func() {
			for n.count("ExecSync") == 0 {
				time.Sleep(time.Millisecond)
			}
			_, c, err := n.find("", "s-0")
			if err != nil {
				t.Error(err)
				return
			}
			n.mu.Lock()
			n.gone = true
			n.exited(c, 137)
			n.mu.Unlock()
			if removed {
				n.removed("s-0")
			}
		}()
		pod := run(t, s, document(t, "Always",
			"initContainers: [{name: s, image: /a, restartPolicy: Always, startupProbe: {exec: {command: [x]}}}]",
			"containers: [{name: a, image: /a}]"))
		select {
		case <-pod.Done():
		case <-time.After(20 * time.Second):
			t.Fatalf("the containers are kept:\n%s", said)
		}
	}
}

// TestAPodOfRunEndsWhereSomebodyStopsIt: with the exit code of its container, and one line that says why. Seen to fail
// where its containers were started again for ever, with a note each time.
func TestAPodOfRunEndsWhereSomebodyStopsIt(t *testing.T) {
	for what, end := range map[string]func(n *node, c *cri.ContainerStatus){
		"stopped, its sandbox a moment later": func(n *node, c *cri.ContainerStatus) {
			n.exited(c, 143)
			time.AfterFunc(sandboxGoes/4, func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.gone = true
			})
		},
		"removed": func(n *node, _ *cri.ContainerStatus) { n.gone, n.containers = true, nil },
	} {
		t.Run(what, func(t *testing.T) {
			n := &node{}
			s, said := on(t, n, false)
			pod := run(t, s, document(t, "Always", two))
			for _, id := range []string{"a-0", "b-0"} {
				_, c, err := n.find("", id)
				if err != nil {
					break // the other one's end has removed it too
				}
				n.mu.Lock()
				end(n, c)
				n.mu.Unlock()
			}
			select {
			case <-pod.Done():
			case <-time.After(20 * time.Second):
				t.Fatalf("the containers are kept:\n%s", said)
			}
			if want := "pod default/p was stopped or removed: it is not started again\n"; said.String() != want {
				t.Errorf("it is said %q, want %q", said, want)
			}
			if what != "removed" && pod.Code() != 143 {
				t.Errorf("the exit code is %d", pod.Code())
			}
		})
	}
}

// TestAnInitContainerOfAStoppedPodIsNotStartedAgain. Seen to fail where the next attempt was announced and made.
func TestAnInitContainerOfAStoppedPodIsNotStartedAgain(t *testing.T) {
	n := &node{ends: map[string]int32{"i": 143}}
	n.after = func(call string) error {
		if call == "StartContainer i" {
			n.mu.Lock()
			n.gone = true
			n.mu.Unlock()
		}
		return nil
	}
	s, said := on(t, n, false)
	_, err := s.Run(t.Context(), document(t, "Always", inTurn...))
	if err == nil || !strings.Contains(err.Error(), "was stopped or removed") || said.String() != "" {
		t.Errorf("the error is %v, and it is said %q", err, said)
	}
}

// TestAContainerHasTheGracePeriodOfItsProbe however long that is. Seen to fail where 10000000000 seconds were a time
// that had passed, so that the kill was given up before it was asked for.
func TestAContainerHasTheGracePeriodOfItsProbe(t *testing.T) {
	for grace, want := range map[int64]int64{7: 7, 2_147_483_648: 2_147_483_648, 10_000_000_000: 3_153_600_000} {
		n := &node{}
		s, said := on(t, n, true)
		run(t, s, document(t, "Always", fmt.Sprintf("containers: [{name: a, image: /a, livenessProbe: "+
			"{exec: {command: [x]}, failureThreshold: 1, terminationGracePeriodSeconds: %d}}]", grace)))
		eventually(t, "the next attempt runs", said, func() bool { return n.count("StartContainer a") >= 2 })
		n.mu.Lock()
		if kills := n.timeout; kills != want {
			t.Errorf("%d seconds: the container had %d", grace, kills)
		}
		n.mu.Unlock()
	}
}
