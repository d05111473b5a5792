package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
)

// options say how a kubelet differs from the plain one.
type options struct {
	// gates are feature gates.
	gates map[string]bool
	// config is further keys of the KubeletConfiguration.
	config map[string]any
	// args are further flags, and env further variables of its environment.
	args, env []string
	// ask has cAdvisor ask the node's CRI socket for containerd's API, and containerd another socket.
	ask        bool
	containerd string
}

// kubelet is a kubelet on a node.
type kubelet struct {
	node      *node.Node
	name      string // of the node, as the kubelet calls it
	dir       string // everything of the kubelet; root is in it
	root      string // a mount of its own, shared, so that what the kubelet mounts in it is seen outside its namespace
	manifests string
	plugins   string // sockets of device plugins, seen by the kubelet where it looks for them
	config    map[string]any
	args, env []string
	asked     string // the socket that its cAdvisor finds in containerd's place, or none
	address   string // host:port of its API
	client    *http.Client
	log       *os.File

	mu     sync.Mutex // guards what follows
	cmd    *exec.Cmd
	exited chan struct{} // closed when cmd is reaped
}

// tunables are the sysctls that a kubelet sets for the whole machine, with the values that it wants. It reads
// these files in place of the machine's own and finds nothing to set.
var tunables = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// privateScript makes mounts that only this process and its children see. A mount that others share is made private
// first.
const privateScript = `
private() { mount --make-private "$(findmnt -n -o TARGET -T "$1")"; }
own() { private "$1"; mount -t tmpfs -o mode=755 kubelet "$1"; }
`

// containerdDir is where a kubelet's cAdvisor looks for containerd's socket. Since 1.37 no flag names another.
const containerdDir = "/run/containerd"

// ownDirs are the directories that every kubelet has mounts of its own on.
var ownDirs = []string{"/var/lib/kubelet", "/var/log/containers", containerdDir}

// namespaceScript makes the mounts that only the kubelet is to see, then becomes the kubelet. Its arguments are the
// directory of tunables, that of device plugins, the socket to find in containerd's place, then the kubelet's command.
var namespaceScript = privateScript + `
for dir in ` + strings.Join(ownDirs, " ") + `; do
	own $dir
done
[ -z "$3" ] || ln -s "$3" ` + containerdDir + `/containerd.sock
mkdir /var/lib/kubelet/device-plugins
mount --bind "$2" /var/lib/kubelet/device-plugins
private /proc/sys
for file in $(cd "$1" && find . -type f); do
	mount --bind "$1/$file" "/proc/sys/$file"
done
shift 3
exec "$@"
`

// startKubelet makes a kubelet for a node and waits until it answers.
func startKubelet(ctx context.Context, n *node.Node, o options) (*kubelet, error) {
	k := &kubelet{node: n, name: n.Name, dir: filepath.Join(n.Dir, "kubelet"), args: o.args, env: o.env,
		asked: o.containerd}
	if o.ask {
		k.asked = n.Socket
	}
	k.root, k.manifests = filepath.Join(k.dir, "root"), filepath.Join(k.dir, "manifests")
	k.plugins = filepath.Join(k.dir, "plug")
	for _, dir := range []string{k.root, k.manifests, k.plugins, filepath.Join(k.dir, "certs")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
	}
	for name, value := range tunables {
		path := filepath.Join(k.dir, "tunables", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o644); err != nil {
			return nil, err
		}
	}
	resolv := filepath.Join(k.dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 192.0.2.53\nsearch kubelet.test\n"), 0o644); err != nil {
		return nil, err
	}
	driver, err := makeCgroupRoot(n)
	if err != nil {
		return nil, err
	}
	port, err := freePort("tcp")
	if err != nil {
		return nil, err
	}
	k.address = fmt.Sprintf("127.0.0.1:%d", port)
	k.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, // the kubelet signs its certificate itself
		MaxIdleConnsPerHost: 4,
	}}
	k.config = map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"staticPodPath": k.manifests, "fileCheckFrequency": "1s", "syncFrequency": "2s",
		"address": "127.0.0.1", "port": port, "healthzPort": 0,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false},
		},
		"authorization":            map[string]any{"mode": "AlwaysAllow"},
		"containerRuntimeEndpoint": n.Address,
		"cgroupDriver":             driver, "cgroupRoot": "/" + n.Name, "failCgroupV1": false, "failSwapOn": false,
		"makeIPTablesUtilChains": false, "oomScoreAdj": 0, "resolvConf": resolv, "podCIDR": n.PodCIDR.String(),
		"podLogsDir": filepath.Join(n.Dir, "pod-logs"), "volumePluginDir": filepath.Join(k.dir, "plugins"),
		"serializeImagePulls": false, "registryPullQPS": 0,
		"evictionHard": map[string]string{"memory.available": "10Mi"}, "imageGCHighThresholdPercent": 100,
		"volumeStatsAggPeriod": "2s", "containerLogMonitorInterval": "3s",
		"featureGates": o.gates,
	}
	for key, value := range o.config {
		k.config[key] = value
	}
	if err := k.configure(nil); err != nil {
		return nil, err
	}
	k.log, err = os.OpenFile(filepath.Join(k.dir, "kubelet.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Mount(k.root, k.root, "", syscall.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("bind %s: %w", k.root, err)
	}
	// Where / is shared, what is mounted below would also be mounted on /, out of sight, and stay there in the namespace
	// of a kubelet that comes later.
	for _, propagation := range []uintptr{syscall.MS_PRIVATE, syscall.MS_SHARED} {
		if err := syscall.Mount("", k.root, "", propagation, ""); err != nil {
			return nil, errors.Join(fmt.Errorf("share %s: %w", k.root, err), k.end())
		}
	}
	if err := k.start(ctx); err != nil {
		return nil, errors.Join(err, k.end())
	}
	return k, nil
}

// configure changes keys of the kubelet's configuration, for its next start.
func (k *kubelet) configure(changes map[string]any) error {
	for key, value := range changes {
		k.config[key] = value
	}
	data, err := json.MarshalIndent(k.config, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(k.dir, "config.json"), data, 0o600)
}

// start starts the kubelet's process and waits until it answers.
func (k *kubelet) start(ctx context.Context) error {
	k.mu.Lock()
	k.cmd = exec.Command("unshare", append([]string{
		"--mount", "--propagation", "unchanged", "sh", "-ec", namespaceScript, "sh",
		filepath.Join(k.dir, "tunables"), k.plugins, k.asked,
		binary, "--config", filepath.Join(k.dir, "config.json"), "--root-dir", k.root,
		"--cert-dir", filepath.Join(k.dir, "certs"), "--hostname-override", k.name, "--v", "2",
	}, k.args...)...)
	k.cmd.Stdout, k.cmd.Stderr = k.log, k.log
	k.cmd.Env = append(os.Environ(), k.env...)
	// A signal for the terminal's group (^C) is for the suite, and none outlives it.
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err := k.cmd.Start()
	exited := make(chan struct{})
	if err == nil {
		go func(cmd *exec.Cmd) {
			_ = cmd.Wait()
			close(exited)
		}(k.cmd)
		k.exited = exited
	}
	k.mu.Unlock()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, node.Patience(time.Minute))
	defer cancel()
	for {
		_, err := k.get(ctx, "/healthz")
		if err == nil {
			return nil
		}
		select {
		case <-exited:
			return fmt.Errorf("the kubelet ended: %s", k.logTail())
		case <-ctx.Done():
			return fmt.Errorf("the kubelet does not answer: %w\n%s", err, k.logTail())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// signal ends the kubelet and waits until it is gone. Pods live on.
func (k *kubelet) signal(sig syscall.Signal) error {
	k.mu.Lock()
	cmd, exited := k.cmd, k.exited
	k.mu.Unlock()
	if exited == nil {
		return nil
	}
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-exited:
		return nil
	case <-time.After(node.Patience(20 * time.Second)):
		_ = cmd.Process.Kill()
		<-exited
		return fmt.Errorf("the kubelet outlived %v by 20 s", sig)
	}
}

// end takes the manifests away, waits until the kubelet has ended the pods and let go of their volumes,
// ends the kubelet, and removes what it keeps for itself. An error says what it has left.
func (k *kubelet) end() error {
	var errs []error
	if _, err := k.get(context.Background(), "/healthz"); err == nil {
		errs = append(errs, k.drain())
	}
	errs = append(errs, k.signal(syscall.SIGTERM))
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(k.root))
	errs = append(errs, err)
	for i := len(mounts) - 1; i >= 0; i-- {
		if at := mounts[i].Mountpoint; at != k.root {
			errs = append(errs, fmt.Errorf("the kubelet left a mount: %s (%s)", at, mounts[i].FSType))
		}
		errs = append(errs, syscall.Unmount(mounts[i].Mountpoint, syscall.MNT_DETACH))
	}
	if k.log != nil {
		errs = append(errs, k.log.Close())
	}
	return errors.Join(errs...)
}

// drain removes all manifests and waits until nothing of the pods runs and their directories are gone.
func (k *kubelet) drain() error {
	manifests, err := filepath.Glob(filepath.Join(k.manifests, "*"))
	if err != nil {
		return err
	}
	for _, manifest := range manifests {
		if err := os.Remove(manifest); err != nil {
			return err
		}
	}
	return within(time.Minute, "the pods end with their manifests", func() error { return k.holds("") })
}

// holds says what the kubelet and the runtime still have of a pod, or of all where uid is empty.
func (k *kubelet) holds(uid string) error {
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(5*time.Second))
	defer cancel()
	filter := &cri.PodSandboxFilter{State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY}}
	if uid != "" {
		filter.LabelSelector = map[string]string{"io.kubernetes.pod.uid": uid}
	}
	sandboxes, err := k.node.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: filter})
	if err != nil {
		return err
	}
	for _, sandbox := range sandboxes.Items {
		return fmt.Errorf("the sandbox of %s is ready", sandbox.Metadata.Name)
	}
	if uid != "" {
		_, err := os.Stat(filepath.Join(k.root, "pods", uid))
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("the directory of pod %s is there (%v)", uid, err)
		}
		return nil
	}
	dirs, err := os.ReadDir(filepath.Join(k.root, "pods"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(dirs) > 0 {
		return fmt.Errorf("%d directories of pods are there, such as %s", len(dirs), dirs[0].Name())
	}
	// The kubelet removes a pod's cgroup when it looks for such a thing, and one that ends before that leaves it.
	paths, err := node.CgroupMounts()
	if err != nil {
		return err
	}
	for _, path := range paths {
		err := filepath.WalkDir(filepath.Join(path, k.node.CgroupRoot),
			func(path string, entry fs.DirEntry, err error) error {
				if name := filepath.Base(path); strings.HasPrefix(name, "pod") || strings.Contains(name, "-pod") {
					return fmt.Errorf("the cgroup %s is there", path)
				}
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// get is a GET of the kubelet's API.
func (k *kubelet) get(ctx context.Context, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, node.Patience(20*time.Second))
	defer cancel()
	return k.do(ctx, http.MethodGet, path)
}

func (k *kubelet) do(ctx context.Context, method, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+k.address+path, nil)
	if err != nil {
		return "", err
	}
	response, err := k.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return string(body), err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(body))
	}
	return string(body), nil
}

// pods are the kubelet's pods, with their status, by name.
func (k *kubelet) pods(ctx context.Context) (map[string]*v1.Pod, error) {
	body, err := k.get(ctx, "/pods")
	if err != nil {
		return nil, err
	}
	var list v1.PodList
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		return nil, err
	}
	pods := map[string]*v1.Pod{}
	for i := range list.Items {
		pods[list.Items[i].Name] = &list.Items[i]
	}
	return pods, nil
}

// logTail is the end of what the kubelet has said.
func (k *kubelet) logTail() string {
	data, err := os.ReadFile(filepath.Join(k.dir, "kubelet.log"))
	if err != nil {
		return err.Error()
	}
	if len(data) > 8192 {
		data = data[len(data)-8192:]
	}
	return string(data)
}

// endNode removes what is left of the pods (the kubelet keeps dead sandboxes for a while) and ends the node.
// An error says what was left behind.
func endNode(n *node.Node) error {
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(time.Minute))
	defer cancel()
	var errs []error
	if n.PID() != 0 {
		errs = append(errs, n.RemoveAll(ctx), removeQOSCgroups(n))
		if left, err := n.Settled(time.Minute); err != nil || left.Count() > 0 {
			errs = append(errs, err, fmt.Errorf("left behind after the last pod:\n%s", left))
		}
	}
	errs = append(errs, n.Stop())
	if n.Systemd {
		errs = append(errs, systemctl("stop", filepath.Base(n.CgroupRoot)))
	}
	if left, err := n.Leftovers(); err != nil || left.Count() > 0 {
		errs = append(errs, err, fmt.Errorf("left behind after the node:\n%s", left))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("end the node: %w", err)
	}
	return nil
}

// makeCgroupRoot makes the cgroup that the kubelet keeps its own in, which wants to find it, and says by which driver:
// the node's.
func makeCgroupRoot(n *node.Node) (driver string, err error) {
	driver = "cgroupfs"
	if n.Systemd {
		driver = "systemd"
		if err := systemctl("start", filepath.Base(n.CgroupRoot)); err != nil {
			return driver, err
		}
	}
	paths, err := node.CgroupMounts()
	if err != nil {
		return driver, err
	}
	for _, path := range paths {
		dir := filepath.Join(path, n.CgroupRoot)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return driver, err
		}
		if len(paths) == 1 { // v2 alone: the root hands its controllers on
			controllers, err := os.ReadFile(filepath.Join(path, "cgroup.controllers"))
			if err != nil {
				return driver, err
			}
			for _, name := range strings.Fields(string(controllers)) {
				if err := os.WriteFile(filepath.Join(path, "cgroup.subtree_control"), []byte("+"+name), 0); err != nil {
					return driver, fmt.Errorf("hand %s on: %w", name, err)
				}
			}
		}
		// In a cpuset of v1 nothing may run before it has processors and memory nodes.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			inherited, err := os.ReadFile(filepath.Join(path, file))
			if err != nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), inherited, 0); err != nil && filepath.Base(path) == "cpuset" {
				return driver, err
			}
		}
	}
	return driver, nil
}

// removeQOSCgroups removes the cgroups that a kubelet makes at its start and never removes. One of a pod
// in it is an error.
func removeQOSCgroups(n *node.Node) error {
	paths, err := node.CgroupMounts()
	if err != nil {
		return err
	}
	all := []string{"kubepods/burstable", "kubepods/besteffort", "kubepods"}
	if n.Systemd {
		top := n.Name + "-kubepods"
		all = []string{top + ".slice/" + top + "-burstable.slice",
			top + ".slice/" + top + "-besteffort.slice", top + ".slice"}
	}
	var errs []error
	for _, path := range paths {
		for _, name := range all {
			dir := filepath.Join(path, n.CgroupRoot, name)
			err := syscall.Rmdir(dir)
			if n.Systemd && err == nil { // which has it still
				err = systemctl("stop", filepath.Base(dir))
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove the kubelet's cgroup %s: %w", dir, err))
			}
		}
	}
	return errors.Join(errs...)
}

func systemctl(args ...string) error {
	if out, err := exec.Command("systemctl", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// freePort is a port of loopback that nothing listens on.
func freePort(network string) (int, error) {
	if network == "udp" {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		return conn.LocalAddr().(*net.UDPAddr).Port, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// within tries until a claim holds.
func within(d time.Duration, claim string, try func() error) error {
	d = node.Patience(max(d, time.Minute)) // a machine may do ten other things
	for deadline := time.Now().Add(d); ; time.Sleep(100 * time.Millisecond) {
		err := try()
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %s: %w", d, claim, err)
		}
	}
}

// eventually is within for a test.
func eventually(t testing.TB, d time.Duration, claim string, try func() error) {
	t.Helper()
	if err := within(d, claim, try); err != nil {
		t.Fatal(err)
	}
}
