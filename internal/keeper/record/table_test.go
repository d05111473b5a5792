package record

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/protocol"
)

// TestARecordThatCannotBeReadIsNotLost: a keeper that has no descriptor left learns nothing of the record, and would
// end a container that runs. What a disk has lost does not keep the keeper from its other containers. It was seen to
// fail where each error of a read was taken for damage.
func TestARecordThatCannotBeReadIsNotLost(t *testing.T) {
	for _, c := range []struct {
		name          string
		first, second error // of reading the file; nil: it is whole
		want          error // of Load
		lost          bool
	}{
		{name: "both are whole"},
		{name: "no descriptor for the first", first: unix.EMFILE, want: unix.EMFILE},
		{name: "no descriptor for both", first: unix.ENFILE, second: unix.ENFILE, want: unix.ENFILE},
		{name: "EIO on the first, no memory for the second", first: unix.EIO, second: unix.ENOMEM, want: unix.ENOMEM},
		{name: "EIO on the first", first: unix.EIO},
		{name: "EIO on both", first: unix.EIO, second: unix.EIO, lost: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := NewTable(t.TempDir(), slog.New(slog.DiscardHandler))
			if err := table.Save(&Container{ID: "a", State: protocol.StateRunning}); err != nil {
				t.Fatal(err)
			}
			fails := map[string]error{"a" + recordSuffix: c.first, "a" + recordSpareSuffix: c.second}
			defer func() { readFile = os.ReadFile }()
			readFile = func(path string) ([]byte, error) {
				if err := fails[filepath.Base(path)]; err != nil {
					return nil, &os.PathError{Op: "read", Path: path, Err: err}
				}
				return os.ReadFile(path)
			}
			records, lost, err := table.Load()
			if !errors.Is(err, c.want) || len(lost) == 1 != c.lost || len(records) == 1 != (c.want == nil && !c.lost) {
				t.Errorf("%d records, lost %v, %v", len(records), lost, err)
			}
		})
	}
}
