package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"berth/internal/keeper/wholefile"
	"berth/internal/state"
)

// Table is the directory with the records of all containers of a keeper.
type Table struct {
	dir string
	log *slog.Logger
}

// NewTable returns the table in a directory, which exists.
func NewTable(dir string, log *slog.Logger) *Table { return &Table{dir, log} }

func (t *Table) path(id string) string { return filepath.Join(t.dir, id+rowSuffix) }

// A row has two files, which say the same unless the keeper is killed between them: the first is the newer one then.
const rowSuffix, rowSpareSuffix = ".json", ".json.spare"

// Save writes a row into both of its files, with the seal of a record. The first is written whole or not at all. It
// does not sync: the table does not outlive a boot.
func (t *Table) Save(r *Container) error {
	b, err := json.Marshal(r)
	if err == nil {
		b, err = state.Seal(b)
	}
	if err != nil {
		return err
	}
	path := t.path(r.ID)
	if err = wholefile.Write(path, b); err == nil {
		err = saveSpare(strings.TrimSuffix(path, rowSuffix)+rowSpareSuffix, b)
	}
	if err != nil {
		return fmt.Errorf("save container %s: %w", r.ID, err)
	}
	return nil
}

// saveSpare writes a row's second file. On a full disk there is none: one that is older than the first would tell of a
// start that is over.
func saveSpare(path string, b []byte) error {
	err := state.Overwrite(path, b)
	if state.Full(err) {
		if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	return err
}

// Forget removes a row. The first file goes last: a second one alone is a row whose first file was lost.
func (t *Table) Forget(id string) error {
	path := t.path(id)
	for _, p := range []string{strings.TrimSuffix(path, rowSuffix) + rowSpareSuffix, path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Load reads all rows. lost are the containers whose rows are spoilt, in both files. A row that a newer keeper has
// written is an error, a *state.FormatError, and nothing is changed then.
func (t *Table) Load() (rows []*Container, lost []string, err error) {
	dir := t.dir
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	var strays []string
	ids := map[string]bool{}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), rowSpareSuffix)
		if !ok {
			id, ok = strings.CutSuffix(e.Name(), rowSuffix)
		}
		if !ok || strings.HasPrefix(id, ".") {
			strays = append(strays, filepath.Join(dir, e.Name()))
			continue
		}
		ids[id] = true
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		path := t.path(id)
		r, err := readRow(path, id)
		var newer *state.FormatError
		if err != nil && !errors.As(err, &newer) {
			spare, spareErr := readRow(strings.TrimSuffix(path, rowSuffix)+rowSpareSuffix, id)
			if spareErr == nil {
				t.log.Warn("a row of the table is spoilt, and its second file was read", "container", id, "error", err)
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
			t.log.Error("row of the table is unreadable", "container", id, "error", err)
			lost = append(lost, id)
		default:
			rows = append(rows, r)
		}
	}
	for _, path := range strays {
		_ = os.Remove(path)
	}
	return rows, lost, nil
}

// readRow reads one file of a row. One without a seal is of a keeper from before there were seals.
func readRow(path, id string) (*Container, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		err = state.Unseal(path, b)
	}
	r := &Container{}
	if err == nil {
		err = json.Unmarshal(b, r)
	}
	if err == nil && r.ID != id {
		err = fmt.Errorf("%s is the row of %q", path, r.ID)
	}
	return r, err
}
