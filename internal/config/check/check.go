// Package check compares a valid configuration with the node that it is for.
package check

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/blockio"
	"berth/internal/config"
	"berth/internal/dockerauth"
	"berth/internal/image/encryption"
	"berth/internal/image/registry"
	"berth/internal/image/verifier"
	"berth/internal/model"
	"berth/internal/mountns"
	"berth/internal/network/cni"
	"berth/internal/ocihook"
	"berth/internal/ocispec"
)

// Warnings say what of a configuration does not keep berthd from its work, and cannot work as it is.
func Warnings(c *config.Config) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c.Runtimes)) {
		if r := c.Runtimes[name]; r.LacksSandboxContainer() {
			out = append(out, fmt.Sprintf("runtimes.%s.sandbox_container: %s is gVisor's runsc, which needs true: pods of "+
				"this handler are refused", name, r.Path))
		}
	}
	return out
}

// Node says what cannot work on this node: programs and files that are named and not there, and files that cannot be
// used. The error joins a *config.KeyError for each. Node changes nothing, opens no socket and asks nobody.
func Node(c *config.Config) error {
	var f findings
	if _, err := WithoutLinks(c); err != nil {
		f = append(f, err)
	}
	if c.MountNamespace == config.MountsOwn {
		f.add("mount_namespace", mountns.Check())
	}
	f.program("keeper_binary", c.KeeperBinary, config.NoKeeper)
	f.program("checkpoint.criu", c.Checkpoint.CRIU)
	for _, name := range slices.Sorted(maps.Keys(c.Runtimes)) {
		if r := c.Runtimes[name]; r.Type == config.RuntimeShim {
			f.shim(name, &r)
		} else {
			f.program("runtimes."+name+".path", r.Path)
		}
		f.sysctls(c, name)
	}
	if _, err := c.SocketGID(); err != nil {
		f = append(f, err)
	}
	if p := c.Seccomp.DefaultProfile; p != "runtime/default" {
		f.profile("seccomp.default_profile", p)
	}
	f.certificate(&c.Stream)
	if c.NRI.Enable != config.NRIOff {
		f.nriPlugins(c.NRI.PluginPath)
	}
	f.add("network.cni_conf_dir", cni.Check(c.Network.CNIConfDir, c.Network.CNINetwork, c.Network.CNIBinDirs)...)
	f.add("hooks_dirs", ocihook.Check(c.HooksDirs))
	_, err := blockio.Load(c.BlockIOClasses, slog.New(slog.DiscardHandler))
	f.add("block_io_classes_file", err)
	f.parent("audit.file", c.Audit.File)
	f.add("image.credentials", dockerauth.Check(c.Image.Credentials))
	if dir := c.Image.DecryptionKeysPath; dir != "" {
		_, err := encryption.ReadKeys(dir)
		f.add("image.decryption_keys_path", err)
	}
	if v := &c.ImageVerifier; v.BinDir != "" {
		_, err := verifier.Programs(v.BinDir, v.MaxVerifiers)
		f.add("image_verifier.bin_dir", err)
	}
	if s := &c.Snapshotter; s.Name != "" {
		f.socket("snapshotter.address", strings.TrimPrefix(s.Address, "unix://"))
	}
	f.add("hosts_dir", registry.CheckHosts(context.Background(), c.HostsDir))
	return errors.Join(f...)
}

// findings are what was found.
type findings []error

func (f *findings) add(key string, errs ...error) {
	for _, err := range errs {
		if err != nil {
			*f = append(*f, &config.KeyError{Key: key, Problem: withoutKinds(err.Error())})
		}
	}
}

// withoutKinds is the text of errors, one a line, without the kinds at their ends, by which calls get their codes. They
// tell nothing of a file.
func withoutKinds(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		for _, kind := range []error{errdefs.ErrFailedPrecondition, errdefs.ErrInvalidArgument, errdefs.ErrNotFound} {
			lines[i] = strings.TrimSuffix(lines[i], ": "+kind.Error())
		}
	}
	return strings.Join(lines, "\n")
}

// shim looks for the binary of a shim, and for the file that its options name.
func (f *findings) shim(name string, r *config.Runtime) {
	key := "runtimes." + name + ".runtime_type"
	if r.Path != "" {
		key = "runtimes." + name + ".path"
	}
	if missing := r.ShimMissing(); missing != "" {
		f.add(key, errors.New(missing))
	}
	if path, _ := r.Options["ConfigPath"].(string); path != "" {
		_, err := os.Stat(path)
		f.add("runtimes."+name+".options", err)
	}
}

// program looks at a path that is to be executed, but for an empty one, and for words in place of one.
func (f *findings) program(key, path string, words ...string) {
	if path == "" || slices.Contains(words, path) {
		return
	}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", path)
	} else if err == nil {
		if err = unix.Access(path, unix.X_OK); err != nil {
			err = fmt.Errorf("%s cannot be executed: %w", path, err)
		}
	}
	f.add(key, err)
}

// socket looks at the place of a socket that another program serves.
func (f *findings) socket(key, path string) {
	info, err := os.Stat(path)
	if err == nil && info.Mode().Type() != fs.ModeSocket {
		err = fmt.Errorf("%s is no socket", path)
	}
	f.add(key, err)
}

// parent looks at the directory of a file that berthd is to make, but for an empty path.
func (f *findings) parent(key, path string) {
	if path == "" {
		return
	}
	info, err := os.Stat(filepath.Dir(path))
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory", filepath.Dir(path))
	}
	if err == nil {
		if info, err = os.Lstat(path); err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is no regular file", path)
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	f.add(key, err)
}

// nriPlugins looks at the names of plugins: one program with another name keeps all from being started.
func (f *findings) nriPlugins(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.add("nri.plugin_path", err)
	}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && !pluginName.MatchString(e.Name()) {
			f.add("nri.plugin_path", fmt.Errorf("%s: a plugin has a name such as 10-name", filepath.Join(dir, e.Name())))
		}
		if err == nil && info.Mode().IsRegular() && isWebAssembly(filepath.Join(dir, e.Name())) {
			f.add("nri.plugin_path", fmt.Errorf("%s is WebAssembly, which berthd does not run", filepath.Join(dir, e.Name())))
		}
	}
}

// isWebAssembly tells whether a file begins as a WebAssembly module does.
func isWebAssembly(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 4)
	_, err = io.ReadFull(f, head)
	return err == nil && string(head) == "\x00asm"
}

var pluginName = regexp.MustCompile(`^[0-9]{2}-.+$`)

// sysctls refuses those that would hold for the whole node.
func (f *findings) sysctls(c *config.Config, handler string) {
	defaults, err := c.PodDefaults(handler)
	if err == nil {
		err = ocispec.CheckSysctls(defaults.Sysctls, model.NamespaceOptions{})
	}
	key := "default_sysctls"
	if len(c.Runtimes[handler].DefaultSysctls) > 0 {
		key = "runtimes." + handler + "." + key
	}
	f.add(key, err)
}

func (f *findings) profile(key, path string) {
	if path == "" {
		return
	}
	data, err := os.ReadFile(path)
	if err == nil {
		var profile struct {
			DefaultAction string `json:"defaultAction"`
		}
		if err = json.Unmarshal(data, &profile); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		} else if profile.DefaultAction == "" {
			err = fmt.Errorf("%s has no defaultAction", path)
		}
	}
	f.add(key, err)
}

func (f *findings) certificate(s *config.Stream) {
	if s.TLSCert == "" {
		return
	}
	_, err := tls.LoadX509KeyPair(s.TLSCert, s.TLSKey)
	var path *fs.PathError
	switch {
	case err == nil:
	case errors.As(err, &path) && path.Path == s.TLSCert:
		f.add("stream.tls_cert", err)
	case errors.As(err, &path):
		f.add("stream.tls_key", err)
	default:
		f.add("stream.tls_key", fmt.Errorf("%s and %s are not a certificate and its key: %w", s.TLSCert, s.TLSKey, err))
	}
}
