package migrate

import (
	"strings"
	"testing"
)

// TestAnotherLimitOfOpenFilesIsTold: the unit of containerd 2 has no LimitNOFILE, and that of 1.x had infinity.
func TestAnotherLimitOfOpenFilesIsTold(t *testing.T) {
	const unit = "usr/lib/systemd/system/containerd.service"
	for claim, c := range map[string]struct {
		files   map[string]string
		runtime string // containerd if empty
		key     string // of the note; empty: there is none
		text    string
	}{
		"no unit": {},
		"containerd 2": {
			files: map[string]string{unit: "[Service]\nLimitNPROC=infinity\n"},
			key:   "/" + unit + ": no LimitNOFILE", text: `ulimits = ["nofile=1024:524288"]`,
		},
		"containerd 1": {
			files: map[string]string{unit: "[Service]\nLimitNOFILE=infinity\n"},
			key:   "/" + unit + ": LimitNOFILE=infinity", text: "fs.nr_open",
		},
		"a drop-in": {
			files: map[string]string{
				unit: "[Service]\n", "etc/systemd/system/containerd.service.d/files.conf": "[Service]\nLimitNOFILE=4096\n",
			},
			key: "/etc/systemd/system/containerd.service.d/files.conf: LimitNOFILE=4096", text: `["nofile=4096"]`,
		},
		"the same": {files: map[string]string{unit: "[Service]\nLimitNOFILE=1048576\n"}},
		"CRI-O":    {files: map[string]string{unit: "[Service]\n"}, runtime: CRIO},
	} {
		p := newPlan(Containerd, "/etc/berth")
		if c.runtime != "" {
			p = newPlan(c.runtime, "/etc/berth")
		}
		OpenFiles(p, machine(t, c.files))
		switch {
		case c.key == "" && len(p.Notes) > 0:
			t.Errorf("%s: %+v", claim, p.Notes)
		case c.key == "":
		case len(p.Notes) != 1 || p.Notes[0].Key != c.key || p.Notes[0].Fate != Left ||
			!strings.Contains(p.Notes[0].Text, c.text):
			t.Errorf("%s: %+v", claim, p.Notes)
		}
	}
}
