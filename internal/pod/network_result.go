package pod

import (
	"cmp"
	"net"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"berth/internal/pod/record"
)

// networkResultInfo is what verbose status tells of a pod's network under cniResult, in the JSON of containerd
// (github.com/containerd/go-cni, Result).
type networkResultInfo struct {
	Interfaces map[string]*interfaceInfo
	DNS        []cnitypes.DNS
	Routes     []*cnitypes.Route
}

type interfaceInfo struct {
	IPConfigs    []ipInfo
	Mac, Sandbox string
	PciID        string
	SocketPath   string
}

type ipInfo struct {
	IP, Gateway net.IP
}

// networkResult is made of the result of the CNI plugins, or of the addresses that the bridge has given. netns is the
// path of the pod's network namespace; empty: it has none any more.
func networkResult(r *record.Sandbox, netns string) *networkResultInfo {
	out := &networkResultInfo{Interfaces: map[string]*interfaceInfo{}}
	usual := cmp.Or(r.Interface, "eth0")
	of := func(name string) *interfaceInfo {
		if out.Interfaces[name] == nil {
			out.Interfaces[name] = &interfaceInfo{}
		}
		return out.Interfaces[name]
	}
	if len(r.Network) == 0 {
		if len(r.IPs) > 0 {
			of(usual).Sandbox = netns
		}
		for _, ip := range r.IPs {
			of(usual).IPConfigs = append(of(usual).IPConfigs, ipInfo{IP: net.ParseIP(ip)})
		}
		return out
	}
	parsed, err := current.NewResult(r.Network)
	if err != nil {
		return nil
	}
	result := parsed.(*current.Result)
	for _, i := range result.Interfaces {
		*of(i.Name) = interfaceInfo{Mac: i.Mac, Sandbox: i.Sandbox, PciID: i.PciID, SocketPath: i.SocketPath}
	}
	for _, ip := range result.IPs {
		name := usual
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) {
			name = result.Interfaces[*i].Name
		}
		of(name).IPConfigs = append(of(name).IPConfigs, ipInfo{IP: ip.Address.IP, Gateway: ip.Gateway})
	}
	out.DNS, out.Routes = []cnitypes.DNS{result.DNS}, result.Routes
	return out
}
