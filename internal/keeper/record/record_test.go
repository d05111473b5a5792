package record

import (
	"testing"

	"berth/internal/keeper"
)

// TestARowOfAnEarlierKeeperTellsWhatSetItUp: such a row has no Setup.
func TestARowOfAnEarlierKeeperTellsWhatSetItUp(t *testing.T) {
	for want, r := range map[keeper.Engine]Container{
		keeper.EngineStage:             {State: keeper.StateRunning, Join: &Join{Staged: true, Whole: true}},
		keeper.EngineLibcontainerStage: {State: keeper.StateExited, Join: &Join{Staged: true}},
		keeper.EngineLibcontainer:      {State: keeper.StateRunning},
		keeper.EngineOCI:               {State: keeper.StateRunning, Runtime: "/usr/sbin/runc"},
		"":                             {State: keeper.StateStarting},
	} {
		if got := r.StatusSetup(); got.Engine != want || want != "" && (got.Reason == "" || got.ExecEngine == "") {
			t.Errorf("%+v, and not %s", got, want)
		}
	}
}
