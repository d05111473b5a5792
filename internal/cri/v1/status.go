package v1

import (
	"context"
	"encoding/json"

	api "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (s *runtimeService) Status(ctx context.Context, req *api.StatusRequest) (*api.StatusResponse, error) {
	if err := checkOnly(s.dialect, req); err != nil {
		return nil, err
	}
	resp := &api.StatusResponse{
		Status:   &api.RuntimeStatus{},
		Features: &api.RuntimeFeatures{SupplementalGroupsPolicy: true, MountOptions: true},
	}
	for _, c := range s.Runtime.Conditions(ctx) {
		resp.Status.Conditions = append(resp.Status.Conditions, &api.RuntimeCondition{
			Type: c.Type, Status: c.Status, Reason: c.Reason, Message: c.Message,
		})
	}
	for _, h := range s.Runtime.Handlers() {
		// What keeps a handler from it is what keeps it from user namespaces at all.
		resp.Features.UserNamespacesHostNetwork = resp.Features.UserNamespacesHostNetwork || h.UserNamespaces
		resp.RuntimeHandlers = append(resp.RuntimeHandlers, &api.RuntimeHandler{
			Name: h.Name,
			Features: &api.RuntimeHandlerFeatures{
				RecursiveReadOnlyMounts: h.RecursiveReadOnlyMounts,
				UserNamespaces:          h.UserNamespaces,
			},
		})
	}
	if req.Verbose {
		resp.Info = map[string]string{"version": jsonText(s.Deps.Version)}
		if s.Info != nil {
			for key, value := range s.Info(ctx) {
				resp.Info[key] = jsonText(value)
			}
		}
	}
	return resp, nil
}

// jsonText is a value as clients expect it in the info of a verbose answer.
func jsonText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		text, _ = json.Marshal("cannot be shown: " + err.Error())
	}
	return string(text)
}
