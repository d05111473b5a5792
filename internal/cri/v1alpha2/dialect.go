package v1alpha2

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/api/pouch"
	"berth/internal/cri/request"
	criv1 "berth/internal/cri/v1"
	"berth/internal/model"
)

// Values that PouchContainer adds to enums of Kubernetes.
const (
	containerPause  api.ContainerState  = 4
	sandboxNotFound api.PodSandboxState = 100 // no sandbox is in it, so that it selects none
)

// dialect is v1 with PouchContainer's fields.
type dialect struct{ criv1.V1 }

var _ criv1.Dialect = dialect{}

func (dialect) Version() string { return "v1alpha2" }

func (dialect) Enum(enum protoreflect.Name, value protoreflect.EnumNumber) bool {
	switch enum {
	case "ContainerState":
		return api.ContainerState(value) == containerPause
	case "PodSandboxState":
		return api.PodSandboxState(value) == sandboxNotFound
	}
	return false
}

func (d dialect) State(s model.ContainerState) api.ContainerState {
	if s == model.ContainerPaused {
		return containerPause
	}
	return d.V1.State(s)
}

func (d dialect) States(s api.ContainerState) []model.ContainerState {
	if s == containerPause {
		return []model.ContainerState{model.ContainerPaused}
	}
	return slices.DeleteFunc(d.V1.States(s), func(m model.ContainerState) bool { return m == model.ContainerPaused })
}

func (dialect) ReadContainer(c *request.Check, p request.Path, in *api.ContainerConfig, out *model.ContainerConfig) {
	ext := read(c, p, in, &pouch.ContainerConfig{})
	if n := ext.NetPriority; n < 0 || n > maxPriority {
		c.Fail(p.Field("net_priority"), "%d is not in 0..%d", n, int64(maxPriority))
	}
	if _, err := model.ParseQuotaID(ext.QuotaId); err != nil {
		c.Fail(p.Field("quota_id"), "%v", err)
	}
	out.NetPriority, out.QuotaID = ext.NetPriority, ext.QuotaId
	readContainerAnnotations(c, p, in.Annotations, out)
}

func (dialect) ReadImageSpec(c *request.Check, p request.Path, in *api.ImageSpec, out *model.ImageSpec) {
	out.SpecAnnotations = maps.Clone(read(c, p, in, &pouch.ImageSpec{}).SpecAnnotations)
}

func (dialect) ReadMount(c *request.Check, p request.Path, in *api.Mount, out *model.Mount) {
	out.Volume = read(c, p, in, &pouch.Mount{}).Name
	if out.Volume == "" {
		return
	}
	if in.HostPath != "" {
		c.Fail(p.Field("name"), "cannot be set together with host_path")
	}
	if in.GetImage().GetImage() != "" {
		c.Fail(p.Field("name"), "cannot be set together with image")
	}
}

func (dialect) WriteContainerStatus(in *model.ContainerStatus, out *api.ContainerStatus) {
	ext := &pouch.ContainerStatus{QuotaId: in.QuotaID}
	for _, path := range in.Volumes {
		if ext.Volumes == nil {
			ext.Volumes = map[string]*pouch.Volume{}
		}
		ext.Volumes[path] = &pouch.Volume{}
	}
	for _, v := range in.Env {
		ext.Envs = append(ext.Envs, &pouch.KeyValue{Key: v.Key, Value: []byte(v.Value)})
	}
	if linux := out.GetResources().GetLinux(); linux != nil {
		whole := proto.CloneOf(linux)
		write(whole, fromResources(in.Resources))
		ext.Resources = marshal(whole)
	}
	write(out, ext)
}

func (dialect) WriteImage(in *model.Image, out *api.Image) {
	if len(in.Config.Volumes) == 0 {
		return
	}
	ext := &pouch.Image{Volumes: map[string]*pouch.Volume{}}
	for path := range in.Config.Volumes {
		ext.Volumes[path] = &pouch.Volume{}
	}
	write(out, ext)
}

func (dialect) WriteImageSpec(in *model.ImageSpec, out *api.ImageSpec) {
	write(out, &pouch.ImageSpec{SpecAnnotations: in.SpecAnnotations})
}

func (dialect) WriteMount(in *model.Mount, out *api.Mount) {
	write(out, &pouch.Mount{Name: in.Volume})
}
