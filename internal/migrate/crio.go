package migrate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"berth/internal/config"
	"berth/internal/image/registry"
	"berth/internal/loglimit"
)

// Where CRI-O has its files when nothing says otherwise.
const (
	CRIOConfig = "/etc/crio/crio.conf"
	crioSocket = "/var/run/crio/crio.sock"
	crioStore  = "/var/lib/containers/storage"
)

// crioCapabilities are the default capabilities of containers when no key says which. Berth's are those of containerd:
// they have CAP_AUDIT_WRITE, CAP_MKNOD, CAP_NET_RAW, CAP_SETFCAP and CAP_SYS_CHROOT as well.
var crioCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP",
	"CAP_NET_BIND_SERVICE", "CAP_KILL",
}

// defaultHandler is the handler that Berth has without a configuration.
var defaultHandler = config.Default().DefaultRuntime

// crioHooks is where CRI-O looks for hooks when no key says where.
var crioHooks = "/usr/share/containers/oci/hooks.d"

// FromCRIO translates the configuration in a file and in the directory beside it, and the settings of registries in a
// directory of the libraries that CRI-O is made of. dir is where Berth's configuration is. A file that is not there
// is CRI-O's default.
func FromCRIO(file, containers, dir string) (*Plan, error) {
	t := &crioConfig{Plan: newPlan(CRIO, dir)}
	t.Socket, t.Store = crioSocket, crioStore
	tree, err := t.load(file, file+".d", ".conf")
	if err != nil {
		return nil, err
	}
	for _, key := range keys(tree) {
		if key != "crio" && !empty(tree[key]) {
			t.left(key, "Berth does not know this table")
		}
	}
	t.section([]string{"crio"}, table(tree["crio"]))
	if _, given := table(table(tree["crio"])["runtime"])["decryption_keys_path"]; !given {
		t.decryptionKeys("crio.runtime.decryption_keys_path, not given", crioKeys)
	}
	if _, given := table(table(tree["crio"])["runtime"])["hooks_dir"]; !given {
		if files, _ := filepath.Glob(filepath.Join(crioHooks, "*.json")); len(files) > 0 {
			t.set("crio.runtime.hooks_dir, not given", "hooks_dirs", []string{crioHooks})
		}
	}
	t.capabilities(table(table(tree["crio"])["runtime"]))
	// Without the key, CRI-O does as Berth: it has labels where the host has SELinux on.
	if on, given := table(table(tree["crio"])["runtime"])["selinux"].(bool); given && !on {
		t.set("crio.runtime.selinux", "selinux", config.SELinuxOff)
	}
	t.hostPorts(table(tree["crio"]))
	if empty(table(table(tree["crio"])["image"])["global_auth_file"]) {
		t.ownLogins()
	}
	t.decide()
	if err := t.certificates(containers); err != nil {
		return nil, err
	}
	if err := t.registries(containers); err != nil {
		return nil, err
	}
	t.policy(filepath.Join(containers, "policy.json"))
	if err := t.storage(filepath.Join(containers, "storage.conf")); err != nil {
		return nil, err
	}
	return t.Plan, nil
}

type crioConfig struct {
	*Plan

	handlers       map[string]bool
	logins         []string           // hosts for which there are credentials
	certs          map[string]trusted // by host
	ownStore       bool               // crio.conf says where the images are
	defaultRuntime string
	driver         string
	tls            bool
	cert, key      string
}

// load reads a file, and those of a directory over it in the order of their names.
func (t *crioConfig) load(file, dir, suffix string) (map[string]any, error) {
	files := []string{file}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) && !e.IsDir() {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	whole := map[string]any{}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		var one map[string]any
		if err := toml.Unmarshal(data, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		t.Read = append(t.Read, path)
		override(whole, one)
	}
	return whole, nil
}

// capabilities gives all handlers CRI-O's default capabilities: a handler of Berth has more without the key. An empty
// list of CRI-O is none at all.
func (t *crioConfig) capabilities(settings map[string]any) {
	from, names := "crio.runtime.default_capabilities, not given", crioCapabilities
	if value, given := settings["default_capabilities"]; given {
		from, names = "crio.runtime.default_capabilities", []string{}
		for _, name := range texts(value) {
			if name = strings.ToUpper(name); !strings.HasPrefix(name, "CAP_") {
				name = "CAP_" + name
			}
			names = append(names, name)
		}
		if len(names) == 0 {
			names = []string{config.NoCapabilities}
		}
	}
	// Berth's own handler is there without a table. Pods that name no handler may get it.
	handlers := append(slices.Collect(mapKeys(t.handlers)), defaultHandler)
	slices.Sort(handlers)
	for _, name := range slices.Compact(handlers) {
		t.set(from, "runtimes\x00"+name+"\x00capabilities", names)
	}
}

// override puts a table over another one: what is given counts, empty or not.
func override(to, from map[string]any) {
	for key, value := range from {
		if before, ok := to[key].(map[string]any); ok && table(value) != nil {
			override(before, table(value))
			continue
		}
		to[key] = value
	}
}

// sameCRIO are keys that have the same meaning in Berth, under these names.
var sameCRIO = map[string]string{
	"stream_address":                         "stream.address",
	"stream_idle_timeout":                    "stream.idle_timeout",
	"device_ownership_from_security_context": "device_ownership_from_security_context",
	"absent_mount_sources_to_reject":         "refuse_missing_host_paths",
	"cdi_spec_dirs":                          "cdi_spec_dirs",
	"hooks_dir":                              "hooks_dirs",
	"blockio_config_file":                    "block_io_classes_file",
	"default_env":                            "default_env",
	"default_sysctls":                        "",
	"additional_devices":                     "default_devices",
	"pinned_images":                          "image.pinned",
	"cni_default_network":                    "network.cni_network",
	"network_dir":                            "network.cni_conf_dir",
	"plugin_dirs":                            "network.cni_bin_dirs",
	"tracing_endpoint":                       "",
}

// section translates a table.
func (t *crioConfig) section(path []string, settings map[string]any) {
	for _, key := range keys(settings) {
		value, at := settings[key], slices.Concat(path, []string{key})
		from := dotted(at...)
		switch {
		case key == "runtimes":
			for _, name := range keys(table(value)) {
				t.handler(dotted(slices.Concat(at, []string{name})...), name, table(table(value)[name]))
			}
		case key == "workloads", key == "nri":
			if !empty(value) {
				t.table(from, key, table(value))
			}
		case table(value) != nil:
			t.section(at, table(value))
		case empty(value), !t.setting(key, from, value, settings):
			t.look(from, key, value)
		}
	}
}

// table looks at a table that is not CRI-O's core.
func (t *crioConfig) table(from, key string, settings map[string]any) {
	if key == "workloads" {
		t.left(from, "nothing in a kubelet's pod needs them")
		return
	}
	names := map[string]string{"nri_listen": "socket_path", "nri_plugin_dir": "plugin_path",
		"nri_plugin_config_dir": "plugin_config_path", "nri_disable_connections": "disable_connections",
		"nri_plugin_registration_timeout": "plugin_registration_timeout",
		"nri_plugin_request_timeout":      "plugin_request_timeout"}
	for _, name := range keys(settings) {
		value := settings[name]
		switch twin := names[name]; {
		case empty(value) && name != "enable_nri":
		case name == "default_validator":
			t.left(from+"."+name, "by hand: [nri.default_validator], whose keys are containerd's")
		case name == "enable_nri":
			if on, _ := value.(bool); !on {
				t.set(from+"."+name, "nri.enable", "off")
			}
		case twin != "":
			t.set(from+"."+name, "nri."+twin, value)
		default:
			t.look(from+"."+name, name, value)
		}
	}
}

// setting translates one key. It is false for one that has no translation.
func (t *crioConfig) setting(key, from string, value any, settings map[string]any) bool {
	if twin := sameCRIO[key]; twin != "" {
		t.set(from, twin, value)
		return true
	}
	switch key {
	case "root":
		t.Store, t.ownStore = text(value), true
		t.elsewhere(from, t.Store, crioStore)
	case "runroot":
		t.note(from, Needless, "Berth has directories of its own: root, state")
	case "imagestore":
		t.MoreStores = append(t.MoreStores, text(value))
		t.elsewhere(from, text(value), crioStore)
	case "listen":
		t.Socket = text(value)
		t.note(from, Needless, "Berth has a socket of its own: address")
	case "stream_port":
		port, err := strconv.Atoi(text(value))
		if err != nil {
			t.left(from, "%q is no port", text(value))
		} else if port != 0 {
			t.set(from, "stream.port", int64(port))
		}
	case "decryption_keys_path":
		if !t.decryptionKeys(from, text(value)) {
			t.note(from, Needless, text(value)+" has no keys for encrypted images")
		}
	case "stream_enable_tls":
		t.tls = true
	case "stream_tls_cert":
		t.cert = text(value)
	case "stream_tls_key":
		t.key = text(value)
	case "default_runtime":
		t.defaultRuntime = text(value)
	case "cgroup_manager":
		t.driver = text(value)
	case "seccomp_profile":
		t.set(from, "seccomp.default_profile", value)
	case "default_capabilities": // see capabilities: it has a default, and an empty list has a meaning
	case "default_ulimits":
		t.set(from, "ulimits", value)
	case "default_sysctls":
		t.set(from, "default_sysctls", value) // CRI-O has no others, and Berth's own give rights
	case "default_mounts":
		t.set(from, "default_mounts", value)
	case "log_level":
		if level, ok := levels[text(value)]; ok {
			t.set(from, "log_level", level)
		}
	case "log_size_max":
		if n, _ := value.(int64); n > 0 {
			t.set(from, "log.max_size", strconv.FormatInt(max(n, loglimit.MinSize), 10))
		}
	case "pids_limit":
		if n, _ := value.(int64); n > 0 {
			t.set(from, "pids_limit", n)
		}
	case "namespaces_dir":
		t.set(from, "network.netns_dir", filepath.Join(text(value), "netns"))
	case "timezone":
		zone := text(value)
		if strings.EqualFold(zone, "local") {
			t.left(from, `by hand: default_mounts = ["/etc/localtime:/etc/localtime:ro"]`)
		} else {
			t.left(from, `by hand: default_env = ["TZ=%s"]`, zone)
		}
	case "image_volumes":
		if text(value) == "ignore" {
			t.set(from, "image.declared_volumes", "ignore")
		} else {
			t.note(from, Needless, "as image.declared_volumes has it without a key")
		}
	case "pull_progress_timeout":
		t.set(from, "image.timeout", value)
	case "plugin_dir":
		if text(value) != "" && empty(settings["plugin_dirs"]) {
			t.set(from, "network.cni_bin_dirs", []string{text(value)})
		}
	case "enable_metrics":
		host, port := text(settings["metrics_host"]), settings["metrics_port"]
		if host == "" {
			host = "127.0.0.1"
		}
		if empty(port) {
			port = int64(9090)
		}
		t.set(from, "metrics.address", net.JoinHostPort(host, fmt.Sprint(port)))
	case "metrics_host", "metrics_port", "metrics_collectors":
		t.note(from, Needless, "see enable_metrics")
	case "enable_tracing":
		if endpoint := text(settings["tracing_endpoint"]); endpoint != "" {
			t.set(from, "tracing.endpoint", "http://"+endpoint)
		}
	case "tracing_endpoint":
		t.note(from, Needless, "see enable_tracing")
	case "insecure_registries":
		t.left(from, "by hand: a hosts.toml in hosts_dir for each of %s", strings.Join(texts(value), ", "))
	case "selinux": // true; see FromCRIO for false
		t.note(from, Needless, "as in Berth without a key, where the host has SELinux on")
	case "global_auth_file":
		t.credentials(from, text(value))
	case "pause_image":
		t.Sandbox = text(value)
		t.look(from, key, value)
	case "privileged_without_host_devices", "allowed_annotations":
		t.left(from, "a key of a handler")
	default:
		return false
	}
	return true
}

// shimOfCRIO is the type of runtimes that are shims of containerd's.
const shimOfCRIO = "vm"

// handler translates a runtime handler.
func (t *crioConfig) handler(from, name string, settings map[string]any) {
	set := func(key, twin string, value any) {
		t.set(from+"."+key, "runtimes\x00"+name+"\x00"+twin, value)
	}
	kind, path := text(settings["runtime_type"]), text(settings["runtime_path"])
	if kind != "" && kind != "oci" && kind != shimOfCRIO {
		t.left(from+".runtime_type", "the handler is left out: Berth knows no runtimes of type %s", kind)
		return
	}
	switch {
	case kind == shimOfCRIO:
		options := map[string]any{}
		if file := text(settings["runtime_config_path"]); file != "" {
			options["ConfigPath"] = file
		}
		if path == "" {
			t.left(from+".runtime_path", "the handler is left out: it is missing")
			return
		}
		if !t.shim(from, config.Runtime{Path: path}, options, set) {
			return
		}
	case name == "runc" && path == "", filepath.Base(path) == "runc":
		t.builtin(from+".runtime_path", name)
	default:
		if path == "" {
			path = "/usr/bin/" + name
			for _, dir := range []string{"/usr/libexec/crio/", "/usr/bin/", "/usr/local/bin/", "/usr/sbin/"} {
				if _, err := os.Stat(dir + name); err == nil {
					path = dir + name
					break
				}
			}
		}
		if _, err := os.Stat(path); err != nil {
			t.left(from+".runtime_path", "the handler is left out: %v", err)
			return
		}
		set("runtime_path", "type", "oci")
		set("runtime_path", "path", path)
		if filepath.Base(path) == "runsc" {
			set("runtime_path", "sandbox_container", true)
		}
		if root := text(settings["runtime_root"]); root != "" {
			set("runtime_root", "root", root)
		}
	}
	if t.handlers == nil {
		t.handlers = map[string]bool{}
	}
	t.handlers[name] = true
	for _, key := range keys(settings) {
		value := settings[key]
		switch key {
		case "runtime_type", "runtime_path", "runtime_root":
		case "runtime_config_path":
			if kind != shimOfCRIO {
				t.look(from+"."+key, key, value)
			}
		case "privileged_without_host_devices":
			if on, _ := value.(bool); on {
				set(key, key, true)
			}
		case "allowed_annotations":
			t.allowed(from+"."+key, name, texts(value))
		default:
			t.look(from+"."+key, key, value)
		}
	}
}

// decide translates what hangs on several keys.
func (t *crioConfig) decide() {
	switch {
	case t.defaultRuntime == "":
	case t.handlers[t.defaultRuntime]:
		t.set("crio.runtime.default_runtime", "default_runtime", t.defaultRuntime)
	default:
		t.left("crio.runtime.default_runtime", "pods that name no handler get default_runtime, builtin: the handler %s is "+
			"not translated", t.defaultRuntime)
	}
	t.set("crio.network", "network.require_cni", true)
	driver := "systemd" // CRI-O's default
	if t.driver == "cgroupfs" {
		driver = t.driver
	}
	t.set("crio.runtime.cgroup_manager", "cgroup_driver", driver)
	switch {
	case t.tls && t.cert != "" && t.key != "":
		t.set("crio.api.stream_tls_cert", "stream.tls_cert", t.cert)
		t.set("crio.api.stream_tls_key", "stream.tls_key", t.key)
	case t.tls:
		t.left("crio.api.stream_enable_tls", "stream.tls_cert and stream.tls_key have to be given")
	}
}

// location is a place of registries.conf: where images with a prefix are.
type location struct {
	Prefix     string `toml:"prefix"`
	Location   string `toml:"location"`
	Insecure   bool   `toml:"insecure"`
	Blocked    bool   `toml:"blocked"`
	Pull       string `toml:"pull-from-mirror"`
	DigestOnly bool   `toml:"mirror-by-digest-only"`
	Mirrors    []struct {
		Location string `toml:"location"`
		Insecure bool   `toml:"insecure"`
		Pull     string `toml:"pull-from-mirror"`
	} `toml:"mirror"`
}

// registries translates registries.conf (version 2) and the files of its directory.
func (t *crioConfig) registries(dir string) error {
	file := filepath.Join(dir, "registries.conf")
	files := []string{file}
	more, err := filepath.Glob(file + ".d/*.conf")
	if err != nil {
		return err
	}
	byPrefix := map[string]location{}
	search := []string{}
	for _, path := range append(files, more...) {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var conf struct {
			Search    []string          `toml:"unqualified-search-registries"`
			Registry  []location        `toml:"registry"`
			Aliases   map[string]string `toml:"aliases"`
			ShortName string            `toml:"short-name-mode"`
			Helpers   []string          `toml:"credential-helpers"`
			V1        map[string]any    `toml:"registries"`
		}
		if err := toml.Unmarshal(data, &conf); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		t.Read = append(t.Read, path)
		if conf.Search != nil {
			search = conf.Search
		}
		for _, r := range conf.Registry {
			if r.Prefix == "" {
				r.Prefix = r.Location
			}
			byPrefix[r.Prefix] = r
		}
		if len(conf.Aliases) > 0 {
			t.left(path+": aliases", "%d short names: busybox is docker.io/library/busybox, as the kubelet sends it; "+
				"write the others out in the pods", len(conf.Aliases))
		}
		if len(conf.V1) > 0 {
			t.left(path+": registries", "version 1 of the file is not read: write version 2")
		}
		for _, helper := range conf.Helpers {
			if helper != "containers-auth.json" {
				t.left(path+": credential-helpers", "%s: credentials come from the kubelet: give it a credential provider", helper)
			}
		}
	}
	if len(search) > 0 && !slices.Equal(search, []string{"docker.io"}) {
		t.left(file+": unqualified-search-registries", "names without a registry are those of docker.io, and not of %s",
			strings.Join(search, ", "))
	}
	certs := filepath.Join(t.dir, "certs.d")
	for _, prefix := range slices.Sorted(mapKeys(byPrefix)) {
		if err := t.location(file, certs, byPrefix[prefix]); err != nil {
			return err
		}
	}
	// To a mirror, CRI-O does not send the credentials of a pull either.
	withheld, err := withheldIn(t.Files, certs)
	if err != nil {
		return err
	}
	t.unsent(certs, slices.DeleteFunc(withheld, func(h registry.Withheld) bool { return h.Mirror }))
	return nil
}

func (t *crioConfig) location(file, certs string, r location) error {
	from := fmt.Sprintf("%s: registry %q", file, r.Prefix)
	server, rest, hasPath := strings.Cut(r.Location, "/")
	switch {
	case strings.ContainsAny(r.Prefix, "/*"):
		t.left(from, "hosts.toml is for a whole registry, and this is a part of one, or several")
		return nil
	case r.Blocked:
		t.left(from, "hosts.toml cannot block a registry: refuse such images at admission")
		return nil
	case hasPath:
		t.left(from, "its images are below %s of %s: hosts.toml moves mirrors there, and no registry", rest, server)
		return nil
	}
	if r.DigestOnly {
		t.left(from, "mirror-by-digest-only: mirrors are asked for tags too, as of hosts.toml")
	}
	var out hostsToml
	path := filepath.Join(certs, r.Prefix, "hosts.toml")
	if server != r.Prefix && server != "" {
		out.top = map[string]any{"server": "https://" + server}
		if r.Insecure {
			out.top["server"] = "http://" + server
			if t.loggedIn(r.Prefix) {
				out.top["berth_credentials"] = "plain"
			}
		}
		t.ofAnother(from, server, r.Prefix, path)
	}
	add := func(at string, insecure bool, pull string) {
		host, path, _ := strings.Cut(at, "/")
		schemes := []string{"https://"}
		if insecure {
			schemes = []string{"https://", "http://"}
		}
		for _, scheme := range schemes {
			entry := map[string]any{"capabilities": []string{"pull", "resolve"}}
			if pull == "digest-only" {
				entry["capabilities"] = []string{"pull"}
			}
			url := scheme + host
			if path != "" {
				url += "/v2/" + path
				entry["override_path"] = true
			}
			if insecure && scheme == "https://" {
				entry["skip_verify"] = true
			}
			if insecure && host == server && t.loggedIn(r.Prefix) {
				entry["berth_credentials"] = "plain"
			}
			if scheme == "https://" {
				t.certs[host].add(entry)
			}
			out.add(url, entry)
		}
	}
	for _, m := range r.Mirrors {
		add(m.Location, m.Insecure, m.Pull)
		host, _, _ := strings.Cut(m.Location, "/")
		t.ofAnother(from, host, r.Prefix, path)
	}
	if r.Insecure {
		add(server, true, "")
	}
	if len(out.hosts) == 0 && len(out.top) == 0 {
		return nil // and certificates of the registry are found without a file
	}
	if server == "" {
		server = r.Prefix
	}
	if found := t.certs[server]; len(found.authorities)+len(found.clients) > 0 {
		if out.top == nil {
			out.top = map[string]any{}
		}
		found.add(out.top)
	}
	f, err := out.file(path)
	if err != nil {
		return err
	}
	t.hostsDir(file)
	t.Files = append(t.Files, f)
	t.note(from, Translated, f.Path)
	return nil
}

// policy says what of the signatures' policy Berth does not do.
func (t *crioConfig) policy(path string) {
	data, err := os.ReadFile(path)
	if err != nil {
		return
	}
	var policy struct {
		Default    []struct{ Type string }
		Transports map[string]json.RawMessage
	}
	if err := json.Unmarshal(data, &policy); err != nil {
		t.left(path, "it does not parse: %v", err)
		return
	}
	accepts := len(policy.Default) == 1 && policy.Default[0].Type == "insecureAcceptAnything"
	if _, docker := policy.Transports["docker"]; !accepts || docker {
		t.left(path, "Berth does not read this policy: an image verifier can check signatures (image_verifier.bin_dir)")
		return
	}
	t.note(path, Needless, "it accepts all images, and so does Berth")
}

// storage finds where images are.
func (t *crioConfig) storage(path string) error {
	data, err := os.ReadFile(path)
	if err == nil {
		var conf struct {
			Storage struct {
				GraphRoot  string `toml:"graphroot"`
				ImageStore string `toml:"imagestore"`
				Options    struct {
					AdditionalImageStores []string `toml:"additionalimagestores"`
				} `toml:"options"`
			} `toml:"storage"`
		}
		if err := toml.Unmarshal(data, &conf); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if conf.Storage.GraphRoot != "" && !t.ownStore {
			t.Store = conf.Storage.GraphRoot
			t.elsewhere(path+": graphroot", t.Store, crioStore)
		}
		if conf.Storage.ImageStore != "" {
			t.MoreStores = append(t.MoreStores, conf.Storage.ImageStore)
			t.elsewhere(path+": imagestore", conf.Storage.ImageStore, crioStore)
		}
		t.MoreStores = append(t.MoreStores, conf.Storage.Options.AdditionalImageStores...)
		t.note(path, Needless, "Berth keeps images below its own root, on overlayfs")
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
