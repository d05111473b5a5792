package manager

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"berth/internal/device"
)

// Register takes a plugin in. The plugin may begin to serve only when it has the answer, so it is called back
// afterwards.
func (m *Manager) Register(ctx context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if err := m.register(ctx, req); err != nil {
		m.log.Warn("a device plugin is refused", "resource", req.GetResourceName(),
			"endpoint", req.GetEndpoint(), "error", err)
		return nil, fmt.Errorf("register device plugin: %w", err)
	}
	m.log.Info("a device plugin registers", "resource", req.GetResourceName(), "endpoint", req.GetEndpoint())
	return &pluginapi.Empty{}, nil
}

func (m *Manager) register(ctx context.Context, req *pluginapi.RegisterRequest) error {
	name, endpoint := req.GetResourceName(), req.GetEndpoint()
	if v := req.GetVersion(); v != pluginapi.Version {
		return fmt.Errorf("version %q is not %s: %w", v, pluginapi.Version, errdefs.ErrInvalidArgument)
	}
	if err := device.CheckResource(name); err != nil {
		return err
	}
	if !filepath.IsLocal(endpoint) || filepath.Clean(endpoint) == "." {
		return fmt.Errorf("endpoint %q is not the name of a socket in %s: %w", endpoint, m.cfg.Dir,
			errdefs.ErrInvalidArgument)
	}
	if endpoint = filepath.Clean(endpoint); endpoint == SocketName {
		return fmt.Errorf("endpoint %q is the socket of the device manager itself: %w", endpoint, errdefs.ErrInvalidArgument)
	}
	for {
		m.mu.Lock()
		r := m.resources[name]
		if r == nil || r.plugin == nil || r.endpoint == endpoint {
			m.takeIn(name, endpoint, req.GetOptions())
			m.mu.Unlock()
			return nil
		}
		other, at := r.plugin, r.endpoint
		m.mu.Unlock()
		// One that has just died may not have been missed yet.
		lives := other.alive(ctx)
		if err := ctx.Err(); err != nil {
			return err // and the probe has ended with it, so nothing is known of the other
		}
		if m.ctx.Err() != nil {
			return fmt.Errorf("the device manager ends: %w", errdefs.ErrUnavailable) // no plugin goes away any more
		}
		if lives {
			return fmt.Errorf("resource %s is taken by the plugin at %s, which lives: %w", name, at, errdefs.ErrAlreadyExists)
		}
		other.end()
		m.gone(other, "another registers, and it does not answer")
	}
}

// takeIn puts a plugin in its place and follows it. The caller holds m.mu.
func (m *Manager) takeIn(name, endpoint string, options *pluginapi.DevicePluginOptions) {
	r := m.resources[name]
	if r == nil {
		r = &resource{name: name}
		m.resources[name] = r
	}
	if r.plugin != nil {
		r.plugin.end()
	}
	if r.forget != nil {
		r.forget.Stop()
		r.forget = nil
	}
	// What its predecessor had is unknown until it says so itself.
	for i := range r.devices {
		r.devices[i].Healthy = false
	}
	r.listed = false
	r.endpoint, r.problem = endpoint, ""
	r.plugin = m.newPlugin(name, endpoint, options)
	m.background.Go(r.plugin.run)
}
