package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/mountns"
	"berth/internal/registrytest"
)

// Options say how a node differs from the plain one. The zero value is the plain one.
type Options struct {
	// Dir is where the node's own directory is made. Empty: the machine's temporary directory. It must be short, since
	// sockets live under it.
	Dir string
	// Root is the directory for lasting data. Empty: one inside the node's directory.
	Root string
	// PodCIDR is the range of the pods' addresses. Empty: one that nothing on the machine routes to, a /24, or a /16 for
	// more than 200 Pods.
	PodCIDR string
	Pods    int
	// OwnCIDR leaves the range to berthd, which chooses it for the first pod. Node.PodCIDR is unset.
	OwnCIDR bool
	// Volatile has what a reboot loses on a tmpfs, where most machines have it. Not for Reboot.
	Volatile bool
	// CgroupRoot is the parent of its pods' cgroups. Empty: one of the node's own.
	CgroupRoot string
	// Accounted has CPUUsed say how much processor time the node takes.
	Accounted bool
	// KeepCgroups: Stop ends no process in CgroupRoot and removes no cgroup there, since they may be another node's.
	KeepCgroups bool
	// CgroupDriver is auto, cgroupfs or systemd. Empty: what EnvCgroupDriver says.
	CgroupDriver string
	// Setup is what sets containers of the default runtime handler up: stage, or libcontainer. Empty: what EnvSetup says.
	Setup string
	// CNI gives the node a CNI configuration (Debian's bridge, host-local and portmap) in place of the built-in bridge.
	CNI bool
	// Config is further lines of config.toml, before any table.
	Config string
	// Tables is further lines of config.toml, after the plain keys.
	Tables string
	// ContainerdTables is further tables of containerd's configuration. Nil: none.
	ContainerdTables func(*Node) string
	// Args are further flags of berthd.
	Args []string
	// Handlers are further names of runtime handlers, by the OCI runtime binary that each is.
	Handlers map[string]string
	// Prepare does what has to be done before the daemon is started for the first time. Nil: nothing.
	Prepare func(*Node) error
	// Registry serves the node's images. Nil: one of the node's own with the standard images, closed by Stop.
	Registry *registrytest.Registry
	// Binaries is the directory of the programs. Empty: Binaries().
	Binaries string
}

// Node is a private node. Its methods are for one goroutine; its clients are for any number. Most fields are settings
// that a test chooses before the start; a suite that needs another setting adds a field.
type Node struct {
	Name       string // unique on the machine, 9 letters and digits
	Dir        string // everything of this node
	Root       string // lasting data
	State      string // what a reboot loses
	Address    string // unix:// and the socket's path
	Socket     string // the socket's path
	HostsDir   string // registries' hosts.toml
	CNIConfDir string
	NetNSDir   string // berthd's network.netns_dir, a mount
	LogDir     string // for pods' logs
	// NRISocket and NRIPlugins are for NRI plugins. berthd listens once the directory of either is there.
	NRISocket, NRIPlugins string
	DaemonLog             string // what the daemon and the keeper say
	Bridge                string
	PodCIDR               netip.Prefix
	CgroupRoot            string // parent of its pods' cgroups, below the hierarchies' mount points
	Systemd               bool   // makes the cgroups
	Containerd            bool
	Registry              *registrytest.Registry
	// Handlers are runtime handlers that name an OCI runtime binary, by handler: runc and crun, where installed.
	Handlers map[string]string

	Runtime cri.RuntimeServiceClient
	Images  cri.ImageServiceClient
	Conn    *grpc.ClientConn

	command     func() *exec.Cmd // a new start of the daemon
	programs    string           // the directory of berthd
	ownRegistry bool
	daemon      *exec.Cmd
	exited      chan struct{} // closed when daemon is reaped
	log         *os.File
	mounts      []string   // of ours, to unmount at the end
	mu          sync.Mutex // guards daemon, exited, claimed
	absent      []string   // directories that a containerd uses, and that were not there before it
	claimed     bool       // the machine's state is to be released at the end
	keepCgroups bool
	accountDir  string // the directory of the daemon's cgroup; empty: it has none of its own
}

// MoveConfig moves the configuration into a directory of its own, where `berth migrate` may write beside it as below
// /etc/berth, and leaves links to it. It is for Options.Prepare.
func (n *Node) MoveConfig() (etc string, err error) {
	etc = filepath.Join(n.Dir, "etc")
	if err := os.Mkdir(etc, 0o755); err != nil {
		return "", err
	}
	config := filepath.Join(n.Dir, "config.toml")
	if err := os.Rename(config, filepath.Join(etc, "config.toml")); err != nil {
		return "", err
	}
	if err := os.Symlink(filepath.Join(etc, "config.toml"), config); err != nil {
		return "", err
	}
	return etc, os.Symlink(filepath.Join(etc, "config.d"), filepath.Join(n.Dir, "config.d"))
}

// Start makes a node and waits until it answers and reports its runtime and network ready.
func Start(ctx context.Context, o Options) (*Node, error) {
	binaries := o.Binaries
	if binaries == "" {
		var err error
		if binaries, err = Binaries(ctx); err != nil {
			return nil, err
		}
	}
	n, err := prepare(o)
	if err != nil {
		return nil, err
	}
	n.keepCgroups = o.KeepCgroups
	if n.CgroupRoot = o.CgroupRoot; n.CgroupRoot == "" {
		n.CgroupRoot = "/" + n.Name
	}
	if o.CNI {
		if err := n.writeCNI(); err != nil {
			return nil, errors.Join(err, n.Stop())
		}
	}
	config := filepath.Join(n.Dir, "config.toml")
	if err := os.WriteFile(config, []byte(n.config(o)), 0o600); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	args := append([]string{
		"--config", config,
		"--root", n.Root,
		"--state", n.State,
		"--address", n.Socket,
		"--hosts-dir", n.HostsDir,
		"--cni-conf-dir", n.CNIConfDir,
		"--bridge", n.Bridge,
		"--keeper-binary", filepath.Join(binaries, "berth-keeper"),
	}, o.Args...)
	if !o.OwnCIDR {
		args = append(args, "--pod-cidr", n.PodCIDR.String())
	}
	later, err := n.laterFlags(ctx, binaries, o.Binaries != "")
	if err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	args = append(args, later...)
	n.programs = binaries
	if o.Prepare != nil {
		if err := o.Prepare(n); err != nil {
			return nil, errors.Join(err, n.Stop())
		}
	}
	n.command = func() *exec.Cmd { return exec.Command(filepath.Join(n.programs, "berthd"), args...) }
	if err := n.Restart(ctx); err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	made, err := n.Runtime.RuntimeConfig(ctx, &cri.RuntimeConfigRequest{})
	if err != nil {
		return nil, errors.Join(err, n.Stop())
	}
	if n.Systemd = made.GetLinux().GetCgroupDriver() == cri.CgroupDriver_SYSTEMD; n.Systemd {
		n.CgroupRoot += ".slice"
	}
	return n, nil
}

// laterFlags are those that keep a node away from the machine's own NRI plugins and network namespaces. A build of
// another revision, which a benchmark compares with this one, may be older than they are, and refuse them.
func (n *Node) laterFlags(ctx context.Context, binaries string, foreign bool) ([]string, error) {
	known := func(string) bool { return true }
	if foreign {
		help, err := exec.CommandContext(ctx, filepath.Join(binaries, "berthd"), "--help").Output()
		if err != nil {
			return nil, fmt.Errorf("ask %s for its flags: %w", filepath.Join(binaries, "berthd"), err)
		}
		known = func(flag string) bool { return strings.Contains(string(help), flag+" ") }
	}
	var flags []string
	if known("--nri.socket-path") {
		flags = append(flags, "--nri.socket-path", n.NRISocket, "--nri.plugin-path", n.NRIPlugins,
			"--nri.plugin-config-path", filepath.Join(n.Dir, "nri.d"))
	}
	if known("--netns-dir") {
		flags = append(flags, "--netns-dir", n.NetNSDir)
	}
	return flags, nil
}

// Programs is the directory of the berthd that the next start runs.
func (n *Node) Programs() string { return n.programs }

// SetPrograms has the next start run the berthd of another directory. The keeper stays.
func (n *Node) SetPrograms(dir string) { n.programs = dir }

// PodCgroup is the cgroup of a pod with this name, as a kubelet would ask for it.
func (n *Node) PodCgroup(name string) string {
	if n.Systemd { // a dash would make a slice within a slice
		return n.CgroupRoot + "/" + n.Name + "-" + strings.ReplaceAll(name, "-", "_") + ".slice"
	}
	return n.CgroupRoot + "/" + name
}

// OwnCgroup is the cgroup that a pod gets below parent where the pod asks for one of its own there.
func (n *Node) OwnCgroup(parent, id string) string {
	if n.Systemd {
		return parent + "/" + strings.TrimSuffix(filepath.Base(parent), ".slice") + "-" + id + ".slice"
	}
	return parent + "/" + id
}

// ContainerCgroup is the cgroup of a container in that of its pod.
func (n *Node) ContainerCgroup(pod, id string) string {
	if n.Systemd {
		return pod + "/cri-containerd-" + id + ".scope"
	}
	return pod + "/" + id
}

// SandboxCgroup is the cgroup that stands for a pod's sandbox in that of the pod.
func (n *Node) SandboxCgroup(pod, id string) string {
	if n.Systemd {
		return pod + "/berth-" + id + ".scope"
	}
	return pod + "/" + id
}

// config is the node's config.toml.
func (n *Node) config(o Options) string {
	var b strings.Builder
	driver := o.CgroupDriver
	if driver == "" {
		driver = os.Getenv(EnvCgroupDriver)
	}
	if driver != "" {
		fmt.Fprintf(&b, "cgroup_driver = %q\n", driver)
	}
	fmt.Fprintf(&b, "cgroup_root = %q\n", n.CgroupRoot)
	if mounts := os.Getenv(EnvMountNamespace); mounts != "" && !strings.Contains(o.Config, "mount_namespace") {
		fmt.Fprintf(&b, "mount_namespace = %q\n", mounts)
	}
	b.WriteString(o.Config)
	b.WriteString("\n")
	for name, path := range n.Handlers {
		fmt.Fprintf(&b, "[runtimes.%s]\ntype = \"oci\"\npath = %q\n", name, path)
	}
	tables := o.Tables
	setup := o.Setup
	if setup == "" {
		setup = os.Getenv(EnvSetup)
	}
	if setup != "" {
		// The options may have a table of it already.
		const table = "[runtimes.berth]\n"
		line := fmt.Sprintf("setup = %q\n", setup)
		if !strings.Contains(tables, table) {
			tables += "\n" + table
		}
		tables = strings.Replace(tables, table, table+line, 1)
	}
	b.WriteString(tables)
	return b.String()
}

// prepare makes the node's directories and its registry; nothing runs yet.
func prepare(o Options) (n *Node, err error) {
	var id [4]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, err
	}
	if err := machine.claim(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, machine.release())
		}
	}()
	if n, err = design("b"+hex.EncodeToString(id[:]), o); err != nil {
		return nil, err
	}
	for _, dir := range []string{n.Dir, n.Root, n.State, n.HostsDir, n.CNIConfDir, n.LogDir} {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return nil, err
		}
	}
	if o.Volatile {
		if err := syscall.Mount("tmpfs", n.State, "tmpfs", 0, "mode=711"); err != nil {
			return nil, errors.Join(fmt.Errorf("mount a tmpfs at %s: %w", n.State, err), os.RemoveAll(n.Dir))
		}
		n.mounts = append(n.mounts, n.State)
	}
	if n.log, err = os.OpenFile(n.DaemonLog, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
		return nil, errors.Join(err, n.abandon())
	}
	n.Registry = o.Registry
	if n.Registry == nil {
		if n.Registry, err = NewRegistry(); err != nil {
			return nil, errors.Join(err, n.abandon())
		}
		n.ownRegistry = true
	}
	if err := n.Registry.HostsDir(n.HostsDir, RegistryHost); err != nil {
		return nil, errors.Join(err, n.abandon())
	}
	if err := n.dial(); err != nil || !o.Accounted {
		return n, err
	}
	return n, n.account()
}

// design says what a node has and where, and makes nothing.
func design(name string, o Options) (n *Node, err error) {
	n = &Node{Name: name, claimed: true}
	parent := o.Dir
	if parent == "" {
		parent = os.TempDir()
	}
	n.Dir = filepath.Join(parent, n.Name)
	n.Root = o.Root
	if n.Root == "" {
		n.Root = filepath.Join(n.Dir, "root")
	}
	n.State = filepath.Join(n.Dir, "state")
	n.Socket = filepath.Join(n.Dir, "cri.sock")
	n.Address = "unix://" + n.Socket
	n.HostsDir = filepath.Join(n.Dir, "hosts")
	n.CNIConfDir = filepath.Join(n.Dir, "cni")
	n.NetNSDir = filepath.Join(n.Dir, "netns")
	pin := mountns.Pin(filepath.Join(n.State, "keeper"))
	n.mounts = append(n.mounts, n.NetNSDir, pin, filepath.Dir(pin))
	n.LogDir = filepath.Join(n.Dir, "logs")
	n.NRISocket = filepath.Join(n.Dir, "nri", "s")
	n.NRIPlugins = filepath.Join(n.Dir, "nri-plugins")
	n.DaemonLog = filepath.Join(n.Dir, "daemon.log")
	n.Bridge = n.Name
	n.Handlers = map[string]string{}
	for _, name := range []string{"runc", "crun"} {
		if path, err := exec.LookPath(name); err == nil {
			n.Handlers[name] = path
		}
	}
	maps.Copy(n.Handlers, o.Handlers)
	switch {
	case o.OwnCIDR:
	case o.PodCIDR != "":
		n.PodCIDR, err = netip.ParsePrefix(o.PodCIDR)
	default:
		bits := 24
		if o.Pods > 200 {
			bits = 16
		}
		n.PodCIDR, err = freePrefix(bits)
	}
	if err != nil {
		return nil, err
	}
	return n, nil
}

// abandon removes the directories of a node that has not started.
func (n *Node) abandon() error { return errors.Join(n.unmount(), os.RemoveAll(n.Dir)) }

func (n *Node) unmount() error {
	var errs []error
	for _, mount := range n.mounts {
		err := syscall.Unmount(mount, syscall.MNT_DETACH)
		if err != nil && err != syscall.EINVAL && err != syscall.ENOENT { // it went with a sweep, or was never made
			errs = append(errs, fmt.Errorf("unmount %s: %w", mount, err))
		}
	}
	n.mounts = nil
	return errors.Join(errs...)
}

// dial makes the clients. They reconnect by themselves after each restart.
func (n *Node) dial() error {
	conn, err := grpc.NewClient(n.Address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.5,
				MaxDelay: 20 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		return err
	}
	n.Conn = conn
	n.Runtime = cri.NewRuntimeServiceClient(conn)
	n.Images = cri.NewImageServiceClient(conn)
	return nil
}

// freePrefix picks a range from 10.128.0.0/9 that overlaps with none that an interface of the machine has an address
// of.
func freePrefix(bits int) (netip.Prefix, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Prefix{}, err
	}
	for range 100 {
		var r [2]byte
		if _, err := rand.Read(r[:]); err != nil {
			return netip.Prefix{}, err
		}
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128 | r[0], r[1], 0}), bits).Masked()
		taken := false
		for _, addr := range addrs {
			if theirs, err := netip.ParsePrefix(addr.String()); err == nil && prefix.Overlaps(theirs.Masked()) {
				taken = true
			}
		}
		if !taken {
			return prefix, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("no free /%d in 10.128.0.0/9", bits)
}

// Restart starts the daemon where it does not run, and waits until it answers and is ready.
func (n *Node) Restart(ctx context.Context) error {
	if err := n.Launch(); err != nil {
		return err
	}
	return n.WaitReady(ctx)
}

// Launch starts the daemon where it does not run, and does not wait for it.
func (n *Node) Launch() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.exited != nil {
		select {
		case <-n.exited:
		default:
			return nil
		}
	}
	cmd := n.inAccount(n.command())
	cmd.Stdout, cmd.Stderr = n.log, n.log
	// A signal for the terminal's group (^C) is for the suite, which then stops its nodes in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	n.daemon, n.exited = cmd, exited
	return nil
}

// WaitReady waits until the daemon answers and says that runtime and network are ready, for at most a minute, times
// Patience.
func (n *Node) WaitReady(ctx context.Context) error {
	return n.wait(ctx, func(conditions []*cri.RuntimeCondition) error {
		for _, c := range conditions {
			if !c.Status && (c.Type == "RuntimeReady" || c.Type == "NetworkReady") {
				return fmt.Errorf("%s is false: %s: %s", c.Type, c.Reason, c.Message)
			}
		}
		return nil
	})
}

func (n *Node) wait(ctx context.Context, good func([]*cri.RuntimeCondition) error) error {
	ctx, cancel := context.WithTimeout(ctx, Patience(time.Minute))
	defer cancel()
	n.mu.Lock()
	exited := n.exited
	n.mu.Unlock()
	for {
		status, err := n.Runtime.Status(ctx, &cri.StatusRequest{})
		if err == nil {
			if err = good(status.GetStatus().GetConditions()); err == nil {
				return nil
			}
		}
		select {
		case <-exited:
			return fmt.Errorf("the daemon ended: %s", n.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("the node is not ready: %w\n%s", err, n.LogTail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Logs are the paths of the daemon's log and the keeper's.
func (n *Node) Logs() []string {
	return []string{n.DaemonLog, filepath.Join(n.State, "keeper", "keeper.log")}
}

// LogTail is the end of what daemon and keeper have said.
func (n *Node) LogTail() string {
	var tails strings.Builder
	for _, path := range n.Logs() {
		data, err := os.ReadFile(path)
		if err != nil {
			fmt.Fprintln(&tails, err)
			continue
		}
		tails.Write(data[max(0, len(data)-8192):])
	}
	return tails.String()
}

// PID is the daemon's. 0: it does not run.
func (n *Node) PID() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.exited == nil {
		return 0
	}
	select {
	case <-n.exited:
		return 0
	default:
		return n.daemon.Process.Pid
	}
}

// KeeperPID is the PID of the keeper that answers; ok is false where none does.
func (n *Node) KeeperPID() (pid int, ok bool) {
	pid, err := Peer(filepath.Join(n.State, "keeper", "keeper.sock"))
	return pid, err == nil && pid > 0
}

// Kill ends the daemon with SIGKILL and waits until it is gone.
func (n *Node) Kill() error { return n.signal(syscall.SIGKILL) }

// Terminate ends the daemon with SIGTERM, as an init system does, and waits until it is gone. Containers live on.
func (n *Node) Terminate() error { return n.signal(syscall.SIGTERM) }

func (n *Node) signal(sig syscall.Signal) error {
	n.mu.Lock()
	daemon, exited := n.daemon, n.exited
	n.mu.Unlock()
	if exited == nil {
		return nil
	}
	select {
	case <-exited:
		return nil
	default:
	}
	if err := daemon.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-exited:
		return nil
	case <-time.After(time.Minute):
		_ = daemon.Process.Kill()
		<-exited
		return fmt.Errorf("the daemon outlived %v by 20 s: %s", sig, n.LogTail())
	}
}

// KillKeeper ends the keeper with SIGKILL and waits until it is gone.
func (n *Node) KillKeeper() error {
	pid, ok := n.KeeperPID()
	if !ok {
		return errors.New("no keeper answers")
	}
	return kill(pid, Patience(30*time.Second))
}

// Reboot takes from the node what a reboot of the machine would: daemon, keeper and containers end without a word,
// mounts, interfaces, rules and cgroups are gone, and so is the directory for what a reboot loses.
func (n *Node) Reboot() error {
	if err := n.Kill(); err != nil {
		return err
	}
	if pid, ok := n.KeeperPID(); ok {
		if err := kill(pid, Patience(30*time.Second)); err != nil {
			return err
		}
	}
	if err := n.sweep(); err != nil {
		return err
	}
	if err := os.RemoveAll(n.State); err != nil {
		return err
	}
	return os.Mkdir(n.State, 0o711)
}

// ContainerPID is the init process of a container: of those in the cgroup that bears its ID, one whose parent is not.
func (n *Node) ContainerPID(id string) (int, error) {
	all, err := Processes()
	if err != nil {
		return 0, err
	}
	inside := map[int]bool{}
	for _, p := range all {
		inside[p.PID] = slices.ContainsFunc(p.Cgroups, func(cgroup string) bool { return strings.Contains(cgroup, id) })
	}
	for _, p := range all {
		if inside[p.PID] && !inside[p.Parent] {
			return p.PID, nil
		}
	}
	return 0, fmt.Errorf("container %s has no process", id)
}

// RemoveAll stops and removes every pod of the node.
func (n *Node) RemoveAll(ctx context.Context) error {
	list, err := n.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, sandbox := range list.Items {
		if _, err := n.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox.Id}); err != nil {
			errs = append(errs, err)
		}
		if _, err := n.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox.Id}); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Stop ends daemon and keeper, and removes everything of the node, by force where it must. An error says what had to be
// forced or could not be removed. Pods should have been removed by then: see RemoveAll and Leftovers.
func (n *Node) Stop() error {
	var errs []error
	errs = append(errs, n.Terminate())
	if pid, ok := n.KeeperPID(); ok {
		errs = append(errs, kill(pid, Patience(30*time.Second)))
	}
	if n.Conn != nil {
		errs = append(errs, n.Conn.Close())
	}
	if n.ownRegistry {
		errs = append(errs, n.Registry.Close())
	}
	errs = append(errs, n.sweep(), n.endAccount())
	if _, err := os.Stat(filepath.Join(n.CNIConfDir, "10-"+n.Name+".conflist")); err == nil {
		errs = append(errs, n.removeMasquerading())
	}
	n.mu.Lock()
	claimed := n.claimed
	n.claimed = false
	n.mu.Unlock()
	if claimed {
		errs = append(errs, machine.release())
	}
	errs = append(errs, n.unmount(), n.removeShared())
	if n.log != nil {
		errs = append(errs, n.log.Close())
	}
	if os.Getenv("BERTH_KEEP_NODES") == "" {
		errs = append(errs, os.RemoveAll(n.Dir))
	}
	return errors.Join(errs...)
}
