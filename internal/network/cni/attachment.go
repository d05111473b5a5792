package cni

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"

	"berth/internal/model"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Interface is the name of the interface in the pod.
const Interface = "eth0"

// Attachment is a pod as CNI sees it.
type Attachment struct {
	ID, Name, Namespace, UID string
	NetNS                    string // path of the pinned network namespace
	Ports                    []model.PortMapping
	Annotations              map[string]string
	CgroupParent             string
	DNS                      *model.DNS
	CIDRs                    []netip.Prefix // what the node was told to give addresses from; may be none
	Before                   []netip.Addr   // the addresses that the pod had, and asks for again; none: a new pod
}

// record is an attachment on disk.
type record struct {
	ID           string                     `json:"id"`
	Pod          string                     `json:"pod"`
	NetNS        string                     `json:"netns"`
	Network      json.RawMessage            `json:"network"` // of the configuration that it was joined with
	Args         [][2]string                `json:"args"`
	Capabilities map[string]json.RawMessage `json:"capabilities"`
}

func newRecord(a Attachment, list *libcni.NetworkConfigList) (*record, error) {
	network, err := encode(list)
	if err == nil && len(a.Before) > 1 {
		network, err = askFor(network, a.Before)
	}
	if err != nil {
		return nil, fmt.Errorf("network %s: %w", list.Name, err)
	}
	capabilities, err := a.capabilities()
	if err != nil {
		return nil, err
	}
	r := &record{
		ID: a.ID, Pod: a.Namespace + "/" + a.Name, NetNS: a.NetNS, Network: network,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", a.Namespace},
			{"K8S_POD_NAME", a.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", a.ID},
			{"K8S_POD_UID", a.UID},
		},
		Capabilities: map[string]json.RawMessage{},
	}
	if len(a.Before) > 0 {
		r.Args = append(r.Args, [2]string{"IP", a.Before[0].String()})
	}
	for name, value := range capabilities {
		if r.Capabilities[name], err = json.Marshal(value); err != nil {
			return nil, fmt.Errorf("capability %s: %w", name, err)
		}
	}
	return r, nil
}

// askFor puts addresses into the configuration of every plugin as arguments (args.cni.ips of CNI's conventions):
// of those in the environment there is room for one.
func askFor(network json.RawMessage, addrs []netip.Addr) (json.RawMessage, error) {
	var list map[string]any
	if err := json.Unmarshal(network, &list); err != nil {
		return nil, err
	}
	plugins, _ := list["plugins"].([]any)
	for _, p := range plugins {
		plugin, _ := p.(map[string]any)
		args, _ := plugin["args"].(map[string]any)
		if args == nil {
			args = map[string]any{}
		}
		conventional, _ := args["cni"].(map[string]any)
		if conventional == nil {
			conventional = map[string]any{}
		}
		conventional["ips"], args["cni"], plugin["args"] = addrs, conventional, args
	}
	return json.Marshal(list)
}

// runtime is the record in libcni's words.
func (r *record) runtime() (*libcni.NetworkConfigList, *libcni.RuntimeConf, error) {
	list, err := libcni.NetworkConfFromBytes(r.Network)
	if err != nil {
		return nil, nil, fmt.Errorf("record of pod %s: %w", r.Pod, err)
	}
	conf := &libcni.RuntimeConf{
		ContainerID: r.ID, NetNS: r.NetNS, IfName: Interface, Args: r.Args, CapabilityArgs: map[string]any{},
	}
	for name, raw := range r.Capabilities {
		conf.CapabilityArgs[name] = raw
	}
	return list, conf, nil
}

// capabilities are what is offered to plugins; libcni passes a plugin those that its configuration asks for. The forms
// are those of https://www.cni.dev/docs/conventions/.
func (a Attachment) capabilities() (map[string]any, error) {
	offer := map[string]any{"aliases": []string{a.Name}}
	type portMapping struct {
		HostPort      int32  `json:"hostPort"`
		ContainerPort int32  `json:"containerPort"`
		Protocol      string `json:"protocol"`
		HostIP        string `json:"hostIP,omitempty"`
	}
	var ports []portMapping
	for _, p := range a.Ports {
		if p.HostPort == 0 {
			continue
		}
		protocol := p.Protocol
		if protocol == "" {
			protocol = model.TCP
		}
		ports = append(ports, portMapping{p.HostPort, p.ContainerPort, string(protocol), p.HostIP})
	}
	if len(ports) > 0 {
		offer["portMappings"] = ports
	}
	bandwidth, err := a.bandwidth()
	if err != nil {
		return nil, err
	}
	if len(bandwidth) > 0 {
		offer["bandwidth"] = bandwidth
	}
	if a.DNS != nil {
		offer["dns"] = map[string][]string{
			"servers": a.DNS.Servers, "searches": a.DNS.Searches, "options": a.DNS.Options,
		}
	}
	var ranges [][]map[string]string
	for _, c := range a.CIDRs {
		ranges = append(ranges, []map[string]string{{"subnet": c.String()}})
	}
	if len(ranges) > 0 {
		offer["ipRanges"] = ranges
	}
	if len(a.Before) > 0 {
		offer["ips"] = a.Before
	}
	if a.CgroupParent != "" {
		offer["cgroupPath"] = a.CgroupParent
	}
	if len(a.Annotations) > 0 {
		offer["io.kubernetes.cri.pod-annotations"] = a.Annotations
	}
	return offer, nil
}

// bandwidth reads the two annotations of Kubernetes: bits a second, from 1k to 1P as Kubernetes has it.
func (a Attachment) bandwidth() (map[string]uint64, error) {
	limits := map[string]uint64{}
	for _, direction := range []string{"ingress", "egress"} {
		key := "kubernetes.io/" + direction + "-bandwidth"
		text, ok := a.Annotations[key]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %q: %w: %w", key, text, err, errdefs.ErrInvalidArgument)
		}
		if v := q.Value(); v < 1e3 || v > 1e15 {
			return nil, fmt.Errorf("annotation %s: %s is not between 1k and 1P: %w", key, text, errdefs.ErrInvalidArgument)
		}
		limits[direction+"Rate"] = uint64(q.Value())
		limits[direction+"Burst"] = math.MaxInt32 // no burst is asked for, and the plugin needs one
	}
	return limits, nil
}
