package migrate

import (
	"cmp"
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

// crictlFile is where crictl is told of the runtime.
const crictlFile = "/etc/crictl.yaml"

var crictlKey = regexp.MustCompile(`(?m)^\s*(?:runtime|image)-endpoint\s*:\s*["']?([^"'\s#]+)`)

// named is a file that names the socket of a runtime.
type named struct {
	path     string
	sockets  []string // as they are written, each once
	empty    bool     // it has a key for a socket, with nothing in it
	json     bool
	isCrictl bool
}

// namedIn are the files with flags and keys of the kubelet, and that of crictl, which name the socket of a runtime or
// have an empty key for it.
func (k *Kubelet) namedIn() []named {
	files := slices.Clone(kubeletFiles)
	for _, path := range append(k.environmentFiles(), crictlFile) {
		if !slices.Contains(files, path) {
			files = append(files, path)
		}
	}
	var out []named
	for _, path := range files {
		data, err := os.ReadFile(filepath.Join(k.root, path))
		if err != nil {
			continue
		}
		n := named{path: path, json: strings.HasPrefix(strings.TrimSpace(string(data)), "{"), isCrictl: path == crictlFile}
		add := func(socket string) {
			if !slices.Contains(n.sockets, socket) {
				n.sockets = append(n.sockets, socket)
			}
		}
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(strings.TrimSpace(line), "#") {
				continue
			}
			if n.isCrictl {
				for _, found := range crictlKey.FindAllStringSubmatch(line, -1) {
					add(found[1])
				}
				continue
			}
			for _, found := range endpointFlag.FindAllStringSubmatch(line, -1) {
				add(found[1])
			}
			for _, found := range endpointKey.FindAllStringSubmatch(line, -1) {
				if found[3] != "" {
					add(found[3])
				} else {
					n.empty = true
				}
			}
		}
		if len(n.sockets) > 0 || n.empty {
			out = append(out, n)
		}
	}
	return out
}

// fillCommand puts a socket into an empty key of the kubelet's configuration.
func (n *named) fillCommand(to string) string {
	if n.json {
		return fmt.Sprintf(`sed -i 's#"containerRuntimeEndpoint": *""#"containerRuntimeEndpoint": "%s"#' %s`, to, n.path)
	}
	return fmt.Sprintf(`sed -i 's#^containerRuntimeEndpoint:.*#containerRuntimeEndpoint: %s#' %s`, to, n.path)
}

// emptyCommand undoes fillCommand.
func (n *named) emptyCommand(from string) string {
	if n.json {
		return fmt.Sprintf(`sed -i 's#"containerRuntimeEndpoint": *"%s"#"containerRuntimeEndpoint": ""#' %s`, from, n.path)
	}
	return fmt.Sprintf(`sed -i 's#^containerRuntimeEndpoint:.*#containerRuntimeEndpoint: ""#' %s`, n.path)
}

func replaceCommand(path, from, to string) string {
	return fmt.Sprintf("sed -i 's#%s#%s#g' %s", from, to, path)
}

// toFill is the file with an empty key that gets the socket, if nothing else tells the kubelet of one. A file with a
// flag would have precedence.
func (k *Kubelet) toFill(files []named, changed string) *named {
	told := slices.ContainsFunc(files, func(n named) bool { return !n.isCrictl && len(n.sockets) > 0 })
	if told || changed != "" || k.endpoint() != "" {
		return nil
	}
	if i := slices.IndexFunc(files, func(n named) bool { return n.empty }); i >= 0 {
		return &files[i]
	}
	return nil
}

// fileNotes say which files name the socket of the other runtime. changed is the configuration that gets Berth's socket
// from the migration itself; "": none.
func (k *Kubelet) fileNotes(p *Plan, to, changed string) {
	for _, n := range k.namedIn() {
		for _, socket := range n.sockets {
			switch {
			case n.path == changed || socket == "unix://"+to:
			case n.isCrictl:
				p.left(n.path+": "+socket, "crictl asks this socket, where nobody answers after the migration. It has to be "+
					"unix://%s", to)
			default:
				p.left(n.path+": "+socket, "the kubelet is told of this socket. It has to be unix://%s", to)
			}
		}
	}
}

// Commands are what gives a kubelet of this machine, and crictl, another socket. id is the other runtime's, and changed
// the configuration that has the socket already, if there is one. A flag in another file comes before it.
func (k *Kubelet) Commands(id, to, changed string) []string {
	out, files, socket := k.unitCommands(id, to), k.namedIn(), "unix://"+to
	told := changed != "" || k.endpoint() != ""
	for _, n := range files {
		if n.path == changed {
			continue
		}
		told = told || !n.isCrictl && len(n.sockets) > 0
		for _, from := range n.sockets {
			if from != socket {
				out = append(out, replaceCommand(n.path, from, socket))
			}
		}
	}
	if n := k.toFill(files, changed); n != nil {
		told, out = true, append(out, n.fillCommand(socket))
	}
	if !told {
		out = append(out,
			"# containerRuntimeEndpoint: "+socket+" in the kubelet's configuration, or in /etc/default/kubelet:",
			"# KUBELET_EXTRA_ARGS=--container-runtime-endpoint="+socket)
	}
	return append(out, annotateCommand(socket), restartKubelet)
}

const restartKubelet = "systemctl restart kubelet"

// annotateCommand tells kubeadm of a node's socket.
func annotateCommand(socket string) string {
	return "kubectl annotate node $(hostname) --overwrite kubeadm.alpha.kubernetes.io/cri-socket=" + socket +
		" # of a cluster of kubeadm"
}

// Sockets are the sockets of the other runtime in the files of a machine that Commands has somebody change, as they
// were before. They are kept in the record of a migration, for the way back.
type Sockets struct {
	Before string       `json:"before"` // that of the kubelet
	Berth  string       `json:"berth"`
	Files  []SocketFile `json:"files"`
}

// SocketFile is a file that had another socket than Berth's.
type SocketFile struct {
	Path   string `json:"path"`
	Before string `json:"before"` // empty: there was a key with nothing in it
}

// Sockets are those that the files of the machine name now. from is the other runtime's socket, which the kubelet has
// if no file says otherwise.
func (k *Kubelet) Sockets(from, to, changed string) *Sockets {
	s := &Sockets{Berth: "unix://" + to}
	files := k.namedIn()
	add := func(path, socket string, kubelets bool) {
		if socket == s.Berth {
			return
		}
		if kubelets && s.Before == "" {
			s.Before = socket
		}
		s.Files = append(s.Files, SocketFile{path, socket})
	}
	for _, f := range k.unit {
		for _, key := range f.keys {
			if socket := key.endpoint(); socket != "" {
				add(f.replaces(), socket, true)
			}
		}
	}
	for _, n := range files {
		switch {
		case len(n.sockets) == 0:
		case n.path != changed:
			add(n.path, n.sockets[0], !n.isCrictl)
		case s.Before == "" && n.sockets[0] != s.Berth: // the migration itself puts this file back
			s.Before = n.sockets[0]
		}
	}
	if n := k.toFill(files, changed); n != nil {
		add(n.path, "", false)
	}
	s.Before = cmp.Or(s.Before, "unix://"+from)
	return s
}

// since are the sockets of an earlier run with those of this one: of a file that has Berth's socket by now, the earlier
// run knows what it had.
func (s *Sockets) since(earlier *Sockets) *Sockets {
	if earlier == nil {
		return s
	}
	out := &Sockets{Before: earlier.Before, Berth: s.Berth, Files: slices.Clone(earlier.Files)}
	for _, f := range s.Files {
		if !slices.ContainsFunc(out.Files, func(o SocketFile) bool { return o.Path == f.Path }) {
			out.Files = append(out.Files, f)
		}
	}
	return out
}

// before is the socket that a file had, if it is known.
func (s *Sockets) before(path string) (socket string, known bool) {
	for _, f := range s.Files {
		if f.Path == path {
			return f.Before, true
		}
	}
	return "", false
}

// backCommands undo what Commands has had done to files that are no units. Files that nobody has changed need nothing.
func (k *Kubelet) backCommands(s *Sockets) []string {
	if s == nil {
		return nil
	}
	var out []string
	for _, n := range k.namedIn() {
		if !slices.Contains(n.sockets, s.Berth) {
			continue
		}
		switch before, known := s.before(n.path); {
		case !known:
			out = append(out, fmt.Sprintf("# %s has %s, which it did not have before: remove it", n.path, s.Berth))
		case before == "":
			out = append(out, n.emptyCommand(s.Berth))
		default:
			out = append(out, replaceCommand(n.path, s.Berth, before))
		}
	}
	return append(out, annotateCommand(s.Before))
}
