package pod

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"berth/internal/model"
)

// podCIDRSetter is a network that takes the node's address range from the kubelet.
type podCIDRSetter interface {
	SetPodCIDR(ctx context.Context, cidr string) error
}

// SetPodCIDR gives the network the range that the kubelet has for this node's pods. Empty says nothing.
func (m *Manager) SetPodCIDR(ctx context.Context, cidr string) error {
	if cidr == "" {
		return nil
	}
	n, ok := m.cfg.Network.(podCIDRSetter)
	if !ok {
		return model.FieldNodePodCIDR.Wrong(fmt.Errorf("%q: this node's network takes no address range: %w",
			cidr, errdefs.ErrFailedPrecondition))
	}
	return n.SetPodCIDR(ctx, cidr)
}
