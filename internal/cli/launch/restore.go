package launch

import (
	"context"
	"fmt"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/poddir"
	"berth/internal/manifest"
)

// Restored says whether the pod was made from a checkpoint. Its init containers have ended before that was written.
func (p *Pod) Restored() bool { return p.restored != nil }

// restore makes a pod's sandbox and its containers from the checkpoint. What a container is told of the pod's addresses
// is not known then.
func (l *Launcher) restore(ctx context.Context, pod *Pod, config *cri.PodSandboxConfig) (err error) {
	if pod.hosts, err = l.hosts(pod); err != nil { // written again when the addresses are known
		return err
	}
	request := &cri.RestorePodRequest{CheckpointPath: l.Restore, Config: config, RuntimeHandler: pod.Handler()}
	containers := map[string]*Container{}
	for c := range pod.Pod.Containers() {
		if pod.Kind(c) == manifest.KindInit {
			continue
		}
		create, made, err := l.request(ctx, pod, c, 0)
		if err != nil {
			return fmt.Errorf("container %s: %w", c.Name, err)
		}
		if poddir.HasNamed(create.GetConfig().GetMounts()) {
			return fmt.Errorf("container %s: a persistentVolumeClaim is not supported in a pod that is restored", c.Name)
		}
		request.ContainerConfigs = append(request.ContainerConfigs, create.GetConfig())
		containers[c.Name] = made
	}
	response, err := l.Runtime.RestorePod(ctx, request)
	if err != nil {
		return err
	}
	pod.SandboxID = response.GetPodSandboxId()
	for _, made := range response.GetRestoredContainers() {
		if c := containers[made.GetName()]; c != nil {
			c.ID = made.GetContainerId()
		}
	}
	pod.restored = containers
	return nil
}
