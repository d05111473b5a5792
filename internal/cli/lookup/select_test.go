package lookup

import (
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestPodsAndContainersAreSelected(t *testing.T) {
	web := pod("aa", "shop", "web", true, 1)
	web.Labels = map[string]string{"app": "web", "tier": "front"}
	container := &Container{&cri.Container{Labels: map[string]string{"tier": "own"}}, web}
	for _, c := range []struct {
		namespace, labels string
		pod, container    bool
	}{
		{"", "", true, true},
		{"shop", "", true, true},
		{"other", "", false, false},
		{"", "app=web", true, true},
		{"", "app!=web", false, false},
		{"shop", "app in (web,db),tier", true, true},
		{"other", "app=web", false, false},
		{"", "tier=own", false, true},
		{"", "tier=front", true, false},
	} {
		s := Selection{Namespace: c.namespace, Labels: c.labels}
		if err := s.Parse(); err != nil {
			t.Fatal(err)
		}
		if got := s.Pod(web); got != c.pod {
			t.Errorf("-n %q -l %q: the pod: %v", c.namespace, c.labels, got)
		}
		if got := s.Container(container); got != c.container {
			t.Errorf("-n %q -l %q: the container: %v", c.namespace, c.labels, got)
		}
	}
	if err := (&Selection{Labels: "a=b=c"}).Parse(); err == nil || !strings.Contains(err.Error(), "--selector") {
		t.Errorf("no selector: %v", err)
	}
}
