package launch

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/manifest"
)

// images are a pod's images on the node, and the IDs of those that are volumes.
type images struct {
	byContainer map[string]*cri.Image
	byVolume    map[string]string
}

// images makes sure that the node has the pod's images. Containers of a pod that is adopted keep the image that they
// were found with.
func (l *Launcher) images(ctx context.Context, pod *manifest.Pod, found map[string]*Found) (*images, error) {
	have, byContainer := map[string]*cri.Image{}, map[string]*cri.Image{}
	byVolume := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.Image == nil {
			continue
		}
		policy := v.Image.PullPolicy
		if found != nil && policy == corev1.PullAlways { // it was pulled when the pod was made
			policy = corev1.PullIfNotPresent
		}
		image, err := l.image(ctx, pod, v.Image.Reference, policy)
		if err != nil {
			return nil, fmt.Errorf("volume %s: image %s: %w", v.Name, v.Image.Reference, err)
		}
		byVolume[v.Name] = image.GetId()
	}
	for c := range pod.Containers() {
		if f := found[c.Name]; f != nil {
			var err error
			if byContainer[c.Name], err = l.foundImage(ctx, pod, c, f.imageID); err != nil {
				return nil, fmt.Errorf("container %s: image %s: %w", c.Name, c.Image, err)
			}
			continue
		}
		image := have[c.Image]
		if image == nil {
			var err error
			if image, err = l.image(ctx, pod, c.Image, c.ImagePullPolicy); err != nil {
				return nil, fmt.Errorf("container %s: image %s: %w", c.Name, c.Image, err)
			}
			have[c.Image] = image
		}
		if err := pod.CheckNonRoot(c, image); err != nil {
			return nil, err
		}
		byContainer[c.Name] = image
	}
	return &images{byContainer, byVolume}, nil
}

func (l *Launcher) image(ctx context.Context, pod *manifest.Pod, name string, policy corev1.PullPolicy) (
	*cri.Image, error) {
	if filepath.IsAbs(name) {
		return &cri.Image{Id: name}, nil // the archive of a checkpoint, on the runtime's machine
	}
	if policy != corev1.PullAlways {
		image, err := l.imageStatus(ctx, name)
		if err != nil || image != nil {
			return image, err
		}
		if policy == corev1.PullNever {
			return nil, fmt.Errorf("the image is not on the node, and imagePullPolicy is Never: pull it with `berth pull %s`",
				name)
		}
	}
	ref, err := l.Pull(ctx, name, pod.PullSecrets())
	if err != nil {
		return nil, err
	}
	image, err := l.imageStatus(ctx, ref)
	if err == nil && image == nil {
		err = errors.New("the image was removed right after it was pulled")
	}
	return image, err
}

// imageStatus is an image on the node; nil: the node does not have it.
func (l *Launcher) imageStatus(ctx context.Context, ref string) (*cri.Image, error) {
	response, err := l.Images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	return response.GetImage(), connection.Plain(err)
}

// foundImage is the image of a container that was there before, with its user where the next attempt needs to know.
func (l *Launcher) foundImage(ctx context.Context, pod *manifest.Pod, c *corev1.Container, id string) (
	*cri.Image, error) {
	if pod.NeedsImageUser(c) {
		if image, err := l.imageStatus(ctx, id); err != nil || image != nil {
			return image, err
		}
	}
	return &cri.Image{Id: id}, nil
}
