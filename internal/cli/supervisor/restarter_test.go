package supervisor

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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
				eventually(t, "the container is killed again", said, func() bool { return n.count("StopContainer a") == 2 })
				if strings.HasPrefix(what, "all") { // it ends by itself
					_, c, err := n.find("", "a-0")
					if err != nil {
						t.Fatal(err)
					}
					n.mu.Lock()
					n.exited(c, 0)
					n.mu.Unlock()
				}
				eventually(t, "the next attempt runs", said, func() bool { return n.count("StartContainer a") == 2 })
			})
		}
	}
}
