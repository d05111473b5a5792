package pod

import (
	"context"
	"slices"
	"strings"

	"berth/internal/model"
)

// ListSandboxes returns the sandboxes that a filter selects, newest first.
func (m *Manager) ListSandboxes(_ context.Context, f model.SandboxFilter) ([]*model.SandboxStatus, error) {
	all := m.index.Sandboxes()
	list := make([]*model.SandboxStatus, 0, len(all))
	for _, s := range all {
		if !strings.HasPrefix(s.ID(), f.ID) {
			continue
		}
		st := s.Status()
		if st.Making || f.State != "" && st.State != f.State || !matchLabels(st.Config.Labels, f.Labels) {
			continue
		}
		list = append(list, st)
	}
	slices.SortFunc(list, func(a, b *model.SandboxStatus) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return list, nil
}
