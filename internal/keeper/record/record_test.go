package record

import (
	"testing"

	"berth/internal/keeper/protocol"
)

// TestARecordOfAnEarlierKeeperTellsWhatSetItUp: such a record has no Setup.
func TestARecordOfAnEarlierKeeperTellsWhatSetItUp(t *testing.T) {
	for want, r := range map[protocol.Engine]Container{
		protocol.EngineStage:             {State: protocol.StateRunning, Join: &Join{Staged: true, Whole: true}},
		protocol.EngineLibcontainerStage: {State: protocol.StateExited, Join: &Join{Staged: true}},
		protocol.EngineLibcontainer:      {State: protocol.StateRunning},
		protocol.EngineOCI:               {State: protocol.StateRunning, Runtime: "/usr/sbin/runc"},
		"":                               {State: protocol.StateStarting},
	} {
		if got := r.StatusSetup(); got.Engine != want || want != "" && (got.Reason == "" || got.ExecEngine == "") {
			t.Errorf("%+v, and not %s", got, want)
		}
	}
}
