package kubelet

import (
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

// TestCAdvisorsSeriesAreThoseOfANodeOfContainerd runs the same pod on a node of Berth and on one of Debian's
// containerd, with the same kubelet, and compares which series /metrics/cadvisor has of it, with all of their labels.
func TestCAdvisorsSeriesAreThoseOfANodeOfContainerd(t *testing.T) {
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
			metrics, err := p.k.get(t.Context(), "/metrics/cadvisor")
			if err != nil {
				return err
			}
			found[name] = seriesOf(metrics, p)
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
		if len(found["Berth"]) < 100 {
			return fmt.Errorf("only %d series", len(found["Berth"]))
		}
		t.Logf("%d series are the same", len(found["Berth"]))
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

// seriesOf are the series of a pod without what is another one's on every node: IDs and the names of node and pod. The
// image of a sandbox is containerd's own affair.
func seriesOf(metrics string, p *pod) map[string]bool {
	found := map[string]bool{}
	for line := range strings.Lines(metrics) {
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
		found[pauseImage.ReplaceAllString(one, `image="PAUSE"`)] = true
	}
	return found
}
