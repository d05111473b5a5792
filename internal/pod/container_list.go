package pod

import (
	"context"
	"slices"
	"strings"

	"berth/internal/model"
)

// ListContainers returns the containers that a filter selects, newest first.
func (m *Manager) ListContainers(_ context.Context, f model.ContainerFilter) ([]*model.ContainerStatus, error) {
	all := m.index.Containers()
	list := make([]*model.ContainerStatus, 0, len(all))
	for _, c := range all {
		if !strings.HasPrefix(c.ID(), f.ID) || !strings.HasPrefix(c.Sandbox.ID(), f.SandboxID) {
			continue
		}
		st := c.Status()
		if c.Making() || len(f.States) > 0 && !slices.Contains(f.States, st.State) ||
			!matchLabels(st.Config.Labels, f.Labels) {
			continue
		}
		list = append(list, st)
	}
	slices.SortFunc(list, func(a, b *model.ContainerStatus) int { return b.CreatedAt.Compare(a.CreatedAt) })
	return list, nil
}

func matchLabels(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}
