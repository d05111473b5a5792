package check

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/config"
)

// node is a directory with what a configuration may name, and that configuration.
func node(t *testing.T) (dir string, c *config.Config) {
	t.Helper()
	dir = t.TempDir()
	write(t, dir+"/bin/crun", "#!/bin/sh\n", 0o755)
	write(t, dir+"/bin/bridge", "#!/bin/sh\n", 0o755)
	write(t, dir+"/bin/text", "not a program", 0o644)
	write(t, dir+"/net.d/10.conflist", `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge"}]}`, 0o644)
	write(t, dir+"/certs.d/docker.io/hosts.toml", "[host.\"https://mirror.example\"]\n", 0o644)
	write(t, dir+"/certs.d/_default/hosts.toml", "server = \"https://one.example\"\n", 0o644)
	write(t, dir+"/certs.d/localhost_5000_/hosts.toml", "[host.\"http://127.0.0.1:5000\"]\n", 0o644)
	write(t, dir+"/certs.d/..data/hosts.toml", "nothing", 0o644)
	write(t, dir+"/seccomp.json", `{"defaultAction":"SCMP_ACT_ALLOW"}`, 0o644)
	pair(t, dir+"/one")
	pair(t, dir+"/two")
	c = config.Default()
	c.KeeperBinary, c.Checkpoint.CRIU, c.Seccomp.DefaultProfile = dir+"/bin/crun", dir+"/bin/crun", dir+"/seccomp.json"
	c.Runtimes["crun"] = config.Runtime{Type: config.RuntimeOCI, Path: dir + "/bin/crun"}
	c.Network.CNIConfDir, c.Network.CNIBinDirs, c.HostsDir = dir+"/net.d", []string{dir + "/bin"}, dir+"/certs.d"
	c.Stream.TLSCert, c.Stream.TLSKey = dir+"/one.crt", dir+"/one.key"
	write(t, dir+"/blockio.yaml", "Classes:\n  slow:\n  - Weight: 80\n", 0o644)
	c.BlockIOClasses, c.Audit.File = dir+"/blockio.yaml", dir+"/audit.jsonl"
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	return dir, c
}

func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// pair makes a certificate and its key, stem.crt and stem.key.
func pair(t *testing.T, stem string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, stem+".crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})), 0o644)
	write(t, stem+".key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})), 0o600)
}

func TestWhatIsThereIsGood(t *testing.T) {
	dir, c := node(t)
	if err := Node(c); err != nil {
		t.Error(err)
	}
	c.HostsDir, c.Network.CNIConfDir, c.Stream.TLSCert, c.Stream.TLSKey = dir+"/none", dir+"/none", "", ""
	c.KeeperBinary, c.Checkpoint.CRIU, c.Seccomp.DefaultProfile = config.NoKeeper, "", "runtime/default"
	if err := Node(c); err != nil {
		t.Errorf("without what may be absent: %v", err)
	}
}

func TestWhatCannotWorkIsNamed(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(dir string, c *config.Config)
		want   []string // parts of the error
	}{
		"a handler's program is not there": {
			func(dir string, c *config.Config) {
				c.Runtimes["crun"] = config.Runtime{Type: "oci", Path: dir + "/none"}
			},
			[]string{"runtimes.crun.path: ", "/none", "no such file"}},
		"a handler's program is a directory": {
			func(dir string, c *config.Config) {
				c.Runtimes["crun"] = config.Runtime{Type: "oci", Path: dir}
			},
			[]string{"runtimes.crun.path: ", "is no file"}},
		"a shim that is not there": {
			func(_ string, c *config.Config) {
				c.Runtimes["kata"] = config.Runtime{Type: config.RuntimeShim, RuntimeType: "io.containerd.not-there.v9"}
			},
			[]string{"runtimes.kata.runtime_type: ", "containerd-shim-not-there-v9", "PATH"}},
		"a configuration of a shim that is not there": {
			func(dir string, c *config.Config) {
				c.Runtimes["kata"] = config.Runtime{Type: config.RuntimeShim, Path: dir + "/bin/crun",
					Options: map[string]any{"ConfigPath": dir + "/none.toml"}}
			},
			[]string{"runtimes.kata.options: ", "/none.toml", "no such file"}},
		"a keeper that cannot be executed": {func(dir string, c *config.Config) { c.KeeperBinary = dir + "/bin/text" },
			[]string{"keeper_binary: ", "/bin/text cannot be executed"}},
		"a criu that is not there": {func(dir string, c *config.Config) { c.Checkpoint.CRIU = dir + "/criu" },
			[]string{"checkpoint.criu: ", "/criu"}},
		"a group that is not there": {func(_ string, c *config.Config) { c.SocketGroup = "no-such-group-here" },
			[]string{"socket_group: ", "no-such-group-here"}},
		"a profile that is not there": {func(dir string, c *config.Config) {
			c.Seccomp.DefaultProfile = dir + "/none.json"
		}, []string{"seccomp.default_profile: ", "none.json"}},
		"a profile that is no JSON": {func(dir string, c *config.Config) {
			c.Seccomp.DefaultProfile = dir + "/bin/text"
		}, []string{"seccomp.default_profile: ", "bin/text"}},
		"a profile that is none": {
			func(dir string, c *config.Config) { c.Seccomp.DefaultProfile = dir + "/net.d/10.conflist" },
			[]string{"seccomp.default_profile: ", "defaultAction"}},
		"a key of another certificate": {func(dir string, c *config.Config) { c.Stream.TLSKey = dir + "/two.key" },
			[]string{"stream.tls_key: ", "one.crt", "two.key", "not a certificate and its key"}},
		"a certificate that is not there": {func(dir string, c *config.Config) { c.Stream.TLSCert = dir + "/none.crt" },
			[]string{"stream.tls_cert: ", "none.crt"}},
		"a key that is not there": {func(dir string, c *config.Config) { c.Stream.TLSKey = dir + "/none.key" },
			[]string{"stream.tls_key: ", "none.key"}},
		"an audit in a directory that is not there": {
			func(dir string, c *config.Config) { c.Audit.File = dir + "/none/audit.jsonl" },
			[]string{"audit.file: ", "/none", "no such file"}},
		"an audit that is a directory": {func(dir string, c *config.Config) { c.Audit.File = dir + "/bin" },
			[]string{"audit.file: ", "/bin is no regular file"}},
		"classes of block I/O that are not there": {
			func(dir string, c *config.Config) { c.BlockIOClasses = dir + "/none.yaml" },
			[]string{"block_io_classes_file: ", "none.yaml", "no such file"}},
		"classes of block I/O that are none": {
			func(dir string, c *config.Config) { c.BlockIOClasses = dir + "/net.d/10.conflist" },
			[]string{"block_io_classes_file: ", "10.conflist", "cniVersion"}},
		"a hook that is none": {func(dir string, c *config.Config) {
			c.HooksDirs = []string{dir + "/none", dir + "/net.d"}
			_ = os.WriteFile(dir+"/net.d/trace.json", []byte(`{"version":"1.0.0"}`), 0o644)
		}, []string{"hooks_dirs: ", "net.d/trace.json", "hook.path"}},
		"a broken conflist": {func(dir string, _ *config.Config) {
			_ = os.WriteFile(dir+"/net.d/05.conflist", []byte("{"), 0o644)
		}, []string{"network.cni_conf_dir: ", "05.conflist"}},
		"a plugin that is not there": {func(dir string, c *config.Config) { c.Network.CNIBinDirs = []string{dir + "/none"} },
			[]string{"network.cni_conf_dir: ", "10.conflist", "bridge"}},
		"credentials that others may read": {func(dir string, c *config.Config) {
			c.Image.Credentials = dir + "/config.json"
			_ = os.WriteFile(c.Image.Credentials, []byte("{}"), 0o644)
		}, []string{"image.credentials: ", "config.json", "0600"}},
		"a credential helper that is not there": {func(dir string, c *config.Config) {
			c.Image.Credentials = dir + "/config.json"
			_ = os.WriteFile(c.Image.Credentials, []byte(`{"credsStore": "nowhere"}`), 0o600)
		}, []string{"image.credentials: ", "docker-credential-nowhere"}},
		"a hosts.toml that does not parse": {func(dir string, _ *config.Config) {
			_ = os.WriteFile(dir+"/certs.d/docker.io/hosts.toml", []byte("[host."), 0o644)
		}, []string{"hosts_dir: ", "docker.io/hosts.toml"}},
		"a hosts.toml with an unknown key": {func(dir string, _ *config.Config) {
			_ = os.WriteFile(dir+"/certs.d/_default/hosts.toml", []byte("servers = \"x\""), 0o644)
		}, []string{"hosts_dir: ", "_default/hosts.toml", "servers"}},
		"a hosts.toml with a value of another type": {func(dir string, _ *config.Config) {
			_ = os.WriteFile(dir+"/certs.d/_default/hosts.toml", []byte("server = 5"), 0o644)
		}, []string{"hosts_dir: ", "_default/hosts.toml:1: server: it is an integer, and has to be a string in quotes"}},
		"a certificate of a registry that is not there": {func(dir string, _ *config.Config) {
			_ = os.WriteFile(dir+"/certs.d/localhost_5000_/hosts.toml", []byte("ca = \"/none.pem\""), 0o644)
		}, []string{"hosts_dir: ", "localhost_5000_", "none.pem"}},
		"a default sysctl of the whole node": {func(_ string, c *config.Config) {
			c.DefaultSysctls = []string{"vm.swappiness=1"}
		}, []string{"default_sysctls: ", "vm.swappiness"}},
		"a plugin with another name": {func(dir string, c *config.Config) {
			c.NRI.PluginPath = dir + "/plugins"
			for name, mode := range map[string]os.FileMode{"10-good": 0o755, "README": 0o644, "bad": 0o755} {
				_ = os.MkdirAll(c.NRI.PluginPath, 0o755)
				_ = os.WriteFile(filepath.Join(c.NRI.PluginPath, name), nil, mode)
			}
		}, []string{"nri.plugin_path: ", "plugins/bad: "}},
		"a plugin of WebAssembly": {func(dir string, c *config.Config) {
			c.NRI.PluginPath = dir + "/plugins"
			_ = os.MkdirAll(c.NRI.PluginPath, 0o755)
			_ = os.WriteFile(filepath.Join(c.NRI.PluginPath, "10-wasm"), []byte("\x00asm\x01\x00\x00\x00"), 0o755)
		}, []string{"nri.plugin_path: ", "plugins/10-wasm is WebAssembly"}},
		"an image verifier that others may write to": {func(dir string, c *config.Config) {
			c.ImageVerifier.BinDir = dir + "/verifiers"
			_ = os.Mkdir(c.ImageVerifier.BinDir, 0o755)
			_ = os.WriteFile(c.ImageVerifier.BinDir+"/cosign", nil, 0o755)
			_ = os.Chmod(c.ImageVerifier.BinDir+"/cosign", 0o777)
		}, []string{"image_verifier.bin_dir: ", "verifiers/cosign has the mode 0777"}},
		"no directory of image verifiers": {func(dir string, c *config.Config) { c.ImageVerifier.BinDir = dir + "/none" },
			[]string{"image_verifier.bin_dir: ", "/none", "no such file"}},
		"a key for encrypted images that others may read": {func(dir string, c *config.Config) {
			c.Image.DecryptionKeysPath = dir + "/keys"
			_ = os.Mkdir(c.Image.DecryptionKeysPath, 0o755)
			_ = os.WriteFile(c.Image.DecryptionKeysPath+"/key.pem", nil, 0o644)
		}, []string{"image.decryption_keys_path: ", "keys/key.pem has the mode 0644"}},
		"two things": {func(dir string, c *config.Config) { c.KeeperBinary, c.Checkpoint.CRIU = dir+"/a", dir+"/b" },
			[]string{"keeper_binary: ", "checkpoint.criu: "}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, c := node(t)
			tc.change(dir, c)
			err := Node(c)
			if err == nil {
				t.Fatal("nothing was found")
			}
			if strings.Contains(err.Error(), ": failed precondition") || strings.Contains(err.Error(), ": invalid argument") {
				t.Errorf("error %q has the kind of a call's", err)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}
