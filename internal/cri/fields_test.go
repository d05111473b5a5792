package cri

import (
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth/internal/cri/request"
	"berth/internal/model"
)

// TestAnErrorNamesTheFieldOfTheAPIThatWasCalled, with the code that it has anyway.
func TestAnErrorNamesTheFieldOfTheAPIThatWasCalled(t *testing.T) {
	c := &calls{names: map[string]request.Names{
		"runtime.v1.RuntimeService":    {model.FieldContainerQuotaID: "config.annotations"},
		"pouch.RuntimeService/Restore": {model.FieldContainerQuotaID: "container_configs[].quota_id"},
		"pouch.RuntimeService":         {model.FieldContainerQuotaID: "config.quota_id"},
	}}
	err := fmt.Errorf("create: %w",
		model.FieldContainerQuotaID.Wrong(fmt.Errorf("5 is too low: %w", errdefs.ErrInvalidArgument)))
	for method, want := range map[string]string{
		"/runtime.v1.RuntimeService/CreateContainer": "create: config.annotations: 5 is too low: invalid argument",
		"/pouch.RuntimeService/CreateContainer":      "create: config.quota_id: 5 is too low: invalid argument",
		"/pouch.RuntimeService/Restore":              "create: container_configs[].quota_id: 5 is too low: invalid argument",
		"/other.Service/Call":                        "create: container.quotaID: 5 is too low: invalid argument",
	} {
		if st := status.Convert(c.named(method, err)); st.Code() != codes.InvalidArgument || st.Message() != want {
			t.Errorf("%s: %v: %s", method, st.Code(), st.Message())
		}
	}
}
