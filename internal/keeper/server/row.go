package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/keeper"
	"berth/internal/state"
)

// row is a container as it is written to disk and given into custody: what another keeper needs to go on.
type row struct {
	ID      string `json:"id"`
	Nonce   string `json:"nonce"` // of the call that ran it
	PodID   string `json:"podID,omitempty"`
	Name    string `json:"name,omitempty"`
	LogPath string `json:"logPath,omitempty"`
	// Runtime is the OCI runtime binary; empty: this process.
	Runtime     string `json:"runtime,omitempty"`
	RuntimeRoot string `json:"runtimeRoot,omitempty"`
	Systemd     bool   `json:"systemd,omitempty"`
	Stdin       bool   `json:"stdin,omitempty"`
	StdinOnce   bool   `json:"stdinOnce,omitempty"`
	Terminal    bool   `json:"terminal,omitempty"`
	Reaper      bool   `json:"reaper,omitempty"`
	Root        string `json:"root,omitempty"`
	CgroupsPath string `json:"cgroupsPath,omitempty"` // as the spec has it
	// Cgroups are the directories by controller (v1), or the one under "" (v2).
	Cgroups map[string]string `json:"cgroups,omitempty"`
	// Join is what execs need; nil: they go through libcontainer.
	Join *joinable `json:"join,omitempty"`
	// Choice is what the request asked to be set up by, Setup what has been done. The latter is empty until then, and where an
	// earlier keeper has started the container.
	Choice keeper.SetupChoice `json:"setupChoice,omitempty"`
	Setup  keeper.Setup       `json:"setup,omitzero"`

	State keeper.State `json:"state"`
	// Held: all is set up and in custody, and the runtime has yet to let the program begin.
	Held bool `json:"held,omitempty"`
	// Waits is the command line of the process while it is held, unless that is a stage.
	Waits      string    `json:"waits,omitempty"`
	PID        int       `json:"pid,omitempty"`
	Start      uint64    `json:"start,omitempty"` // of the process, see pidfd.StartTime
	StartedAt  time.Time `json:"startedAt,omitzero"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	ExitCode   int       `json:"exitCode,omitempty"`
	OOMKilled  bool      `json:"oomKilled,omitempty"`
	Lost       bool      `json:"lost,omitempty"`
	LogDone    bool      `json:"logDone,omitempty"`
	Orphan     bool      `json:"orphan,omitempty"`

	// Checkpoint is the nonce of the call for which the container is frozen, CheckpointBy the session that made it.
	Checkpoint   string `json:"checkpoint,omitempty"`
	CheckpointBy string `json:"checkpointBy,omitempty"`
	// CheckpointGroup is the process group that writes it down.
	CheckpointGroup int `json:"checkpointGroup,omitempty"`
}

// setup is what has set the container up.
func (r *row) setup() keeper.Setup {
	switch {
	case r.Setup != keeper.Setup{} || r.State == keeper.StateStarting:
		return r.Setup
	case r.Runtime != "":
		return ociSetup(r.Runtime)
	}
	const reason = "an earlier version of the keeper has decided"
	s := keeper.Setup{Engine: keeper.EngineLibcontainer, Reason: reason, ExecEngine: keeper.EngineLibcontainer, ExecReason: reason}
	if r.Join != nil {
		s.ExecEngine = keeper.EngineStage
		switch {
		case r.Join.Whole:
			s.Engine = keeper.EngineStage
		case r.Join.Staged:
			s.Engine = keeper.EngineLibcontainerStage
		}
	}
	return s
}

// ociSetup is that of a container of an OCI runtime binary.
func ociSetup(path string) keeper.Setup {
	reason := "the OCI runtime " + path + " is asked for"
	return keeper.Setup{Engine: keeper.EngineOCI, Reason: reason, ExecEngine: keeper.EngineOCI, ExecReason: reason}
}

// execRow is a further process, likewise.
type execRow struct {
	ContainerID string `json:"containerID"`
	ExecID      string `json:"execID"`
	Nonce       string `json:"nonce"`
	// Held: the process is in custody, and its program has yet to begin, unless custody says that it Began.
	Held  bool   `json:"held,omitempty"`
	Began bool   `json:"began,omitempty"`
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	// Ends is when all of it is killed, by monotonic; 0: never, or an earlier version of the keeper has started it.
	Ends time.Duration `json:"ends,omitempty"`
	// Deadline is the same by the wall clock, which somebody may set meanwhile. It is for earlier versions, and read where these wrote it.
	Deadline time.Time `json:"deadline,omitzero"`
	// Cgroup holds all of it, where it has one of its own.
	Cgroup   string `json:"cgroup,omitempty"`
	Orphan   bool   `json:"orphan,omitempty"`
	Exited   bool   `json:"exited,omitempty"`
	ExitCode int    `json:"exitCode,omitempty"`
	TimedOut bool   `json:"timedOut,omitempty"`
}

// left is how long an exec may go on, which is not positive where its time is over. It is false for one that has no end.
func (r *execRow) left() (time.Duration, bool) {
	if r.Ends != 0 {
		return r.Ends - monotonic(), true
	}
	return time.Until(r.Deadline), !r.Deadline.IsZero()
}

// kept is what a packet that gives something into custody holds.
type kept struct {
	Container *row     `json:"container,omitempty"`
	Exec      *execRow `json:"exec,omitempty"`
}

// checkID keeps names of containers and execs such that they are file names.
func checkID(kind, id string) error {
	ok := id != "" && len(id) <= 200 && id != "." && id != ".."
	for i := 0; ok && i < len(id); i++ {
		c := id[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("_+-.", c) >= 0
	}
	if !ok {
		return fmt.Errorf("%s ID %q: %w", kind, id, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (s *Server) rowPath(id string) string { return filepath.Join(s.cfg.Dir, rowsDir, id+rowSuffix) }

// A row has two files, which say the same unless the keeper is killed between them: the first is the newer one then.
const rowSuffix, rowSpareSuffix = ".json", ".json.spare"

// save writes a row into both of its files, with the seal of a record. The first is written whole or not at all. It does not sync: the
// table does not outlive a boot.
func (s *Server) save(r *row) error {
	b, err := json.Marshal(r)
	if err == nil {
		b, err = state.Seal(b)
	}
	if err != nil {
		return err
	}
	path := s.rowPath(r.ID)
	if err = writeWhole(path, b); err == nil {
		err = saveSpare(strings.TrimSuffix(path, rowSuffix)+rowSpareSuffix, b)
	}
	if err != nil {
		return fmt.Errorf("save container %s: %w", r.ID, err)
	}
	return nil
}

// saveSpare writes a row's second file. On a full disk there is none: one that is older than the first would tell of a start that is over.
func saveSpare(path string, b []byte) error {
	err := state.Overwrite(path, b)
	if state.Full(err) {
		if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	return err
}

// forget removes a row. The first file goes last: a second one alone is a row whose first file was lost.
func (s *Server) forget(id string) error {
	path := s.rowPath(id)
	for _, p := range []string{strings.TrimSuffix(path, rowSuffix) + rowSpareSuffix, path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// load reads all rows. lost are the containers whose rows are spoilt, in both files. A row that a newer keeper has written is an error, a
// *state.FormatError, and nothing is changed then.
func (s *Server) load() (rows []*row, lost []string, err error) {
	dir := filepath.Join(s.cfg.Dir, rowsDir)
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
		path := s.rowPath(id)
		r, err := readRow(path, id)
		var newer *state.FormatError
		if err != nil && !errors.As(err, &newer) {
			spare, spareErr := readRow(strings.TrimSuffix(path, rowSuffix)+rowSpareSuffix, id)
			if spareErr == nil {
				s.log.Warn("a row of the table is spoilt, and its second file was read", "container", id, "error", err)
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
			s.log.Error("row of the table is unreadable", "container", id, "error", err)
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
func readRow(path, id string) (*row, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		err = state.Unseal(path, b)
	}
	r := &row{}
	if err == nil {
		err = json.Unmarshal(b, r)
	}
	if err == nil && r.ID != id {
		err = fmt.Errorf("%s is the row of %q", path, r.ID)
	}
	return r, err
}
