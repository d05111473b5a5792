package migrate

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// unitDirs are where systemd looks for unit files. A file in an earlier directory replaces those of the same name in
// later ones; so does a drop-in.
var unitDirs = []string{
	administratorUnits, "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system",
	"/lib/systemd/system",
}

const (
	administratorUnits = "/etc/systemd/system"
	kubeletUnit        = "kubelet.service"
	berthUnit          = "berthd.service"
	// aside is added to the name of a unit of the other runtime that is in the way of its mask. systemd does not read
	// such a file.
	aside = ".before-berth"
)

// services are the units of the other runtimes by their IDs, with aliases.
var services = map[string][]string{
	"containerd": {"containerd.service"},
	"crio":       {"crio.service", "cri-o.service"},
}

// Kubelet is what files of a machine say to systemd and to the kubelet about the kubelet's runtime.
type Kubelet struct {
	root string     // of the machine's file system; "": /
	unit []unitFile // its unit and the drop-ins of it that count
}

// unitFile is a unit or a drop-in.
type unitFile struct {
	path string // below the root
	name string // below the directory of units
	keys []unitKey
}

// unitKey is one assignment of a unit file.
type unitKey struct{ name, value string }

// ReadKubelet reads the unit files of the kubelet. There need not be any. root is where the machine's file system is;
// "" stands for /.
func ReadKubelet(root string) *Kubelet {
	return &Kubelet{root: root, unit: readUnit(root, kubeletUnit)}
}

// readUnit reads the files of a unit in the order in which they count; none: there is no such unit.
func readUnit(root, unit string) (files []unitFile) {
	names := map[string]string{} // paths by name below the directory of units
	for _, dir := range slices.Backward(unitDirs) {
		if _, err := os.Stat(filepath.Join(root, dir, unit)); err == nil {
			names[unit] = filepath.Join(dir, unit)
		}
		drops, _ := filepath.Glob(filepath.Join(root, dir, unit+".d", "*.conf"))
		for _, path := range drops {
			name := filepath.Join(unit+".d", filepath.Base(path))
			names[name] = filepath.Join(dir, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if data, err := os.ReadFile(filepath.Join(root, names[name])); err == nil {
			files = append(files, unitFile{names[name], name, unitKeys(string(data))})
		}
	}
	return files
}

// unitKeys are the assignments of a unit file. Lines that are continued are one, with or without comments between them.
func unitKeys(text string) []unitKey {
	var out []unitKey
	var whole string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") {
			continue
		}
		part, continued := strings.CutSuffix(line, `\`)
		whole += part
		if continued {
			whole += " "
			continue
		}
		if name, value, ok := strings.Cut(whole, "="); ok {
			out = append(out, unitKey{strings.TrimSpace(name), strings.TrimSpace(value)})
		}
		whole = ""
	}
	return out
}

// names says whether a key of a unit names one of the units.
func (k unitKey) names(units []string) bool {
	return slices.ContainsFunc(strings.Fields(k.value), func(unit string) bool { return slices.Contains(units, unit) })
}

// needs says whether a unit with this dependency does not start if the other unit cannot be started.
func (k unitKey) needs() bool {
	return slices.Contains([]string{"Requires", "Requisite", "BindsTo"}, k.name)
}

// starts says whether a unit with this dependency starts the other one, also if that is disabled.
func (k unitKey) starts() bool { return slices.Contains([]string{"Wants", "Upholds"}, k.name) }

// endpoint is the socket in the flag of a kubelet that names its runtime.
func (k unitKey) endpoint() string {
	if found := endpointFlag.FindStringSubmatch(k.value); found != nil {
		return found[1]
	}
	return ""
}

// replaces says where a file that replaces this one, or is it, belongs: the others are of packages.
func (f *unitFile) replaces() string { return filepath.Join(administratorUnits, f.name) }

// endpoint is the socket in a flag in the kubelet's unit; "": there is none.
func (k *Kubelet) endpoint() string {
	for _, f := range k.unit {
		for _, key := range f.keys {
			if socket := key.endpoint(); socket != "" {
				return socket
			}
		}
	}
	return ""
}

// Notes say which files of the kubelet's unit, and which others, name the other runtime or its socket. to is Berth's
// socket, and changed the kubelet's configuration that gets it from the migration itself; "": none.
func (k *Kubelet) Notes(p *Plan, to, changed string) {
	k.fileNotes(p, to, changed)
	units := services[p.ID()]
	if at := k.inTheWay(p.ID()); at != "" {
		p.left(at, "systemctl masks no unit whose file is in %s: %s", administratorUnits, k.StopCommand(p.ID()))
	}
	for _, f := range k.unit {
		where := "here"
		if f.path != f.replaces() {
			where = "in " + f.replaces() + ", which replaces this file (no drop-in takes a dependency away)"
		}
		for _, key := range f.keys {
			at := f.path + ": " + key.name + "=" + key.value
			switch {
			case key.needs() && key.names(units):
				p.left(at, "the kubelet does not start without %s, which has to be masked. Name %s %s", p.Runtime, berthUnit,
					where)
			case key.starts() && key.names(units):
				p.left(at, "a start of the kubelet starts %s, also if that is disabled: mask it", p.Runtime)
			case key.name == "After" && key.names(units):
				p.note(at, Needless, "an order alone; "+berthUnit+" names "+kubeletUnit+" in its own")
			case key.endpoint() != "" && key.endpoint() != "unix://"+to:
				p.left(f.path+": --container-runtime-endpoint="+key.endpoint(),
					"the flag has precedence over the kubelet's configuration. It has to be unix://%s", to)
			}
		}
	}
}

// edits are the commands that have the kubelet's unit files changed. expressions are those of sed for a file.
func (k *Kubelet) edits(expressions func(unitFile) []string) []string {
	var out []string
	for _, f := range k.unit {
		list := expressions(f)
		if len(list) == 0 {
			continue
		}
		script := "'" + strings.Join(list, "; ") + "' "
		if f.path == f.replaces() {
			out = append(out, "sed -i "+script+f.path)
			continue
		}
		if dir := filepath.Dir(f.name); dir != "." {
			out = append(out, "mkdir -p "+filepath.Join(administratorUnits, dir))
		}
		out = append(out, "sed "+script+f.path+" >"+f.replaces())
	}
	if len(out) > 0 {
		out = append(out, "systemctl daemon-reload")
	}
	return out
}

// unitCommands have the kubelet's unit need Berth in place of the other runtime, and give it Berth's socket.
func (k *Kubelet) unitCommands(id, to string) []string {
	return k.edits(func(f unitFile) []string {
		var list []string
		for _, key := range f.keys {
			if key.needs() && key.names(services[id]) {
				for _, unit := range services[id] {
					list = append(list, fmt.Sprintf(`s#\b%s\b#%s#g`, strings.ReplaceAll(unit, ".", `\.`), berthUnit))
				}
			}
			if socket := key.endpoint(); socket != "" && socket != "unix://"+to {
				list = append(list, fmt.Sprintf("s#%s#unix://%s#", socket, to))
			}
		}
		slices.Sort(list)
		return slices.Compact(list)
	})
}

// inTheWay is the unit file of the other runtime that has the place of its mask, which is a link to /dev/null there:
// systemctl replaces no other file by it. It is empty if there is none.
func (k *Kubelet) inTheWay(id string) string {
	unit := filepath.Join(administratorUnits, services[id][0])
	target, err := os.Readlink(filepath.Join(k.root, unit))
	if _, missing := os.Lstat(filepath.Join(k.root, unit)); missing != nil || err == nil && target == os.DevNull {
		return ""
	}
	return unit
}

// StopPodsCommand ends the pods that a drain leaves to the runtime with that socket: they outlive it.
func StopPodsCommand(socket string) string {
	crictl := "crictl -r unix://" + socket
	return crictl + " pods -q | xargs -r " + crictl + " stopp"
}

// StopCommand ends the other runtime, and sees to it that nothing starts it again.
func (k *Kubelet) StopCommand(id string) string {
	mask := "systemctl mask --now " + id
	if unit := k.inTheWay(id); unit != "" {
		mask = fmt.Sprintf("mv %s %s%s && %s", unit, unit, aside, mask)
	}
	return mask
}

// StartCommands undo what StopCommand and Commands have had done, and start the other runtime. sockets are those of the
// migration's record; nil: it has none.
func (k *Kubelet) StartCommands(id string, sockets *Sockets) []string {
	out := []string{"systemctl unmask " + id}
	unit := filepath.Join(administratorUnits, services[id][0])
	if _, err := os.Lstat(filepath.Join(k.root, unit+aside)); err == nil {
		out = append(out, fmt.Sprintf("mv %s%s %s && systemctl daemon-reload", unit, aside, unit))
	}
	out = append(out, "systemctl enable --now "+id)
	out = append(out, k.edits(func(f unitFile) []string {
		var list []string
		if slices.ContainsFunc(f.keys, func(key unitKey) bool { return key.needs() && key.names([]string{berthUnit}) }) {
			list = append(list, fmt.Sprintf(`s#\b%s\b#%s#g`, strings.ReplaceAll(berthUnit, ".", `\.`), services[id][0]))
		}
		if sockets == nil {
			return list
		}
		for _, key := range f.keys {
			if before, _ := sockets.before(f.path); before != "" && key.endpoint() == sockets.Berth {
				list = append(list, fmt.Sprintf("s#%s#%s#", sockets.Berth, before))
			}
		}
		return list
	})...)
	return append(out, k.backCommands(sockets)...)
}

// environmentFiles are those with which the kubelet's unit gives it variables, often its flags.
func (k *Kubelet) environmentFiles() []string {
	var out []string
	for _, f := range k.unit {
		for _, key := range f.keys {
			if path := strings.TrimPrefix(key.value, "-"); key.name == "EnvironmentFile" && filepath.IsAbs(path) {
				out = append(out, path)
			}
		}
	}
	return out
}
