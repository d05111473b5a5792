package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
)

// cniBinaries is where Debian's containernetworking-plugins lives.
const cniBinaries = "/usr/lib/cni"

// StartContainerd makes a node of containerd, Debian's or that of Options.Binaries, private in the same way: its own
// root, state, socket, bridge and addresses. Options that speak of berthd's configuration are not for it.
func StartContainerd(ctx context.Context, o Options) (*Node, error) {
	binary, err := exec.LookPath(filepath.Join(o.Binaries, "containerd"))
	if err != nil {
		return nil, fmt.Errorf("%w (Debian: containerd, runc, containernetworking-plugins)", err)
	}
	n, err := prepare(o)
	if err != nil {
		return nil, err
	}
	n.Containerd = true
	n.absent = absent()
	// containerd 1.6 reads no hosts.toml that names a server alone.
	if err := registrytest.Mirrors(n.HostsDir, []string{RegistryHost}, n.Registry, n.Registry); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	n.CgroupRoot = "/" + n.Name
	if err := n.writeCNI(); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	config, text := filepath.Join(n.Dir, "config.toml"), n.containerdConfig()
	if o.ContainerdTables != nil {
		text += o.ContainerdTables(n)
	}
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	n.command = func() *exec.Cmd {
		cmd := exec.Command(binary, "--config", config)
		if o.Binaries != "" { // its shim is there too
			cmd.Env = append(os.Environ(), "PATH="+o.Binaries+":"+os.Getenv("PATH"))
		}
		return cmd
	}
	if err := n.Restart(ctx); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	// A pod would pull it otherwise; have it here before anything is measured.
	if _, err := n.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: Pause}}); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	return n, nil
}

// shared are directories that containerd, its shims and its CNI library use whatever directories they are told to use,
// the inner ones first. Each is empty once the last pod has gone.
var shared = []string{"/run/netns", "/var/lib/cni/results", "/var/lib/cni", "/run/containerd/runc/k8s.io",
	"/run/containerd/runc", "/run/containerd/s", "/run/containerd/fifo", "/run/containerd"}

// absent are those of them that are not there.
func absent() (list []string) {
	for _, dir := range shared {
		if _, err := os.Lstat(dir); os.IsNotExist(err) {
			list = append(list, dir)
		}
	}
	return list
}

// removeShared removes the directories that were not there before this node, and in which nothing is: another node of
// containerd may use them by now.
func (n *Node) removeShared() error {
	var errs []error
	for _, dir := range n.absent {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) > 0 {
			continue
		}
		if dir == "/run/netns" { // a mount of itself, so that namespaces in it are seen elsewhere
			if err := syscall.Unmount(dir, 0); err != nil && err != syscall.EINVAL {
				errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
				continue
			}
		}
		if err := syscall.Rmdir(dir); err != nil && err != syscall.ENOENT && err != syscall.ENOTEMPTY {
			errs = append(errs, fmt.Errorf("remove %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

func (n *Node) containerdConfig() string {
	var b strings.Builder
	fmt.Fprintf(&b, "version = 2\nroot = %q\nstate = %q\n", n.Root, n.State)
	fmt.Fprintf(&b, "[grpc]\naddress = %q\n[ttrpc]\naddress = %q\n", n.Socket, n.Socket+".ttrpc")
	// Where it would install programs of images: /opt/containerd, made at each start, if nothing is said.
	fmt.Fprintf(&b, "[plugins.\"io.containerd.internal.v1.opt\"]\npath = %q\n", filepath.Join(n.Dir, "opt"))
	const plugin = `plugins."io.containerd.grpc.v1.cri"`
	fmt.Fprintf(&b, "[%s]\nsandbox_image = %q\nrestrict_oom_score_adj = true\n", plugin, Pause)
	fmt.Fprintf(&b, "stream_server_address = \"127.0.0.1\"\nstream_server_port = \"0\"\n")
	fmt.Fprintf(&b, "[%s.cni]\nbin_dir = %q\nconf_dir = %q\n", plugin, cniBinaries, n.CNIConfDir)
	fmt.Fprintf(&b, "[%s.registry]\nconfig_path = %q\n", plugin, n.HostsDir)
	for name, path := range n.Handlers {
		runtime := fmt.Sprintf("%s.containerd.runtimes.%s", plugin, name)
		fmt.Fprintf(&b, "[%s]\nruntime_type = \"io.containerd.runc.v2\"\n[%s.options]\nBinaryName = %q\n",
			runtime, runtime, path)
	}
	return b.String()
}

// writeCNI configures Debian's bridge plugin, with host-local addresses and host ports.
func (n *Node) writeCNI() error {
	if _, err := os.Stat(filepath.Join(cniBinaries, "bridge")); err != nil {
		return fmt.Errorf("%w (Debian: containernetworking-plugins)", err)
	}
	list := map[string]any{
		"cniVersion": "1.0.0",
		"name":       n.Name,
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": n.Bridge, "isGateway": true, "ipMasq": true, "hairpinMode": true,
				"ipam": map[string]any{
					"type": "host-local", "dataDir": filepath.Join(n.Dir, "ipam"),
					"ranges": [][]any{{map[string]any{"subnet": n.PodCIDR.String()}}},
					"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
				},
			},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}},
		},
	}
	data, err := json.MarshalIndent(list, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(n.CNIConfDir, "10-"+n.Name+".conflist"), data, 0o644)
}
