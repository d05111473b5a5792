package record

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/codec"
	"berth/internal/disk"
	"berth/internal/state"
)

// Table is the directory with the records of all containers of a keeper.
type Table struct {
	dir string
	log *slog.Logger
}

// NewTable returns the table in a directory, which exists.
func NewTable(dir string, log *slog.Logger) *Table { return &Table{dir, log} }

func (t *Table) path(id string) string { return filepath.Join(t.dir, id+recordSuffix) }

// A record has two files, which say the same unless the keeper is killed between them: the first is the newer one then.
const recordSuffix, recordSpareSuffix = ".json", ".json.spare"

// Save writes a record into both of its files, with a checksum (state.Seal). The first is written whole or not at all.
// It does not sync: the table does not outlive a boot.
func (t *Table) Save(r *Container) error {
	b, err := codec.Marshal(r)
	if err == nil {
		b, err = state.Seal(b)
	}
	if err != nil {
		return err
	}
	path := t.path(r.ID)
	if err = disk.WriteOrOverwrite(path, b); err == nil {
		err = saveSpare(strings.TrimSuffix(path, recordSuffix)+recordSpareSuffix, b)
	}
	if err != nil {
		return fmt.Errorf("save container %s: %w", r.ID, err)
	}
	return nil
}

// saveSpare writes a record's second file. On a full disk there is none: one that is older than the first would tell of
// a start that is over.
func saveSpare(path string, b []byte) error {
	_, err := disk.Overwrite(path, b)
	if disk.Full(err) {
		if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	return err
}

// Forget removes a record. The first file goes last: a second one alone is a record whose first file was lost.
func (t *Table) Forget(id string) error {
	path := t.path(id)
	for _, p := range []string{strings.TrimSuffix(path, recordSuffix) + recordSpareSuffix, path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Load reads all records. lost are the containers whose records are spoilt, in both files. A record that a newer keeper
// has written is an error, a *state.FormatError, and nothing is changed then. So is one that could not be read for want
// of a descriptor or of memory (disk.Short): it may be whole, and what is lost is ended. The keeper is started again.
func (t *Table) Load() (records []*Container, lost []string, err error) {
	dir := t.dir
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	var strays []string
	ids := map[string]bool{}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), recordSpareSuffix)
		if !ok {
			id, ok = strings.CutSuffix(e.Name(), recordSuffix)
		}
		if !ok || strings.HasPrefix(id, ".") {
			strays = append(strays, filepath.Join(dir, e.Name()))
			continue
		}
		ids[id] = true
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		path := t.path(id)
		r, err := readRecord(path, id)
		var newer *state.FormatError
		if err != nil && !errors.As(err, &newer) {
			if disk.Short(err) { // the second file may be older, and tell of a start that is over by now
				return nil, nil, err
			}
			spare, spareErr := readRecord(strings.TrimSuffix(path, recordSuffix)+recordSpareSuffix, id)
			if spareErr == nil {
				t.log.Warn("a container's record is spoilt, and its second file was read",
					"container_id", id, "error", err)
			}
			if disk.Short(spareErr) {
				return nil, nil, spareErr
			}
			r, err = spare, errors.Join(err, spareErr)
			if spareErr == nil {
				err = nil
			}
		}
		switch {
		case errors.As(err, &newer):
			return nil, nil, err
		case err != nil:
			t.log.Error("a container's record is unreadable", "container_id", id, "error", err)
			lost = append(lost, id)
		default:
			records = append(records, r)
		}
	}
	for _, path := range strays {
		_ = os.Remove(path)
	}
	return records, lost, nil
}

// readFile is a variable for tests.
var readFile = os.ReadFile

// readRecord reads one file of a record. One without a seal is of a keeper from before there were seals.
func readRecord(path, id string) (*Container, error) {
	b, err := readFile(path)
	if err == nil {
		err = state.Unseal(path, b)
	}
	r := &Container{}
	if err == nil {
		err = codec.Unmarshal(b, r)
	}
	if err == nil && r.ID != id {
		err = fmt.Errorf("%s is the record of %q", path, r.ID)
	}
	return r, err
}
