package migrate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/config"
)

// write puts files below a directory.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// translated is containerd's configuration in Berth, valid.
func translated(t *testing.T, files map[string]string) (*Plan, *config.Loaded) {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	plan, err := FromContainerd(filepath.Join(dir, "config.toml"), filepath.Join(dir, "berth"))
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

// filesParse fails for a file of TOML that a plan would write and nobody could read.
func filesParse(t *testing.T, plan *Plan) {
	t.Helper()
	for _, f := range plan.Files {
		var any map[string]any
		if err := toml.Unmarshal(f.Data, &any); err != nil && filepath.Ext(f.Path) == ".toml" {
			t.Errorf("%s: %v\n%s", f.Path, err, f.Data)
		}
	}
}

// fate is what a plan says of a key, by the key's last part.
func fate(p *Plan, key string) (Note, bool) {
	for _, n := range p.Notes {
		if strings.HasSuffix(n.Key, key) {
			return n, true
		}
	}
	return Note{}, false
}

// noted is whether a plan says something of a key, by the key's last part.
func noted(p *Plan, key string, fate Fate, text string) bool {
	return slices.ContainsFunc(p.Notes, func(n Note) bool {
		return strings.HasSuffix(n.Key, key) && n.Fate == fate && strings.Contains(n.Text, text)
	})
}

const version3 = `
version = 3
root = "/srv/containerd"
imports = ["conf.d/*.toml"]
[grpc]
address = "/run/other/containerd.sock"
[debug]
level = "debug"
[metrics]
address = "127.0.0.1:1338"
[plugins.'io.containerd.cri.v1.images']
max_concurrent_downloads = 7
concurrent_layer_fetch_buffer = 16777216
discard_unpacked_layers = true
image_pull_progress_timeout = "2m0s"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "registry.k8s.io/pause:3.10.2"
base = "docker.io/library/ubuntu:latest"
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "/etc/containerd/certs.d"
[plugins.'io.containerd.cri.v1.runtime']
device_ownership_from_security_context = true
ignore_image_defined_volumes = true
netns_mounts_under_state_dir = true
unset_seccomp_profile = "runtime/default"
enable_unprivileged_ports = true
enable_unprivileged_icmp = false
cdi_spec_dirs = ["/etc/cdi"]
max_container_log_line_size = 16384
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"
ignore_rdt_not_enabled_errors = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "/etc/containerd/base.json"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]
runtime_type = "io.containerd.missing.v2"
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/opt/cni/bin"]
conf_dir = "/etc/cni/other.d"
[plugins.'io.containerd.service.v1.tasks-service']
blockio_config_file = "/etc/containerd/blockio.yaml"
[plugins.'io.containerd.nri.v1.nri']
disable = true
plugin_path = "/opt/other/plugins"
plugin_request_timeout = "3s"
[plugins.'io.containerd.nri.v1.nri'.default_validator]
enable = true
reject_oci_hook_adjustment = true
[plugins.'io.containerd.grpc.v1.cri']
stream_server_address = "127.0.0.1"
stream_server_port = "10010"
stream_idle_timeout = "1h0m0s"
`

func TestAConfigurationOfVersion3AndItsImportsAreTranslated(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "crun")
	write(t, filepath.Dir(binary), map[string]string{"crun": "#!/bin/sh\n"})
	plan, c := translated(t, map[string]string{
		"config.toml": version3,
		"conf.d/50-crun.toml": `
version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
pod_annotations = ["example.com/*"]
container_annotations = ["example.com/*", "example.org/x"]
privileged_without_host_devices = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.crun.options]
BinaryName = "` + binary + `"
Root = "/run/crun"
SystemdCgroup = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.wasm]
runtime_type = "io.containerd.wasm.v1"
runtime_path = "` + binary + `"
pod_annotations = ["example.com/*"]
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.wasm.options]
ConfigPath = "/etc/wasm.toml"
`})
	wasm := c.Runtimes["wasm"]
	crun := c.Runtimes["crun"]
	for what, ok := range map[string]bool{
		"NRI": c.NRI.Enable == "off" && c.NRI.PluginPath == "/opt/other/plugins" && c.NRI.DefaultValidator.Enable &&
			c.NRI.DefaultValidator.RejectHooks,
		"block I/O":  c.BlockIOClasses == "/etc/containerd/blockio.yaml",
		"log level":  c.LogLevel == "debug",
		"metrics":    c.Metrics.Address == "127.0.0.1:1338",
		"containerd": c.Containerd == "/run/other/containerd.sock",
		"downloads":  c.Image.MaxConcurrentDownloads == 7,
		"ranges":     config.Bytes(c.Image.RangeSize) == 16<<20,
		"timeout":    c.Image.Timeout.String() == "2m0s",
		"pinned":     len(c.Image.Pinned) == 1 && c.Image.Pinned[0] == "docker.io/library/ubuntu:latest",
		"registries": c.HostsDir == "/etc/containerd/certs.d",
		"devices":    c.DeviceOwnership,
		"volumes":    c.Image.DeclaredVolumes == config.DeclaredVolumesIgnore,
		"seccomp":    c.Seccomp.DefaultProfile == "runtime/default",
		"sysctls":    len(c.DefaultSysctls) == 1 && strings.HasPrefix(c.DefaultSysctls[0], "net.ipv4.ip_unprivileged_port"),
		"CDI":        len(c.CDISpecDirs) == 1,
		"handler":    c.DefaultRuntime == "runc" && c.Runtimes["runc"].Type == config.RuntimeBuiltin,
		"cgroups":    c.CgroupDriver == "systemd",
		"crun": crun.Type == config.RuntimeOCI && crun.Path == binary && crun.Root == "/run/crun" &&
			crun.PrivilegedWithoutHostDevices && len(crun.Annotations) == 2,
		"a shim": wasm.Type == config.RuntimeShim && wasm.Path == binary && wasm.RuntimeType == "io.containerd.wasm.v1" &&
			wasm.Options["ConfigPath"] == "/etc/wasm.toml" && len(wasm.Annotations) == 1,
		"namespaces":         c.Network.NetNSDir == "",
		"CNI":                c.Network.CNIConfDir == "/etc/cni/other.d" && len(c.Network.CNIBinDirs) == 1,
		"no built-in bridge": c.Network.RequireCNI,
		"stream":             c.Stream.Port == 10010 && c.Stream.IdleTimeout.String() == "1h0m0s",
		"store":              plan.Store == "/srv/containerd" && plan.Sandbox == "registry.k8s.io/pause:3.10.2",
	} {
		if !ok {
			t.Errorf("%s is not translated:\n%s", what, plan.Files[0].Data)
		}
	}
	if _, there := c.Runtimes["kata"]; there {
		t.Error("a handler is there whose shim is not")
	}
	for key, want := range map[string]Fate{
		"runtimes.kata.runtime_type": Left, "runc.base_runtime_spec": Left, "max_container_log_line_size": Needless,
		"pinned_images.sandbox": Needless, "discard_unpacked_layers": Needless, "cni.conf_dir": Translated,
		"ignore_rdt_not_enabled_errors": Left,
	} {
		if n, ok := fate(plan, key); !ok || n.Fate != want || n.Text == "" {
			t.Errorf("%s is %q (%s), want %s", key, n.Fate, n.Text, want)
		}
	}
}

// A handler of gVisor's shim becomes one that calls runsc, with the flags of the shim's own file.
func TestAHandlerOfGVisorsShimIsTranslated(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "runsc")
	write(t, dir, map[string]string{"runsc": "#!/bin/sh\n", "runsc.toml": "binary_name = \"" + binary + "\"\n" +
		"root = \"/run/runsc\"\nlog_level = \"debug\"\n[runsc_config]\nplatform = \"systrap\"\nsystemd-cgroup = \"true\"\n"})
	handler := func(config string) string {
		return "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gvisor]\n" +
			"runtime_type = \"io.containerd.runsc.v1\"\n" +
			"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gvisor.options]\n" +
			"TypeUrl = \"io.containerd.runsc.v1.options\"\nConfigPath = \"" + config + "\"\n"
	}
	plan, c := translated(t, map[string]string{"config.toml": handler(filepath.Join(dir, "runsc.toml"))})
	h, ok := c.Runtimes["gvisor"]
	if !ok || h.Type != config.RuntimeOCI || h.Path != binary || !h.SandboxContainer || h.Root != "/run/runsc" ||
		len(h.Flags) != 1 || h.Flags[0] != "--platform=systrap" {
		t.Errorf("%+v\n%s", h, plan.Files[0].Data)
	}
	if n, ok := fate(plan, "gvisor.options.ConfigPath"); !ok || n.Fate == Left {
		t.Errorf("%+v", n)
	}
	// Without runsc there is no handler, and without the file no flag.
	t.Setenv("PATH", t.TempDir())
	plan, c = translated(t, map[string]string{"config.toml": handler("/no/such")})
	if _, there := c.Runtimes["gvisor"]; there {
		t.Error("a handler without a binary is there")
	}
	for _, key := range []string{"gvisor.runtime_type", "gvisor.options.ConfigPath"} {
		if n, ok := fate(plan, key); !ok || n.Fate != Left {
			t.Errorf("%s is %q (%s)", key, n.Fate, n.Text)
		}
	}
}

// TestAnnotationsThatDoNotReachARuntimeArePrinted: a pattern is translated, and says what it does not pass on in Berth.
// A property of a unit is left out, since Berth does not start with it.
func TestAnnotationsThatDoNotReachARuntimeArePrinted(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"shim": "#!/bin/sh\n"})
	plan, loaded := translated(t, map[string]string{"config.toml": `version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]
runtime_type = "io.containerd.kata.v2"
runtime_path = "` + dir + `/shim"
pod_annotations = ["io.katacontainers.*", "cdi.k8s.io/*", "org.systemd.property.*"]
container_annotations = ["io.katacontainers.*", "example.com/*"]
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
pod_annotations = ["dev.gvisor.*"]
container_annotations = ["*"]
`})
	if got := loaded.Runtimes["kata"].Annotations; !slices.Equal(got, []string{"io.katacontainers.*", "cdi.k8s.io/*",
		"example.com/*"}) {
		t.Errorf("annotations of the handler: %q", got)
	}
	for _, c := range []struct{ key, text string }{
		{"kata.pod_annotations", "cdi.k8s.io/*"}, {"kata.pod_annotations", "org.systemd.property"},
		{"runc.pod_annotations", "full names"}, {"runc.container_annotations", "io.katacontainers."},
	} {
		if !noted(plan, c.key, Left, c.text) {
			t.Errorf("%s: %s is not printed: %+v", c.key, c.text, plan.Notes)
		}
	}
	for _, text := range []string{"io.katacontainers", "example.com"} {
		if noted(plan, "kata.pod_annotations", Left, text) || noted(plan, "kata.container_annotations", Left, text) {
			t.Errorf("%s is printed, and passes: %+v", text, plan.Notes)
		}
	}
}

// TestTheServersOfVersion4AreTheTablesOfVersions2And3: what the sockets of containerd are set to has the same fate.
func TestTheServersOfVersion4AreTheTablesOfVersions2And3(t *testing.T) {
	for name, c := range map[string]struct{ file, grpc, tcp, debug string }{
		"version 3": {"version = 3\n[grpc]\naddress = \"/run/own.sock\"\nuid = 7\ngid = 8\n" +
			"max_recv_message_size = 1024\nmax_send_message_size = 16777216\ntcp_address = \"10.0.0.1:1\"\n" +
			"[debug]\naddress = \"/run/debug.sock\"\n", "grpc", "grpc.tcp_address", "debug.address"},
		"version 4": {"version = 4\n[plugins.'io.containerd.server.v1.grpc']\naddress = \"/run/own.sock\"\nuid = 7\n" +
			"gid = 8\nmax_recv_message_size = 1024\nmax_send_message_size = 16777216\n" +
			"[plugins.'io.containerd.server.v1.grpc-tcp']\naddress = \"10.0.0.1:1\"\n" +
			"[plugins.'io.containerd.server.v1.debug']\naddress = \"/run/debug.sock\"\n",
			"'io.containerd.server.v1.grpc'", "'io.containerd.server.v1.grpc-tcp'.address",
			"'io.containerd.server.v1.debug'.address"},
	} {
		plan, loaded := translated(t, map[string]string{"config.toml": c.file})
		if plan.Socket != "/run/own.sock" || loaded.Containerd != "/run/own.sock" || loaded.SocketGroup != "8" {
			t.Errorf("%s: socket %s, %s, group %q", name, plan.Socket, loaded.Containerd, loaded.SocketGroup)
		}
		for key, text := range map[string]string{c.grpc + ".uid": "belong to root", c.tcp: "10.0.0.1:1",
			c.debug: "/run/debug.sock", c.grpc + ".max_recv_message_size": "16 MiB"} {
			if !noted(plan, key, Left, text) {
				t.Errorf("%s: %s is not left with %q: %v", name, key, text, plan.Notes)
			}
		}
		if noted(plan, "max_send_message_size", Left, "") {
			t.Errorf("%s: a size that is Berth's is printed", name)
		}
	}
}

const version2 = `
version = 2
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "registry.k8s.io/pause:3.6"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/opt/cni/bin"
max_conf_num = 1
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "crun"
discard_unpacked_layers = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.crun.options]
BinaryName = "/no/such/crun"
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
endpoint = ["https://mirror.example:5000/v2/proxy", "http://plain.example"]
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."*"]
endpoint = ["https://all.example"]
[plugins."io.containerd.grpc.v1.cri".registry.configs."mirror.example:5000".tls]
ca_file = "/etc/mirror-ca.pem"
cert_file = "/etc/mirror.pem"
key_file = "/etc/mirror.key"
[plugins."io.containerd.grpc.v1.cri".registry.configs."mirror.example:5000".auth]
username = "mirror"
password = "hidden1"
[plugins."io.containerd.grpc.v1.cri".registry.configs."private.example".tls]
insecure_skip_verify = true
[plugins."io.containerd.grpc.v1.cri".registry.auths."https://private.example"]
username = "me"
password = "hidden2"
`

func TestOldTablesOfRegistriesBecomeFilesOfHosts(t *testing.T) {
	plan, c := translated(t, map[string]string{"config.toml": version2})
	if want := filepath.Join(plan.dir, "certs.d"); c.HostsDir != want {
		t.Errorf("hosts_dir is %s, not %s", c.HostsDir, want)
	}
	files := map[string]File{}
	for _, f := range plan.Files {
		name, err := filepath.Rel(plan.dir, f.Path)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = f
	}
	for name, wants := range map[string][]string{
		"certs.d/docker.io/hosts.toml": {
			"mirror.example:5000/v2/proxy", "override_path = true", "/etc/mirror-ca.pem", "/etc/mirror.key",
			"Basic bWlycm9yOmhpZGRlbjE=",
			"http://plain.example",
		},
		"certs.d/_default/hosts.toml":        {"https://all.example"},
		"certs.d/private.example/hosts.toml": {"skip_verify = true"},
		"migrate/credentials.json":           {`"private.example"`, "bWU6aGlkZGVuMg=="},
	} {
		for _, want := range wants {
			if !strings.Contains(string(files[name].Data), want) {
				t.Errorf("%s has no %s:\n%s", name, want, files[name].Data)
			}
		}
	}
	docker := string(files["certs.d/docker.io/hosts.toml"].Data)
	if strings.Index(docker, "mirror.example") > strings.Index(docker, "plain.example") {
		t.Errorf("the mirrors are out of order:\n%s", docker)
	}
	// What a password is in is for root alone, and nothing else says it.
	for name, f := range files {
		secret := strings.Contains(string(f.Data), "bWlycm9y") || strings.Contains(string(f.Data), "bWU6")
		if secret != (f.Mode == 0o600) {
			t.Errorf("%s has mode %o", name, f.Mode)
		}
	}
	if report := string(plan.Report()); strings.Contains(report, "hidden") || strings.Contains(report, "bWU6") {
		t.Errorf("the report says a password:\n%s", report)
	}
	for key, want := range map[string]Fate{
		"options.BinaryName": Left, "default_runtime_name": Left, "sandbox_image": Needless, "cni.max_conf_num": Needless,
	} {
		if n, ok := fate(plan, key); !ok || n.Fate != want {
			t.Errorf("%s is %q (%s), want %s", key, n.Fate, n.Text, want)
		}
	}
	if c.CgroupDriver != "cgroupfs" {
		t.Errorf("cgroup_driver is %s: containerd's default is cgroupfs", c.CgroupDriver)
	}
}

// TestCredentialsStayInUseBesideHostsFiles: containerd uses those of its configuration with config_path too, given or
// not. Only the tables that are in place of hosts files are without effect.
func TestCredentialsStayInUseBesideHostsFiles(t *testing.T) {
	old := certsDirs
	defer func() { certsDirs = old }()
	certs := t.TempDir()
	const registry = "[plugins.'io.containerd.cri.v1.images'.registry"
	const auths = registry + ".configs.'a.example'.auth]\nusername = \"me\"\npassword = \"hidden\"\n" +
		registry + ".auths.'https://b.example']\nauth = \"eW91OmhpZGRlbg==\"\n" +
		registry + ".configs.'c.example'.auth]\nauth = \"!\"\n" +
		registry + ".configs.'d.example'.auth]\nidentitytoken = \"hidden\"\nauth = \"eW91OmhpZGRlbg==\"\n"
	for name, c := range map[string]struct {
		file  string
		certs []string
		dir   string // empty: that of Berth's own files
		left  map[string]string
	}{
		"config_path": {registry + "]\nconfig_path = \"" + certs + "\"\n" + auths, nil, certs, nil},
		"its default": {auths, []string{certs}, certs, nil},
		"both of its defaults": {auths, []string{"/no/such", certs, t.TempDir()}, certs,
			map[string]string{"registry.config_path (not given: the default of containerd 2)": "is one directory"}},
		"no directory": {auths, []string{"/no/such"}, "", nil},
		"older tables": {registry + "]\nconfig_path = \"" + certs + "\"\n" + registry +
			".mirrors.'a.example']\nendpoint = [\"https://m.example\"]\n" + registry + ".headers]\nX-A = [\"b\"]\n" + auths, nil,
			certs, map[string]string{"registry": "mirrors and configs.*.tls have no effect", "registry.headers": certs}},
	} {
		t.Run(name, func(t *testing.T) {
			certsDirs = c.certs
			plan, loaded := translated(t, map[string]string{"config.toml": "version = 3\n" + c.file})
			if c.dir == "" {
				c.dir = filepath.Join(plan.dir, "certs.d")
			}
			if loaded.HostsDir != c.dir {
				t.Errorf("hosts_dir is %s, not %s", loaded.HostsDir, c.dir)
			}
			if len(plan.Files) != 2 || plan.Files[1].Path != plan.credentialsFile() || plan.Files[1].Mode != 0o600 ||
				!strings.Contains(string(plan.Files[1].Data), `"auth": "bWU6aGlkZGVu"`) ||
				!strings.Contains(string(plan.Files[1].Data), `"auth": "eW91OmhpZGRlbg=="`) {
				t.Errorf("the kubelet's credentials are not those of containerd: %v", plan.Files[1:])
			}
			left := map[string]string{"configs.'c.example'.auth": "user and password", "configs.'d.example'.auth": "token"}
			maps.Copy(left, c.left)
			for key, text := range left {
				if !noted(plan, key, Left, text) {
					t.Errorf("%s is not left with %q: %v", key, text, plan.Notes)
				}
			}
			for _, key := range []string{"configs.'a.example'.auth", "configs.'b.example'.auth"} {
				if n, ok := fate(plan, key); !ok || n.Fate != Translated {
					t.Errorf("%s is %q (%s)", key, n.Fate, n.Text)
				}
			}
		})
	}
}

// A row of the page that names a key of Berth is a promise: a key that is not translated says by hand why.
func TestEveryKeyThatThePageTranslatesIsTranslated(t *testing.T) {
	handled := map[string]bool{"runtimes": true, "registry": true, "config_path": true, "mirrors": true, "configs": true,
		"auths": true, "endpoint": true, "username": true, "password": true, "auth": true, "identitytoken": true,
		"headers":                   true,
		"enable_unprivileged_ports": true, "enable_unprivileged_icmp": true, "enable_selinux": true,
		"runtime_type": true, "options": true,
		"pod_annotations": true, "container_annotations": true, "privileged_without_host_devices": true,
		"privileged_without_host_devices_all_devices_allowed": true, "cgroup_writable": true, "platform": true,
		"runtime_path": true,
		// By hand, with the keys that are meant: base specifications, and networks of single handlers.
		"base_runtime_spec": true, "cni_conf_dir": true, "cni_max_conf_num": true,
		// Of NRI, in a plugin of its own.
		"disable": true, "socket_path": true, "plugin_path": true, "plugin_config_path": true,
		"plugin_registration_timeout": true, "plugin_request_timeout": true, "disable_connections": true,
		"default_validator": true,
		// Of image verifiers, likewise.
		"max_verifiers": true, "per_verifier_timeout": true,
	}
	for key, twin := range twins()[Containerd] {
		if handled[key] || twin.needless() || twin.is == "no" {
			continue
		}
		c := &containerdConfig{Plan: newPlan(Containerd, t.TempDir())}
		if !c.setting(key, key, "10") && !c.setting(key, key, true) {
			t.Errorf("the page says that %s is %s, and it is not translated", key, twin.is)
		}
	}
	if len(twins()[Containerd]) < 60 || len(twins()[CRIO]) < 80 {
		t.Errorf("the page has %d keys of containerd and %d of CRI-O: it is laid out otherwise than it was",
			len(twins()[Containerd]), len(twins()[CRIO]))
	}
}

func TestANodeWithoutAConfigurationHasContainerdsDefaults(t *testing.T) {
	dir := t.TempDir()
	plan, err := FromContainerd(filepath.Join(dir, "none.toml"), dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := plan.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if plan.Store != containerdRoot || c.CgroupDriver != "cgroupfs" || c.Containerd != containerdSocket {
		t.Errorf("store %s, driver %s, socket %s", plan.Store, c.CgroupDriver, c.Containerd)
	}
}

// TestAnImportThatIsNotThereIsNoConfigurationAtAll: containerd does not start with it. Seen to fail where the whole
// configuration was taken for the defaults then.
func TestAnImportThatIsNotThereIsNoConfigurationAtAll(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(file, []byte("version = 3\nroot = \"/data\"\nimports = [\"more.toml\"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := FromContainerd(file, dir); err == nil || !strings.Contains(err.Error(), "more.toml") {
		t.Errorf("the error is %v", err)
	}
}

func TestWhatIsWrittenIsPutBackExactly(t *testing.T) {
	dir := t.TempDir()
	kubelet := filepath.Join(dir, "kubelet.yaml")
	const before = "kind: KubeletConfiguration\n" +
		"containerRuntimeEndpoint: \"unix:///run/containerd/containerd.sock\"\n# mine\n"
	write(t, dir, map[string]string{
		"kubelet.yaml": before, "config.toml": version2, "berth/config.toml": "log_level = \"warn\"\n",
	})
	if err := os.Chmod(kubelet, 0o640); err != nil {
		t.Fatal(err)
	}
	state := func() map[string]string {
		out := map[string]string{}
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := e.Info()
			out[path] = info.Mode().String()
			if !e.IsDir() {
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				out[path] += string(data)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	first := state()
	apply := func(record *Record) error {
		t.Helper()
		plan, err := FromContainerd(filepath.Join(dir, "config.toml"), filepath.Join(dir, "berth"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := plan.Finish(); err != nil {
			t.Fatal(err)
		}
		file, err := KubeletFile(kubelet, "/run/berth/berth.sock")
		if err != nil {
			t.Fatal(err)
		}
		if err := record.Apply(plan.dir, append(plan.Files, file)); err != nil {
			return err
		}
		return record.WriteReport(plan)
	}
	open := func() *Record {
		t.Helper()
		r, err := Open(filepath.Join(dir, "berth"), "containerd")
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if err := apply(open()); err != nil {
		t.Fatal(err)
	}
	second := state()
	got := second[kubelet]
	if !strings.Contains(got, `"unix:///run/berth/berth.sock"`) || !strings.Contains(got, "# mine") {
		t.Errorf("the kubelet's configuration is %s", got)
	}
	if info, err := os.Stat(open().path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the record is %v, %v", info, err)
	}
	// Twice is as good as once.
	if err := apply(open()); err != nil {
		t.Fatal(err)
	}
	if third := state(); !equal(second, third) {
		t.Errorf("a second run has changed something: %v\n%v", second, third)
	}
	// What somebody has changed is neither written over nor removed.
	dropIn := filepath.Join(dir, "berth/config.d/50-containerd.toml")
	written, err := os.ReadFile(dropIn)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, map[string]string{"berth/config.d/50-containerd.toml": "log_level = \"error\"\n"})
	if err := apply(open()); err == nil || !strings.Contains(err.Error(), "changed") {
		t.Errorf("a changed file was written over: %v", err)
	}
	if _, err := open().Revert(); err == nil || !strings.Contains(err.Error(), "stays") {
		t.Errorf("a changed file is not told: %v", err)
	}
	write(t, dir, map[string]string{"berth/config.d/50-containerd.toml": string(written)})
	if _, err := open().Revert(); err != nil {
		t.Fatal(err)
	}
	if last := state(); !equal(first, last) {
		t.Errorf("before:\n%v\nafter:\n%v", first, last)
	}
}

func equal(a, b map[string]string) bool {
	one, _ := json.Marshal(a)
	other, _ := json.Marshal(b)
	return string(one) == string(other)
}

// TestImageVerifiersStayInForce: also those in the directory that containerd looks into without a key. A directory
// without a verifier, which is in the configuration that containerd prints, would keep images from being pulled in
// Berth. Seen to fail without the look into the directory.
func TestImageVerifiersStayInForce(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"verifiers/a": "", "verifiers/b": "", "default/a": ""})
	old := verifierDir
	defer func() { verifierDir = old }()
	const head = "version = 3\n[plugins.'io.containerd.image-verifier.v1.bindir']\n"
	for name, c := range map[string]struct {
		file, at string
		want     config.ImageVerifier
		note     Fate
		text     string
	}{
		"nothing": {file: "version = 3\n", at: dir + "/missing", want: config.Default().ImageVerifier},
		"a default directory": {file: "version = 3\n", at: dir + "/default",
			want: config.ImageVerifier{BinDir: dir + "/default"}},
		"a missing directory":    {file: head + "bin_dir = \"/no/such\"\n", note: Needless, text: "/no/such has no"},
		"an empty directory":     {file: head + "bin_dir = \"" + t.TempDir() + "\"\n", note: Needless, text: "has no image"},
		"no verifier is allowed": {file: head + "bin_dir = \"" + dir + "/verifiers\"\nmax_verifiers = 0\n", note: Needless},
		"all keys": {file: head + "bin_dir = \"" + dir + "/verifiers\"\nmax_verifiers = -1\nper_verifier_timeout = \"3s\"\n",
			want: config.ImageVerifier{BinDir: dir + "/verifiers", MaxVerifiers: -1,
				PerVerifierTimeout: config.Duration(3 * time.Second)}},
		"more than are allowed": {file: head + "bin_dir = \"" + dir + "/verifiers\"\nmax_verifiers = 1\n",
			want: config.ImageVerifier{BinDir: dir + "/verifiers", MaxVerifiers: 1}, note: Left, text: "first 1 of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			verifierDir = c.at
			plan, loaded := translated(t, map[string]string{"config.toml": c.file})
			want := c.want
			want.MaxVerifiers = cmp.Or(want.MaxVerifiers, 10)
			want.PerVerifierTimeout = cmp.Or(want.PerVerifierTimeout, config.Duration(10*time.Second))
			if loaded.ImageVerifier != want {
				t.Errorf("%+v, want %+v", loaded.ImageVerifier, want)
			}
			told := slices.ContainsFunc(plan.Notes, func(n Note) bool {
				return strings.Contains(n.Key, "image-verifier") && n.Fate == c.note && strings.Contains(n.Text, c.text)
			})
			if c.note != "" && !told {
				t.Errorf("no note of the kind %v: %+v", c.note, plan.Notes)
			}
		})
	}
}

// TestKeysForEncryptedImagesStayInUse: those of containerd's stream processors, and those of CRI-O, also without a key.
func TestKeysForEncryptedImagesStayInUse(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"keys/a.pem": "", "providers.conf": "{}"})
	processor := func(accepts string, args ...string) string {
		return fmt.Sprintf("version = 3\n[stream_processors.'decoder']\naccepts = [%q]\nargs = [%s]\nenv = [%q]\n", accepts,
			"\""+strings.Join(args, "\", \"")+"\"", "OCICRYPT_KEYPROVIDER_CONFIG="+dir+"/providers.conf")
	}
	const mediaType = "application/vnd.oci.image.layer.v1.tar+gzip+encrypted"
	for name, c := range map[string]struct {
		file, want string
		note       Fate
		text       string
	}{
		"two words":         {processor(mediaType, keysFlag, dir+"/keys"), dir + "/keys", Left, "key providers"},
		"one word":          {processor(mediaType, keysFlag+"="+dir+"/keys"), dir + "/keys", Translated, ""},
		"no directory":      {processor(mediaType, keysFlag, dir+"/none"), "", Needless, "no directory"},
		"another processor": {processor("text/plain", keysFlag, dir+"/keys"), "", Left, "no stream processors"},
	} {
		plan, loaded := translated(t, map[string]string{"config.toml": c.file})
		if got := loaded.Image.DecryptionKeysPath; got != c.want {
			t.Errorf("%s: the keys are in %q, want %q", name, got, c.want)
		}
		if !slices.ContainsFunc(plan.Notes, func(n Note) bool {
			return strings.Contains(n.Key, "decoder") && n.Fate == c.note && strings.Contains(n.Text, c.text)
		}) {
			t.Errorf("%s: no note of the kind %s with %q: %+v", name, c.note, c.text, plan.Notes)
		}
	}
	old := crioKeys
	defer func() { crioKeys = old }()
	for name, c := range map[string]struct{ file, at, want string }{
		"a key":                 {"[crio.runtime]\ndecryption_keys_path = \"" + dir + "/keys\"\n", "/no/such", dir + "/keys"},
		"a directory of no key": {"[crio.runtime]\ndecryption_keys_path = \"/no/such\"\n", dir + "/keys", ""},
		"the default":           {"", dir + "/keys", dir + "/keys"},
		"nothing":               {"", "/no/such", ""},
	} {
		crioKeys = c.at
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
		if got := loaded.Image.DecryptionKeysPath; got != c.want {
			t.Errorf("CRI-O, %s: the keys are in %q, want %q", name, got, c.want)
		}
	}
}

// TestARemoteSnapshotterStaysInUse: the one of all images, with the socket of its proxy plugin. Others are left, with
// the reason.
func TestARemoteSnapshotterStaysInUse(t *testing.T) {
	const plugins = "[proxy_plugins.stargz]\ntype = \"snapshot\"\naddress = \"/run/s.sock\"\n" +
		"[proxy_plugins.nydus]\ntype = \"snapshot\"\naddress = \"/run/n.sock\"\n"
	images := func(name string) string {
		return "version = 3\n[plugins.'io.containerd.cri.v1.images']\nsnapshotter = \"" + name + "\"\n" + plugins
	}
	for name, c := range map[string]struct {
		file string
		want config.Snapshotter
		note Fate
		text string
	}{
		"of all images": {images("stargz"), config.Snapshotter{Name: "stargz", Address: "/run/s.sock"}, Needless,
			"another snapshotter"},
		"in version 2": {
			"version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = \"stargz\"\n" + plugins,
			config.Snapshotter{Name: "stargz", Address: "/run/s.sock"}, Needless, "another snapshotter",
		},
		"overlayfs": {images("overlayfs"), config.Snapshotter{}, Needless, "overlayfs stacks"},
		"Nydus":     {images("nydus"), config.Snapshotter{}, Left, "images of Nydus need"},
		"built in":  {images("devmapper"), config.Snapshotter{}, Left, "no snapshotters of its own"},
		"a handler": {"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n" +
			"runtime_type = \"io.containerd.runc.v2\"\nsnapshotter = \"stargz\"\n" + plugins, config.Snapshotter{}, Left,
			"one snapshotter for all handlers"},
		"content": {"version = 3\n[proxy_plugins.c]\ntype = \"content\"\naddress = \"/run/c.sock\"\n", config.Snapshotter{},
			Left, `type "content"`},
	} {
		t.Run(name, func(t *testing.T) {
			plan, loaded := translated(t, map[string]string{"config.toml": c.file})
			if got := loaded.Snapshotter; got.Name != c.want.Name || got.Address != c.want.Address {
				t.Errorf("%+v, want %+v", got, c.want)
			}
			told := func(n Note) bool { return n.Fate == c.note && strings.Contains(n.Text, c.text) }
			if !slices.ContainsFunc(plan.Notes, told) {
				t.Errorf("no note of the kind %v: %+v", c.note, plan.Notes)
			}
		})
	}
}
