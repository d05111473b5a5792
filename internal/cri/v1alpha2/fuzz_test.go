package v1alpha2

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cri"
	criv1 "berth/internal/cri/v1"
	"berth/internal/model"
)

// Whatever stands in the fields that v1 does not know, the API answers and does not panic.
func FuzzUnknownFields(f *testing.F) {
	f.Add([]byte(nil), []byte(nil))
	f.Add([]byte(marshal(resources())), []byte{0xa2, 0x06, 0x01, 'v'})
	f.Add([]byte{0xea, 0x06, 0x02, 0x08, 0xff}, []byte{0xa2, 0x06, 0x02, 0xff, 0xfe})
	f.Add([]byte{0xa8, 0x06, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, []byte{0xa0, 0x06, 0x80})
	f.Add([]byte{0xf2, 0x06, 0x00}, []byte{0xaa, 0x06, 0x02, '-', '1'})
	f.Fuzz(func(t *testing.T, limits, others []byte) {
		d := &domain{}
		calls := criv1.NewServices(criv1.Deps{Runtime: d, Images: d}, dialect{}).Runtime
		req := container()
		req.Config.Linux.Resources.ProtoReflect().SetUnknown(limits)
		req.Config.Mounts[0].ProtoReflect().SetUnknown(others)
		req.Config.Image.ProtoReflect().SetUnknown(others)
		req.Config.ProtoReflect().SetUnknown(others)
		if _, err := calls.CreateContainer(t.Context(), req); err != nil &&
			status.Code(cri.Status(err)) != codes.InvalidArgument {
			t.Errorf("%v", err)
		}
		update := &api.UpdateContainerResourcesRequest{ContainerId: "c", Linux: &api.LinuxContainerResources{}}
		update.Linux.ProtoReflect().SetUnknown(limits)
		if _, err := calls.UpdateContainerResources(t.Context(), update); err != nil &&
			status.Code(cri.Status(err)) != codes.InvalidArgument {
			t.Errorf("%v", err)
		}
		if d.container == nil || d.resources == nil {
			return
		}
		// What was let in can be told again.
		d.status = &model.ContainerStatus{ID: "c", Config: d.container, Resources: d.container.Resources}
		if _, err := calls.ContainerStatus(t.Context(), &api.ContainerStatusRequest{ContainerId: "c"}); err != nil {
			t.Errorf("%v", err)
		}
	})
}
