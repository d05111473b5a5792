package timeline

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
)

// pauseBefore is how long before the first step of a start a pull may have ended to be a part of it. `berth run` pulls
// images and makes the pod then; a kubelet pulls them once the pod is there.
const pauseBefore = 2 * time.Second

// pauseAfter is how long after the end of a pull that began during a start its container may be created. A kubelet
// creates it at once. What was pulled longer before the creation was for another pod: the container may be a late
// attempt in a pod that has been there for days.
const pauseAfter = 10 * time.Second

// pull is when an image was pulled, for a container.
type pull struct {
	of, image  string
	begin, end time.Time
	created    time.Time // the container
}

// pullsOf are the pulls of containers' images, each image once. A runtime that does not tell of them gives none.
func pullsOf(ctx context.Context, conn *connection.Connection, containers []*cri.ContainerStatus) ([]pull, error) {
	response, err := conn.Pulls.Usage(ctx, &berthv1.UsageRequest{})
	if connection.Code(err) == codes.Unimplemented {
		return nil, nil
	}
	if err != nil {
		return nil, connection.Plain(err)
	}
	known := map[string]*berthv1.ImageUsage{}
	for _, usage := range response.GetImages() {
		known[usage.GetId()] = usage
	}
	var pulls []pull
	for _, c := range containers {
		usage := known[c.GetImageId()]
		if usage.GetPullTook() <= 0 {
			continue
		}
		delete(known, c.GetImageId())
		end := time.Unix(0, usage.GetPulledAt())
		pulls = append(pulls, pull{of: c.GetMetadata().GetName(), image: c.GetImage().GetImage(),
			begin: end.Add(-time.Duration(usage.GetPullTook())), end: end, created: time.Unix(0, c.GetCreatedAt())})
	}
	return pulls, nil
}

// pullSteps are the pulls that are a part of a start that began at a time: those that were over before their container
// was created, and began after the start and ended right before the creation, or ended right before the start. Others
// were for another pod.
func pullSteps(pulls []pull, start time.Time) []Step {
	sandbox := start
	pulls = slices.Clone(pulls)
	slices.SortFunc(pulls, func(a, b pull) int { return b.end.Compare(a.end) })
	var steps []Step
	for _, p := range pulls {
		if p.end.After(p.created) || p.begin.Before(start) && start.Sub(p.end) > pauseBefore {
			continue
		}
		if !p.begin.Before(sandbox) && p.created.Sub(p.end) > pauseAfter {
			continue
		}
		if p.begin.Before(start) { // further images were pulled before this one
			start = p.begin
		}
		steps = append(steps, Step{Of: p.of, Name: "pull " + p.image, Begin: p.begin, Took: p.end.Sub(p.begin)})
	}
	return steps
}
