package libcontainer

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/disk"
	"berth/internal/keeper/filter"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/runtime/plan"
	"berth/internal/keeper/stage"
	"berth/internal/rawenv"
)

// Where a container's init process is set up by libcontainer (see plan.Stages.NotStaged), that would compile the
// seccomp profile anew each time. So it is told to execute the last stage, with all rights and without a filter, and
// the stage gives up what libcontainer would have: user, capabilities, the right to gain more, with a filter that is
// compiled already.

// smallAddressSpace is the limit below which the stage might not fit: its program is the keeper's.
const smallAddressSpace = 256 << 20

// lastStage makes p that of the last stage; nil, with p and config as they were, where libcontainer must do it all.
func (e *Engine) lastStage(
	ctx context.Context, c runtime.Container, spec *specs.Spec, config *configs.Config, p *libcontainer.Process,
	join *record.Join,
) (*stage.Last, error) {
	// libcontainer would alter variables that are not UTF-8, too.
	profile, raw := spec.Linux.Seccomp, rawenv.Of(spec.Process.Env)
	if join == nil || profile == nil && raw == nil || len(config.Hooks[configs.StartContainer]) > 0 ||
		plan.ExecDeclines(spec) != "" ||
		plan.ExecDeclines(p) != "" {
		return nil, nil
	}
	// The stage is executed by a path below /proc.
	if !slices.ContainsFunc(config.Mounts, func(m *configs.Mount) bool {
		return filepath.Clean(m.Destination) == "/proc" && m.Device == "proc"
	}) {
		return nil, nil
	}
	for _, l := range p.Rlimits {
		if (l.Type == unix.RLIMIT_AS || l.Type == unix.RLIMIT_DATA) && l.Soft < smallAddressSpace {
			return nil, nil
		}
	}
	proc, _, err := plan.Staged(spec.Process)
	if proc == nil || err != nil {
		return nil, err
	}
	rights, err := plan.Rights()
	if err != nil {
		return nil, err
	}
	if profile != nil {
		key, compiled, err := plan.Filter(ctx, e.filters, c, profile)
		if compiled == nil || err != nil {
			return nil, err
		}
		proc.Filter, join.Filter, join.FilterSum = compiled, key, filter.Sum(compiled.Bytes())
	}
	proc.Terminal = false // libcontainer makes it
	last, err := e.stages.Program.Finish(proc)
	if err != nil {
		return nil, err
	}
	no := false
	// With a HOME libcontainer does not look into the container's /etc/passwd, which may be anything, for nothing.
	p.Args, p.ExtraFiles, p.Env = last.Args, last.Files, []string{"HOME=/"}
	p.UID, p.GID, p.AdditionalGroups = 0, 0, nil
	p.Capabilities, p.NoNewPrivileges, p.AppArmorProfile = rights, &no, ""
	config.AppArmorProfile, config.ProcessLabel, p.Label = "", "", ""
	return last, nil
}

// completeState puts what the last stage did into libcontainer's state, before libcontainer starts a further process by
// it.
func (e *Engine) completeState(c runtime.Container) error {
	rec := c.Record()
	join, engine := rec.Join, rec.Engine()
	if join == nil || engine == protocol.EngineLibcontainer {
		return nil
	}
	return e.editState(c, func(config map[string]json.RawMessage) (changed bool, err error) {
		if have := string(config["seccomp"]); have != "" && have != "null" {
			return false, nil
		}
		if join.Filter != "" {
			profile, err := e.filters.Profile(join.Filter)
			if err != nil {
				return false, fmt.Errorf("its seccomp profile: %w", err)
			}
			config["seccomp"] = record.JSON(profile)
		}
		config["apparmor_profile"], config["process_label"] = record.JSON(join.AppArmor), record.JSON(join.Label)
		return true, nil
	})
}

// editState changes the configuration in libcontainer's state of a container.
func (e *Engine) editState(c runtime.Container,
	edit func(config map[string]json.RawMessage) (changed bool, err error)) error {
	path := filepath.Join(e.dir.State(c.ID()), "state.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var state, config map[string]json.RawMessage
	if err := json.Unmarshal(b, &state); err != nil {
		return err
	}
	if err := json.Unmarshal(state["config"], &config); err != nil {
		return err
	}
	if changed, err := edit(config); err != nil || !changed {
		return err
	}
	state["config"] = record.JSON(config)
	return disk.WriteOrOverwrite(path, record.JSON(state))
}
