package migrate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/config"
)

func TestCRIOsConfigurationAndRegistriesAreTranslated(t *testing.T) {
	dir := t.TempDir()
	crun := filepath.Join(dir, "crun")
	write(t, dir, map[string]string{
		"crun": "#!/bin/sh\n", "runsc": "#!/bin/sh\n", "containerd-shim-kata-v2": "#!/bin/sh\n",
		"crio.conf": `
[crio]
root = "` + dir + `/store"
[crio.api]
listen = "/run/mine/crio.sock"
stream_port = "10011"
[crio.runtime]
default_runtime = "crun"
cgroup_manager = "cgroupfs"
pids_limit = 10
log_size_max = 8388608
namespaces_dir = "/run/other"
default_sysctls = ["net.ipv4.ip_unprivileged_port_start=80"]
hooks_dir = ["/etc/hooks"]
conmon = "/usr/bin/conmon"
absent_mount_sources_to_reject = ["/etc/hostname"]
[crio.image]
pause_image = "registry.k8s.io/pause:3.10"
[crio.nri]
enable_nri = false
nri_plugin_dir = "/opt/other/plugins"
nri_plugin_request_timeout = "3s"
[crio.metrics]
enable_metrics = true
metrics_host = "::1"
metrics_port = 9537
`,
		"crio.conf.d/10-crun.conf": `
[crio.runtime]
pids_limit = 2048
[crio.runtime.runtimes.crun]
runtime_path = "` + crun + `"
runtime_root = "/run/crun"
allowed_annotations = ["example.com/x"]
monitor_path = "/usr/bin/conmon"
[crio.runtime.runtimes.gvisor]
runtime_path = "` + filepath.Join(filepath.Dir(crun), "runsc") + `"
[crio.runtime.runtimes.kata]
runtime_type = "vm"
[crio.runtime.runtimes.kata-here]
runtime_type = "vm"
runtime_path = "` + filepath.Join(filepath.Dir(crun), "containerd-shim-kata-v2") + `"
runtime_config_path = "/etc/kata/configuration.toml"
`,
		"containers/registries.conf": `
unqualified-search-registries = ["registry.example", "docker.io"]
[[registry]]
prefix = "docker.io"
location = "docker.io"
[[registry.mirror]]
location = "mirror.example/hub"
[[registry.mirror]]
location = "plain.example:5000"
insecure = true
[[registry]]
location = "bad.example"
blocked = true
[[registry]]
prefix = "example.com/part"
location = "other.example"
`,
		"containers/policy.json": `{"default": [{"type": "reject"}]}`,
	})
	plan, err := FromCRIO(filepath.Join(dir, "crio.conf"), filepath.Join(dir, "containers"), filepath.Join(dir, "berth"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := plan.Finish()
	if err != nil {
		t.Fatal(err)
	}
	for what, ok := range map[string]bool{
		"handler": c.DefaultRuntime == "crun" && c.Runtimes["crun"].Type == config.RuntimeOCI &&
			c.Runtimes["crun"].Path == crun && c.Runtimes["crun"].Root == "/run/crun",
		"gVisor": c.Runtimes["gvisor"].Type == config.RuntimeOCI && c.Runtimes["gvisor"].SandboxContainer &&
			!c.Runtimes["crun"].SandboxContainer,
		"a shim": c.Runtimes["kata-here"].Type == config.RuntimeShim &&
			filepath.Base(c.Runtimes["kata-here"].Path) == "containerd-shim-kata-v2" &&
			c.Runtimes["kata-here"].Options["ConfigPath"] == "/etc/kata/configuration.toml",
		"NRI":                c.NRI.Enable == "off" && c.NRI.PluginPath == "/opt/other/plugins",
		"annotations":        len(c.Runtimes["crun"].Annotations) == 1,
		"hooks":              slices.Equal(c.HooksDirs, []string{"/etc/hooks"}),
		"driver":             c.CgroupDriver == "cgroupfs",
		"pids":               c.PidsLimit == 2048,
		"namespaces":         c.Network.NetNSDir == "/run/other/netns",
		"size of logs":       c.Log.Limits().MaxSize == 8<<20,
		"sysctls":            slices.Equal(c.DefaultSysctls, []string{"net.ipv4.ip_unprivileged_port_start=80"}),
		"port":               c.Stream.Port == 10011,
		"refused":            len(c.RefuseMissing) == 1,
		"metrics":            c.Metrics.Address == "[::1]:9537",
		"no built-in bridge": c.Network.RequireCNI,
		"hosts":              c.HostsDir == filepath.Join(dir, "berth/certs.d"),
		"socket":             plan.Socket == "/run/mine/crio.sock",
	} {
		if !ok {
			t.Errorf("%s is not translated:\n%s", what, plan.Files[0].Data)
		}
	}
	for key, want := range map[string]Fate{
		"kata.runtime_path": Left, "runtime.conmon": Needless, "crun.monitor_path": Needless,
		`registry "bad.example"`: Left, `registry "example.com/part"`: Left, `registry "docker.io"`: Translated,
		"unqualified-search-registries": Left, "policy.json": Left,
		"pause_image": Needless,
	} {
		if n, ok := fate(plan, key); !ok || n.Fate != want || n.Text == "" {
			t.Errorf("%s is %q (%s), want %s", key, n.Fate, n.Text, want)
		}
	}
	filesParse(t, plan)
	if len(plan.Files) != 2 {
		t.Fatalf("%d files", len(plan.Files))
	}
	for _, want := range []string{
		"https://mirror.example/v2/hub", "override_path = true", "http://plain.example:5000", "skip_verify",
	} {
		if !strings.Contains(string(plan.Files[1].Data), want) {
			t.Errorf("no %s in\n%s", want, plan.Files[1].Data)
		}
	}
}

func TestEveryKeyOfCRIOThatThePageTranslatesIsTranslated(t *testing.T) {
	handled := map[string]bool{
		"[crio.runtime.runtimes]": true, "runtime_path": true, "runtime_root": true, "runtime_type": true,
		"runtime_config_path": true, "privileged_without_host_devices": true,
		// Of NRI, in a table of its own.
		"enable_nri": true, "nri_listen": true, "nri_plugin_dir": true, "nri_plugin_config_dir": true,
		"nri_plugin_registration_timeout": true, "nri_plugin_request_timeout": true, "nri_disable_connections": true,
		"default_validator": true,
		// By hand, with a reason: they are files, or hosts of several registries.
		"default_mounts_file": true, "auto_reload_registries": true, "log_filter": true,
	}
	for key, twin := range twins()[CRIO] {
		if handled[key] || twin.needless() || twin.is == "no" {
			continue
		}
		c := &crioConfig{Plan: newPlan(CRIO, t.TempDir())}
		if !c.setting(key, key, "10", map[string]any{}) && !c.setting(key, key, true, map[string]any{}) {
			t.Errorf("the page says that %s is %s, and it is not translated", key, twin.is)
		}
	}
}

// TestCRIOsDefaultDirectoryOfHooksIsKept where it has hooks, and nothing says that CRI-O looks elsewhere.
func TestCRIOsDefaultDirectoryOfHooksIsKept(t *testing.T) {
	old := crioHooks
	defer func() { crioHooks = old }()
	full, none := t.TempDir(), t.TempDir()
	write(t, full, map[string]string{"a.json": "{}"})
	for name, c := range map[string]struct {
		file, at string
		want     []string
	}{
		"the default":        {"", full, []string{full}},
		"nothing in it":      {"", none, nil},
		"another one":        {"[crio.runtime]\nhooks_dir = [\"/opt/hooks\"]\n", full, []string{"/opt/hooks"}},
		"none, as is said":   {"[crio.runtime]\nhooks_dir = []\n", full, nil},
		"not there any more": {"", filepath.Join(none, "gone"), nil},
	} {
		crioHooks = c.at
		file := filepath.Join(t.TempDir(), "crio.conf")
		if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
			t.Fatal(err)
		}
		plan, err := FromCRIO(file, t.TempDir(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := plan.Finish()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(loaded.HooksDirs, c.want) {
			t.Errorf("%s: hooks of %q, want %q", name, loaded.HooksDirs, c.want)
		}
	}
}

// TestTheDefaultCapabilitiesAreThoseOfCRIO in all handlers, also in those that are there without a table: Berth's own
// default is wider.
func TestTheDefaultCapabilitiesAreThoseOfCRIO(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"crun": "#!/bin/sh\n"})
	crun := "[crio.runtime.runtimes.crun]\nruntime_path = \"" + dir + "/crun\"\n"
	nine := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_KILL"}
	for name, c := range map[string]struct {
		file string
		want []string
	}{
		"no configuration": {"", nine},
		"no key":           {crun, nine},
		"a list": {"[crio.runtime]\ndefault_capabilities = [\"CHOWN\", \"net_raw\"]\n" + crun,
			[]string{"CAP_CHOWN", "CAP_NET_RAW"}},
		"none": {"[crio.runtime]\ndefault_capabilities = []\n" + crun, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			plan, loaded := translatedCRIO(t, c.file)
			handlers := []string{loaded.DefaultRuntime, "berth"}
			if strings.Contains(c.file, "runtimes.crun") {
				handlers = append(handlers, "crun")
			}
			for _, handler := range handlers {
				r, there := loaded.Runtimes[handler]
				if got := r.DefaultCapabilities(); !there || got == nil || !slices.Equal(got, c.want) {
					t.Errorf("handler %s: %q, want %q\n%s", handler, got, c.want, plan.Files[0].Data)
				}
			}
		})
	}
}

// translatedCRIO is a configuration of CRI-O in one file, in Berth, valid.
func translatedCRIO(t *testing.T, file string) (*Plan, *config.Loaded) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, map[string]string{"crio.conf": file})
	plan, err := FromCRIO(filepath.Join(dir, "crio.conf"), filepath.Join(dir, "containers"), filepath.Join(dir, "berth"))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := plan.Finish()
	if err != nil {
		t.Fatalf("%v\n%s", err, plan.Files[0].Data)
	}
	filesParse(t, plan)
	return plan, loaded
}

// TestAnnotationsOnWhichCRIOActsAreLeft: they mean nothing to an OCI runtime, to which Berth passes the others.
func TestAnnotationsOnWhichCRIOActsAreLeft(t *testing.T) {
	plan, loaded := translatedCRIO(t, `
[crio.runtime.runtimes.runc]
allowed_annotations = [
	"io.kubernetes.cri-o.Devices", "devices.crio.io", "io.kubernetes.cri-o.ShmSize", "shm-size.crio.io",
	"io.kubernetes.cri-o.userns-mode", "io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw",
	"io.kubernetes.cri-o.UnifiedCgroup", "unified-cgroup.crio.io/web", "io.kubernetes.cri-o.seccompNotifierAction",
	"seccomp-profile.kubernetes.cri-o.io", "cpu-quota.crio.io", "new.crio.io", "io.kubernetes.cri.rdt-class",
	"io.containers.trace-syscall", "module.wasm.image/variant", "run.oci.", "org.systemd.property.",
]
`)
	want := []string{"io.containers.trace-syscall", "module.wasm.image/variant", "run.oci.*"}
	if got := loaded.Runtimes["runc"].Annotations; !slices.Equal(got, want) {
		t.Errorf("the runtime gets %q, want %q", got, want)
	}
	for name, text := range map[string]string{
		"io.kubernetes.cri-o.Devices": "default_devices", "devices.crio.io": "default_devices",
		"io.kubernetes.cri-o.ShmSize": "shm_size", "shm-size.crio.io": "shm_size",
		"io.kubernetes.cri-o.userns-mode": "hostUsers", "io.kubernetes.cri-o.UnifiedCgroup": nothingInstead,
		"io.kubernetes.cri-o.cgroup2-mount-hierarchy-rw": "cgroup_writable", "unified-cgroup.crio.io/web": nothingInstead,
		"io.kubernetes.cri-o.seccompNotifierAction": nothingInstead, "cpu-quota.crio.io": highPerformance,
		"seccomp-profile.kubernetes.cri-o.io": "seccompProfile", "new.crio.io": nothingInstead,
		"io.kubernetes.cri.rdt-class": "RDT", "run.oci.*": "full names", "org.systemd.property.*": "never passed on",
	} {
		if !slices.ContainsFunc(plan.Notes, func(n Note) bool {
			return strings.HasSuffix(n.Key, "runc.allowed_annotations") && n.Fate == Left &&
				strings.HasPrefix(n.Text, `"`+name+`"`) && strings.Contains(n.Text, text)
		}) {
			t.Errorf("%s is not left with %q: %v", name, text, plan.Notes)
		}
	}
}
