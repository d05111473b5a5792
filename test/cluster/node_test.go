package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"berth/test/cluster/host"
	"berth/test/kubernetes"
	"berth/test/node"
)

const nodeCount = 3

// nodeName is what the cluster calls its i-th node, from 1.
func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

func addressOf(i int) string { return fmt.Sprintf("10.203.0.%d", 10+i) }

func podsOf(i int) string { return fmt.Sprintf("10.204.%d.0/24", i) }

// The directories of a node that a reboot does not change, by where the node has them.
var lasting = map[string]string{
	"berth": "/var/lib/berth", "kubelet": "/var/lib/kubelet", "logs": "/var/log/pods", "containerd": "/var/lib/containerd",
	"volumes": "/srv/volumes",
}

// berthPrograms is where a node has the programs of Berth that it runs.
const berthPrograms = "/opt/berth"

// member is a node of the cluster.
type member struct {
	c       *cluster
	number  int
	name    string
	address string
	dir     string
	cni     bool // pods are connected by CNI plugins, not by the built-in bridge

	host                        *host.Host
	berthd, kubelet, proxy      *host.Service
	containerd                  *host.Service // in place of berthd
	kubeconfig, proxyKubeconfig string
	kubeletBinary, proxyBinary  string
}

// tunables are the sysctls that programs of Kubernetes set for a whole machine, with the values that they want.
var tunables = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// newMember prepares a node: its certificates and its object, which has the node's range of addresses.
func (c *cluster) newMember(ctx context.Context, i int, cni bool) (*member, error) {
	m := &member{
		c: c, number: i, name: nodeName(i), address: addressOf(i), cni: cni, dir: filepath.Join(c.dir, nodeName(i)),
	}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return nil, err
	}
	if err := m.install(c.programs); err != nil {
		return nil, err
	}
	var err error
	if m.kubeletBinary, err = kubernetes.Kubelet.Build(ctx); err != nil {
		return nil, err
	}
	if m.proxyBinary, err = kubernetes.Proxy.Build(ctx); err != nil {
		return nil, err
	}
	if m.kubeconfig, err = c.ca.kubeconfig(m.name, apiURL, "system:node:"+m.name, "system:nodes"); err != nil {
		return nil, err
	}
	err = c.ca.issue(m.name+"-serving", "system:node:"+m.name, []string{"system:nodes"}, []string{m.name, m.address})
	if err != nil {
		return nil, err
	}
	if m.proxyKubeconfig, err = c.ca.kubeconfig(m.name+"-proxy", apiURL, "system:kube-proxy"); err != nil {
		return nil, err
	}
	object, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Node",
		"metadata": map[string]any{"name": m.name},
		"spec":     map[string]any{"podCIDR": podsOf(i), "podCIDRs": []string{podsOf(i)}},
	})
	if err != nil {
		return nil, err
	}
	if _, err := c.kubectl(ctx, string(object), "create", "-f", "-"); err != nil {
		return nil, err
	}
	return m, nil
}

// boot starts the node's host and all that runs on it.
func (m *member) boot(ctx context.Context) error {
	binds := []host.Bind{{From: filepath.Join(m.dir, "programs"), At: berthPrograms}, m.c.pkiBind()}
	for from, at := range lasting {
		binds = append(binds, host.Bind{From: filepath.Join(m.dir, from), At: at})
	}
	files, err := m.files()
	if err != nil {
		return err
	}
	m.host, err = host.Start(ctx, host.Options{
		Name: fmt.Sprintf("%s%d", m.c.name, m.number), Hostname: m.name, Dir: m.dir, Binds: binds,
		Files: files, Sysctls: tunables,
	})
	if err != nil {
		return err
	}
	if err := m.c.control.Join(m.host, m.address+"/24"); err != nil {
		return err
	}
	_, err = m.host.Run(ctx, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=1")
	if err != nil {
		return err
	}
	if err := m.host.Route("default", controlAddress); err != nil {
		return err
	}
	for i := 1; i <= nodeCount; i++ {
		if i == m.number {
			continue
		}
		if err := m.host.Route(podsOf(i), addressOf(i)); err != nil {
			return err
		}
	}
	if err := m.startBerth(ctx); err != nil {
		return err
	}
	if m.proxy, err = m.host.Service("kube-proxy", m.proxyBinary, "--config=/etc/kubernetes/proxy.json"); err != nil {
		return err
	}
	return m.startKubelet()
}

// startBerth starts berthd and waits until the runtime is ready. The network is that once the kubelet has told the
// node's range.
func (m *member) startBerth(ctx context.Context) error {
	var err error
	m.berthd, err = m.host.Service("berthd", filepath.Join(berthPrograms, "berthd"), "--config=/etc/berth/config.toml")
	if err != nil {
		return err
	}
	return within(time.Minute, "berthd answers on "+m.name, func() error {
		if !m.berthd.Running() {
			return fmt.Errorf("it has ended: %s", m.berthd.Tail())
		}
		_, err := m.host.Run(ctx, filepath.Join(berthPrograms, "berth"), "version")
		return err
	})
}

func (m *member) startKubelet() error {
	var err error
	m.kubelet, err = m.host.Service("kubelet", m.kubeletBinary, "--config=/etc/kubernetes/kubelet.json",
		"--kubeconfig="+m.kubeconfig, "--hostname-override="+m.name, "--node-ip="+m.address, "--v=2")
	return err
}

// files are the node's configuration.
func (m *member) files() (map[string]string, error) {
	files := map[string]string{
		"/etc/hosts":       "127.0.0.1 localhost\n" + m.address + " " + m.name + "\n",
		"/etc/hostname":    m.name + "\n",
		"/etc/resolv.conf": "nameserver " + controlAddress + "\n",
		"/etc/machine-id":  fmt.Sprintf("%032x\n", m.number),
		"/etc/berth/config.toml": "containerd_address = \"/run/containerd/containerd.sock\"\n" +
			"[network]\npod_cidr = [\"" + podsOf(m.number) + "\"]\n" +
			"non_masquerade = [\"" + podRange + "\", \"" + nodeRange + "\"]\n" +
			// The name that Kubernetes' own specs of RuntimeClasses use.
			"[runtimes.test-handler]\ntype = \"builtin\"\n",
	}
	for _, registry := range registries {
		files["/etc/berth/certs.d/"+registry+"/hosts.toml"] = "server = \"http://" + registryAddr + "\"\n"
	}
	documents := map[string]any{
		"/etc/kubernetes/kubelet.json": map[string]any{
			"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
			"authentication": map[string]any{
				"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true},
				"x509": map[string]any{"clientCAFile": m.c.ca.path("ca")},
			},
			"authorization": map[string]any{"mode": "Webhook"},
			"tlsCertFile":   m.c.ca.path(m.name + "-serving"), "tlsPrivateKeyFile": m.c.ca.keyPath(m.name + "-serving"),
			"containerRuntimeEndpoint": "unix://" + m.socket(),
			"clusterDNS":               []string{dnsService}, "clusterDomain": domain, "resolvConf": "/etc/resolv.conf",
			"cgroupDriver": "cgroupfs", "failCgroupV1": false, "failSwapOn": false, "oomScoreAdj": 0,
			"serializeImagePulls": false, "registryPullQPS": 0,
			// The disk is the machine's, and others fill it.
			"evictionHard": map[string]string{"memory.available": "50Mi"}, "imageGCHighThresholdPercent": 100,
			"nodeStatusUpdateFrequency": "3s", "syncFrequency": "10s", "maxPods": 110,
		},
		"/etc/kubernetes/proxy.json": map[string]any{
			"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
			"clientConnection": map[string]any{"kubeconfig": m.proxyKubeconfig},
			"mode":             "nftables", "clusterCIDR": podRange, "hostnameOverride": m.name, "oomScoreAdj": 0,
			// Those are limits of the whole machine.
			"conntrack": map[string]any{
				"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
			},
		},
	}
	if m.cni {
		config, err := m.cniConfig()
		if err != nil {
			return nil, err
		}
		files["/etc/cni/net.d/10-cluster.conflist"] = config
	}
	for path, document := range documents {
		data, err := json.MarshalIndent(document, "", "  ")
		if err != nil {
			return nil, err
		}
		files[path] = string(data)
	}
	return files, nil
}

// cniConfig has Debian's plugins connect pods: a bridge, addresses of the node's range, and host ports.
func (m *member) cniConfig() (string, error) {
	data, err := json.MarshalIndent(map[string]any{
		"cniVersion": "1.0.0", "name": "cluster", "plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
				"ipam": map[string]any{
					"type": "host-local", "ranges": [][]any{{map[string]any{"subnet": podsOf(m.number)}}},
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	}, "", "  ")
	return string(data), err
}

func (m *member) socket() string { return "/run/berth/berth.sock" }

// tails are the ends of what the node's programs have printed.
func (m *member) tails() string {
	var text string
	for _, s := range []*host.Service{m.berthd, m.containerd, m.kubelet, m.proxy} {
		if s != nil {
			text += fmt.Sprintf("%s of %s said last:\n%s\n", s.Name, m.name, s.Tail())
		}
	}
	return text
}

// within tries until a claim holds.
func within(d time.Duration, claim string, try func() error) error {
	d = node.Patience(d)
	for deadline := time.Now().Add(d); ; time.Sleep(200 * time.Millisecond) {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %s: %w", d, claim, err)
		}
	}
}
