package life

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// The first containers of a node would else wait for the compiler.
func TestTheDefaultSeccompProfilesAreCompiledBeforeTheFirstContainer(t *testing.T) {
	nodetest.BerthOnly(t, "Berth's own way with profiles")
	n := nodetest.Start(t, node.Options{Setup: "stage"})
	compiled := func() []string {
		found, err := filepath.Glob(filepath.Join(n.State, "keeper", "filters", "*.bpf"))
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(found)
		return found
	}
	nodetest.Eventually(t, 30*time.Second, "two profiles are compiled", func() error {
		if found := compiled(); len(found) != 2 {
			return fmt.Errorf("there are %q", found)
		}
		return nil
	})
	before := compiled()
	p := nodetest.RunPod(t, n)
	for _, drop := range [][]string{nil, {"ALL"}} {
		p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
			s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
			s.Capabilities = &cri.Capability{DropCapabilities: drop}
		}))
	}
	if after := compiled(); !slices.Equal(before, after) {
		t.Errorf("the containers have other profiles than those that were compiled: %q, and before %q", after, before)
	}
}
