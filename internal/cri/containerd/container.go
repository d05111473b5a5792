package containerd

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	api "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"berth/internal/model"
)

const (
	// specType is the type of an OCI specification in JSON (github.com/containerd/typeurl).
	specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"
	// sandboxImage stands where containerd has the image of the pause container. Dashboards and agents leave sandboxes
	// out, or choose them, by the beginning of this name; the tag says that no such image runs.
	sandboxImage = "registry.k8s.io/pause:berth"
)

// kindLabel tells containers from sandboxes, as in containerd.
const (
	kindLabel     = "io.cri-containerd.kind"
	kindSandbox   = "sandbox"
	kindContainer = "container"
)

type containerService struct {
	api.UnimplementedContainersServer
	api *API
}

// Get is one container or sandbox, with its specification. The first call has the API follow which processes pods have:
// a monitor has found a container by its cgroup.
func (s *containerService) Get(ctx context.Context, req *api.GetContainerRequest) (*api.GetContainerResponse, error) {
	in, err := inNamespace(ctx)
	if err != nil {
		return nil, err
	}
	if !in {
		return nil, notFound(req.ID)
	}
	s.api.followSandboxes()
	c, sandbox, err := s.api.find(ctx, req.ID)
	if err != nil {
		return nil, err
	}
	if sandbox != nil {
		out, err := s.api.withSpec(ctx, describeSandbox(sandbox), s.api.sandboxSpec(ctx, sandbox))
		return &api.GetContainerResponse{Container: out}, err
	}
	out, err := s.api.withSpec(ctx, describeContainer(c, s.api.image(ctx, c.ImageID)), nil)
	return &api.GetContainerResponse{Container: out}, err
}

// List are all containers and sandboxes that a filter selects, oldest first.
func (s *containerService) List(
	ctx context.Context, req *api.ListContainersRequest,
) (*api.ListContainersResponse, error) {
	resp := &api.ListContainersResponse{}
	return resp, s.each(ctx, req, func(c *api.Container) error {
		resp.Containers = append(resp.Containers, c)
		return nil
	})
}

// ListStream is List, one container in each message.
func (s *containerService) ListStream(
	req *api.ListContainersRequest, stream api.Containers_ListStreamServer,
) error {
	return s.each(stream.Context(), req, func(c *api.Container) error {
		return stream.Send(&api.ListContainerMessage{Container: c})
	})
}

func (s *containerService) each(
	ctx context.Context, req *api.ListContainersRequest, give func(*api.Container) error,
) error {
	in, err := inNamespace(ctx)
	if err != nil || !in {
		return err
	}
	filter, err := filters.ParseAll(req.Filters...)
	if err != nil {
		return err
	}
	containers, err := s.api.Runtime.ListContainers(ctx, model.ContainerFilter{})
	if err != nil {
		return err
	}
	sandboxes, err := s.api.Runtime.ListSandboxes(ctx, model.SandboxFilter{})
	if err != nil {
		return err
	}
	images, err := s.api.imagesByID(ctx)
	if err != nil {
		return err
	}
	pods := make(map[string]*model.SandboxStatus, len(sandboxes))
	list := make([]*api.Container, 0, len(containers)+len(sandboxes))
	for _, sandbox := range sandboxes {
		pods[sandbox.ID] = sandbox
		list = append(list, describeSandbox(sandbox))
	}
	for _, c := range containers {
		list = append(list, describeContainer(c, images[c.ImageID]))
	}
	slices.SortStableFunc(list, func(a, b *api.Container) int {
		return cmp.Or(a.CreatedAt.AsTime().Compare(b.CreatedAt.AsTime()), cmp.Compare(a.ID, b.ID))
	})
	for _, c := range list {
		match := labeled{fields{"id": c.ID, "image": c.Image, "runtime.name": c.Runtime.Name}, c.Labels}
		if !filter.Match(match) {
			continue
		}
		var spec *specs.Spec
		if pod := pods[c.ID]; pod != nil {
			spec = s.api.sandboxSpec(ctx, pod)
		}
		whole, err := s.api.withSpec(ctx, c, spec)
		if errdefs.IsNotFound(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		if err := give(whole); err != nil {
			return err
		}
	}
	return nil
}

func notFound(id string) error { return fmt.Errorf("container %q: %w", id, errdefs.ErrNotFound) }

// find is the container or the sandbox of an ID, which has to be whole.
func (a *API) find(ctx context.Context, id string) (*model.ContainerStatus, *model.SandboxStatus, error) {
	c, err := a.Runtime.ContainerStatus(ctx, id)
	if err == nil && c.ID == id {
		return c, nil, nil
	}
	s, err := a.Runtime.SandboxStatus(ctx, id)
	if err == nil && s.ID == id {
		return nil, s, nil
	}
	return nil, nil, notFound(id)
}

// image is an image by its ID; nil where it is gone, which a container may outlive.
func (a *API) image(ctx context.Context, id string) *model.Image {
	image, err := a.Images.Get(ctx, id)
	if err != nil {
		return nil
	}
	return image
}

// imagesByID are all images.
func (a *API) imagesByID(ctx context.Context) (map[string]*model.Image, error) {
	list, err := a.Images.List(ctx)
	byID := make(map[string]*model.Image, len(list))
	for _, image := range list {
		if image.Partial { // labels of containers are those of their images, too
			if whole, err := a.Images.Get(ctx, image.ID); err == nil {
				image = whole
			}
		}
		byID[image.ID] = image
	}
	return byID, err
}

// describeContainer is a container without its specification. Its labels are those of its image, if that is not nil,
// over which are its own.
func describeContainer(c *model.ContainerStatus, image *model.Image) *api.Container {
	labels := map[string]string{}
	if image != nil {
		maps.Copy(labels, image.Config.Labels)
	}
	maps.Copy(labels, c.Config.Labels)
	labels[kindLabel] = kindContainer
	updated := c.CreatedAt
	for _, at := range []time.Time{c.StartedAt, c.FinishedAt} {
		if at.After(updated) {
			updated = at
		}
	}
	return &api.Container{
		ID: c.ID, Labels: labels, Image: imageName(c, image), Runtime: &api.Container_Runtime{Name: model.RuntimeType},
		CreatedAt: timestamppb.New(c.CreatedAt), UpdatedAt: timestamppb.New(updated), Sandbox: c.SandboxID,
	}
}

// imageName is the image's name that a person used, if it still has that, else its first one, else its ID.
func imageName(c *model.ContainerStatus, image *model.Image) string {
	used := c.Config.Image.UserSpecifiedImage
	if image == nil {
		return cmp.Or(used, c.Config.Image.Image)
	}
	for _, name := range slices.Concat(image.RepoTags, image.RepoDigests) {
		if name == used || strings.HasSuffix(name, "/"+used) {
			return name
		}
	}
	for _, name := range slices.Concat(image.RepoTags, image.RepoDigests) {
		return name
	}
	return image.ID
}

// describeSandbox is a sandbox without its specification.
func describeSandbox(s *model.SandboxStatus) *api.Container {
	labels := maps.Clone(s.Config.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[kindLabel] = kindSandbox
	return &api.Container{
		ID: s.ID, Labels: labels, Image: sandboxImage, Runtime: &api.Container_Runtime{Name: model.RuntimeType},
		CreatedAt: timestamppb.New(s.CreatedAt), UpdatedAt: timestamppb.New(s.CreatedAt), Sandbox: s.ID,
	}
}

// sandboxSpec is what readers of a sandbox's specification look for in it: whose it is, and the namespaces and the
// cgroup. There is no such container, so that it has no process and no root.
func (a *API) sandboxSpec(ctx context.Context, s *model.SandboxStatus) *specs.Spec {
	meta := s.Config.Metadata
	spec := &specs.Spec{
		Version:  specs.Version,
		Hostname: s.Config.Hostname,
		Process:  &specs.Process{Cwd: "/"}, // cAdvisor reads the environment in it
		Annotations: map[string]string{
			"io.kubernetes.cri.container-type":        kindSandbox,
			"io.kubernetes.cri.sandbox-id":            s.ID,
			"io.kubernetes.cri.sandbox-name":          meta.Name,
			"io.kubernetes.cri.sandbox-namespace":     meta.Namespace,
			"io.kubernetes.cri.sandbox-uid":           meta.UID,
			"io.kubernetes.cri.sandbox-log-directory": s.Config.LogDirectory,
			"io.kubernetes.cri.podsandbox.image-name": sandboxImage,
			"io.berth.sandbox-id":                     s.ID,
		},
		Linux: &specs.Linux{},
	}
	if cgroup, err := a.Runtime.SandboxCgroup(ctx, s.ID); err == nil {
		spec.Linux.CgroupsPath = cgroup
	}
	if s.NetNS != "" {
		spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.NetworkNamespace, Path: s.NetNS}}
	}
	return spec
}

// withSpec adds the specification: spec, or the container's own.
func (a *API) withSpec(ctx context.Context, c *api.Container, spec *specs.Spec) (*api.Container, error) {
	var data []byte
	var err error
	if spec != nil {
		data, err = json.Marshal(spec)
	} else {
		data, err = a.Runtime.ContainerSpec(ctx, c.ID)
	}
	if err != nil {
		return nil, err
	}
	c.Spec = &anypb.Any{TypeUrl: specType, Value: data}
	return c, nil
}
