package v1alpha1

import (
	"cmp"
	"context"

	"google.golang.org/protobuf/proto"

	api "berth/api/runtime/v1alpha1"
)

// kubeAPIVersion is what kubelets have expected in VersionResponse.version since the first CRI.
const kubeAPIVersion = "0.1.0"

func (s *runtimeService) Version(_ context.Context, req *api.VersionRequest) (*api.VersionResponse, error) {
	if err := newCheck(req).Err(); err != nil {
		return nil, err
	}
	return &api.VersionResponse{
		Version:           proto.String(kubeAPIVersion),
		RuntimeName:       proto.String(cmp.Or(s.Deps.Name, "berth")),
		RuntimeVersion:    proto.String(cmp.Or(s.Deps.NameVersion, s.Deps.Version)),
		RuntimeApiVersion: proto.String("v1alpha1"),
	}, nil
}
