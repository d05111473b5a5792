package nri

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/kubernetes"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// EnvPeer asks for the comparison with containerd 2. It is built once, which takes minutes.
const EnvPeer = "BERTH_NRI_PEER"

// differences are what containerd tells plugins otherwise than Berth does, by the pattern of the lines, with the
// reason. docs/nri.md has a row for each.
var differences = map[string]string{
	`annotations\.io\.(berth|kubernetes\.cri)`:      "each runtime has annotations of its own",
	`labels\.(io\.cri-containerd|oci_runtime_type)`: "containerd has labels of its own",
	`container\.image\.`:                            "containerd does not tell the image",
	`container\.env\[\]="HOME=`:                     "containerd leaves HOME to its OCI runtime",
	`container\.mounts\[\].*"(/etc/|/dev/shm)`:      "Berth mounts its own files nosuid, nodev and noexec",
	`(pod|container)\.linux\.namespaces\[\].*`:      "the paths are the runtime's, and Berth has no pause container",
	`pod\.linux\.cgroupsPath=`:                      "containerd's is that of its pause container",
	`pod\.linux\.resources\.`:                       "containerd's are those of its pause container",
	`^(Run|Stop)PodSandbox: pod\.pid=`:              "containerd's is that of its pause container",
	`^CreateContainer: container\.createdAt=`:       "Berth's time is that of the call",
	`^StartContainer: container\.pid=`:              "Berth asks before there is a process",
	`^StopContainer: container\.(state|exitCode|finishedAt)=`: "" +
		"Berth tells before the stop signal, and containerd after the end",
	`^RemoveContainer: container\.(state|statusReason)=`: "containerd has forgotten the state by then",
}

// unlike are the kinds of adjustments whose effect differs, with the reason. docs/nri.md has a row for each.
var unlike = map[string]string{
	"environment": "NRI's library leaves a removed variable in place, and Berth removes it",
	"memory-that-is-kept-and-processes-without-a-limit": "containerd ignores the reservation of memory",
	"swap-below-memory": "containerd ignores the limit of swap",
	"kernel-memory":     "containerd ignores the limit of kernel memory",
	"devices-that-are-removed-and-made-again": "NRI's library leaves a removed device and its permission in place, and " +
		"Berth removes both",
	"devices-that-are-removed": "NRI's library leaves a removed device in place, and Berth removes it",
	"memory":                   "containerd's status has the limit that the client asked for",
}

// byRunc are the kinds of adjustments whose effect with containerd depends on the version of the system's runc, which
// ignores what it does not know.
var byRunc = []string{"RDT", "network-devices", "priority-of-IO", "scheduler"}

// peers are a node of Berth and one of containerd, whose built-in validators refuse sysctls.
func peers(t testing.TB) map[string]*node.Node {
	t.Helper()
	if os.Getenv(EnvPeer) == "" {
		t.Skipf("set %s=1 to compare Berth with containerd 2, which is built once", EnvPeer)
	}
	nodetest.Root(t)
	binaries, err := kubernetes.BuildContainerd(nodetest.Building(t))
	if err != nil {
		t.Fatal(err)
	}
	registry, err := node.NewRegistry()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = registry.Close() })
	slow := classes(t)
	const validator = "enable = true\nreject_sysctl_adjustment = true\n"
	peer, err := node.StartContainerd(nodetest.Context(t), node.Options{
		Registry: registry, Binaries: binaries, Prepare: makeNRIDirectory,
		ContainerdTables: func(n *node.Node) string {
			const plugin = `plugins."io.containerd.nri.v1.nri"`
			return "[plugins.'io.containerd.service.v1.tasks-service']\n" +
				fmt.Sprintf("blockio_config_file = %q\n[%s]\ndisable = false\nsocket_path = %q\n"+
					"plugin_path = %q\nplugin_config_path = %q\n"+
					"plugin_request_timeout = %q\n[%s.default_validator]\n%s", slow, plugin, n.NRISocket, n.NRIPlugins,
					filepath.Join(n.Dir, "nri", "conf.d"), timeout, plugin, validator)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("containerd said last:\n%s", peer.LogTail())
		}
		if err := peer.Stop(); err != nil {
			t.Error(err)
		}
	})
	own := nodetest.Start(t, node.Options{
		Registry: registry, Prepare: makeNRIDirectory, Config: fmt.Sprintf("block_io_classes_file = %q\n", slow),
		Tables: fmt.Sprintf("[nri]\nplugin_request_timeout = %q\n[nri.default_validator]\n%s"+
			"[runtimes.berth]\nannotations = [\"vendor.com/*\"]\n", timeout, validator),
	})
	return map[string]*node.Node{"Berth": own, "containerd": peer}
}

func makeNRIDirectory(n *node.Node) error { return os.MkdirAll(filepath.Dir(n.NRISocket), 0o700) }

// TestPluginsAreToldTheSameAsByContainerd runs the same pod with the same plugin on both, and compares all events and
// all fields of the pod and its container at each event.
func TestPluginsAreToldTheSameAsByContainerd(t *testing.T) {
	told := map[string][]string{}
	for name, n := range peers(t) {
		told[name] = tellOfALife(t, n)
	}
	used := map[string]bool{}
	for _, side := range []string{"Berth", "containerd"} {
		other := map[string]string{"Berth": "containerd", "containerd": "Berth"}[side]
		for _, line := range told[side] {
			if slices.Contains(told[other], line) {
				continue
			}
			if pattern := explanation(line); pattern != "" {
				used[pattern] = true
				continue
			}
			t.Errorf("%s alone tells: %s", side, line)
		}
	}
	for pattern, reason := range differences {
		if !used[pattern] {
			t.Errorf("there is no such difference any more: %s: %s", pattern, reason)
		}
	}
}

// explanation is the pattern of differences that a line matches; empty: none.
func explanation(line string) string {
	for pattern := range differences {
		if regexp.MustCompile(pattern).MatchString(line) {
			return pattern
		}
	}
	return ""
}

// tellOfALife is what a plugin is told of the life of a pod and its container, a line for each event with its place in
// the order, and for each field at an event. What differs between any two nodes has been replaced.
func tellOfALife(t *testing.T, n *node.Node) (lines []string) {
	t.Helper()
	p := connect(t, n, "10-listener", &plugin{})
	pod := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Metadata.Name, c.Metadata.Uid, c.Hostname = "compared", "compared-uid", "compared"
		c.Labels, c.Annotations = map[string]string{"app": "web"}, map[string]string{"example.com/a": "b"}
		c.Linux.Resources = &cri.LinuxContainerResources{CpuShares: 256, MemoryLimitInBytes: 256 << 20}
		c.Linux.CgroupParent = n.PodCgroup("compared")
		c.LogDirectory = filepath.Join(n.LogDir, "compared")
		c.Linux.Overhead = &cri.LinuxContainerResources{CpuShares: 2}
	})
	c := pod.Run(func(c *cri.ContainerConfig) {
		c.Metadata.Name = "server"
		c.Labels, c.Annotations = map[string]string{"tier": "front"}, map[string]string{"example.com/c": "d"}
		c.Envs = []*cri.KeyValue{{Key: "KEY", Value: []byte("value")}}
		c.Mounts = []*cri.Mount{{HostPath: "/usr", ContainerPath: "/host", Readonly: true}}
		c.Devices = []*cri.Device{{HostPath: "/dev/full", ContainerPath: "/dev/full2", Permissions: "rw"}}
		c.Linux.Resources = &cri.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 128 << 20, OomScoreAdj: 900}
		c.Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 1000}
		c.Linux.SecurityContext.SupplementalGroups = []int64{2000}
	})
	if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: c.ID, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 100 << 20},
	}); err != nil {
		t.Fatal(err)
	}
	replace := strings.NewReplacer(c.ID, "CONTAINER", pod.ID, "POD", pod.IP(), "ADDRESS", n.Dir, "NODE", n.Name, "NODE")
	c.Stop(0)
	c.Remove()
	pod.Remove()
	for i, event := range p.story() {
		lines = append(lines, fmt.Sprintf("event %d: %s", i, event))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for event, one := range p.pods {
		lines = append(lines, fields(t, replace, event+": pod", one)...)
	}
	for event, one := range p.containers {
		lines = append(lines, fields(t, replace, event+": container", one)...)
	}
	slices.Sort(lines)
	return lines
}

// fields is a message in lines, one for each field and each item of a list.
func fields(t *testing.T, replace *strings.Replacer, at string, m proto.Message) (lines []string) {
	t.Helper()
	data, err := protojson.Marshal(m)
	var tree any
	if err == nil {
		err = json.Unmarshal([]byte(replace.Replace(string(data))), &tree)
	}
	if err != nil {
		t.Fatal(err)
	}
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for _, key := range slices.Sorted(maps.Keys(v)) {
				walk(at+"."+key, v[key])
			}
		case []any:
			for _, item := range v {
				text, _ := json.Marshal(item)
				lines = append(lines, fmt.Sprintf("%s[]=%s", at, text))
			}
		default:
			text := fmt.Sprint(v)
			if base := path.Ext(at); slices.Contains([]string{".pid", ".createdAt", ".startedAt", ".finishedAt"}, base) &&
				cmp.Or(text, "0") != "0" {
				text = "set"
			}
			lines = append(lines, at+"="+text)
		}
	}
	walk(at, tree)
	return lines
}

// TestEachKindOfAdjustmentIsSeenAsWithContainerd has a plugin make each kind of adjustment on both, and compares what
// is seen in the container, or whether it is refused.
func TestEachKindOfAdjustmentIsSeenAsWithContainerd(t *testing.T) {
	seen := map[string]map[string]string{}
	var names []string
	for runtime, n := range peers(t) {
		dir := t.TempDir()
		all := kinds(t, dir, movable(t, strings.ToLower(runtime[:3])))
		maps.DeleteFunc(all, func(name string, _ adjustment) bool { return strings.HasPrefix(name, "CDI") })
		names = slices.Sorted(maps.Keys(all))
		seen[runtime] = adjustAndLook(t, n, dir, all)
	}
	for _, name := range names {
		own, peer := seen["Berth"][name], seen["containerd"][name]
		if reason := unlike[name]; own == peer && reason != "" {
			t.Errorf("%s: there is no such difference any more: %s", name, reason)
		} else if own != peer && reason == "" && !slices.Contains(byRunc, name) {
			t.Errorf("%s: Berth has %q, containerd %q", name, own, peer)
		}
	}
	if got := seen["Berth"]["sysctls"]; got != "refused" {
		t.Errorf("the built-in validator that is to refuse sysctls has let them through: %q", got)
	}
}

// adjustAndLook is what is seen in a container with each adjustment.
func adjustAndLook(t *testing.T, n *node.Node, dir string, all map[string]adjustment) map[string]string {
	t.Helper()
	p := connect(t, n, "10-change", &plugin{create: func(_ *api.PodSandbox, c *api.Container) (
		*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		adjust := &api.ContainerAdjustment{}
		all[c.GetName()].change(adjust)
		return adjust, nil, nil
	}})
	defer p.stub.Stop()
	pod := nodetest.RunPod(t, n)
	seen := map[string]string{}
	for name, a := range all {
		c, err := pod.TryCreate(func(c *cri.ContainerConfig) {
			c.Metadata.Name = name
			if a.edit != nil {
				a.edit(c)
			}
		})
		if err == nil {
			err = c.TryStart()
		}
		if err != nil {
			t.Logf("%s: %v", name, err)
			seen[name] = "refused"
			continue
		}
		if a.script != "" {
			out, err := c.Exec(10, "sh", "-c", a.script)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			seen[name] = strings.TrimSpace(string(out.Stdout))
		}
		if _, err := os.Stat(filepath.Join(dir, "hooked")); name == "hooks" {
			seen[name] = fmt.Sprintf("the hook has run: %t", err == nil)
		}
		if name == "namespaces" {
			own, _ := os.Readlink("/proc/self/ns/cgroup")
			seen[name] = fmt.Sprintf("its own: %t", c.Sh("readlink /proc/self/ns/cgroup") != own)
		}
		if limit := c.Status().GetResources().GetLinux(); name == "memory" {
			seen[name] += fmt.Sprintf(", status %d", limit.GetMemoryLimitInBytes())
		}
	}
	return seen
}
