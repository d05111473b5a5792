package life

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// standIn is a CNI plugin in the place of one that needs its agent: it writes down what it was told, and has Debian's
// bridge make the interface.
const standIn = `#!/bin/sh
conf=$(cat)
printf '%%s' "$conf" >%[1]s/$CNI_COMMAND.json
env | grep ^CNI_ >%[1]s/$CNI_COMMAND.env
cat <<'END' | exec /usr/lib/cni/bridge
%[2]s
END
`

// TestConflistsThatNetworkProvidersInstall: Flannel's, Calico's and Cilium's files as they come to a node, each chained
// with what it brings. The provider's own plugin is a stand-in, and portmap and bandwidth are the real ones.
func TestConflistsThatNetworkProvidersInstall(t *testing.T) {
	for _, name := range []string{"bridge", "host-local", "portmap", "bandwidth"} {
		if _, err := os.Stat(filepath.Join("/usr/lib/cni", name)); err != nil {
			t.Skipf("%v (Debian: containernetworking-plugins)", err)
		}
	}
	// The module that bandwidth has the kernel load brings two devices of its own.
	for _, name := range []string{"ifb0", "ifb1"} {
		if _, err := net.InterfaceByName(name); err != nil {
			t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", name).Run() })
		}
	}
	const portmap = `{"type":"portmap","snat":true,"capabilities":{"portMappings":true}}`
	for _, tc := range []struct {
		name, file, plugin, conflist, told string
		limited                            bool
	}{
		{
			"Flannel", "10-flannel.conflist", "flannel", `{"name":"cbr0","cniVersion":"0.3.1","plugins":[
{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},` + portmap + `]}`, `"hairpinMode"`, false,
		}, {
			"Calico", "10-calico.conflist", "calico", `{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[
{"type":"calico","log_level":"info","log_file_path":"/var/log/calico/cni/cni.log","datastore_type":"kubernetes",
"nodename":"node","mtu":0,"ipam":{"type":"calico-ipam"},"policy":{"type":"k8s"},
"kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"}},` + portmap +
				`,{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`, `"datastore_type"`, true,
		}, {
			"Cilium", "05-cilium.conflist", "cilium-cni", `{"cniVersion":"0.3.1","name":"cilium","plugins":[
{"type":"cilium-cni","enable-debug":false,"log-file":"/var/run/cilium/cilium-cni.log"},` + portmap + `]}`,
			`"log-file"`, false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plugins, told := t.TempDir(), t.TempDir()
			n := nodetest.Start(t, node.Options{
				CNI: true, Tables: fmt.Sprintf("[network]\ncni_bin_dirs = [%q, \"/usr/lib/cni\"]\n", plugins),
			})
			// The node's own file comes after the provider's, and is not read.
			delegate, err := json.Marshal(map[string]any{
				"cniVersion": "0.3.1", "name": n.Name, "type": "bridge", "bridge": n.Bridge, "isGateway": true, "ipMasq": true,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": filepath.Join(n.Dir, "ipam"),
					"ranges": [][]any{{map[string]any{"subnet": n.PodCIDR.String()}}},
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			script := fmt.Sprintf(standIn, told, delegate)
			if err := os.WriteFile(filepath.Join(plugins, tc.plugin), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(n.CNIConfDir, "0-"+tc.file), []byte(tc.conflist), 0o644); err != nil {
				t.Fatal(err)
			}
			port := freePort(t)
			p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
				c.PortMappings = []*cri.PortMapping{{ContainerPort: 8080, HostPort: port}}
				c.Annotations = map[string]string{
					"kubernetes.io/ingress-bandwidth": "1M", "kubernetes.io/egress-bandwidth": "2M",
				}
			})
			address := p.Status().Network.Ip
			if address == "" || p.Run().Sh("ip -4 -o addr show eth0 | grep -c "+address) != "1" {
				t.Errorf("address %q", address)
			}
			read := func(name string) string {
				data, err := os.ReadFile(filepath.Join(told, name))
				if err != nil {
					t.Fatal(err)
				}
				return string(data)
			}
			if conf := read("ADD.json"); !strings.Contains(conf, tc.told) || !strings.Contains(conf, `"cniVersion":"0.3.1"`) {
				t.Errorf("the plugin is told %s", conf)
			}
			env := read("ADD.env")
			for _, want := range []string{
				"CNI_IFNAME=eth0", "CNI_CONTAINERID=" + p.ID, "IgnoreUnknown=1", "K8S_POD_NAMESPACE=test",
				"K8S_POD_INFRA_CONTAINER_ID=" + p.ID, "K8S_POD_UID=", "K8S_POD_NAME=",
			} {
				if !strings.Contains(env, want) {
					t.Errorf("no %s in the plugin's environment: %s", want, env)
				}
			}
			rules, err := exec.CommandContext(t.Context(), "iptables-save", "-t", "nat").CombinedOutput()
			if err != nil || !strings.Contains(string(rules), fmt.Sprintf("%s:8080", address)) {
				t.Errorf("portmap has no rule for %s: %v", address, err)
			}
			out := queues(t, n)
			ingoing, outgoing := strings.Contains(out, "rate 1Mbit"), strings.Contains(out, "rate 2Mbit")
			if ingoing != tc.limited || outgoing != tc.limited {
				t.Errorf("bandwidth is limited: %v and %v, not %v:\n%s", ingoing, outgoing, tc.limited, out)
			}
			p.Remove()
			if !strings.Contains(read("DEL.env"), p.ID) {
				t.Error("the plugin is not told of the pod's end")
			}
		})
	}
}

// queues are the queueing disciplines of the interfaces at a node's bridge, and of those that they redirect to.
func queues(t *testing.T, n *node.Node) (all string) {
	t.Helper()
	show := func(what string, args ...string) string {
		out, err := exec.CommandContext(t.Context(), "tc", append([]string{what, "show", "dev"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("tc %s show dev %v: %v: %s", what, args, err, out)
		}
		return string(out)
	}
	ports, err := os.ReadDir(filepath.Join("/sys/class/net", n.Bridge, "brif"))
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range ports {
		own := show("qdisc", port.Name())
		all += own
		if !strings.Contains(own, "ingress") {
			continue
		}
		for _, to := range redirects.FindAllStringSubmatch(show("filter", port.Name(), "parent", "ffff:"), -1) {
			all += show("qdisc", to[1])
		}
	}
	return all
}

var redirects = regexp.MustCompile(`Redirect to device (\S+?)\)`)
