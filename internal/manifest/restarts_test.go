package manifest

import "testing"

func TestRestartsCountInThePodsThatRun(t *testing.T) {
	l := &RestartLimit{Most: 2}
	l.Begin("a", 1) // it was adopted
	l.Begin("b", 0)
	if !l.Take("b") {
		t.Error("the second restart of two is refused")
	}
	if l.Take("a") || l.Take("b") {
		t.Error("there are three restarts, of two")
	}
	l.End("a")
	if !l.Take("b") || l.Take("b") {
		t.Error("the restart of a pod that has ended counts, or is free for more than one")
	}
	l.Begin("b", 0) // it is run anew
	if !l.Take("b") {
		t.Error("restarts of before count")
	}
}
