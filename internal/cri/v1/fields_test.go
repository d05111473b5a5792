package v1

import (
	"errors"
	"strings"
	"testing"

	"berth/internal/model"
)

// TestFieldsHaveTheNamesOfTheRequest: an update has a limit of a pod elsewhere than a request that runs a pod.
func TestFieldsHaveTheNamesOfTheRequest(t *testing.T) {
	methods := MethodNames("s", FieldNames())
	for _, c := range []struct {
		method string
		field  model.Field
		want   string
	}{
		{"UpdatePodSandboxResources", model.FieldSandboxOverhead + "." + model.LimitMemory, "overhead.memory_limit_in_bytes"},
		{"UpdatePodSandboxResources", model.FieldSandboxResources + "." + model.LimitUnified + "[x]", "resources.unified[x]"},
		{"RestorePod", model.FieldSandboxOverhead + "." + model.LimitMemory, "config.linux.overhead.memory_limit_in_bytes"},
		{"RestorePod", model.FieldSandboxLogDirectory, "config.log_directory"},
		{"RestorePod", model.FieldContainerMounts + "[2].image", "container_configs[].mounts[2].image"},
		{"RestorePod", model.FieldContainerResources + "." + model.LimitUlimits,
			`container_configs[].annotations["berth.dev/ulimits"]`},
	} {
		err := c.field.Wrong(errors.New("it is wrong"))
		got, _ := strings.CutSuffix(methods["s/"+c.method].Text(err.Error(), err), ": it is wrong")
		if got != c.want {
			t.Errorf("%s calls %s %s and not %s", c.method, c.field, got, c.want)
		}
	}
	err := model.FieldUpdate.Within(model.LimitMemoryReservation.Wrong(errors.New("it is wrong")))
	if got := FieldNames().Text(err.Error(), err); got != `annotations["berth.dev/memory-reservation"]: it is wrong` {
		t.Errorf("an update says: %s", got)
	}
}
