package migrate

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// kubeletFiles are where a kubelet is told of its runtime: by kubeadm, by k3s and by packages.
var kubeletFiles = []string{
	"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/instance-config.yaml", "/var/lib/kubelet/kubeadm-flags.env",
	"/etc/default/kubelet", "/etc/sysconfig/kubelet", "/etc/kubernetes/kubelet-config.yaml",
	"/etc/kubernetes/kubelet.conf",
}

var (
	endpointKey = regexp.MustCompile(
		`(?m)((?:^|[{,])\s*["']?containerRuntimeEndpoint["']?\s*:\s*)(["']?)([^"',\s}]*)(["']?)`)
	endpointFlag = regexp.MustCompile(`--container-runtime-endpoint[= ]["']?([^\s"']+)`)
)

// KubeletFile is a kubelet's configuration (YAML or JSON) with another socket of its runtime.
func KubeletFile(path, socket string) (File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return File{}, err
	}
	want, out := "unix://"+socket, string(data)
	switch {
	case endpointKey.MatchString(out):
		out = endpointKey.ReplaceAllString(out, "${1}${2}"+want+"${4}")
	case strings.HasPrefix(strings.TrimSpace(out), "{"):
		at := strings.IndexByte(out, '{') + 1
		out = out[:at] + "\n  \"containerRuntimeEndpoint\": \"" + want + "\"," + out[at:]
	default:
		if !strings.HasSuffix(out, "\n") {
			out += "\n"
		}
		out += "containerRuntimeEndpoint: " + want + "\n"
	}
	var parsed struct {
		Kind     string `json:"kind"`
		Endpoint string `json:"containerRuntimeEndpoint"`
	}
	if err := yaml.Unmarshal([]byte(out), &parsed); err != nil {
		return File{}, fmt.Errorf("%s: %w", path, err)
	}
	if parsed.Kind != "KubeletConfiguration" || parsed.Endpoint != want {
		return File{}, fmt.Errorf("%s is no KubeletConfiguration that can be changed: set containerRuntimeEndpoint "+
			"to %s in it", path, want)
	}
	return File{Path: path, Data: []byte(out)}, nil
}

// Commands are what gives a kubelet of this machine another socket. id is the other runtime's, from its socket, and
// changed the configuration that has the socket to already, if there is one. A flag in another file comes before it.
func (k *Kubelet) Commands(id, from, to, changed string) []string {
	out := k.unitCommands(id, to)
	flags := slices.ContainsFunc(k.unit, func(f unitFile) bool {
		return slices.ContainsFunc(f.keys, func(key unitKey) bool { return key.endpoint() != "" })
	})
	files := slices.Clone(kubeletFiles)
	for _, path := range k.environmentFiles() {
		if !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	for _, path := range files {
		if path == changed {
			continue
		}
		data, err := os.ReadFile(filepath.Join(k.root, path))
		if err != nil {
			continue
		}
		if endpointFlag.Match(data) || endpointKey.Match(data) {
			flags = true
			out = append(out, fmt.Sprintf("sed -i 's#unix://%s#unix://%s#' %s", from, to, path))
		}
	}
	if !flags && changed == "" {
		out = append(out,
			"# containerRuntimeEndpoint: unix://"+to+" in the kubelet's configuration, or in /etc/default/kubelet:",
			"# KUBELET_EXTRA_ARGS=--container-runtime-endpoint=unix://"+to)
	}
	return append(out, "kubectl annotate node $(hostname) --overwrite kubeadm.alpha.kubernetes.io/cri-socket=unix://"+to+
		" # of a cluster of kubeadm", "systemctl restart kubelet")
}
