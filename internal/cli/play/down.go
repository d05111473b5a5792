package play

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/lookup"
	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// Down stops and removes the pods that `run` has made of documents, and writes their names to out. Volumes of claims
// stay.
func Down(ctx context.Context, conn *connection.Connection, store *poddir.Store, documents *manifest.Documents,
	out io.Writer) error {
	owners := map[string]bool{}
	for _, group := range documents.Groups {
		owners[group.Owner.String()] = true
	}
	all, err := lookup.Pods(ctx, conn.Runtime)
	if err != nil {
		return err
	}
	var others []error
	var pods []*cri.PodSandbox
	for _, pod := range all {
		if !owners[pod.GetAnnotations()[manifest.AnnotationOwner]] {
			continue
		}
		if _, own := store.Owns(pod); !own {
			others = append(others, &poddir.NotOwnedError{Pod: lookup.ShortPodName(pod), Root: store.Root})
			continue
		}
		pods = append(pods, pod)
	}
	errs := make([]error, len(pods))
	var stops sync.WaitGroup
	for i, pod := range pods {
		stops.Go(func() {
			err := launch.StopPod(ctx, conn.Runtime, pod, -1)
			if err == nil {
				err = launch.RemovePod(ctx, conn.Runtime, store, pod)
			}
			if err != nil {
				errs[i] = fmt.Errorf("remove pod %s: %w", lookup.PodName(pod), err)
			}
		})
	}
	stops.Wait()
	for i, pod := range pods {
		if errs[i] == nil {
			fmt.Fprintln(out, lookup.ShortPodName(pod))
		}
	}
	return errors.Join(append(errs, others...)...)
}
