package v1

import (
	"encoding/json"
	"fmt"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/model"
)

// verboseInfo is what a verbose status has beside the status: one JSON text. As in containerd's, config is the message
// that the pod or the container was made of in the JSON of its Go type, into which agents decode it.
func verboseInfo(d Dialect, info map[string]any) map[string]string {
	switch cfg := info["config"].(type) {
	case *model.ContainerConfig:
		info["config"] = fromContainerConfig(d, cfg)
	case *model.SandboxConfig:
		info["config"] = fromSandboxConfig(cfg)
		info["overhead"] = fromPodResources(cfg.Overhead)
		info["resources"] = fromPodResources(cfg.Resources)
	}
	text, err := json.Marshal(info)
	if err != nil {
		text = fmt.Appendf(nil, "%q", err.Error())
	}
	return map[string]string{"info": string(text)}
}

// fromPodResources are a pod's, nil where it has none.
func fromPodResources(r *model.Resources) *api.ContainerResources {
	if r == nil {
		return nil
	}
	return &api.ContainerResources{Linux: fromResources(r)}
}
