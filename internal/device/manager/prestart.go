package manager

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// PreStart tells the plugins that ask for it that a container which holds devices of theirs is about to start.
func (m *Manager) PreStart(ctx context.Context, containerID string) error {
	type telling struct {
		resource string
		plugin   *plugin
		ids      []string
		idle     bool // the plugin that allocated the devices does not want to be told
	}
	var all []telling
	m.mu.Lock()
	for _, p := range m.pods {
		for _, g := range p.rec.Grants {
			if g.ContainerID != containerID || g.Released {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(g.Devices)) {
				required, known := g.PreStart[name]
				t := telling{resource: name, ids: g.Devices[name], idle: known && !required}
				if r := m.resources[name]; r != nil {
					t.plugin = r.plugin
				}
				all = append(all, t)
			}
		}
	}
	m.mu.Unlock()
	for _, t := range all {
		if t.plugin == nil && t.idle {
			continue
		}
		if t.plugin == nil {
			return fmt.Errorf("device plugin of %s is away: %w", t.resource, errdefs.ErrUnavailable)
		}
		if !t.plugin.options.Load().GetPreStartRequired() {
			continue
		}
		_, err := call(t.plugin, ctx,
			"PreStartContainer", func(ctx context.Context) (*pluginapi.PreStartContainerResponse, error) {
				return t.plugin.api.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: t.ids})
			})
		if err != nil {
			return err
		}
	}
	return nil
}
