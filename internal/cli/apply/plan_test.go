package apply

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/internal/manifest"
)

// want describes a pod as name:hash, with a * for a name that is generated.
func want(text string) *wanted {
	name, hash, _ := strings.Cut(text, ":")
	base, generated := strings.CutSuffix(name, "*")
	pod := &manifest.Pod{Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}},
		Generated: generated, Owner: manifest.Owner{Kind: "Pod", Namespace: "default", Name: base}}
	return &wanted{pod: pod, hash: hash}
}

// have describes a pod as name:hash@file, with a * before what follows a name that was generated.
func have(text string) *present {
	text, file, _ := strings.Cut(text, "@")
	name, hash, _ := strings.Cut(text, ":")
	base, _, _ := strings.Cut(name, "*")
	return &present{name: "default/" + name, owner: "Pod/default/" + base, hash: hash, file: file}
}

func TestAPlanKeepsWhatIsTheSame(t *testing.T) {
	for what, c := range map[string]struct {
		want, have, frozen string
		plan               string // kept, started, stopped, blocked
	}{
		"nothing":                      {"", "", "", "| | |"},
		"a new pod":                    {"a:1", "", "", "|a| |"},
		"the same":                     {"a:1", "a:1@x", "", "a=a| | |"},
		"a changed one":                {"a:2 b:1", "a:1@x b:1@x", "", "b=b|a|a|"},
		"one that is gone":             {"", "a:1@x", "", "| |a|"},
		"one whose file is wrong":      {"", "a:1@x b:1@y", "x", "| |b|"},
		"a name of a wrong file":       {"a:2", "a:1@x", "x", "| | |a"},
		"one that moved to a file":     {"a:1", "a:1@x", "x", "a=a| | |"},
		"generated names":              {"d*:1 d*:1", "d*x:1@f d*y:1@f", "", "d*=d*x d*=d*y| | |"},
		"fewer of generated names":     {"d*:1", "d*x:1@f d*y:1@f", "", "d*=d*x| |d*y|"},
		"more of generated names":      {"d*:1 d*:1", "d*x:1@f", "", "d*=d*x|d*| |"},
		"generated names that changed": {"d*:2", "d*x:1@f", "", "|d*|d*x|"},
		"generated names of others":    {"d*:1", "e*x:1@f", "", "|d*|e*x|"},
	} {
		var wants []*wanted
		var haves []*present
		for _, text := range strings.Fields(c.want) {
			wants = append(wants, want(text))
		}
		for _, text := range strings.Fields(c.have) {
			haves = append(haves, have(text))
		}
		p := makePlan(wants, haves, map[string]bool{c.frozen: c.frozen != ""})
		var kept, started, stopped, blocked []string
		short := func(name string) string { return strings.TrimPrefix(name, "default/") }
		for w, h := range p.keep {
			kept = append(kept, w.pod.Name+"="+short(h.name))
		}
		slices.Sort(kept)
		for _, w := range p.start {
			started = append(started, w.pod.Name)
		}
		for _, h := range p.stop {
			stopped = append(stopped, short(h.name))
		}
		for _, w := range p.blocked {
			blocked = append(blocked, w.pod.Name)
		}
		got := fmt.Sprint(strings.Join(kept, " "), "|", strings.Join(started, " "), "|", strings.Join(stopped, " "), "|",
			strings.Join(blocked, " "))
		if got != strings.ReplaceAll(c.plan, "| ", "|") {
			t.Errorf("%s: %s, want %s", what, got, c.plan)
		}
	}
}

func TestAPodThatRunsIsKeptBeforeOneThatDoesNot(t *testing.T) {
	dead, ready := have("d*x:1@f"), have("d*y:1@f")
	ready.ready = true
	w := want("d*:1")
	if p := makePlan([]*wanted{w}, []*present{dead, ready}, nil); p.keep[w] != ready || len(p.stop) != 1 {
		t.Errorf("it keeps %v and stops %v", p.keep[w], p.stop)
	}
}
