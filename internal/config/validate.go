package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/pkg/identifiers"
	"github.com/containerd/platforms"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/annotation"
	"berth/internal/loglimit"
	"berth/internal/quota"
)

// systemDirs are directories that programs of all users need, and that therefore cannot be root's alone.
var systemDirs = []string{
	"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/run", "/sbin",
	"/srv", "/sys", "/tmp",
	"/usr", "/usr/local", "/var", "/var/cache", "/var/lib", "/var/run", "/var/spool", "/var/tmp",
}

// KeyError is an error about one key.
type KeyError struct {
	Key     string // network.pod_cidr
	Problem string
}

func (e *KeyError) Error() string { return e.Key + ": " + e.Problem }

var (
	runtimeName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)
	interfaceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,14}$`)
	capability    = regexp.MustCompile(`^(?i:(CAP_)?[A-Z][A-Z0-9_]*)$`)
)

// Validate checks values, all of them; the error joins a *KeyError for each that is wrong. It looks at nothing outside
// the configuration: files may come later.
func (c *Config) Validate() error {
	var v validation
	v.absolute("root", c.Root)
	if slices.Contains(systemDirs, filepath.Clean(c.Root)) {
		v.fail("root", "%q belongs to the system, and Berth lets nobody but root enter its root", c.Root)
	}
	v.absolute("state", c.State)
	v.oneOf("runtime_name", c.RuntimeName, NameBerth, NameContainerd)
	v.oneOf("selinux", c.SELinux, SELinuxAuto, SELinuxOff)
	v.oneOf("mount_namespace", c.MountNamespace, MountsNode, MountsOwn)
	v.absolute("address", strings.TrimPrefix(c.Address, "unix://"))
	v.optional("containerd_address", strings.TrimPrefix(c.Containerd, "unix://"))
	if c.Containerd != "" && strings.TrimPrefix(c.Containerd, "unix://") == strings.TrimPrefix(c.Address, "unix://") {
		v.fail("containerd_address", "%q is the socket of address, which serves the same calls", c.Containerd)
	}
	v.absolute("hosts_dir", c.HostsDir)
	if c.KeeperBinary != NoKeeper {
		v.optional("keeper_binary", c.KeeperBinary)
	}
	v.oneOf("log_level", c.LogLevel, "debug", "info", "warn", "error")
	v.oneOf("log_format", c.LogFormat, "auto", "text", "json")
	v.between("oom_score_adj", int64(c.OOMScoreAdj), -1000, 1000)
	v.positive("shutdown_timeout", c.ShutdownTimeout)
	v.oneOf("cgroup_driver", c.CgroupDriver, "auto", "cgroupfs", "systemd")
	v.absolute("cgroup_root", c.CgroupRoot)
	if slices.Contains(strings.Split(c.CgroupRoot, "/"), "..") {
		v.fail("cgroup_root", "%q has .. in it", c.CgroupRoot)
	}
	v.nri(&c.NRI)
	v.between("pids_limit", c.PidsLimit, 0, 1<<22) // the kernel's own limit of process IDs
	if _, err := parseUlimits("ulimits", c.Ulimits); err != nil {
		v.errs = append(v.errs, err)
	}
	v.directories("cdi_spec_dirs", c.CDISpecDirs)
	v.directories("hooks_dirs", c.HooksDirs)
	v.optional("block_io_classes_file", c.BlockIOClasses)
	switch root, state := filepath.Clean(c.Root), filepath.Clean(c.State); {
	case root == state:
		v.fail("state", "%q is the same directory as root: a reboot may remove what is in state", c.State)
	case strings.HasPrefix(state, root+"/"):
		v.fail("state", "%q lies in root, which only root may enter: other users have to reach the socket "+
			"and the files of pods with user namespaces in state", c.State)
	}
	v.network(&c.Network)
	v.image(&c.Image)
	v.optional("image_verifier.bin_dir", c.ImageVerifier.BinDir)
	if c.ImageVerifier.MaxVerifiers == 0 {
		v.fail("image_verifier.max_verifiers", "0 allows no verifier: to verify no images, leave bin_dir empty")
	}
	v.positive("image_verifier.per_verifier_timeout", c.ImageVerifier.PerVerifierTimeout)
	v.snapshotter(&c.Snapshotter)
	v.stream(&c.Stream)
	v.log(&c.Log)
	if p := c.Seccomp.DefaultProfile; p != "runtime/default" {
		v.optional("seccomp.default_profile", p)
	}
	v.optional("seccomp.localhost_root", c.Seccomp.LocalhostRoot)
	if e := c.Tracing.Endpoint; e != "" {
		if u, err := url.Parse(e); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			v.fail("tracing.endpoint", "%q is not http://host:port or https://host:port", e)
		}
	}
	if a := c.Metrics.Address; a != "" {
		if _, port, err := net.SplitHostPort(a); err != nil {
			v.fail("metrics.address", "%q is not host:port", a)
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			v.fail("metrics.address", "%q has no port from 0 to 65535", a)
		}
	}
	v.absolute("device_plugins.dir", c.Devices.Dir)
	v.positive("device_plugins.timeout", c.Devices.Timeout)
	v.optional("checkpoint.criu", c.Checkpoint.CRIU)
	v.optional("audit.file", c.Audit.File)
	v.debug(c)
	v.pods(c)
	v.runtimes(c)
	return errors.Join(v.errs...)
}

func (v *validation) snapshotter(s *Snapshotter) {
	v.optional("snapshotter.address", strings.TrimPrefix(s.Address, "unix://"))
	switch {
	case (s.Name == "") != (s.Address == ""):
		v.fail("snapshotter.name", "is %q, and snapshotter.address is %q: set both or neither", s.Name, s.Address)
	case s.Name != "" && !runtimeName.MatchString(s.Name):
		v.fail("snapshotter.name", "%q is not a name of letters, digits, dots, dashes and underscores", s.Name)
	}
	if err := identifiers.Validate(s.Namespace); err != nil {
		v.fail("snapshotter.namespace", "%q is not a namespace of containerd: %v", s.Namespace, err)
	}
	v.positive("snapshotter.timeout", s.Timeout)
}

type validation struct{ errs []error }

func (v *validation) fail(key, format string, args ...any) {
	v.errs = append(v.errs, &KeyError{key, fmt.Sprintf(format, args...)})
}

func (v *validation) absolute(key, value string) {
	if value == "" {
		v.fail(key, "is empty")
		return
	}
	v.optional(key, value)
}

func (v *validation) optional(key, value string) {
	if value == "" {
		return
	}
	if !filepath.IsAbs(value) || strings.ContainsRune(value, 0) {
		v.fail(key, "%q is not an absolute path", value)
	}
}

func (v *validation) directories(key string, list []string) {
	for _, dir := range list {
		v.absolute(key, dir)
	}
}

func (v *validation) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.fail(key, "%q is none of %s", value, strings.Join(allowed, ", "))
	}
}

func (v *validation) between(key string, value, low, high int64) {
	if value < low || value > high {
		v.fail(key, "%d is not in %d..%d", value, low, high)
	}
}

func (v *validation) positive(key string, d Duration) {
	if d <= 0 {
		v.fail(key, "%s is not more than 0s", d)
	}
}

func (v *validation) nri(n *NRI) {
	v.oneOf("nri.enable", n.Enable, NRIAuto, NRIOn, NRIOff)
	v.absolute("nri.socket_path", n.SocketPath)
	v.absolute("nri.plugin_path", n.PluginPath)
	v.absolute("nri.plugin_config_path", n.PluginConfigPath)
	v.positive("nri.plugin_registration_timeout", n.RegistrationTimeout)
	v.positive("nri.plugin_request_timeout", n.RequestTimeout)
}

func (v *validation) debug(c *Config) {
	const key = "debug.address"
	address := c.DebugAddress()
	v.optional(key, address)
	switch address {
	case "":
	case strings.TrimPrefix(c.Address, "unix://"):
		v.fail(key, "%q is the socket of address", address)
	case strings.TrimPrefix(c.Containerd, "unix://"):
		v.fail(key, "%q is the socket of containerd_address", address)
	}
}

func (v *validation) network(n *Network) {
	v.absolute("network.cni_conf_dir", n.CNIConfDir)
	v.directories("network.cni_bin_dirs", n.CNIBinDirs)
	v.optional("network.netns_dir", n.NetNSDir)
	if !interfaceName.MatchString(n.Bridge) {
		v.fail("network.bridge", "%q is no name of an interface: 1 to 15 letters, digits, dots, dashes and underscores",
			n.Bridge)
	}
	families := map[bool]string{}
	for _, s := range n.PodCIDR {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			v.fail("network.pod_cidr", "%q is no range such as 10.60.0.0/16", s)
			continue
		}
		if p.Addr().Is4In6() || p.Addr().BitLen()-p.Bits() < 2 {
			v.fail("network.pod_cidr", "%s has no room for a gateway and a pod", s)
		}
		if first, taken := families[p.Addr().Is4()]; taken {
			v.fail("network.pod_cidr", "%s and %s are of one family; one range of each is possible", first, s)
		}
		families[p.Addr().Is4()] = s
	}
	for _, s := range n.NonMasquerade {
		if p, err := netip.ParsePrefix(s); err != nil || p.Addr().Is4In6() {
			v.fail("network.non_masquerade", "%q is no range such as 10.60.0.0/16", s)
		}
	}
	v.between("network.prepared_pods", int64(n.PreparedPods), 0, 100)
	if n.MTU != 0 {
		v.between("network.mtu", int64(n.MTU), 576, 65535)
	}
}

// PodCIDRs are the ranges of pods' addresses of a valid configuration.
func (n *Network) PodCIDRs() []netip.Prefix { return prefixes(n.PodCIDR) }

// NonMasquerades are the ranges of a valid configuration that are not masqueraded.
func (n *Network) NonMasquerades() []netip.Prefix { return prefixes(n.NonMasquerade) }

func prefixes(ranges []string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range ranges {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

func (v *validation) image(i *Image) {
	v.between("image.max_concurrent_downloads", int64(i.MaxConcurrentDownloads), 1, 64)
	v.between("image.connections_per_layer", int64(i.ConnectionsPerLayer), 1, 64)
	v.between("image.connections_per_host", int64(i.ConnectionsPerHost), 1, 1000)
	v.ranges(i)
	v.between("image.retries", int64(i.Retries), 1, 100)
	v.positive("image.timeout", i.Timeout)
	v.optional("image.preload_dir", i.PreloadDir)
	v.optional("image.credentials", i.Credentials)
	v.optional("image.decryption_keys_path", i.DecryptionKeysPath)
	v.proxy("image.http_proxy", i.HTTPProxy)
	v.proxy("image.https_proxy", i.HTTPSProxy)
	v.oneOf("image.declared_volumes", i.DeclaredVolumes, DeclaredVolumesCopy, DeclaredVolumesIgnore)
	if i.Platform != "" {
		if p, err := platforms.Parse(i.Platform); err != nil {
			v.fail("image.platform", "%q is no platform such as linux/arm64/v8", i.Platform)
		} else if arch, err := platforms.Parse(p.Architecture); err != nil || p.OS != "linux" || arch.OS != "linux" {
			// Of a word alone the library knows whether it is an architecture; after a slash it takes any.
			v.fail("image.platform", "%q is unknown: it has to be linux/ and an architecture, such as linux/arm64/v8",
				i.Platform)
		}
	}
	v.between("image.max_layers", int64(i.MaxLayers), 1, 500) // what overlayfs stacks
	const most = 1 << 40
	v.between("image.max_layer_entries", i.MaxLayerEntries, 1, most)
	v.between("image.max_image_entries", i.MaxImageEntries, 1, most)
	v.between("image.max_image_lookups", i.MaxImageLookups, 1, most)
	v.between("image.max_document_entries", i.MaxDocumentEntries, 1, most)
	v.size("image.max_layer_bytes", i.MaxLayerBytes)
	v.size("image.max_layer_path_memory", i.MaxLayerPathMemory)
	v.size("image.max_image_bytes", i.MaxImageBytes)
	v.size("image.max_document", i.MaxDocument)
	v.size("image.max_config_text", i.MaxConfigText)
	v.between("image.max_volumes", int64(i.MaxVolumes), 1, 10_000)
	for _, ref := range i.Pinned {
		if strings.TrimSpace(ref) == "" {
			v.fail("image.pinned", "has an empty reference")
		}
	}
}

// leastRange and mostRange bound image.range_size: each range is a request.
const leastRange, mostRange = 64 << 10, 1 << 30

// GoodRangeSize tells whether a configuration without range_memory may have this range_size.
func GoodRangeSize(text string) bool {
	size := Bytes(text)
	return size >= leastRange && size <= min(mostRange, Bytes(Default().Image.RangeMemory))
}

// ranges refuses sizes of which no range could be had.
func (v *validation) ranges(i *Image) {
	v.size("image.range_size", i.RangeSize)
	v.size("image.range_memory", i.RangeMemory)
	size, memory := Bytes(i.RangeSize), Bytes(i.RangeMemory)
	if size != 0 && (size < leastRange || size > mostRange) {
		v.fail("image.range_size", "%s is not between 64k and 1g", i.RangeSize)
	}
	if size != 0 && memory != 0 && memory < size {
		v.fail("image.range_memory", "%s is less than one range, image.range_size, which is %s", i.RangeMemory, i.RangeSize)
	}
}

// proxy refuses a URL with a password too: the configuration is shown in many places.
func (v *validation) proxy(key, text string) {
	if text == "" {
		return
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || !slices.Contains([]string{"http", "https", "socks5"}, u.Scheme):
		v.fail(key, "is no URL of a proxy, such as http://proxy.example:3128") // its text may hold a password
	case u.User != nil:
		v.fail(key, "has a user in it: give a proxy that needs a password in the environment of berthd")
	}
}

func (v *validation) size(key, text string) {
	if _, err := quota.ParseSize(text); err != nil {
		v.fail(key, "%q is no size such as 512m or 10g", text)
	}
}

func (v *validation) stream(s *Stream) {
	if _, err := netip.ParseAddr(s.Address); err != nil {
		v.fail("stream.address", "%q is not an IP address", s.Address)
	}
	v.between("stream.port", int64(s.Port), 0, 65535)
	v.positive("stream.idle_timeout", s.IdleTimeout)
	v.size("stream.attach_backlog", s.AttachBacklog)
	v.size("stream.attach_backlog_total", s.BacklogTotal)
	v.optional("stream.tls_cert", s.TLSCert)
	v.optional("stream.tls_key", s.TLSKey)
	if s.TLSCert != "" && s.TLSKey == "" {
		v.fail("stream.tls_key", "is needed with stream.tls_cert")
	}
	if s.TLSKey != "" && s.TLSCert == "" {
		v.fail("stream.tls_cert", "is needed with stream.tls_key")
	}
}

func (v *validation) log(l *Log) {
	for _, s := range []struct {
		key, text string
		least     int64
	}{
		{"max_size", l.MaxSize, loglimit.MinSize},
		{"rate", l.Rate, loglimit.MinRate},
		{"burst", l.Burst, loglimit.MinBurst},
	} {
		key := "log." + s.key
		if s.text == "" {
			continue
		}
		if v.size(key, s.text); size(s.text) != 0 && int64(size(s.text)) < s.least {
			v.fail(key, "%s is less than %dk", s.text, s.least>>10)
		}
	}
	v.between("log.max_files", int64(l.MaxFiles), loglimit.MinFiles, loglimit.MaxFiles)
	if l.Burst != "" && l.Rate == "" {
		v.fail("log.burst", "needs log.rate, which is empty")
	}
	v.oneOf("log.over", l.Over, string(loglimit.Wait), string(loglimit.Drop))
}

// HostPort is the address on which the server listens.
func (s *Stream) HostPort() string { return net.JoinHostPort(s.Address, strconv.Itoa(s.Port)) }

func (v *validation) runtimes(c *Config) {
	if _, ok := c.Runtimes[c.DefaultRuntime]; !ok {
		v.fail("default_runtime", "%q has no table [runtimes.%s]", c.DefaultRuntime, c.DefaultRuntime)
	}
	for name, r := range c.Runtimes {
		key := "runtimes." + name
		if !runtimeName.MatchString(name) {
			v.fail(key, "%q is no name of a runtime handler: letters, digits, dots, dashes and underscores", name)
		}
		switch r.Type {
		case RuntimeBuiltin:
			if r.Path != "" {
				v.fail(key+".path", "is for the types oci and shim")
			}
			v.noShim(key, r)
			if r.Root != "" {
				v.fail(key+".root", "is for type oci")
			}
			if len(r.Flags) > 0 {
				v.fail(key+".flags", "is for type oci")
			}
			if r.SandboxContainer {
				v.fail(key+".sandbox_container", "is for type oci")
			}
			if r.Setup != "" {
				v.oneOf(key+".setup", r.Setup, SetupStage, SetupLibcontainer)
			}
		case RuntimeOCI:
			if r.Setup != "" {
				v.fail(key+".setup", "is for type builtin: the OCI runtime %s sets its containers up", r.Path)
			}
			v.absolute(key+".path", r.Path)
			v.optional(key+".root", r.Root)
			v.flags(key+".flags", r.Flags)
			v.noShim(key, r)
		case RuntimeShim:
			v.shim(key, r)
		default:
			v.oneOf(key+".type", r.Type, RuntimeBuiltin, RuntimeOCI, RuntimeShim)
		}
		if _, err := parseUlimits(key+".ulimits", r.Ulimits); err != nil {
			v.errs = append(v.errs, err)
		}
		if r.PrivilegedAllDevicesAllowed && !r.PrivilegedWithoutHostDevices {
			v.fail(key+".privileged_without_host_devices_all_devices_allowed", "needs privileged_without_host_devices")
		}
		if r.DiskQuota != "" {
			v.size(key+".disk_quota", r.DiskQuota)
		}
		for _, pattern := range r.Annotations {
			if err := annotation.CheckPattern(pattern); err != nil {
				v.fail(key+".annotations", "%v", err)
			}
		}
		for _, name := range r.AllowedAnnotations {
			v.oneOf(key+".allowed_annotations", name, annotation.Names()...)
		}
		for _, name := range r.Capabilities {
			if !capability.MatchString(name) {
				v.fail(key+".capabilities", "%q is not the name of a capability", name)
			}
			if strings.EqualFold(name, NoCapabilities) && len(r.Capabilities) > 1 {
				v.fail(key+".capabilities", "%q stands for no capabilities, and is the only name then", name)
			}
		}
	}
}

// noShim fails for keys of shims.
func (v *validation) noShim(key string, r Runtime) {
	if r.RuntimeType != "" {
		v.fail(key+".runtime_type", "is for type shim")
	}
	if len(r.Options) > 0 {
		v.fail(key+".options", "is for type shim")
	}
}

func (v *validation) shim(key string, r Runtime) {
	switch {
	case r.RuntimeType == "" && r.Path == "":
		v.fail(key+".runtime_type", "is missing: a handler of type shim names its shim, by runtime_type or by path")
	case r.RuntimeType != "" && ShimBinary(r.RuntimeType) == "":
		v.fail(key+".runtime_type", "%q is no name of a shim, such as io.containerd.kata.v2", r.RuntimeType)
	}
	v.optional(key+".path", r.Path)
	for name, set := range map[string]bool{"root": r.Root != "", "flags": len(r.Flags) > 0} {
		if set {
			v.fail(key+"."+name, "is for type oci: a shim reads options")
		}
	}
	if r.SandboxContainer {
		v.fail(key+".sandbox_container", "is for type oci: a pod of a shim has one always")
	}
	if r.Setup != "" {
		v.fail(key+".setup", "is for type builtin: a shim sets its containers up")
	}
	if _, _, err := r.ShimOptions(false); err != nil {
		v.fail(key+".options", "%v", err)
	}
}

// maxFlags is how many flags of a runtime a handler may name: the keeper passes them on in a list of a fixed size.
const maxFlags = 32

// ownFlags are those that the keeper sets.
var ownFlags = []string{"root", "log", "log-format", "systemd-cgroup"}

func (v *validation) flags(key string, flags []string) {
	if len(flags) > maxFlags {
		v.fail(key, "%d flags, and %d are possible", len(flags), maxFlags)
	}
	for _, flag := range flags {
		name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		switch {
		case !strings.HasPrefix(flag, "-") || name == "" || strings.ContainsRune(flag, 0):
			v.fail(key, "%q is no flag: write --name=value", flag)
		case slices.Contains(ownFlags, name):
			v.fail(key, "%q is set by berthd", flag)
		}
	}
}

// ulimits are the limits of setrlimit(2) by their names without RLIMIT_.
var ulimits = []string{"as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc",
	"rss", "rtprio", "rttime", "sigpending", "stack"}

// Rlimits are the limits of a runtime handler's containers as an OCI spec has them: the node's, but for those that the
// handler has a limit of its own for.
func (c *Config) Rlimits(handler string) ([]specs.POSIXRlimit, error) {
	node, err := parseUlimits("ulimits", c.Ulimits)
	if err != nil {
		return nil, err
	}
	own, err := parseUlimits("runtimes."+handler+".ulimits", c.Runtimes[handler].Ulimits)
	if err != nil {
		return nil, err
	}
	for _, limit := range own {
		same := func(l specs.POSIXRlimit) bool { return l.Type == limit.Type }
		node = append(slices.DeleteFunc(node, same), limit)
	}
	return node, nil
}

// parseUlimits reads the limits that a key lists. "unlimited" and -1 are no limit.
func parseUlimits(key string, list []string) ([]specs.POSIXRlimit, error) {
	var (
		out  []specs.POSIXRlimit
		errs []error
		seen = map[string]bool{}
	)
	for _, s := range list {
		limit, err := parseUlimit(s)
		if err == nil && seen[limit.Type] {
			err = fmt.Errorf("is given twice")
		}
		if err != nil {
			errs = append(errs, &KeyError{key, fmt.Sprintf("%q: %v", s, err)})
			continue
		}
		seen[limit.Type] = true
		out = append(out, limit)
	}
	return out, errors.Join(errs...)
}

func parseUlimit(s string) (limit specs.POSIXRlimit, err error) {
	name, values, ok := strings.Cut(s, "=")
	if !ok {
		return limit, fmt.Errorf("is not name=soft:hard")
	}
	if !slices.Contains(ulimits, name) {
		return limit, fmt.Errorf("%q is none of %s", name, strings.Join(ulimits, ", "))
	}
	soft, hard, two := strings.Cut(values, ":")
	if !two {
		hard = soft
	}
	limit.Type = "RLIMIT_" + strings.ToUpper(name)
	if limit.Soft, err = parseLimit(soft); err != nil {
		return limit, err
	}
	if limit.Hard, err = parseLimit(hard); err != nil {
		return limit, err
	}
	if limit.Soft > limit.Hard {
		return limit, fmt.Errorf("the soft limit is above the hard one")
	}
	return limit, nil
}

func parseLimit(s string) (uint64, error) {
	if s == "unlimited" || s == "-1" {
		return 1<<64 - 1, nil
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", s)
	}
	return n, nil
}

// SocketGID looks the socket's group up; -1 is none.
func (c *Config) SocketGID() (int, error) {
	if c.SocketGroup == "" {
		return -1, nil
	}
	if n, err := strconv.ParseUint(c.SocketGroup, 10, 31); err == nil {
		return int(n), nil
	}
	g, err := user.LookupGroup(c.SocketGroup)
	if err != nil {
		return 0, &KeyError{"socket_group", fmt.Sprintf("%q is no group of this node", c.SocketGroup)}
	}
	return strconv.Atoi(g.Gid)
}
