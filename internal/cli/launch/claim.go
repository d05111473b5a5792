package launch

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// giveClaims gives the claims that a container mounts to the fsGroup of its pod, each once in the life of the pod. This
// comes after the container is made, by which the daemon has made and filled its volumes, and before it is started.
func (l *Launcher) giveClaims(ctx context.Context, pod *Pod, c *corev1.Container) error {
	id := pod.FSGroup()
	if id == nil {
		return nil
	}
	group := poddir.Group{ID: *id, OnRootMismatch: pod.FSGroupOnRootMismatch()}
	for name, claim := range claims(pod.Pod, c) {
		if pod.isGiven(name) {
			continue
		}
		path, err := l.VolumePath(ctx, manifest.NamedVolume(pod.Namespace, claim))
		if err == nil {
			err = group.Give(ctx, path)
		}
		if err != nil {
			return fmt.Errorf("volume %s: fsGroup: %w", name, err)
		}
		pod.give(name)
	}
	return nil
}

// claims are the claims that a container mounts and that a container may write to, by the names of the pod's volumes.
// A kubelet, too, leaves alone what is read-only for the whole pod.
func claims(pod *manifest.Pod, c *corev1.Container) map[string]string {
	all := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if claim := v.PersistentVolumeClaim; claim != nil && !claim.ReadOnly {
			all[v.Name] = claim.ClaimName
		}
	}
	mounted := map[string]string{}
	for _, m := range c.VolumeMounts {
		if claim, ok := all[m.Name]; ok {
			mounted[m.Name] = claim
		}
	}
	return mounted
}

func (p *Pod) isGiven(volume string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.given[volume]
}

func (p *Pod) give(volume string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.given == nil {
		p.given = map[string]bool{}
	}
	p.given[volume] = true
}
