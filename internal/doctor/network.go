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

	"berth/internal/firewall"
)

// cniBinDirs are where plugins are looked for by default, and where no daemon says otherwise: where network providers,
// Debian's package and the rpm of Fedora and RHEL install them.
var cniBinDirs = []string{"/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"}

// checkNetwork looks at what would connect pods: CNI where it is configured, else the built-in bridge.
func checkNetwork(_ context.Context, cfg Config) Finding {
	dirs := cfg.CNIBinDirs
	if len(dirs) == 0 {
		dirs = cniBinDirs
	}
	installed := func(plugin string) bool {
		for _, dir := range dirs {
			if info, err := os.Stat(filepath.Join(dir, plugin)); err == nil && info.Mode()&0o111 != 0 {
				return true
			}
		}
		return false
	}
	choice, err := chooseCNI(cfg.CNIConfDir, cfg.CNINetwork, installed)
	if err != nil {
		return bad(err.Error(), "See who may read it: ls -ld "+cfg.CNIConfDir)
	}
	if choice.file != "" || len(choice.broken) > 0 {
		return judgeCNI(choice, cfg, dirs, installed)
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
	return judgeFirewall(cmp.Or(cfg.Bridge, "berth0"))
}

// judgeFirewall says whether the node's firewall lets pods on the built-in bridge pass. The bridge need not be there.
func judgeFirewall(bridge string) Finding {
	blocks, err := firewall.Look(firewall.Bridge{Name: bridge})
	switch {
	case err != nil:
		return good("the built-in bridge; nftables answers (the firewall could not be read: " + err.Error() + ")")
	case len(blocks) > 0:
		return poor("the built-in bridge; the firewall stops packets of pods ("+firewall.Text(blocks)+")",
			firewall.Advice(blocks, bridge)+"\nThen see whether that is all: berth doctor (more: docs/operations.md#firewalls)")
	}
	return good("the built-in bridge; nftables answers, and no firewall stops pods")
}

// judgeCNI judges a choice that has a file, broken ones before it, or both.
func judgeCNI(choice cniChoice, cfg Config, dirs []string, installed func(string) bool) Finding {
	install := "Install what is missing into " + strings.Join(dirs, " or ") +
		" (Debian: apt-get install containernetworking-plugins; Fedora, RHEL: dnf install containernetworking-plugins)."
	broken := strings.Join(choice.broken, "; ")
	mend := "Mend or remove the file, and see whether it is good: berthd config check\n" + install
	if choice.file == "" {
		what := "no CNI configuration can be used: "
		if cfg.CNINetwork != "" {
			what = fmt.Sprintf("no CNI configuration that can be used has the network %q of network.cni_network: ",
				cfg.CNINetwork)
		}
		return bad(what+broken,
			mend+"\nWithout any file in "+cfg.CNIConfDir+" Berth uses its own bridge.")
	}
	var missing []string
	for _, plugin := range choice.plugins {
		if !installed(plugin) {
			missing = append(missing, plugin)
		}
	}
	if len(missing) > 0 {
		return bad(fmt.Sprintf("CNI by %s, but there is no plugin %s", choice.file, strings.Join(missing, ", ")), install)
	}
	detail := fmt.Sprintf("CNI by %s: %s", choice.file, strings.Join(choice.plugins, ", "))
	if broken != "" {
		return poor(detail+"; berthd passes over "+broken, mend)
	}
	return good(detail)
}

// cniChoice is the configuration that the daemon takes of a directory.
type cniChoice struct {
	file    string   // empty: there is none that can be used
	plugins []string // the programs that it needs
	broken  []string // files before it that cannot be used, with the reasons
}

// chooseCNI chooses as the daemon does: the first file, by name, that can be used; of those of a network where one is
// named.
func chooseCNI(dir, network string, installed func(string) bool) (cniChoice, error) {
	var choice cniChoice
	entries, err := os.ReadDir(dir) // sorted by name
	if errors.Is(err, fs.ErrNotExist) {
		return choice, nil
	}
	if err != nil {
		return choice, err
	}
	for _, entry := range entries {
		switch filepath.Ext(entry.Name()) {
		case ".conf", ".conflist", ".json":
		default:
			continue
		}
		if entry.IsDir() {
			continue
		}
		file := filepath.Join(dir, entry.Name())
		list, err := readCNI(file)
		if err == nil && network != "" && list.Name != network {
			continue
		}
		if err == nil {
			err = list.check(installed)
		}
		if err != nil {
			reason := strings.TrimPrefix(err.Error(), "open "+file+": ")
			choice.broken = append(choice.broken, file+": "+reason)
			continue
		}
		choice.file = file
		for _, plugin := range list.Plugins {
			choice.plugins = append(choice.plugins, plugin.programs()...)
		}
		break
	}
	return choice, nil
}

// cniList is the configuration of a network.
type cniList struct {
	Name    string      `json:"name"`
	Plugins []cniPlugin `json:"plugins"`
}

// readCNI reads a list of plugins, or a file that holds one plugin.
func readCNI(file string) (*cniList, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var list cniList
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, err
	}
	if filepath.Ext(file) != ".conflist" && list.Plugins == nil {
		list.Plugins = make([]cniPlugin, 1)
		return &list, json.Unmarshal(data, &list.Plugins[0])
	}
	return &list, nil
}

// check says why the daemon passes a network over. It does not know the plugins that other plugins run.
func (l *cniList) check(installed func(string) bool) error {
	if l.Name == "" {
		return errors.New("the network has no name")
	}
	if len(l.Plugins) == 0 {
		return errors.New("the network has no plugins")
	}
	for _, plugin := range l.Plugins {
		switch {
		case plugin.Type == "":
			return errors.New("a plugin has no type")
		case !installed(plugin.Type):
			return fmt.Errorf("there is no plugin %s", plugin.Type)
		}
	}
	return nil
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
			"Run it as root: sudo berth doctor. Or join the socket's group (socket_group in the daemon's configuration).")
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
