package timeline

import (
	"strings"
	"testing"
	"time"
)

func TestCompare(t *testing.T) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	steps := func(container string, list ...Step) *Timeline {
		for i := range list {
			list[i].Begin = at.Add(time.Duration(i) * time.Millisecond)
			if list[i].Of == "" {
				list[i].Of = container
			}
			list[i].Took *= time.Millisecond
		}
		return New(list)
	}
	first := steps("web", Step{Of: "pod", Name: "RunPodSandbox", Took: 5}, Step{Of: "pod", Name: "network",
		Part: "RunPodSandbox", Took: 3}, Step{Name: "CreateContainer", Took: 1}, Step{Name: "NRI", Took: 2},
		Step{Name: "NRI", Took: 2}, Step{Name: "StartContainer", Took: 4})
	second := steps("db", Step{Of: "pod", Name: "RunPodSandbox", Took: 50}, Step{Of: "pod", Name: "cni",
		Part: "RunPodSandbox", Took: 45}, Step{Name: "CreateContainer", Took: 1}, Step{Name: "StartContainer", Took: 3})
	var out strings.Builder
	if err := Compare(first, second).Write(&out, 80, "default/web", "default/db"); err != nil {
		t.Fatal(err)
	}
	const want = `first: default/web
second: default/db
                           first      second  difference
pod  RunPodSandbox        5.0 ms     50.0 ms    +45.0 ms            │██████████
       cni                     -     45.0 ms    +45.0 ms            │██████████
       network            3.0 ms           -     -3.0 ms           █│
web  CreateContainer      1.0 ms      1.0 ms     +0.0 ms            │
     NRI                  4.0 ms           -     -4.0 ms           █│
     StartContainer       4.0 ms      3.0 ms     -1.0 ms            │
     in all               9.0 ms     50.0 ms    +41.0 ms
`
	if out.String() != want {
		t.Errorf("it is\n%s\nand should be\n%s", out.String(), want)
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}
