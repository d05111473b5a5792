package lookup

import (
	"errors"
	"strconv"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/manifest"
)

func pod(id, namespace, name string, ready bool, created int64) *cri.PodSandbox {
	state := cri.PodSandboxState_SANDBOX_NOTREADY
	if ready {
		state = cri.PodSandboxState_SANDBOX_READY
	}
	return &cri.PodSandbox{Id: id, State: state, CreatedAt: created,
		Metadata: &cri.PodSandboxMetadata{Name: name, Namespace: namespace}}
}

func TestPodsAreFoundByNameAndID(t *testing.T) {
	pods := []*cri.PodSandbox{
		pod("aa11", "default", "web", false, 1), pod("aa22", "default", "web", true, 2), pod("bb11", "other", "db", true, 3),
		pod("cc11", "one", "twin", true, 4), pod("cc22", "two", "twin", true, 5), pod("dd11", "default", "bb", true, 6),
	}
	for name, want := range map[string]string{
		"web": "aa22", "default/web": "aa22", "db": "bb11", "other/db": "bb11", "aa11": "aa11", "bb": "dd11", "bb1": "bb11",
		"two/twin": "cc22", "twin": "ambiguous", "aa": "ambiguous", "nope": "none", "": "none", "default/db": "none",
	} {
		found, err := matchPod(pods, name)
		check(t, name, want, func() string { return found.Id }, err)
	}
}

func check(t *testing.T, name, want string, id func() string, err error) {
	t.Helper()
	var ambiguous *AmbiguousError
	var none *NotFoundError
	got := ""
	switch {
	case errors.As(err, &ambiguous):
		got = "ambiguous"
		if len(ambiguous.Candidates) < 2 {
			t.Errorf("%q: candidates %q", name, ambiguous.Candidates)
		}
	case errors.As(err, &none):
		got = "none"
	default:
		got = id()
	}
	if got != want {
		t.Errorf("%q: got %s, want %s", name, got, want)
	}
}

func TestContainersAreFoundByNameAndID(t *testing.T) {
	web, db := pod("p1", "default", "web", true, 1), pod("p2", "other", "db", true, 2)
	c := func(id string, p *cri.PodSandbox, name, kind string, attempt uint32) *Container {
		return &Container{&cri.Container{Id: id, PodSandboxId: p.Id,
			Metadata:    &cri.ContainerMetadata{Name: name, Attempt: attempt},
			Annotations: map[string]string{manifest.AnnotationKind: kind}}, p}
	}
	all := []*Container{
		c("a1", web, "app", "", 0), c("a2", web, "app", "", 1), c("b1", web, "log", "", 0),
		c("c1", db, "setup", manifest.KindInit, 0), c("c2", db, "db", "", 0),
	}
	for name, want := range map[string]string{
		"app": "a2", "web/app": "a2", "default/web/app": "a2", "a1": "a1", "b": "b1", "web": "ambiguous", "db": "c2",
		"other/db": "c2", "db/setup": "c1", "nope": "none", "": "none", "web/db": "none",
	} {
		found, err := matchContainer(all, name)
		check(t, name, want, func() string { return found.Id }, err)
	}
}

// TestTheContainerThatKubectlTakes: a pod stands for its annotated container, else for the first of its manifest. Where
// that is not known it stands for the first that was made, and that is no other after the first has been started again.
// Seen to fail with the order in which the newest attempts were made.
func TestTheContainerThatKubectlTakes(t *testing.T) {
	web := pod("p1", "default", "web", true, 1)
	chosen := pod("p2", "default", "chosen", true, 2)
	chosen.Annotations = map[string]string{AnnotationDefaultContainer: "second"}
	c := func(id string, p *cri.PodSandbox, name, kind string, created int64) *Container {
		return &Container{&cri.Container{Id: id, PodSandboxId: p.Id, CreatedAt: created,
			Metadata: &cri.ContainerMetadata{Name: name}, Annotations: map[string]string{manifest.AnnotationKind: kind}}, p}
	}
	all := []*Container{
		c("a", web, "later", "", 3), c("b", web, "init", manifest.KindInit, 1), c("c", web, "earlier", "", 2),
		c("d", chosen, "first", "", 4), c("e", chosen, "second", "", 5),
	}
	again := pod("p3", "default", "again", true, 3)
	restarted := c("h", again, "app", "", 9)
	restarted.Metadata.Attempt = 1
	all = append(all, c("f", again, "app", "", 6), c("g", again, "log", "", 7), restarted)
	noted := pod("p4", "default", "noted", true, 4)
	for i, name := range []string{"init", "app", "log", "sidecar"} { // of app, only the newest attempt is still there
		one := c(name, noted, name, map[string]string{"init": manifest.KindInit}[name], int64(20-i))
		one.Annotations[manifest.AnnotationPosition] = strconv.Itoa(i)
		all = append(all, one)
	}
	side := pod("p5", "default", "side", true, 5)
	side.Annotations = map[string]string{AnnotationDefaultContainer: "proxy"}
	all = append(all, c("x", side, "app", "", 2), c("y", side, "proxy", manifest.KindSidecar, 1))
	// A kubelet notes nothing. Of the pod done, no container was made after another had ended, and of crash, the first
	// has failed.
	ends := map[string]int64{"k1": 3, "k2": 5, "d1": 9, "d2": 9}
	var kubelets []*cri.PodSandbox
	for name, made := range map[string]map[string]int64{
		"kubelet": {"k1": 1, "k2": 4, "k3": 6, "k4": 7}, "done": {"d1": 1, "d2": 2}, "crash": {"c1": 1, "c2": 3}} {
		p := pod("p-"+name, "default", name, true, 6)
		kubelets = append(kubelets, p)
		for id, at := range made {
			one := c(id, p, id, "", at)
			one.State = cri.ContainerState_CONTAINER_RUNNING
			if ends[id] > 0 || id == "c1" {
				one.State = cri.ContainerState_CONTAINER_EXITED
			}
			all = append(all, one)
		}
	}
	end := func(c *Container) (int64, bool) { return ends[c.Id], ends[c.Id] > 0 }
	pods := append([]*cri.PodSandbox{web, chosen, again, noted, side}, kubelets...)
	for _, test := range []struct {
		name, in, want, notice string
	}{
		{"web", "", "c", `Defaulted container "earlier" out of: earlier, later`},
		{"p1", "", "c", `Defaulted container "earlier" out of: earlier, later`},
		{"chosen", "", "e", `Defaulted container "second" out of: first, second`},
		{"again", "", "h", `Defaulted container "app" out of: app, log`},
		{"noted", "", "app", `Defaulted container "app" out of: app, log, sidecar`},
		{"side", "", "y", ""},
		{"kubelet", "", "k3", `Defaulted container "k3" out of: k1, k2, k3, k4`},
		{"done", "", "d1", `Defaulted container "d1" out of: d1, d2`},
		{"crash", "", "c1", `Defaulted container "c1" out of: c1, c2`},
		{"web", "init", "b", ""},
		{"web", "none", "none", ""},
		{"nope", "", "none", ""},
		{"nope", "init", "none", ""},
	} {
		found, err := inPod(pods, all, test.name, test.in, end)
		check(t, test.name, test.want, func() string { return found.Id }, err)
		if err == nil && found.Notice() != test.notice {
			t.Errorf("%s: notice %q", test.name, found.Notice())
		}
	}
}
