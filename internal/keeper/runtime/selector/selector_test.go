package selector

import (
	"fmt"
	"log/slog"
	"testing"

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/runtime/libcontainer"
	"berth/internal/keeper/runtime/stage"
)

// recorded is a container of which there is only a record.
type recorded struct {
	record record.Container
	guard  *runtime.Guard
	loaded any
}

func (r *recorded) ID() string               { return r.record.ID }
func (r *recorded) Log() *slog.Logger        { return slog.Default() }
func (r *recorded) Record() record.Container { return r.record }
func (r *recorded) Process() *pidfd.FD       { return nil }
func (r *recorded) Guard() *runtime.Guard    { return r.guard }
func (r *recorded) Loaded() *any             { return &r.loaded }
func (r *recorded) Thawed() <-chan struct{}  { return nil }
func (r *recorded) UseFilter(string)         {}

// TestTheEngineOfARecord: what has set a container up also pauses, changes and removes it, for records of earlier
// versions of the keeper too, which know no names of engines. It was seen to fail without the case for the stage in of.
func TestTheEngineOfARecord(t *testing.T) {
	lib := libcontainer.New("/keeper", nil, nil, nil)
	s := New("/keeper", nil, stage.New("/keeper", nil, nil, lib), lib)
	named := func(e protocol.Engine) record.Container { return record.Container{Setup: protocol.Setup{Engine: e}} }
	for _, c := range []struct {
		record record.Container
		want   string
	}{
		{named(protocol.EngineStage), "*stage.Engine"},
		{named(protocol.EngineLibcontainer), "*libcontainer.Engine"},
		{named(protocol.EngineLibcontainerStage), "*libcontainer.Engine"},
		{named(protocol.EngineCRIU), "*libcontainer.Engine"},
		{record.Container{Runtime: "/usr/sbin/runc"}, "*oci.Engine"},
		{record.Container{}, "*libcontainer.Engine"},
		{record.Container{Join: &record.Join{}}, "*libcontainer.Engine"},
		{record.Container{Join: &record.Join{Staged: true}}, "*libcontainer.Engine"},
		{record.Container{Join: &record.Join{Staged: true, Whole: true}}, "*stage.Engine"},
	} {
		if got := fmt.Sprintf("%T", s.of(&recorded{record: c.record})); got != c.want {
			t.Errorf("%+v: %s, not %s", c.record, got, c.want)
		}
	}
}

// TestARecordIsReadByEarlierVersions: these know the engine by two booleans.
func TestARecordIsReadByEarlierVersions(t *testing.T) {
	for engine, want := range map[protocol.Engine][2]bool{
		protocol.EngineStage:             {true, true},
		protocol.EngineLibcontainerStage: {true, false},
		protocol.EngineLibcontainer:      {false, false},
	} {
		var r record.Container
		r.SetSetup(protocol.Setup{Engine: engine}, &record.Join{})
		if got := [2]bool{r.Join.Staged, r.Join.Whole}; got != want {
			t.Errorf("%s: %v, not %v", engine, got, want)
		}
	}
}

var _ runtime.Container = (*recorded)(nil)
