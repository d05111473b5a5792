package lookup

import (
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxNear is how many names are proposed in place of one that does not exist.
const maxNear = 3

// Near are the names that somebody may have meant who typed another one: those that differ by at most two letters,
// and those that begin with it. The nearest ones come first.
func Near(typed string, names []string) []string {
	distances := map[string]int{}
	for _, name := range names {
		d := distance(strings.ToLower(typed), strings.ToLower(name))
		switch {
		case name == typed || typed == "":
		case d <= 2 && 2*d < len(name):
			distances[name] = d
		case strings.HasPrefix(name, typed):
			distances[name] = 3
		}
	}
	var near []string
	for name := range distances {
		near = append(near, name)
	}
	slices.SortFunc(near, func(a, b string) int {
		if d := distances[a] - distances[b]; d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return near[:min(len(near), maxNear)]
}

// distance is how many letters have to be inserted, removed, replaced or exchanged with the next one to make one word
// of another.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// nearPods are the names of pods that are near, with their namespaces if a namespace was typed.
func nearPods(typed string, pods []*cri.PodSandbox) []string {
	var names []string
	for _, pod := range pods {
		if strings.Contains(typed, "/") {
			names = append(names, PodName(pod))
		} else {
			names = append(names, pod.GetMetadata().GetName())
		}
	}
	return Near(typed, names)
}

// nearContainers are the names of containers and of their pods that are near.
func nearContainers(typed string, all []*Container) []string {
	var names []string
	for _, c := range all {
		if strings.Contains(typed, "/") {
			names = append(names, c.ShortName(), c.FullName())
		} else {
			names = append(names, c.GetMetadata().GetName(), c.Pod.GetMetadata().GetName())
		}
	}
	return Near(typed, names)
}
