package dashboard

import (
	"context"
	"net/http"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/listing"
	"berth/internal/cli/lookup"
	"berth/internal/cli/timeline"
	"berth/internal/cli/usage"
)

// podPage is all that is shown of one pod.
type podPage struct {
	Pod        listing.Pod          `json:"pod"`
	Containers []listing.Container  `json:"containers"`
	Usage      map[string]usage.Row `json:"usage"`
}

// pod is one pod of the list that all pages share.
func (s *Server) pod(ctx context.Context, r *http.Request) (any, error) {
	value, _, err := s.pods.get(ctx)
	if err != nil {
		return nil, err
	}
	id, list := r.PathValue("id"), value.(*podList)
	for _, pod := range list.Pods {
		if pod.ID != id {
			continue
		}
		page := &podPage{Pod: pod, Containers: []listing.Container{}, Usage: map[string]usage.Row{}}
		use := func(id string) {
			if row, ok := list.Usage[id]; ok {
				page.Usage[id] = row
			}
		}
		use(pod.ID)
		for _, c := range list.Containers {
			if c.PodID == pod.ID {
				page.Containers = append(page.Containers, c)
				use(c.ID)
			}
		}
		return page, nil
	}
	return nil, &lookup.NotFoundError{Kind: "pod", Name: id, Try: "It was removed."}
}

// waterfall is where the time of a pod's start went.
type waterfall struct {
	Total time.Duration  `json:"total"` // in nanoseconds
	Bars  []timeline.Bar `json:"bars"`
}

func (s *Server) timeline(ctx context.Context, r *http.Request) (any, error) {
	steps, err := timeline.Read(ctx, s.conn, &cri.PodSandbox{Id: r.PathValue("id")})
	if err != nil {
		return nil, err
	}
	line := timeline.New(steps)
	bars := line.Bars()
	if bars == nil {
		bars = []timeline.Bar{}
	}
	return &waterfall{line.Total(), bars}, nil
}
