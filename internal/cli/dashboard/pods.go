package dashboard

import (
	"context"
	"encoding/json"

	"google.golang.org/grpc/codes"

	"berth/internal/cli/connection"
	"berth/internal/cli/listing"
	"berth/internal/cli/usage"
)

// podList is all pods and containers of one moment, with what they use. Annotations are left out: those of a pod that
// `kubectl apply` has made have its whole manifest, with its environment.
type podList struct {
	Pods       []listing.Pod        `json:"pods"`
	Containers []listing.Container  `json:"containers"`
	Usage      map[string]usage.Row `json:"usage"` // by the ID of the pod or the container
}

// MarshalJSON leaves out what only the page of one pod shows.
func (l *podList) MarshalJSON() ([]byte, error) {
	type plain podList
	short := plain{Pods: make([]listing.Pod, len(l.Pods)), Containers: make([]listing.Container, len(l.Containers)),
		Usage: l.Usage}
	for i, pod := range l.Pods {
		pod.Labels = nil
		short.Pods[i] = pod
	}
	for i, c := range l.Containers {
		c.Labels, c.Message = nil, ""
		short.Containers[i] = c
	}
	return json.Marshal(short)
}

// podReader reads pods. Readings share a meter, which makes rates of CPU times; one runs at a time.
func (s *Server) podReader() func(context.Context) (any, error) {
	meter := &usage.Meter{}
	return func(ctx context.Context) (any, error) {
		reading, err := listing.Read(ctx, s.conn)
		if err != nil {
			return nil, err
		}
		list := &podList{Usage: map[string]usage.Row{}}
		if list.Pods, err = reading.Pods(ctx, nil); err != nil {
			return nil, err
		}
		if list.Containers, err = reading.Containers(ctx, nil); err != nil {
			return nil, err
		}
		for i := range list.Pods {
			list.Pods[i].Annotations = nil
		}
		for i := range list.Containers {
			list.Containers[i].Annotations = nil
		}
		meter.Status = reading.Status
		rows, err := usage.Read(ctx, s.conn, nil, meter)
		if err != nil && connection.Code(err) != codes.Unimplemented {
			return nil, connection.Plain(err)
		}
		for _, row := range rows {
			list.Usage[row.ID] = row
		}
		return list, nil
	}
}
