package v1alpha2

import (
	"errors"
	"strings"
	"testing"

	criv1 "berth/internal/cri/v1"
	"berth/internal/model"
)

// TestLimitsHaveTheNamesOfTheAPI that was called: those that v1 has no field for come by annotations there, and by
// fields of PouchContainer here.
func TestLimitsHaveTheNamesOfTheAPI(t *testing.T) {
	for _, c := range []struct {
		field     model.Field
		v1, pouch string
	}{
		{
			field: model.FieldContainerResources + "." + model.LimitMemorySwap,
			v1:    "config.linux.resources.memory_swap_limit_in_bytes",
			pouch: "config.linux.resources.memory_swap_limit_in_bytes",
		},
		{field: model.FieldUpdate + "." + model.LimitCPUPeriod, v1: "linux.cpu_period", pouch: "linux.cpu_period"},
		{field: model.FieldSandboxOverhead + "." + model.LimitMemory, v1: "config.linux.overhead.memory_limit_in_bytes"},
		{
			field: model.FieldContainerResources + "." + model.LimitMemorySwappiness,
			v1:    `config.annotations["berth.dev/memory-swappiness"]`, pouch: "config.linux.resources.memory_swappiness",
		},
		{
			field: model.FieldContainerResources + "." + model.LimitBlockReadBps,
			v1:    `config.annotations["berth.dev/blkio"].readBps`, pouch: "config.linux.resources.blkio_device_read_bps",
		},
		{
			field: model.FieldContainerResources + "." + model.LimitUlimits + "[2]",
			v1:    `config.annotations["berth.dev/ulimits"][2]`, pouch: "config.linux.resources.ulimits[2]",
		},
		{field: model.FieldContainerNetPriority, v1: `config.annotations["berth.dev/net-priority"]`,
			pouch: "config.net_priority"},
		{field: model.FieldContainerGroups + "[1]", v1: "config.linux.security_context.supplemental_groups[1]"},
	} {
		err := c.field.Wrong(errors.New("it is wrong"))
		if got, _ := strings.CutSuffix(criv1.FieldNames().Text(err.Error(), err), ": it is wrong"); got != c.v1 {
			t.Errorf("v1 calls %s %s and not %s", c.field, got, c.v1)
		}
		if got, _ := strings.CutSuffix(FieldNames().Text(err.Error(), err), ": it is wrong"); c.pouch != "" &&
			got != c.pouch {
			t.Errorf("v1alpha2 calls %s %s and not %s", c.field, got, c.pouch)
		}
	}
}
