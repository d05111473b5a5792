package migrate

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestProxiesOfTheOldRuntimeAreNamed, wherever its unit has them: in drop-ins of the administrator's and of packages,
// in files of EnvironmentFile=, with the precedence that systemd gives them. The commands that are printed give berthd
// the same ones. Seen to fail where nothing read files of EnvironmentFile=, and where they did not come first.
func TestProxiesOfTheOldRuntimeAreNamed(t *testing.T) {
	const unit = "[Service]\nExecStart=/usr/bin/old\n"
	for name, c := range map[string]struct {
		runtime string
		files   map[string]string
		look    []string // keys of notes of which somebody has to decide
		want    []string // variables of berthd after the commands; nil: no commands
	}{
		"nothing": {runtime: CRIO, files: map[string]string{
			"/usr/lib/systemd/system/crio.service": unit + "EnvironmentFile=-/etc/sysconfig/crio\n" +
				"Environment=GOTRACEBACK=crash\n",
			"/etc/sysconfig/crio": "CRIO_CONFIG_OPTIONS=--x\n",
		}},
		"a drop-in": {
			runtime: CRIO, files: map[string]string{
				"/usr/lib/systemd/system/crio.service": unit,
				"/run/systemd/system/crio.service.d/proxy.conf": "[Service]\n" +
					"Environment=\"HTTPS_PROXY=http://me:pw@proxy.example:3128\" " +
					"'NO_PROXY=.svc,10.0.0.0/8' A=b\n",
			},
			look: []string{
				"/run/systemd/system/crio.service.d/proxy.conf: HTTPS_PROXY=http://USER:PASSWORD@proxy.example:3128",
				"/run/systemd/system/crio.service.d/proxy.conf: NO_PROXY=.svc,10.0.0.0/8",
			},
			want: []string{"HTTPS_PROXY=http://me:pw@proxy.example:3128", "NO_PROXY=.svc,10.0.0.0/8"},
		},
		"a file, over the unit": {
			runtime: CRIO, files: map[string]string{
				"/usr/lib/systemd/system/crio.service":       unit + "Environment=https_proxy=http://old.example\n",
				"/etc/systemd/system/crio.service.d/10.conf": "[Service]\nEnvironmentFile=/etc/mco/proxy.env\n",
				"/etc/mco/proxy.env":                         "# of the cluster\nhttps_proxy='http://new.example'\n",
			},
			look: []string{"/etc/mco/proxy.env: https_proxy=http://new.example"},
			want: []string{"https_proxy=http://new.example"},
		},
		"what was taken back": {
			runtime: Containerd, files: map[string]string{
				"/usr/lib/systemd/system/containerd.service":                unit + "Environment=HTTP_PROXY=http://a.example\n",
				"/usr/lib/systemd/system/containerd.service.d/20-none.conf": "[Service]\nEnvironment=\n",
			},
		},
		"the unit itself, and a drop-in with more": {
			runtime: Containerd, files: map[string]string{
				"/etc/systemd/system/containerd.service": unit + "Environment=\"HTTP_PROXY=http://a.example/?x=%%20it's\"\n",
				"/etc/systemd/system/containerd.service.d/memory.conf": "[Service]\nMemoryMax=1G\n" +
					"Environment=SSL_CERT_FILE=/etc/ca.pem\n",
				"/etc/systemd/system/containerd.service.d/limit.conf": "[Service]\nLimitNOFILE=1024\n",
			},
			look: []string{
				"/etc/systemd/system/containerd.service.d/memory.conf",
				"/etc/systemd/system/containerd.service.d/memory.conf: SSL_CERT_FILE=/etc/ca.pem",
				"/etc/systemd/system/containerd.service: HTTP_PROXY=http://a.example/?x=%%20it's",
			},
			want: []string{"HTTP_PROXY=http://a.example/?x=%%20it's", "SSL_CERT_FILE=/etc/ca.pem"},
		},
		"berthd has it": {
			runtime: Containerd, files: map[string]string{
				"/etc/systemd/system/containerd.service.d/p.conf": "[Service]\nEnvironment=HTTP_PROXY=http://a.example\n",
				"/usr/lib/systemd/system/containerd.service":      unit,
				"/etc/systemd/system/berthd.service.d/mine.conf":  "[Service]\nEnvironment=HTTP_PROXY=http://a.example\n",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, p := machine(t, c.files), newPlan(c.runtime, "/etc/berth")
			e := ReadEnvironment(root, p.ID())
			e.Notes(p)
			var look []string
			for _, n := range p.Notes {
				if n.Fate == Left {
					look = append(look, n.Key)
				}
			}
			slices.Sort(look)
			slices.Sort(c.look)
			if !slices.Equal(look, c.look) {
				t.Errorf("to look at: %q; want %q", look, c.look)
			}
			commands := e.Commands()
			if c.want == nil && commands != nil {
				t.Errorf("commands: %q", commands)
			}
			if text := strings.Join(commands, "\n"); strings.Contains(text, "me:pw") {
				t.Errorf("a password is printed: %s", text)
			}
			for _, line := range commands {
				if line == reload {
					continue
				}
				for _, dir := range []string{"/etc/systemd", "/run/systemd"} {
					line = strings.ReplaceAll(line, dir, root+dir)
				}
				if out, err := exec.Command("sh", "-ec", line).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", line, err, out)
				}
			}
			var got []string
			// There is a unit, of which the drop-ins are.
			write(t, root, map[string]string{"usr/lib/systemd/system/berthd.service": unit})
			for _, v := range environment(root, readUnit(root, berthUnit)) {
				got = append(got, v.name+"="+v.value)
			}
			if c.want != nil && !slices.Equal(got, c.want) {
				t.Errorf("berthd gets %q, want %q", got, c.want)
			}
			if after := ReadEnvironment(root, p.ID()); len(after.Commands()) > 0 {
				t.Errorf("after the commands there are still some: %q", after.Commands())
			}
		})
	}
}
