package timeline

import (
	"testing"
	"time"
)

func TestPullsOfAStartAreItsSteps(t *testing.T) {
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(time.Second))) }
	one := func(of string, begin, end, created float64) pull {
		return pull{of: of, image: "i", begin: at(begin), end: at(end), created: at(created)}
	}
	for name, c := range map[string]struct {
		pulls []pull
		want  []string // containers, in any order
	}{
		"a kubelet pulls once the pod is there":   {[]pull{one("a", 1, 3, 3.1)}, []string{"a"}},
		"berth run pulls before it makes the pod": {[]pull{one("a", -5, -3, 1), one("b", -2.9, -0.1, 1)}, []string{"a", "b"}},
		"pulled for another pod":                  {[]pull{one("a", -100, -90, 1)}, nil},
		"pulled again later":                      {[]pull{one("a", 50, 60, 1)}, nil},
		"pulled long before a late attempt":       {[]pull{one("a", 3600, 3603, 7200)}, nil},
		"begun before and ended after the start":  {[]pull{one("a", -1, 2, 3)}, []string{"a"}},
	} {
		got := map[string]Step{}
		for _, s := range pullSteps(c.pulls, start) {
			got[s.Of] = s
		}
		for _, p := range c.pulls {
			s, there := got[p.of]
			wanted := false
			for _, of := range c.want {
				wanted = wanted || of == p.of
			}
			if there != wanted || there && (s.Name != "pull i" || !s.Begin.Equal(p.begin) || s.Took != p.end.Sub(p.begin)) {
				t.Errorf("%s: %s: %+v", name, p.of, s)
			}
		}
	}
}
