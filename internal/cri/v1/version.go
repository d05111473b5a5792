package v1

import (
	"cmp"
	"context"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// kubeAPIVersion is what kubelets have expected in VersionResponse.version since the first CRI.
const kubeAPIVersion = "0.1.0"

func (s *runtimeService) Version(_ context.Context, req *api.VersionRequest) (*api.VersionResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	return &api.VersionResponse{
		Version:           kubeAPIVersion,
		RuntimeName:       cmp.Or(s.Deps.Name, "berth"),
		RuntimeVersion:    cmp.Or(s.Deps.NameVersion, s.Deps.Version),
		RuntimeApiVersion: s.dialect.Version(),
	}, nil
}
