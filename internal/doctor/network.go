package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/nftables"
)

// cniBinDirs are where plugins are looked for by default, and where no daemon says otherwise.
var cniBinDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}

// checkNetwork looks at what would connect pods: CNI where it is configured, else the built-in bridge.
func checkNetwork(_ context.Context, cfg Config) Finding {
	dirs := cfg.CNIBinDirs
	if len(dirs) == 0 {
		dirs = cniBinDirs
	}
	file, plugins, err := cniPlugins(cfg.CNIConfDir, cfg.CNINetwork)
	if err != nil {
		return bad(err.Error(), "Mend or remove the file. Without any in "+cfg.CNIConfDir+" Berth uses its own bridge.")
	}
	if file != "" {
		return judgeCNI(file, plugins, dirs, func(plugin string) bool {
			for _, dir := range dirs {
				if info, err := os.Stat(filepath.Join(dir, plugin)); err == nil && info.Mode()&0o111 != 0 {
					return true
				}
			}
			return false
		})
	}
	if cfg.CNINetwork != "" {
		return bad(fmt.Sprintf("network.cni_network is %q, and no file in %s has a network of this name",
			cfg.CNINetwork, cfg.CNIConfDir), "See which names there are: grep -H '\"name\"' "+cfg.CNIConfDir+"/*")
	}
	if cfg.RequireCNI {
		return poor("there is no CNI configuration in "+cfg.CNIConfDir+
			", and network.require_cni keeps the built-in bridge away: only pods of the node's network run",
			"Install the cluster's network provider. See whether its pods run: berth pods -n kube-system")
	}
	if !isRoot() {
		return good("the built-in bridge (nftables was not tried)")
	}
	conn, err := nftables.New()
	if err == nil {
		_, err = conn.ListTables()
	}
	if err != nil {
		return bad("the built-in bridge needs nftables: "+err.Error(),
			"Load it: modprobe nf_tables. Or configure CNI plugins in "+cfg.CNIConfDir+".")
	}
	return good("the built-in bridge; nftables answers")
}

func judgeCNI(file string, plugins, dirs []string, installed func(string) bool) Finding {
	var missing []string
	for _, plugin := range plugins {
		if !installed(plugin) {
			missing = append(missing, plugin)
		}
	}
	if len(missing) > 0 {
		return bad(fmt.Sprintf("CNI by %s, but there is no plugin %s", file, strings.Join(missing, ", ")),
			"Install them into "+strings.Join(dirs, " or ")+" (Debian: apt-get install containernetworking-plugins).")
	}
	return good(fmt.Sprintf("CNI by %s: %s", file, strings.Join(plugins, ", ")))
}

// cniPlugins reads the first configuration of the directory, by name, as CNI does; of those of a network where one is
// named. file is empty where there is none.
func cniPlugins(dir, network string) (file string, plugins []string, err error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, err
	}
	for _, entry := range entries {
		switch filepath.Ext(entry.Name()) {
		case ".conf", ".conflist", ".json":
		default:
			continue
		}
		file = filepath.Join(dir, entry.Name())
		data, err := os.ReadFile(file)
		if err != nil {
			return "", nil, err
		}
		var list struct {
			Name string `json:"name"`
			cniPlugin
			Plugins []cniPlugin `json:"plugins"`
		}
		if err := json.Unmarshal(data, &list); err != nil {
			return "", nil, fmt.Errorf("%s: %w", file, err)
		}
		if network != "" && list.Name != network {
			continue
		}
		for _, plugin := range append([]cniPlugin{list.cniPlugin}, list.Plugins...) {
			plugins = append(plugins, plugin.programs()...)
		}
		return file, plugins, nil
	}
	return "", nil, nil
}

// cniPlugin is one plugin's configuration.
type cniPlugin struct {
	Type string `json:"type"`
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
	Delegate struct {
		Type string `json:"type"`
	} `json:"delegate"`
}

// programs are those that the plugin needs: its own, and those that it runs.
func (p cniPlugin) programs() []string {
	var names []string
	for _, name := range []string{p.Type, p.IPAM.Type} {
		if name != "" {
			names = append(names, name)
		}
	}
	if p.Type == "flannel" { // makes a configuration for another plugin, with host-local for its addresses
		names = append(names, cmp.Or(p.Delegate.Type, "bridge"), "host-local")
	}
	return names
}

func checkPrograms(context.Context, Config) Finding {
	var missing []string
	for _, name := range []string{"berthd", "berth-keeper", "berth-unpack"} {
		if _, err := exec.LookPath(name); err == nil {
			continue
		}
		if self, err := os.Executable(); err == nil {
			if _, err := os.Stat(filepath.Join(filepath.Dir(self), name)); err == nil {
				continue
			}
		}
		missing = append(missing, name)
	}
	if len(missing) > 0 {
		return poor("not in PATH nor beside this program: "+strings.Join(missing, ", "),
			"Install them (make install), or run the daemon by its path.")
	}
	return good("berthd and berth-keeper are installed")
}

func checkSocket(ctx context.Context, cfg Config) Finding {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", cfg.Socket)
	switch {
	case err == nil:
		conn.Close()
		return good("somebody answers on " + cfg.Socket)
	case errors.Is(err, syscall.ENOENT):
		return poor(cfg.Socket+" does not exist: berthd does not run",
			"systemctl start berthd, or run berthd. --address names another socket.")
	case errors.Is(err, syscall.EACCES):
		return poor("you may not use "+cfg.Socket,
			"Run berth as root, or as a member of the socket's group (socket_group in the daemon's configuration).")
	case isDirectory(cfg.Socket): // the kernel refuses the connection, as it does where a daemon is gone
		return poor(cfg.Socket+" is a directory, and not a socket",
			"Name the socket in it: berth doctor --address "+filepath.Join(cfg.Socket, "berth.sock"))
	case errors.Is(err, syscall.ECONNREFUSED):
		return poor(cfg.Socket+" is there, but its daemon is gone",
			"systemctl start berthd, or run berthd: it takes the socket over.")
	}
	return poor(err.Error(), "See what the daemon says: journalctl -u berthd")
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
