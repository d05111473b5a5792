package migrate

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// machine makes files below a root. A text that begins with "->" is the target of a link.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		err := os.WriteFile(at, []byte(text), 0o644)
		if target, ok := strings.CutPrefix(text, "->"); ok {
			if err = os.Remove(at); err == nil {
				err = os.Symlink(target, at)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	wantsUnit = "[Unit]\nAfter=containerd.service\nWants=network-online.target containerd.service\n[Service]\n" +
		"EnvironmentFile=-/etc/node/environment\nExecStart=/usr/bin/kubelet $ARGS\n"
	requiresUnit = "[Unit]\n# Wants=containerd.service\nRequires=containerd.service\nAfter = containerd.service\n" +
		"[Service]\nExecStart=/usr/bin/kubelet \\\n# a comment\n" +
		"  --container-runtime-endpoint=unix:///run/containerd/containerd.sock \\\n  --v=2\n"
	mask      = "systemctl mask --now containerd"
	reload    = "systemctl daemon-reload"
	unmask    = "systemctl unmask containerd"
	enable    = "systemctl enable --now containerd"
	needsThat = `s#\bcontainerd\.service\b#berthd.service#g`
	toBerth   = `s#unix:///run/containerd/containerd.sock#unix:///new.sock#`
)

// TestUnitsOfTheKubeletThatStartTheOldRuntime: what is said of each file, what is to be done, and what undoes it. The
// unit with Wants is that of Amazon Linux 2023. Seen to fail where the commands disabled containerd alone, and where
// nothing read the units.
func TestUnitsOfTheKubeletThatStartTheOldRuntime(t *testing.T) {
	for name, c := range map[string]struct {
		files     map[string]string
		look      []string // keys of notes of which somebody has to decide, sorted
		stop      string
		edit      []string // commands, but for the annotation and the restart
		start     []string
		runtime   string // containerd if empty
		noAdvice  bool   // on where the kubelet's socket is set
		needless  string // a key that needs nothing
		inItsText string // of a note to look at
	}{
		"no unit": {stop: mask, start: []string{unmask, enable}},
		"wants": {
			files: map[string]string{
				"/etc/systemd/system/kubelet.service": wantsUnit,
				"/etc/node/environment":               "ARGS=--container-runtime-endpoint=unix:///old.sock\n",
			},
			look: []string{
				"/etc/node/environment: unix:///old.sock",
				"/etc/systemd/system/kubelet.service: Wants=network-online.target containerd.service",
			},
			stop: mask, edit: []string{"sed -i 's#unix:///old.sock#unix:///new.sock#g' /etc/node/environment"},
			start: []string{unmask, enable}, needless: "/etc/systemd/system/kubelet.service: After=containerd.service",
			noAdvice: true, inItsText: "also if that is disabled: mask it",
		},
		"requires, of a package": {
			files: map[string]string{"/usr/lib/systemd/system/kubelet.service": requiresUnit},
			look: []string{
				"/usr/lib/systemd/system/kubelet.service: --container-runtime-endpoint=unix:///run/containerd/containerd.sock",
				"/usr/lib/systemd/system/kubelet.service: Requires=containerd.service",
			},
			stop: mask,
			edit: []string{"sed '" + needsThat + "; " + toBerth + "' /usr/lib/systemd/system/kubelet.service " +
				">/etc/systemd/system/kubelet.service", reload},
			start: []string{unmask, enable}, noAdvice: true,
			inItsText: "Name berthd.service in /etc/systemd/system/kubelet.service",
		},
		"requires, of the administrator's": {
			files: map[string]string{
				"/etc/systemd/system/kubelet.service": requiresUnit, "/lib/systemd/system/kubelet.service": wantsUnit,
			},
			look: []string{
				"/etc/systemd/system/kubelet.service: --container-runtime-endpoint=unix:///run/containerd/containerd.sock",
				"/etc/systemd/system/kubelet.service: Requires=containerd.service",
			},
			stop:  mask,
			edit:  []string{"sed -i '" + needsThat + "; " + toBerth + "' /etc/systemd/system/kubelet.service", reload},
			start: []string{unmask, enable}, noAdvice: true, inItsText: "Name berthd.service here",
		},
		"drop-ins, of which one counts": {
			files: map[string]string{
				"/lib/systemd/system/kubelet.service":                  "[Service]\nExecStart=/usr/bin/kubelet\n",
				"/lib/systemd/system/kubelet.service.d/10-a.conf":      "[Unit]\nBindsTo=containerd.service\n",
				"/usr/lib/systemd/system/kubelet.service.d/20-b.conf":  "[Unit]\nBindsTo=containerd.service\n",
				"/etc/systemd/system/kubelet.service.d/20-b.conf":      "->/dev/null",
				"/etc/systemd/system/kubelet.service.d/30-c.conf.save": "[Unit]\nBindsTo=containerd.service\n",
			},
			look: []string{"/lib/systemd/system/kubelet.service.d/10-a.conf: BindsTo=containerd.service"},
			stop: mask,
			edit: []string{
				"mkdir -p /etc/systemd/system/kubelet.service.d",
				"sed '" + needsThat + "' /lib/systemd/system/kubelet.service.d/10-a.conf " +
					">/etc/systemd/system/kubelet.service.d/10-a.conf", reload,
			},
			start: []string{unmask, enable},
		},
		"a unit of containerd that the administrator has made": {
			files: map[string]string{"/etc/systemd/system/containerd.service": "[Service]\n"},
			look:  []string{"/etc/systemd/system/containerd.service"},
			stop: "mv /etc/systemd/system/containerd.service /etc/systemd/system/containerd.service.before-berth && " +
				mask,
			start: []string{unmask, enable}, inItsText: "systemctl masks no unit whose file is in /etc/systemd/system",
		},
		"after the migration": {
			files: map[string]string{
				"/etc/systemd/system/containerd.service":              "->/dev/null",
				"/etc/systemd/system/containerd.service.before-berth": "[Service]\n",
				"/etc/systemd/system/kubelet.service":                 "[Unit]\nRequires=berthd.service\n",
			},
			stop: mask,
			start: []string{
				unmask,
				"mv /etc/systemd/system/containerd.service.before-berth /etc/systemd/system/containerd.service && " + reload,
				enable, `sed -i 's#\bberthd\.service\b#containerd.service#g' /etc/systemd/system/kubelet.service`, reload,
			},
		},
		"CRI-O by its alias": {
			runtime: CRIO,
			files:   map[string]string{"/etc/systemd/system/kubelet.service": "[Unit]\nWants=cri-o.service\n"},
			look:    []string{"/etc/systemd/system/kubelet.service: Wants=cri-o.service"},
			stop:    "systemctl mask --now crio", start: []string{"systemctl unmask crio", "systemctl enable --now crio"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.runtime == "" {
				c.runtime = Containerd
			}
			k, p := ReadKubelet(machine(t, c.files)), newPlan(c.runtime, "/etc/berth")
			k.Notes(p, "/new.sock", "")
			var look, needless []string
			text := ""
			for _, n := range p.Notes {
				if n.Fate == Left {
					look, text = append(look, n.Key), text+n.Text
				} else {
					needless = append(needless, n.Key)
				}
			}
			slices.Sort(look)
			if !slices.Equal(look, c.look) {
				t.Errorf("to look at: %q; want %q", look, c.look)
			}
			if !strings.Contains(text, c.inItsText) {
				t.Errorf("it says %q", text)
			}
			if c.needless != "" && !slices.Contains(needless, c.needless) {
				t.Errorf("needless: %q; want %q", needless, c.needless)
			}
			if got := k.StopCommand(p.ID()); got != c.stop {
				t.Errorf("to stop it: %q; want %q", got, c.stop)
			}
			if got := k.StartCommands(p.ID(), nil); !slices.Equal(got, c.start) {
				t.Errorf("to start it again: %q; want %q", got, c.start)
			}
			got := k.Commands(p.ID(), "/new.sock", "")
			advice := slices.ContainsFunc(got, func(line string) bool { return strings.Contains(line, "KUBELET_EXTRA_ARGS") })
			if advice == c.noAdvice {
				t.Errorf("it says where the socket is set: %v: %q", advice, got)
			}
			got = slices.DeleteFunc(got[:len(got)-2], func(line string) bool { return strings.HasPrefix(line, "#") })
			if !slices.Equal(got, c.edit) {
				t.Errorf("to change: %q; want %q", got, c.edit)
			}
		})
	}
}

// TestTheCommandsForTheKubeletsUnit: the commands that are printed, run in a root of their own, make the kubelet's unit
// need Berth. systemctl masks containerd's unit there, and those for the way back restore both.
func TestTheCommandsForTheKubeletsUnit(t *testing.T) {
	if _, err := exec.LookPath("systemctl"); err != nil {
		t.Skip(err)
	}
	const kubelet, old = "/etc/systemd/system/kubelet.service", "/etc/systemd/system/containerd.service"
	root := machine(t, map[string]string{
		"/usr/lib/systemd/system/kubelet.service": requiresUnit, old: "[Service]\nExecStart=/bin/true\n",
	})
	run := func(line string) {
		t.Helper()
		switch line = strings.ReplaceAll(line, "--now ", ""); {
		case line == reload, strings.Contains(line, "kubectl"), strings.Contains(line, "restart"):
			return
		}
		line = strings.ReplaceAll(line, "systemctl daemon-reload", "true")
		line = strings.ReplaceAll(line, "systemctl ", "SYSTEMCTL ")
		for _, dir := range []string{"/etc/", "/usr/"} {
			line = strings.ReplaceAll(line, dir, root+dir)
		}
		line = strings.ReplaceAll(line, "SYSTEMCTL", "systemctl --root="+root)
		if out, err := exec.Command("sh", "-ec", line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	read := func(path string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if err := os.MkdirAll(filepath.Join(root, "etc/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}
	k := ReadKubelet(root)
	run(k.StopCommand("containerd"))
	for _, line := range k.Commands("containerd", "/new.sock", "") {
		run(line)
	}
	if target, err := os.Readlink(filepath.Join(root, old)); err != nil || target != "/dev/null" {
		t.Errorf("containerd's unit is not masked: %q, %v", target, err)
	}
	for _, want := range []string{"\nRequires=berthd.service\n", "\nAfter = berthd.service\n",
		"--container-runtime-endpoint=unix:///new.sock "} {
		if got := read(kubelet); !strings.Contains(got, want) {
			t.Errorf("the kubelet's unit has no %q:\n%s", want, got)
		}
	}
	for _, line := range ReadKubelet(root).StartCommands("containerd", nil) {
		run(line)
	}
	if got := read(old); !strings.Contains(got, "/bin/true") {
		t.Errorf("containerd's unit is %q", got)
	}
	if got := read(kubelet); !strings.Contains(got, "Requires=containerd.service") {
		t.Errorf("the kubelet's unit:\n%s", got)
	}
}
