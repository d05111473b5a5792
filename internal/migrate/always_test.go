package migrate

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth/internal/config"
)

// TestEveryKeyThatThePageHasAsAlwaysOrNeverIsLookedAt: each says which values lose nothing.
func TestEveryKeyThatThePageHasAsAlwaysOrNeverIsLookedAt(t *testing.T) {
	for runtime, all := range fixedKeys {
		for key, twin := range twins()[runtime] {
			if _, there := all[key]; there != twin.needless() {
				t.Errorf("%s: %s is %q on the page, and is among the keys that Berth has a fixed value for: %t", runtime, key,
					twin.is, there)
			}
		}
		for key, f := range all {
			if _, there := twins()[runtime][key]; !there {
				t.Errorf("%s: %s is not on the page", runtime, key)
			}
			if differs := !f.same("something else") && !f.same(int64(7)) && !f.same([]any{"x"}); differs && f.instead == "" {
				t.Errorf("%s: %s does not say what Berth does instead", runtime, key)
			}
		}
	}
}

// TestAKeyThatBerthDoesNotFollowIsPrinted, and one that is set to what Berth does anyway is not.
func TestAKeyThatBerthDoesNotFollowIsPrinted(t *testing.T) {
	const (
		node    = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n"
		images  = "version = 3\n[plugins.'io.containerd.cri.v1.images']\n"
		handler = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\n"
		cni     = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\n"
		server  = "version = 3\n[plugins.'io.containerd.grpc.v1.cri']\n"
		overlay = "version = 3\n[plugins.'io.containerd.snapshotter.v1.overlayfs']\n"
	)
	for _, c := range []struct{ head, key, left, needless string }{
		{node, "max_container_log_line_size", `0 -1 262144`, `16384`},
		{node, "selinux_category_range", `100`, `1024`},
		{node, "disable_apparmor", `true`, ``},
		{node, "disable_proc_mount", `true`, ``},
		{node, "tolerate_missing_hugetlb_controller", `true`, ``},
		{node, "disable_hugetlb_controller", `true`, ``},
		{node, "restrict_oom_score_adj", ``, `true`},
		{node, "enable_cdi", `false`, `true`},
		{node, "enable_criu", `false`, `true`},
		{node, "drain_exec_sync_io_timeout", `"0s" "5m"`, ``},
		{node, "stats_collect_period", `"10s"`, `"1s"`},
		{node, "stats_retention_period", `"10m"`, `"2m0s"`},
		{images, "stats_collect_period", `30`, `10`},
		{images, "discard_unpacked_layers", ``, `true`},
		{images + "[plugins.'io.containerd.cri.v1.images'.image_decryption]\n", "key_model", `"other"`, `"node"`},
		{handler, "sandboxer", `"shim"`, `"podsandbox"`},
		{handler, "io_type", `"streaming"`, `"fifo"`},
		{cni, "ip_pref", `"ipv4" "ipv6"`, `"cni"`},
		{cni, "setup_serially", ``, `true`},
		{server, "disable_tcp_service", `false`, `true`},
		{overlay, "mount_options", `["volatile"]`, ``},
		{overlay, "root_path", `"/data/snapshots"`, ``},
		{"version = 3\n", "root", `"/data/containerd"`, `"/var/lib/containerd/"`},
	} {
		check(t, c.head, c.key, c.left, c.needless, func(file string) *Plan {
			plan, _ := translated(t, map[string]string{"config.toml": file})
			return plan
		})
	}
	const (
		api     = "[crio.api]\n"
		runtime = "[crio.runtime]\n"
		runc    = "[crio.runtime.runtimes.runc]\n"
	)
	for _, c := range []struct{ head, key, left, needless string }{
		{"[crio]\n", "root", `"/data/images"`, `"/var/lib/containers/storage"`},
		{"[crio]\n", "storage_driver", `"btrfs"`, `"overlay"`},
		{"[crio]\n", "storage_option", `["overlay.size=10G"]`, ``},
		{"[crio]\n", "internal_wipe", ``, `true`},
		{api, "tls_min_version", `"VersionTLS13"`, `"VersionTLS12"`},
		{api, "tls_cipher_suites", `["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]`, ``},
		{api, "grpc_max_send_msg_size", `1048576 268435456`, `16777216 83886080`},
		{api, "grpc_max_recv_msg_size", `1048576`, `16777216`},
		{runtime, "apparmor_profile", `"mine" "unconfined"`, `"crio-default"`},
		{runtime, "privileged_seccomp_profile", `"/etc/seccomp.json"`, `"unconfined"`},
		{runtime, "uid_mappings", `"0:100000:65536"`, ``},
		{runtime, "gid_mappings", `"0:100000:65536"`, ``},
		{runtime, "minimum_mappable_uid", `0 100000`, `-1`},
		{runtime, "minimum_mappable_gid", `0 100000`, `-1`},
		{runtime, "log_to_journald", `true`, ``},
		{runtime, "no_pivot", `true`, ``},
		{runtime, "add_inheritable_capabilities", `true`, ``},
		{runtime, "hostnetwork_disable_selinux", `true`, ``},
		{runtime, "enable_criu_support", `false`, `true`},
		{runtime, "separate_pull_cgroup", `"pod"`, ``},
		{runtime, "conmon", ``, `"/usr/bin/conmon"`},
		{runtime, "disable_hostport_mapping", ``, `true`},
		{runc, "container_create_timeout", `60`, `240`},
		{runc, "monitor_path", ``, `"/usr/bin/conmon"`},
		{"[crio.image]\n", "default_transport", `"oci:"`, `"docker://"`},
		{"[crio.image]\n", "oci_artifact_mount_support", `false`, `true`},
		{"[crio.network]\n", "cni_status_grace_period", `"1m" 60000000000`, `"10s"`},
		{"[crio.tracing]\n", "tracing_sampling_rate_per_million", `1000000`, ``},
		{"[crio.stats]\n", "stats_collection_period", `10`, ``},
		{"[crio.stats]\n", "included_pod_metrics", `["cpu"]`, `["all"]`},
	} {
		check(t, c.head, c.key, c.left, c.needless, func(file string) *Plan {
			plan, _ := translatedCRIO(t, file)
			return plan
		})
	}
}

// check looks at the fates of a key with values that are left, and with values that are needless.
func check(t *testing.T, head, key, left, needless string, translate func(string) *Plan) {
	t.Helper()
	for want, values := range map[Fate]string{Left: left, Needless: needless} {
		for _, value := range strings.Fields(values) {
			plan := translate(head + key + " = " + value + "\n")
			if n, ok := fate(plan, key); !ok || n.Fate != want || n.Text == "" {
				t.Errorf("%s = %s is %q (%s), want %s", key, value, n.Fate, n.Text, want)
			}
		}
	}
}

// TestANetworkWithoutHostPortsIsPrinted: CRI-O maps host ports whatever the CNI plugins do, and Berth has the plugins
// map them.
func TestANetworkWithoutHostPortsIsPrinted(t *testing.T) {
	const (
		bridge  = `{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "bridge"}]}`
		portmap = `{"name": "n", "plugins": [{"type": "a"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`
		single  = `{"name": "n", "type": "own", "capabilities": {"portMappings": true}}`
	)
	for name, c := range map[string]struct {
		files map[string]string
		key   string
		want  bool
	}{
		"no plugin maps them":     {map[string]string{"10-a.conflist": bridge}, "", true},
		"said so":                 {map[string]string{"10-a.conflist": bridge}, "disable_hostport_mapping = false", true},
		"a plugin does":           {map[string]string{"10-a.conflist": portmap}, "", false},
		"one plugin alone does":   {map[string]string{"10-a.conf": single}, "", false},
		"CRI-O does not map them": {map[string]string{"10-a.conflist": bridge}, "disable_hostport_mapping = true", false},
		"no network yet":          {nil, "", false},
	} {
		dir := t.TempDir()
		for file, data := range c.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		plan, _ := translatedCRIO(t, "[crio.network]\nnetwork_dir = \""+dir+"\"\n[crio.runtime]\n"+c.key+"\n")
		got := slices.ContainsFunc(plan.Notes, func(n Note) bool {
			return n.Fate == Left && strings.Contains(n.Key, "disable_hostport_mapping") && strings.Contains(n.Text, "portmap")
		})
		if got != c.want {
			t.Errorf("%s: printed: %t, want %t: %v", name, got, c.want, plan.Notes)
		}
	}
}

// TestTheKubeletIsToldTheSameName after a migration from containerd.
func TestTheKubeletIsToldTheSameName(t *testing.T) {
	if _, loaded := translated(t, map[string]string{"config.toml": ""}); loaded.RuntimeName != config.NameContainerd {
		t.Errorf("from containerd: %q", loaded.RuntimeName)
	}
	if _, loaded := translatedCRIO(t, ""); loaded.RuntimeName != config.NameBerth {
		t.Errorf("from CRI-O: %q", loaded.RuntimeName)
	}
}

// TestSELinuxStaysOffWhereItWas: containerd has no labels by default, and CRI-O has them where the host has SELinux on.
func TestSELinuxStaysOffWhereItWas(t *testing.T) {
	const v2, v3 = "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\n",
		"version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n"
	for file, want := range map[string]string{
		"": config.SELinuxOff, v2: config.SELinuxOff, v3 + "enable_selinux = false\n": config.SELinuxOff,
		v2 + "enable_selinux = true\n": config.SELinuxAuto, v3 + "enable_selinux = true\n": config.SELinuxAuto,
	} {
		plan, loaded := translated(t, map[string]string{"config.toml": file})
		if loaded.SELinux != want {
			t.Errorf("containerd, %q: selinux = %q, want %q\n%s", file, loaded.SELinux, want, plan.Files[0].Data)
		}
	}
	for file, want := range map[string]string{
		"": config.SELinuxAuto, "[crio.runtime]\nselinux = true\n": config.SELinuxAuto,
		"[crio.runtime]\nselinux = false\n": config.SELinuxOff,
	} {
		plan, loaded := translatedCRIO(t, file)
		if loaded.SELinux != want {
			t.Errorf("CRI-O, %q: selinux = %q, want %q\n%s", file, loaded.SELinux, want, plan.Files[0].Data)
		}
	}
}
