package play

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/lookup"
	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// Directory is the path by which `berth apply` knows a directory: absolute, and without symbolic links as long as it is
// there.
func Directory(name string) (string, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	return path, nil
}

// Directories are the paths by which `berth apply` would know each of several names. Standard input has none.
func Directories(names []string) (paths []string, err error) {
	for _, name := range names {
		if name == "-" {
			continue
		}
		path, err := Directory(name)
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// Downer stops and removes the pods of manifests. Volumes of claims stay.
type Downer struct {
	Conn  *connection.Connection
	Store *poddir.Store
	Out   io.Writer // the names of the pods
}

// Down removes the pods that `run` has made of documents, and those that `apply` keeps of directories. While an apply
// runs, nothing is removed: it would start the pods again.
func (d *Downer) Down(ctx context.Context, documents *manifest.Documents, directories []string) error {
	pods, others, err := d.pods(ctx, documents, directories)
	if err != nil {
		return err
	}
	release, err := d.claim(pods, directories)
	if err != nil {
		return err
	}
	defer release()
	errs := make([]error, len(pods))
	var stops sync.WaitGroup
	for i, pod := range pods {
		stops.Go(func() {
			err := launch.StopPod(ctx, d.Conn.Runtime, pod, -1)
			if err == nil {
				err = launch.RemovePod(ctx, d.Conn.Runtime, d.Store, pod)
			}
			if err != nil {
				errs[i] = fmt.Errorf("remove pod %s: %w", lookup.PodName(pod), err)
			}
		})
	}
	stops.Wait()
	for i, pod := range pods {
		if errs[i] == nil {
			fmt.Fprintln(d.Out, lookup.ShortPodName(pod))
		}
	}
	return errors.Join(append(errs, others...)...)
}

// Kept says whether `apply` has made pods of any of the directories that are there.
func (d *Downer) Kept(ctx context.Context, directories []string) (bool, error) {
	pods, _, err := d.pods(ctx, &manifest.Documents{}, directories)
	return len(pods) > 0, err
}

// pods are the pods of the documents and of the directories. others has an error for each that names them and was made
// by somebody else.
func (d *Downer) pods(ctx context.Context, documents *manifest.Documents, directories []string) (
	pods []*cri.PodSandbox, others []error, err error) {
	owners, kept := map[string]bool{}, map[string]bool{}
	for _, group := range documents.Groups {
		owners[group.Owner.String()] = true
	}
	for _, directory := range directories {
		kept[directory] = true
	}
	all, err := lookup.Pods(ctx, d.Conn.Runtime)
	if err != nil {
		return nil, nil, err
	}
	for _, pod := range all {
		if !owners[pod.GetAnnotations()[manifest.AnnotationOwner]] && !kept[launch.Applied(d.Store, pod)] {
			continue
		}
		if _, own := d.Store.Owns(pod); !own {
			others = append(others, &poddir.NotOwnedError{Pod: lookup.ShortPodName(pod), Root: d.Store.Root})
			continue
		}
		pods = append(pods, pod)
	}
	return pods, others, nil
}

// claim keeps `apply` from the directories, and from those that pods are of.
func (d *Downer) claim(pods []*cri.PodSandbox, directories []string) (release func(), err error) {
	all := map[string]bool{}
	for _, directory := range directories {
		if d.Store.WasClaimed(directory) {
			all[directory] = true
		}
	}
	for _, pod := range pods {
		if directory := launch.Applied(d.Store, pod); directory != "" {
			all[directory] = true
		}
	}
	var releases []func()
	release = func() {
		for _, r := range releases {
			r()
		}
	}
	for directory := range all {
		r, err := d.Store.Claim(directory)
		if err != nil {
			release()
			return nil, applyRuns(err)
		}
		releases = append(releases, r)
	}
	return release, nil
}

// applyRuns says what to do where an apply keeps pods that are to be removed.
func applyRuns(err error) error {
	var claimed *poddir.ClaimedError
	if errors.As(err, &claimed) {
		return fmt.Errorf("%w, and would start the pods again: stop that command first, or take their files out of the "+
			"directory", err)
	}
	return err
}
