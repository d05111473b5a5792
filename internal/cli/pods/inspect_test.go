package pods

import (
	"encoding/json"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestLargeNumbersOfAnInspectionStayWhole, such as the limit of a container that has none.
func TestLargeNumbersOfAnInspectionStayWhole(t *testing.T) {
	const info = `{"hard":18446744073709551615}`
	one, err := newInspection("container", &cri.ContainerStatus{Id: "x"}, map[string]string{"info": info, "note": "1 2"})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(one)
	if err != nil || !strings.Contains(string(data), info) || !strings.Contains(string(data), `"note":"1 2"`) {
		t.Errorf("%s, %v", data, err)
	}
}

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
