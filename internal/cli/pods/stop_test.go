package pods

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/lookup"
)

// TestSeveralPodsAreStoppedAtOnce, what is of one pod in order and once, and the errors come in the order of the names.
// Seen to fail where one pod waits for the end of another.
func TestSeveralPodsAreStoppedAtOnce(t *testing.T) {
	of := func(pod string, containers ...string) (list []target) {
		sandbox := &cri.PodSandbox{Id: pod, Metadata: &cri.PodSandboxMetadata{Name: pod, Namespace: "default"}}
		for _, c := range containers {
			container := &cri.Container{Id: c, Metadata: &cri.ContainerMetadata{Name: c}}
			list = append(list, target{pod: sandbox, container: &lookup.Container{Pod: sandbox, Container: container}})
		}
		if len(containers) == 0 {
			list = append(list, target{pod: sandbox})
		}
		return list
	}
	list := slices.Concat(of("a"), of("b", "x", "y", "x"), of("c"), of("a"))
	var mu sync.Mutex
	var done []string
	both := make(chan struct{}) // closed when a and c are under way
	waiting := 0
	err := forAll(list, func(t target) error {
		mu.Lock()
		done = append(done, t.String())
		if t.container == nil {
			if waiting++; waiting == 2 {
				close(both)
			}
		}
		mu.Unlock()
		if t.container == nil {
			select {
			case <-both:
			case <-time.After(20 * time.Second):
				return errors.New("it is alone")
			}
		}
		return fmt.Errorf("of %s", t)
	})
	if err == nil || err.Error() != "of a\nof b/x\nof b/y\nof c" {
		t.Errorf("the errors are %v", err)
	}
	if x, y := slices.Index(done, "b/x"), slices.Index(done, "b/y"); len(done) != 4 || x > y {
		t.Errorf("done are %s", strings.Join(done, ", "))
	}
}
