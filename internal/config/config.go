package config

import (
	"encoding"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/loglimit"
	"berth/internal/quota"
)

// DefaultPath is read when no other file is named and it exists.
const DefaultPath = "/etc/berth/config.toml"

// DropIns is the directory beside the file whose *.toml files are read over it, where no other directory is named.
const DropIns = "config.d"

// PreloadOnce ends the names of those archives in PreloadDir that berthd removes once their images are on the disk. The
// command line writes such archives.
const PreloadOnce = ".once.tar"

// NoDebug in place of the debug socket's address: there is none.
const NoDebug = "none"

// NoKeeper in place of the keeper's program: another service starts it.
const NoKeeper = "none"

// Config is what default.toml says of each key. A field's flag is its key with - for _, unless a tag names another.
// It has as many fields as the file has keys outside of tables, and tables.
//
// The tag reload:"yes" says that a running berthd takes a new value, by Adopt. Whoever gives it to a field has berthd
// read the value from the configuration in force, and not from a copy that is made at its start.
type Config struct {
	Root            string   `toml:"root"`
	State           string   `toml:"state"`
	Address         string   `toml:"address"`
	Containerd      string   `toml:"containerd_address"`
	SocketGroup     string   `toml:"socket_group"`
	HostsDir        string   `toml:"hosts_dir" reload:"yes"`
	LogLevel        string   `toml:"log_level" reload:"yes"`
	LogFormat       string   `toml:"log_format" reload:"yes"`
	MountNamespace  string   `toml:"mount_namespace" flag:"mount-namespace"`
	KeeperBinary    string   `toml:"keeper_binary"` // or NoKeeper
	SELinux         string   `toml:"selinux"`
	RuntimeName     string   `toml:"runtime_name"`
	OOMScoreAdj     int      `toml:"oom_score_adj"`
	ShutdownTimeout Duration `toml:"shutdown_timeout" reload:"yes"`
	CgroupDriver    string   `toml:"cgroup_driver"`
	CgroupRoot      string   `toml:"cgroup_root"`
	PidsLimit       int64    `toml:"pids_limit" reload:"yes"`
	Ulimits         []string `toml:"ulimits" reload:"yes"`
	CDISpecDirs     []string `toml:"cdi_spec_dirs" reload:"yes"`
	HooksDirs       []string `toml:"hooks_dirs" reload:"yes"`
	BlockIOClasses  string   `toml:"block_io_classes_file" reload:"yes"`
	CreateHostPaths []string `toml:"create_host_paths" reload:"yes"`
	RefuseMissing   []string `toml:"refuse_missing_host_paths" reload:"yes"`
	DefaultSysctls  []string `toml:"default_sysctls" reload:"yes"`
	DefaultEnv      []string `toml:"default_env" reload:"yes"`
	DefaultMounts   []string `toml:"default_mounts" reload:"yes"`
	DefaultDevices  []string `toml:"default_devices" reload:"yes"`
	ShmSize         string   `toml:"shm_size" reload:"yes"`
	DeviceOwnership bool     `toml:"device_ownership_from_security_context" reload:"yes"`
	DefaultRuntime  string   `toml:"default_runtime" reload:"yes"`

	Network Network `toml:"network"`
	Image   Image   `toml:"image"`

	ImageVerifier ImageVerifier `toml:"image_verifier"`
	Snapshotter   Snapshotter   `toml:"snapshotter"`

	Stream  Stream  `toml:"stream"`
	Log     Log     `toml:"log"`
	Seccomp Seccomp `toml:"seccomp"`
	Metrics Metrics `toml:"metrics"`
	Tracing Tracing `toml:"tracing"`
	Devices Devices `toml:"device_plugins"`

	NRI NRI `toml:"nri"`

	Checkpoint Checkpoint `toml:"checkpoint"`
	Audit      Audit      `toml:"audit"`
	Debug      Debug      `toml:"debug"`

	// Runtimes are the runtime handlers by name. Those of the file are added to the default one.
	Runtimes map[string]Runtime `toml:"runtimes" reload:"yes"`
}

// NRI is about plugins of the Node Resource Interface. Its keys are containerd's, but for Enable.
type NRI struct {
	Enable              string       `toml:"enable"`
	SocketPath          string       `toml:"socket_path"`
	PluginPath          string       `toml:"plugin_path"`
	PluginConfigPath    string       `toml:"plugin_config_path"`
	RegistrationTimeout Duration     `toml:"plugin_registration_timeout"`
	RequestTimeout      Duration     `toml:"plugin_request_timeout"`
	DisableConnections  bool         `toml:"disable_connections"`
	DefaultValidator    NRIValidator `toml:"default_validator"`
}

// Values of NRI.Enable.
const (
	NRIAuto = "auto"
	NRIOn   = "on"
	NRIOff  = "off"
)

// Values of Config.MountNamespace.
const (
	MountsNode = "node"
	MountsOwn  = "own"
)

// Values of Config.RuntimeName.
const (
	NameBerth      = "berth"
	NameContainerd = "containerd"
)

// Values of Config.SELinux.
const (
	SELinuxAuto = "auto"
	SELinuxOff  = "off"
)

// NRIValidator says what plugins may not change.
type NRIValidator struct {
	Enable                bool     `toml:"enable"`
	RejectHooks           bool     `toml:"reject_oci_hook_adjustment"`
	RejectSeccompDefault  bool     `toml:"reject_runtime_default_seccomp_adjustment"`
	RejectUnconfined      bool     `toml:"reject_unconfined_seccomp_adjustment"`
	RejectCustomSeccomp   bool     `toml:"reject_custom_seccomp_adjustment"`
	RejectNamespaces      bool     `toml:"reject_namespace_adjustment"`
	RejectSysctls         bool     `toml:"reject_sysctl_adjustment"`
	RequiredPlugins       []string `toml:"required_plugins"`
	TolerateMissingPlugin string   `toml:"tolerate_missing_plugins_annotation"`
}

// Network is how pods are connected.
type Network struct {
	CNIConfDir     string   `toml:"cni_conf_dir" flag:"cni-conf-dir"`
	CNIBinDirs     []string `toml:"cni_bin_dirs" flag:"cni-bin-dirs"`
	CNINetwork     string   `toml:"cni_network" flag:"cni-network"`
	RequireCNI     bool     `toml:"require_cni" flag:"require-cni"`
	NetNSDir       string   `toml:"netns_dir" flag:"netns-dir"`
	Bridge         string   `toml:"bridge" flag:"bridge"`
	PodCIDR        []string `toml:"pod_cidr" flag:"pod-cidr"`
	RequirePodCIDR bool     `toml:"require_pod_cidr" flag:"require-pod-cidr"`
	NonMasquerade  []string `toml:"non_masquerade" flag:"non-masquerade"`
	MTU            int      `toml:"mtu" flag:"mtu"`
	PreparedPods   int      `toml:"prepared_pods"`
}

// Image is how images are pulled and kept.
type Image struct {
	MaxConcurrentDownloads int      `toml:"max_concurrent_downloads" reload:"yes"`
	ConnectionsPerLayer    int      `toml:"connections_per_layer" reload:"yes"`
	ConnectionsPerHost     int      `toml:"connections_per_host" reload:"yes"`
	RangeSize              string   `toml:"range_size" reload:"yes"`
	RangeMemory            string   `toml:"range_memory" reload:"yes"`
	Pinned                 []string `toml:"pinned" reload:"yes"`
	PreloadDir             string   `toml:"preload_dir"`
	PreloadPin             bool     `toml:"preload_pin"`
	Credentials            string   `toml:"credentials" reload:"yes"`
	DecryptionKeysPath     string   `toml:"decryption_keys_path" reload:"yes"`
	HTTPProxy              string   `toml:"http_proxy" reload:"yes"`
	HTTPSProxy             string   `toml:"https_proxy" reload:"yes"`
	NoProxy                string   `toml:"no_proxy" reload:"yes"`
	DeclaredVolumes        string   `toml:"declared_volumes" reload:"yes"`
	Platform               string   `toml:"platform" reload:"yes"`
	Timeout                Duration `toml:"timeout" reload:"yes"`
	Retries                int      `toml:"retries" reload:"yes"`
	MaxLayers              int      `toml:"max_layers" reload:"yes"`
	MaxLayerEntries        int64    `toml:"max_layer_entries" reload:"yes"`
	MaxLayerBytes          string   `toml:"max_layer_bytes" reload:"yes"`
	MaxLayerPathMemory     string   `toml:"max_layer_path_memory" reload:"yes"`
	MaxImageEntries        int64    `toml:"max_image_entries" reload:"yes"`
	MaxImageBytes          string   `toml:"max_image_bytes" reload:"yes"`
	MaxImageLookups        int64    `toml:"max_image_lookups" reload:"yes"`
	MaxDocument            string   `toml:"max_document" reload:"yes"`
	MaxDocumentEntries     int64    `toml:"max_document_entries" reload:"yes"`
	MaxConfigText          string   `toml:"max_config_text" reload:"yes"`
	MaxVolumes             int      `toml:"max_volumes" reload:"yes"`
}

// ImageVerifier is about programs that say which images may be pulled. Its keys are containerd's.
type ImageVerifier struct {
	BinDir             string   `toml:"bin_dir" reload:"yes"`
	MaxVerifiers       int      `toml:"max_verifiers" reload:"yes"`
	PerVerifierTimeout Duration `toml:"per_verifier_timeout" reload:"yes"`
}

// Snapshotter is a remote snapshotter: a program that mounts layers of images before they are downloaded.
type Snapshotter struct {
	Name      string   `toml:"name"`
	Address   string   `toml:"address"`
	Namespace string   `toml:"namespace"`
	Timeout   Duration `toml:"timeout"`
}

// Values of Image.DeclaredVolumes.
const (
	DeclaredVolumesCopy   = "copy"
	DeclaredVolumesIgnore = "ignore"
)

// Bytes is a size of a valid configuration, such as MaxLayerBytes.
func Bytes(size string) uint64 {
	bytes, err := quota.ParseSize(size)
	if err != nil {
		return 0
	}
	return bytes
}

// Stream is the server of exec, attach and port-forward.
type Stream struct {
	Address       string   `toml:"address"`
	Port          int      `toml:"port"`
	IdleTimeout   Duration `toml:"idle_timeout"`
	AttachBacklog string   `toml:"attach_backlog" reload:"yes"`
	BacklogTotal  string   `toml:"attach_backlog_total" reload:"yes"`
	TLSCert       string   `toml:"tls_cert"`
	TLSKey        string   `toml:"tls_key"`
}

// AttachBacklogBytes is the limit of a valid configuration, for a stream of a client.
func (s *Stream) AttachBacklogBytes() int64 { return int64(size(s.AttachBacklog)) }

// AttachBacklogTotalBytes is that for all clients.
func (s *Stream) AttachBacklogTotalBytes() int64 { return int64(size(s.BacklogTotal)) }

// size is that of a valid configuration, in bytes; of an empty one it is 0.
func size(text string) uint64 {
	n, err := quota.ParseSize(text)
	if err != nil {
		return 0
	}
	return n
}

// Log is about the logs of containers.
type Log struct {
	MaxSize  string `toml:"max_size" reload:"yes"`
	MaxFiles int    `toml:"max_files" reload:"yes"`
	Rate     string `toml:"rate" reload:"yes"`
	Burst    string `toml:"burst" reload:"yes"`
	Over     string `toml:"over" reload:"yes"`
}

// Limits are those of a valid configuration.
func (l *Log) Limits() loglimit.Limits {
	return loglimit.Limits{MaxSize: int64(size(l.MaxSize)), MaxFiles: l.MaxFiles, Rate: int64(size(l.Rate)),
		Burst: int64(size(l.Burst)), Over: loglimit.Over(l.Over)}
}

// Seccomp is about profiles of system calls.
type Seccomp struct {
	DefaultProfile string `toml:"default_profile" reload:"yes"`
	LocalhostRoot  string `toml:"localhost_root" reload:"yes"`
}

// Metrics configures the address from which Prometheus reads metrics.
type Metrics struct {
	Address string `toml:"address"`
}

// Tracing configures where spans are sent.
type Tracing struct {
	Endpoint string `toml:"endpoint"`
}

// Devices is the device manager, which device plugins register with.
type Devices struct {
	Enabled bool     `toml:"enabled"`
	Dir     string   `toml:"dir"`
	Timeout Duration `toml:"timeout"`
}

// Checkpoint is about writing containers down and restoring them with CRIU.
type Checkpoint struct {
	CRIU          string `toml:"criu" reload:"yes"`
	RestoreImages bool   `toml:"restore_images" reload:"yes"`
}

// Audit is about who runs what in containers.
type Audit struct {
	File string `toml:"file" reload:"yes"`
}

// Debug is where berthd tells of itself.
type Debug struct {
	Address string `toml:"address"` // or NoDebug
}

// DebugAddress is the path of the debug socket; empty: there is none.
func (c *Config) DebugAddress() string {
	switch c.Debug.Address {
	case NoDebug:
		return ""
	case "":
		return filepath.Join(c.State, "debug.sock")
	}
	return strings.TrimPrefix(c.Debug.Address, "unix://")
}

// Types of Runtime.
const (
	RuntimeBuiltin = "builtin" // libcontainer in the keeper
	RuntimeOCI     = "oci"     // an OCI runtime binary, run by the keeper
	RuntimeShim    = "shim"    // one of containerd's shims, called by the keeper
)

// Values of Runtime.Setup.
const (
	SetupStage        = "stage"        // the keeper's own program, and libcontainer for what that does not do
	SetupLibcontainer = "libcontainer" // libcontainer alone
)

// Runtime is a runtime handler.
type Runtime struct {
	Type                         string         `toml:"type"`
	Path                         string         `toml:"path"`
	Root                         string         `toml:"root"`
	Flags                        []string       `toml:"flags"`
	SandboxContainer             bool           `toml:"sandbox_container"`
	RuntimeType                  string         `toml:"runtime_type"` // of a shim, which Path can name as well
	Options                      map[string]any `toml:"options"`      // of a shim
	Setup                        string         `toml:"setup"`        // empty, with RuntimeBuiltin: SetupStage
	PrivilegedWithoutHostDevices bool           `toml:"privileged_without_host_devices"`
	PrivilegedAllDevicesAllowed  bool           `toml:"privileged_without_host_devices_all_devices_allowed"`
	Annotations                  []string       `toml:"annotations"`
	AllowedAnnotations           []string       `toml:"allowed_annotations"`
	Capabilities                 []string       `toml:"capabilities"`
	Ulimits                      []string       `toml:"ulimits"`
	DefaultSysctls               []string       `toml:"default_sysctls"`
	DefaultEnv                   []string       `toml:"default_env"`
	DefaultMounts                []string       `toml:"default_mounts"`
	DefaultDevices               []string       `toml:"default_devices"`
	ShmSize                      string         `toml:"shm_size"` // empty: Config.ShmSize
	CgroupWritable               bool           `toml:"cgroup_writable"`
	DiskQuota                    string         `toml:"disk_quota"`
}

// LacksSandboxContainer tells whether this is gVisor's runsc without SandboxContainer. It cannot run the containers of
// a pod then.
func (r *Runtime) LacksSandboxContainer() bool {
	if r.Type != RuntimeOCI || r.SandboxContainer {
		return false
	}
	path := r.Path
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	return filepath.Base(path) == "runsc" || filepath.Base(r.Path) == "runsc"
}

// NoCapabilities, alone in Runtime.Capabilities, gives containers none by default. An empty list there is not given.
const NoCapabilities = "none"

// DefaultCapabilities are those that a container of the handler starts from, as CAP_CHOWN. Nil: Berth's own default.
func (r *Runtime) DefaultCapabilities() []string {
	if len(r.Capabilities) == 0 {
		return nil
	}
	set := []string{}
	for _, name := range r.Capabilities {
		name = strings.ToUpper(name)
		switch {
		case strings.EqualFold(name, NoCapabilities):
		case strings.HasPrefix(name, "CAP_"):
			set = append(set, name)
		default:
			set = append(set, "CAP_"+name)
		}
	}
	return set
}

// DiskQuotaBytes is the limit of a container's writable layer of a valid configuration; 0: none.
func (r *Runtime) DiskQuotaBytes() uint64 { return size(r.DiskQuota) }

// Default is the configuration of a node that has no file.
func Default() *Config {
	return &Config{
		Root:            "/var/lib/berth",
		State:           "/run/berth",
		Address:         "/run/berth/berth.sock",
		HostsDir:        "/etc/berth/certs.d",
		LogLevel:        "info",
		LogFormat:       "auto",
		OOMScoreAdj:     -999,
		ShutdownTimeout: Duration(10 * time.Second),
		CgroupDriver:    "auto",
		CgroupRoot:      "/berth",
		Ulimits:         []string{},
		CDISpecDirs:     []string{"/etc/cdi", "/var/run/cdi"},
		HooksDirs:       []string{},
		CreateHostPaths: []string{"v1"},
		RefuseMissing:   []string{},
		DefaultSysctls: []string{
			"net.ipv4.ip_unprivileged_port_start=0", "net.ipv4.ping_group_range=0 2147483647",
		},
		DefaultEnv:     []string{},
		DefaultMounts:  []string{},
		DefaultDevices: []string{},
		ShmSize:        "64m",
		DefaultRuntime: "berth",
		MountNamespace: MountsNode,
		SELinux:        SELinuxAuto,
		RuntimeName:    NameBerth,
		Network: Network{
			CNIConfDir:    "/etc/cni/net.d",
			CNIBinDirs:    []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"},
			NetNSDir:      "/var/run/netns",
			Bridge:        "berth0",
			PodCIDR:       []string{},
			NonMasquerade: []string{},
			PreparedPods:  4,
		},
		Image: Image{
			MaxConcurrentDownloads: 4,
			ConnectionsPerLayer:    8,
			ConnectionsPerHost:     16,
			RangeSize:              "8m",
			RangeMemory:            "128m",
			Pinned:                 []string{},
			PreloadDir:             "/var/lib/berth/preload",
			DeclaredVolumes:        DeclaredVolumesCopy,
			Timeout:                Duration(30 * time.Second),
			Retries:                5,
			MaxLayers:              500,
			MaxLayerEntries:        10_000_000,
			MaxLayerBytes:          "512g",
			MaxLayerPathMemory:     "64m",
			MaxImageEntries:        20_000_000,
			MaxImageBytes:          "1t",
			MaxImageLookups:        4_000_000,
			MaxDocument:            "4m",
			MaxDocumentEntries:     100_000,
			MaxConfigText:          "1m",
			MaxVolumes:             100,
		},
		ImageVerifier: ImageVerifier{MaxVerifiers: 10, PerVerifierTimeout: Duration(10 * time.Second)},
		Snapshotter:   Snapshotter{Namespace: "k8s.io", Timeout: Duration(30 * time.Second)},
		Stream: Stream{
			Address:       "127.0.0.1",
			IdleTimeout:   Duration(4 * time.Hour),
			AttachBacklog: "256m",
			BacklogTotal:  "1g",
		},
		Log:     Log{MaxFiles: loglimit.DefaultFiles, Over: string(loglimit.Wait)},
		Seccomp: Seccomp{LocalhostRoot: "/var/lib/kubelet/seccomp"},
		Devices: Devices{
			Dir:     "/var/lib/kubelet/device-plugins",
			Timeout: Duration(30 * time.Second),
		},
		NRI: NRI{
			Enable:              NRIAuto,
			SocketPath:          "/var/run/nri/nri.sock",
			PluginPath:          "/opt/nri/plugins",
			PluginConfigPath:    "/etc/nri/conf.d",
			RegistrationTimeout: Duration(5 * time.Second),
			RequestTimeout:      Duration(2 * time.Second),
			DefaultValidator:    NRIValidator{RequiredPlugins: []string{}},
		},
		Runtimes: map[string]Runtime{
			"berth": {
				Type: RuntimeBuiltin, Flags: []string{}, Options: map[string]any{},
				Annotations: []string{}, AllowedAnnotations: []string{},
				Capabilities: []string{}, Ulimits: []string{}, DefaultSysctls: []string{}, DefaultEnv: []string{},
				DefaultMounts: []string{}, DefaultDevices: []string{},
			},
		},
	}
}

// Duration is written as 30s or 4h.
type Duration time.Duration

var (
	_ encoding.TextUnmarshaler = (*Duration)(nil)
	_ encoding.TextMarshaler   = Duration(0)
)

// UnmarshalText reads what time.ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is no duration such as 30s or 4h", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalText writes it as UnmarshalText reads it.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

func (d Duration) String() string { return time.Duration(d).String() }
