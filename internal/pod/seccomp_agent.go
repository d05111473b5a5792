package pod

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/pod/index"
)

// ofAgent adds the seccomp profile of a container to an error about the agent of the profile. The keeper names the
// socket of the agent, and does not know the file that the profile is from.
func (m *Manager) ofAgent(c *index.Container, err error) error {
	if !errdefs.IsFailedPrecondition(err) {
		return err
	}
	spec, lerr := c.LoadSpec()
	if lerr != nil || spec.Linux == nil || spec.Linux.Seccomp == nil {
		return err
	}
	if socket := spec.Linux.Seccomp.ListenerPath; socket == "" || !strings.Contains(err.Error(), socket) {
		return err
	}
	profile := c.Record().Config.Security.Seccomp
	if profile == nil {
		pod := c.Sandbox.Record()
		h, herr := m.settings.Load().handler(pod.RuntimeName())
		if herr != nil || h.Spec.Seccomp == nil {
			return err
		}
		profile = h.Spec.Seccomp
	}
	return fmt.Errorf("seccomp profile %s: %w", profile.LocalhostRef, err)
}
