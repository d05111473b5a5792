package timeline

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
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

// images answers as Berth's service does that knows one image.
type images struct {
	berthv1.ImagesClient
	usage *berthv1.ImageUsage
}

func (i images) Usage(context.Context, *berthv1.UsageRequest, ...grpc.CallOption) (*berthv1.UsageResponse, error) {
	return &berthv1.UsageResponse{Images: []*berthv1.ImageUsage{i.usage}}, nil
}

// TestAnImageOfTwoContainersWasPulledOnce: the time of its pull is not counted twice.
func TestAnImageOfTwoContainersWasPulledOnce(t *testing.T) {
	container := func(name string) *cri.ContainerStatus {
		return &cri.ContainerStatus{Metadata: &cri.ContainerMetadata{Name: name}, Image: &cri.ImageSpec{Image: "i"},
			ImageId: "sha256:1", CreatedAt: 60e9}
	}
	both := []*cri.ContainerStatus{container("a"), container("b")}
	for _, c := range []struct {
		took time.Duration
		want int
	}{{3 * time.Second, 1}, {0, 0}} { // 0: loaded from an archive
		conn := &connection.Connection{Pulls: images{usage: &berthv1.ImageUsage{Id: "sha256:1", PulledAt: 50e9,
			PullTook: int64(c.took)}}}
		pulls, err := pullsOf(t.Context(), conn, both)
		if err != nil || len(pulls) != c.want {
			t.Fatalf("a pull that took %v: %+v, %v", c.took, pulls, err)
		}
		if c.want == 1 && (pulls[0].of != "a" || !pulls[0].begin.Equal(time.Unix(47, 0))) {
			t.Errorf("%+v", pulls[0])
		}
	}
}
