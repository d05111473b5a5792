package kubelet

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/test/node"
)

// TestAKubeletsMetricsAreThoseOfANodeOfContainerd runs the same pod on a node of Berth and on one of Debian's
// containerd, with the same kubelet, and compares what the kubelet tells of it: which series /metrics/cadvisor and
// /metrics/resource have, with all of their labels, and which figures /stats/summary has.
func TestAKubeletsMetricsAreThoseOfANodeOfContainerd(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("containerd"); err != nil {
		t.Skipf("there is no containerd to compare with: %v", err)
	}
	nodes := map[string]*kubelet{
		"Berth":      own(t, node.Options{}, options{ask: true}),
		"containerd": ownOf(t, node.StartContainerd, node.Options{}, options{ask: true}),
	}
	pods := map[string]*pod{}
	for name, k := range nodes {
		pods[name] = k.run(t, busy(k))
	}
	for _, p := range pods {
		p.running()
		wantPodSeries(t, p)
	}
	eventually(t, 60*time.Second, "both have the same series", func() error {
		found := map[string]map[string]bool{}
		for name, p := range pods {
			found[name] = map[string]bool{}
			for page, min := range map[string]int{"/metrics/cadvisor": 100, "/metrics/resource": 6, "/stats/summary": 40} {
				text, err := p.k.get(t.Context(), page)
				if err != nil {
					return err
				}
				told, err := toldOf(page, text, p)
				if err != nil {
					return err
				}
				if len(told) < min {
					return fmt.Errorf("%s of %s tells only %d things of the pod", page, name, len(told))
				}
				for _, one := range told {
					found[name][page+": "+one] = true
				}
			}
		}
		var differ []string
		for a, b := range map[string]string{"Berth": "containerd", "containerd": "Berth"} {
			for _, one := range slices.Sorted(maps.Keys(found[a])) {
				if !found[b][one] {
					differ = append(differ, a+" alone has "+one)
				}
			}
		}
		if len(differ) > 0 {
			return fmt.Errorf("%d series, of which %d differ:\n%s", len(found["Berth"]), len(differ), strings.Join(differ, "\n"))
		}
		t.Logf("%d series and figures are the same", len(found["Berth"]))
		return nil
	})
}

var (
	longID       = regexp.MustCompile(`[0-9a-f]{64}`)
	podUID       = regexp.MustCompile(`pod[0-9a-f]{8}-[0-9a-f-]{27}`)
	pauseImage   = regexp.MustCompile(`image="[^"]*pause:[^"]*"`)
	sampleOfPage = regexp.MustCompile(`^([a-z_]+\{.*\}) [^{}]*$`)
)

// ofUse are series that cAdvisor has once there is something to count, and not before: of a disk with the first read or
// write that reaches the disk, of a processor with the first nanosecond. A pause container has used some, and Berth has
// none: the sandbox's cgroup is empty.
var ofUse = regexp.MustCompile(`device="/dev/|^container_cpu_usage_seconds_total\{container="",`)

// toldOf is what a page tells of a pod, without figures, and without what is another one's on every node: IDs and the
// names of node and pod. The image of a sandbox is containerd's own affair.
func toldOf(page, text string, p *pod) (told []string, err error) {
	if page == "/stats/summary" {
		var summary struct{ Pods []map[string]any }
		if err := json.Unmarshal([]byte(text), &summary); err != nil {
			return nil, err
		}
		for _, pod := range summary.Pods {
			if ref, _ := pod["podRef"].(map[string]any); ref["name"] == p.name {
				told = append(told, figures("", pod)...)
			}
		}
		return told, nil
	}
	for line := range strings.Lines(text) {
		m := sampleOfPage.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || !strings.Contains(line, `pod="`+p.name+`"`) {
			continue
		}
		one := strings.ReplaceAll(m[1], p.name, "POD")
		one = strings.ReplaceAll(one, p.k.name, "NODE")
		one = podUID.ReplaceAllString(longID.ReplaceAllString(one, "ID"), "podUID")
		if ofUse.MatchString(one) {
			continue
		}
		told = append(told, pauseImage.ReplaceAllString(one, `image="PAUSE"`))
	}
	return told, nil
}

// figures are the paths of all figures in a JSON value. Elements of lists go by their name.
func figures(path string, value any) (paths []string) {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			paths = append(paths, figures(path+"."+key, v)...)
		}
	case []any:
		for i, v := range value {
			name := any(i)
			if fields, ok := v.(map[string]any); ok && fields["name"] != nil {
				name = fields["name"]
			}
			paths = append(paths, figures(fmt.Sprintf("%s[%v]", path, name), v)...)
		}
	default:
		paths = []string{path}
	}
	return paths
}
