package life

import (
	"os/exec"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node/nodetest"
)

// TestTheScopeOfAContainerHasTheGracePeriodOfItsPod for a shutdown of the node. That it begins by itself, while
// something else may be stopping the pod in order, is left to the slice that it is in.
func TestTheScopeOfAContainerHasTheGracePeriodOfItsPod(t *testing.T) {
	nodetest.BerthOnly(t, "containerd leaves scopes as libcontainer makes them")
	n := nodetest.Shared(t)
	if !n.Systemd {
		t.Skip("the cgroup driver is not systemd")
	}
	p := nodetest.RunPod(t, n)
	c := p.Run(func(c *cri.ContainerConfig) {
		c.Annotations = map[string]string{"io.kubernetes.pod.terminationGracePeriod": "17"}
	})
	scope := "cri-containerd-" + c.ID + ".scope"
	out, err := exec.Command("systemctl", "show", scope, "-p", "DefaultDependencies,TimeoutStopUSec").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"DefaultDependencies=no", "TimeoutStopUSec=17s"} {
		if !strings.Contains(string(out), want+"\n") {
			t.Errorf("%s is not among the properties of %s:\n%s", want, scope, out)
		}
	}
}
