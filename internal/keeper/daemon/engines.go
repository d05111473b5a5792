package daemon

import (
	"context"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/keeper/filter"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/runtime/libcontainer"
	"berth/internal/keeper/runtime/plan"
	"berth/internal/keeper/runtime/selector"
	"berth/internal/keeper/runtime/stage"
)

// Engines are all container engines of a node behind one interface, as package selector has them.
type Engines interface {
	runtime.Runtime
	runtime.Checkpointer
	runtime.Signaller
	// RemoveUnknown kills and removes what there is of a container of which nothing but the ID is known. It is
	// idempotent.
	RemoveUnknown(ctx context.Context, c runtime.Container) error
	// CompileSeccomp compiles a seccomp profile before a container has it.
	CompileSeccomp(ctx context.Context, profile *specs.LinuxSeccomp) error
}

// openEngines opens the configured engines, else the node's own.
func (s *Server) openEngines() error {
	if s.cfg.Engines != nil {
		s.runtime = s.cfg.Engines(s.dir(), s.orphans.Begin)
		return nil
	}
	stages, err := plan.OpenStages(s.cfg.Dir, s.log)
	if err != nil {
		return err
	}
	go stage.WarmUp()
	filters := filter.NewStore(filepath.Join(s.cfg.Dir, filterDir), s.containers.usedFilters, s.log)
	lib := libcontainer.New(s.dir(), stages, filters, s.orphans.Begin)
	s.runtime = selector.New(s.dir(), s.orphans.Begin, stage.New(s.dir(), stages, filters, lib), lib)
	return nil
}
