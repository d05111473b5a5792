package v1alpha2

import (
	"strconv"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri/request"
	"berth/internal/model"
)

// Annotations that have a meaning to PouchContainer's clients.
const (
	annotationRuntime    = "io.kubernetes.runtime"       // of a pod: its runtime handler
	annotationLXCFS      = "io.kubernetes.lxcfs.enabled" // of a pod: "true" mounts lxcfs' files in its containers
	annotationMemorySwap = "io.alibaba.pouch.resources.memory-swap"
	annotationPidsLimit  = "io.alibaba.pouch.resources.pids-limit"
)

// Handler is the one that the request names, else the pod's annotation.
func (dialect) Handler(in *api.PodSandboxConfig, asked string) string {
	if asked == "" {
		return in.GetAnnotations()[annotationRuntime]
	}
	return asked
}

func (dialect) ReadSandbox(c *request.Check, p request.Path, in *api.PodSandboxConfig, out *model.SandboxConfig) {
	text, set := in.GetAnnotations()[annotationLXCFS]
	if !set {
		return
	}
	enabled, err := strconv.ParseBool(text)
	if err != nil {
		c.Fail(p.Field(annotation(annotationLXCFS)), "%q is neither true nor false", text)
	}
	out.LXCFS = enabled
}

func readContainerAnnotations(c *request.Check, p request.Path, in map[string]string, out *model.ContainerConfig) {
	number := func(key string, to func(*model.Resources) *int64) {
		text, set := in[key]
		if !set {
			return
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < -1 {
			c.Fail(p.Field(annotation(key)), "%q is not a number of at least -1", text)
			return
		}
		if out.Resources == nil {
			out.Resources = &model.Resources{}
		}
		*to(out.Resources) = n
	}
	number(annotationMemorySwap, func(r *model.Resources) *int64 { return &r.MemorySwap })
	number(annotationPidsLimit, func(r *model.Resources) *int64 { return &r.PidsLimit })
}

func annotation(key string) string { return "annotations[" + strconv.Quote(key) + "]" }
