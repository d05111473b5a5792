package migrate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/config"
)

// fixed is what Berth does in place of a key that docs/migrating.md has as always or never.
type fixed struct {
	// same tells whether Berth does what the key asks for, or whether nothing is lost with it.
	same func(value any) bool
	// instead says what Berth does, to somebody who wants something else.
	instead string
}

// anything is for keys that have no meaning in Berth, whatever their value.
func anything(any) bool { return true }

// is is for keys of which Berth does one of some values. An empty one is a key that is not given.
func is(values ...any) func(any) bool {
	return func(value any) bool {
		return slices.ContainsFunc(values, func(v any) bool {
			switch v := v.(type) {
			case int:
				n, ok := value.(int64)
				return ok && n == int64(v)
			case string, bool:
				return value == v
			}
			return empty(value)
		})
	}
}

// lasts is for a key with a duration, as a text or in nanoseconds.
func lasts(want ...time.Duration) func(any) bool {
	return func(value any) bool {
		d, err := time.ParseDuration(text(value))
		if n, ok := value.(int64); ok {
			d, err = time.Duration(n), nil
		}
		return err == nil && slices.Contains(want, d)
	}
}

// either is for a key that one of two functions takes.
func either(a, b func(any) bool) func(any) bool {
	return func(value any) bool { return a(value) || b(value) }
}

// onlyAll is for a list of which Berth has everything.
func onlyAll(value any) bool { return empty(value) || slices.Equal(texts(value), []string{"all"}) }

// fixedKeys are all keys that docs/migrating.md has as always or never. A test compares them with the page.
var fixedKeys = map[string]map[string]fixed{
	Containerd: {
		"selinux_category_range": {is(0, 1024), "containers get two of all 1024 categories"},
		"max_container_log_line_size": {is(16 << 10), "a line of more than 16 KiB becomes several records of the log, " +
			"marked P"},
		"disable_apparmor": {is(false), "containers get the AppArmor profile berth-default where the host has AppArmor. " +
			"A pod with appArmorProfile.type: Unconfined gets none"},
		"restrict_oom_score_adj": {anything, ""},
		"disable_proc_mount": {is(false), "pods get the masked and read-only paths that the kubelet sends: procMount: " +
			"Unmasked has an effect"},
		"tolerate_missing_hugetlb_controller": {is(false), "a pod that asks for huge pages is refused where the host has " +
			"no hugetlb controller; others need none"},
		"disable_hugetlb_controller": {is(false), "limits of huge pages apply where the host has the hugetlb controller"},
		"enable_cdi":                 {is(true), "devices of CDI can be used: cdi_spec_dirs = [] leaves none"},
		"drain_exec_sync_io_timeout": {is(), "an exec ends with its command, and does not wait for processes in the " +
			"background that keep its output open"},
		"ignore_deprecation_warnings": {anything, ""},
		"stats_collect_period": {either(is(0, 10), lasts(time.Second)),
			"statistics are read when they are asked for, without a period"},
		"stats_retention_period": {lasts(2 * time.Minute), "statistics are read when they are asked for, and not kept"},
		"enable_criu":            {is(true), "containers can be checkpointed where the program criu is installed"},
		"disable_tcp_service":    {is(true), "Berth serves the CRI on its unix socket only"},
		"sandboxer": {is("", "podsandbox"), "the sandbox API of shims is not used: containers of a shim's pod have its " +
			"task API"},
		"io_type":                           {is("", "fifo"), "the output of containers comes through pipes"},
		"ignore_blockio_not_enabled_errors": {anything, ""},
		"setup_serially":                    {anything, ""},
		"ip_pref":                           {is("", "cni"), "addresses stay in the order of the CNI plugins"},
		"use_internal_loopback":             {anything, ""},
		"disable_snapshot_annotations":      {anything, ""},
		"discard_unpacked_layers":           {anything, ""},
		"image_pull_with_sync_fs":           {anything, ""},
		"use_local_image_pull":              {anything, ""},
		"image_decryption":                  {anything, ""}, // a table
		"key_model":                         {is("", "node"), "the keys for encrypted images are the node's"},
	},
	CRIO: {
		"imagestore": {anything, ""},
		"storage_driver": {is("", "overlay", "overlay2"),
			"layers are directories below root, which overlayfs stacks"},
		"storage_option": {is(nil), "overlayfs has no options in Berth. by hand: disk_quota of a handler limits what a " +
			"container writes"},
		"log_dir":              {anything, ""},
		"version_file":         {anything, ""},
		"version_file_persist": {anything, ""},
		"clean_shutdown_file":  {anything, ""},
		"internal_wipe":        {anything, ""},
		"internal_repair":      {anything, ""},
		"tls_min_version":      {is("", "VersionTLS12"), "streams over TLS take TLS 1.2 as well as 1.3"},
		"tls_cipher_suites":    {is(nil), "streams over TLS have Go's choice of cipher suites"},
		"grpc_max_send_msg_size": {is(0, 16<<20, 32<<20, 80<<20),
			"an answer may have 32 MiB, of which a kubelet takes no more than 16 MiB"},
		"grpc_max_recv_msg_size":      {is(0, 16<<20, 80<<20), "a request may have 16 MiB"},
		"monitor_path":                {anything, ""},
		"monitor_cgroup":              {anything, ""},
		"monitor_env":                 {anything, ""},
		"monitor_exec_cgroup":         {anything, ""},
		"conmon":                      {anything, ""},
		"conmon_cgroup":               {anything, ""},
		"conmon_env":                  {anything, ""},
		"container_exits_dir":         {anything, ""},
		"container_attach_socket_dir": {anything, ""},
		"pinns_path":                  {anything, ""},
		"no_sync_log":                 {anything, ""},
		"log_to_journald":             {is(false), "the output of containers is in the kubelet's log files only"},
		"container_create_timeout": {is(0, 240), "the creation of a container has the deadline of the kubelet's call " +
			"(its runtimeRequestTimeout)"},
		"stream_websockets": {anything, ""},
		"privileged_seccomp_profile": {is("", "unconfined"),
			"privileged containers have no seccomp profile"},
		"apparmor_profile": {is("", "crio-default"), "a container whose pod names no AppArmor profile gets berth-default. " +
			"A pod names another with appArmorProfile: type Localhost, or Unconfined for none"},
		"hostnetwork_disable_selinux": {is(false), "pods of the node's network get an SELinux label as others do. " +
			"Those that are privileged get none"},
		"no_pivot": {is(false), "containers enter their root file system with pivot_root. That fails where the node's own " +
			"root is an initramfs"},
		"drop_infra_ctr":               {anything, ""},
		"infra_ctr_cpuset":             {anything, ""},
		"add_inheritable_capabilities": {is(false), "containers have no inheritable capabilities"},
		"uid_mappings": {is(""), "a container is in a user namespace only if its pod asks for one (hostUsers: false), with " +
			"the IDs that the kubelet chooses"},
		"gid_mappings": {is(""), "a container is in a user namespace only if its pod asks for one (hostUsers: false), with " +
			"the IDs that the kubelet chooses"},
		"minimum_mappable_uid":       {is(-1), "the kubelet chooses the IDs of user namespaces"},
		"minimum_mappable_gid":       {is(-1), "the kubelet chooses the IDs of user namespaces"},
		"enable_criu_support":        {is(true), "containers can be checkpointed where the program criu is installed"},
		"ctr_stop_timeout":           {anything, ""}, // CRI-O itself reads it and does nothing with it
		"separate_pull_cgroup":       {is(""), "images are unpacked by children of berthd, in its cgroup"},
		"enable_pod_events":          {anything, ""},
		"default_transport":          {is("", "docker://"), "images come from registries: docker://"},
		"pause_image":                {anything, ""},
		"pause_image_auth_file":      {anything, ""},
		"pause_command":              {anything, ""},
		"big_files_temporary_dir":    {anything, ""},
		"oci_artifact_mount_support": {is(true), "artifacts can be volumes of pods"},
		"short_name_mode":            {anything, ""},
		"cni_status_grace_period": {either(is(0), lasts(0, 10*time.Second)),
			"what the CNI plugins say of their status counts for ten seconds"},
		"tracing_sampling_rate_per_million": {is(0), "whoever calls berthd decides what is traced: " +
			"tracing.samplingRatePerMillion in the kubelet's configuration"},
		"stats_collection_period":  {is(0), "statistics are read when they are asked for, without a period"},
		"collection_period":        {is(0), "statistics are read when they are asked for, without a period"},
		"included_pod_metrics":     {onlyAll, "pods have all metrics"},
		"disable_hostport_mapping": {anything, ""}, // false, the default, is looked at in hostPorts
	},
}

// unlike reports a key that is set to something that Berth does not do. It is false for all others.
func (p *Plan) unlike(path, key string, value any) bool {
	f, known := fixedKeys[p.Runtime][key]
	if !known || f.same(value) {
		return false
	}
	p.left(path, "%s has no effect in Berth: %s", written(value), f.instead)
	return true
}

// written is a value about as it is in a file of configuration.
func written(value any) string {
	switch v := value.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case []any:
		var out []string
		for _, item := range v {
			out = append(out, written(item))
		}
		return "[" + strings.Join(out, ", ") + "]"
	}
	return fmt.Sprint(value)
}

// elsewhere reports images of the other runtime that are not at its default place, which is perhaps a disk for them.
func (p *Plan) elsewhere(path, dir, standard string) {
	if filepath.Clean(dir) == standard {
		p.note(path, Needless, "Berth has directories of its own: root, state")
		return
	}
	p.left(path, "%q: Berth keeps images and containers below root, %s: by hand: root, if they belong on the same disk",
		dir, config.Default().Root)
}

// hostPorts reports a network without host ports. CRI-O maps them itself where no key says otherwise, and Berth leaves
// that to the CNI plugins.
func (t *crioConfig) hostPorts(crio map[string]any) {
	from := "crio.runtime.disable_hostport_mapping"
	off, given := table(crio["runtime"])["disable_hostport_mapping"].(bool)
	if off {
		return
	}
	if !given {
		from += ", not given"
	}
	type plugin struct {
		Capabilities map[string]bool `json:"capabilities"`
	}
	dir := cmp.Or(text(table(crio["network"])["network_dir"]), config.Default().Network.CNIConfDir)
	files, _ := filepath.Glob(filepath.Join(dir, "*.conf*"))
	for _, path := range files {
		var conf struct {
			plugin
			Plugins []plugin `json:"plugins"`
		}
		data, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(data, &conf) != nil {
			continue
		}
		if slices.ContainsFunc(append(conf.Plugins, conf.plugin), func(p plugin) bool {
			return p.Capabilities["portMappings"]
		}) {
			return
		}
	}
	if len(files) > 0 {
		t.left(from, "CRI-O maps host ports of pods itself. In Berth the CNI plugins do, and none in %s has the capability "+
			"portMappings: by hand: the plugin portmap, unless the network provider maps host ports without it", dir)
	}
}
