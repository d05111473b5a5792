package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// once makes the pods those that the directory describes, and returns once all run or have failed.
func (a *Applier) once(ctx context.Context) error {
	a.look()
	if err := a.sync(ctx); err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(a.files.reading.wrong)) {
		errs = append(errs, fmt.Errorf("%s: %w", name, a.files.reading.wrong[name]))
	}
	for _, group := range a.files.reading.documents.Groups {
		if job := group.Job; job != nil && len(group.Pods) < job.Completions {
			errs = append(errs, fmt.Errorf("%s: job %s: spec.parallelism: with --once all pods are started at once, and %d are "+
				"fewer than the %d completions", group.File, group.Owner.Name, len(group.Pods), job.Completions))
		}
	}
	for name := range a.told.blocked {
		errs = append(errs, fmt.Errorf("pod %s is not started: a pod of a file that is wrong has its name", name))
	}
	for _, k := range a.keepers {
		<-k.done
		if err := k.failed(); err != nil {
			errs = append(errs, errors.New(about(k.pod, err)))
		}
	}
	a.workers.Wait()
	errs = append(errs, a.failures...)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(errs...)
}
