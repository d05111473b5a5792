package lookup

import (
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/labels"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Selection says which pods a list shows. Empty fields select all.
type Selection struct {
	Namespace string
	Labels    string // as kubectl's -l: app=web,tier!=db,env in (a,b)

	selector labels.Selector // Labels, once they have been parsed
}

// Parse reads Labels. It is called once, before the methods that select.
func (s *Selection) Parse() error {
	selector, err := labels.Parse(s.Labels)
	if err != nil {
		return fmt.Errorf("--selector: %q is not a label selector (such as app=web,tier!=db): %w", s.Labels, err)
	}
	s.selector = selector
	return nil
}

// Empty says whether all pods are selected.
func (s *Selection) Empty() bool { return s.Namespace == "" && s.Labels == "" }

// Pod says whether a pod is selected.
func (s *Selection) Pod(pod *cri.PodSandbox) bool {
	return s.matches(pod, pod.GetLabels())
}

// Container says whether a container is selected: by its own labels and those of its pod, because a kubelet gives the
// labels of a pod to the sandbox only. Its own come first.
func (s *Selection) Container(c *Container) bool {
	all := labels.Set{}
	maps.Copy(all, c.Pod.GetLabels())
	maps.Copy(all, c.Labels)
	return s.matches(c.Pod, all)
}

func (s *Selection) matches(pod *cri.PodSandbox, set labels.Set) bool {
	return (s.Namespace == "" || s.Namespace == pod.GetMetadata().GetNamespace()) && s.selector.Matches(set)
}
