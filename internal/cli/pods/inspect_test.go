package pods

import (
	"encoding/json"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestTimesOfAnInspectionAreWorded(t *testing.T) {
	one, err := newInspection("container", &cri.ContainerStatus{Id: "x", CreatedAt: 1769860800123456789, StartedAt: 0},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(one)
	if err != nil || !strings.Contains(string(data), `"createdAt":"2026-01-31T12:00:00.123456789Z"`) ||
		strings.Contains(string(data), "startedAt") {
		t.Errorf("%s, %v", data, err)
	}
}
