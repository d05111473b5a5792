package manifest

import (
	corev1 "k8s.io/api/core/v1"

	"berth/internal/device"
)

// extended tells whether a resource is one of a device plugin.
func extended(name corev1.ResourceName) bool { return device.CheckResource(string(name)) == nil }

// devices are what the pod's containers ask for of device plugins, in the order in which they are made.
func (p *Pod) devices() []device.Ask {
	var asks []device.Ask
	for c := range containers(&p.Spec) {
		limits := map[string]int{}
		for name, limit := range c.Resources.Limits {
			if n := limit.Value(); extended(name) && n > 0 {
				limits[string(name)] = int(n)
			}
		}
		if len(limits) > 0 {
			asks = append(asks, device.Ask{Container: c.Name, Kind: p.Kind(c), Limits: limits})
		}
	}
	return asks
}
