package life

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// As containerd 2 has it by default.
func TestAnyUserOfAPodMayListenOnLowPortsAndPing(t *testing.T) {
	n := nodetest.Shared(t)
	nodetest.BerthOnly(t, "Debian's version has it by configuration alone")
	const values = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start; " +
		"cat /proc/sys/net/ipv4/ping_group_range | tr '\\t' ' '"
	user := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.RunAsUser = &cri.Int64Value{Value: 1000}
		s.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}}
	})
	p := nodetest.RunPod(t, n)
	c := p.Run(user)
	if got := c.Sh(values); got != "0\n0 2147483647" {
		t.Errorf("the sysctls are %q", got)
	}
	const listen = "nc -l -p 80 & sleep 0.3; kill $!" // fails where nc has ended, as it does without the right to listen
	c.Sh(listen)
	own := nodetest.RunPod(t, n, func(config *cri.PodSandboxConfig) {
		config.Linux.Sysctls = map[string]string{"net/ipv4/ip_unprivileged_port_start": "500"}
	})
	if got := own.Run(user).Sh(values); got != "500\n0 2147483647" {
		t.Errorf("with a value of the pod's own: %q", got)
	}
	mapped := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{UsernsOptions: userNamespace(200000, 65536)}))
	mapped.Run(user).Sh(listen)
	before := sysctlOfTheNode(t)
	host := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Network: cri.NamespaceMode_NODE}))
	host.Run().Sh("true")
	if after := sysctlOfTheNode(t); after != before {
		t.Errorf("a pod in the node's network changed the node's value from %s to %s", before, after)
	}
}

func sysctlOfTheNode(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func TestPodsHaveTheDefaultsOfTheConfiguration(t *testing.T) {
	nodetest.BerthOnly(t, "these are keys of Berth's configuration")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("of the node"), 0o644); err != nil {
		t.Fatal(err)
	}
	n := nodetest.Start(t, node.Options{
		Config: `default_env = ["FROM=node", "KEPT=node", "PATH=/node"]
default_sysctls = ["net.ipv4.ip_unprivileged_port_start=81"]
default_mounts = ["` + dir + `:/mnt/defaults:ro", "` + dir + `/none:/mnt/none"]
default_devices = ["/dev/loop-control:/dev/given:r", "/dev/no-such"]
refuse_missing_host_paths = ["` + dir + `/never"]
shm_size = "2m"
create_host_paths = ["v1alpha2"]
device_ownership_from_security_context = true
`,
		Tables: `
[runtimes.other]
type = "builtin"
default_env = ["FROM=handler"]
default_sysctls = ["net.ipv4.ip_unprivileged_port_start=82"]
default_mounts = ["/etc/passwd:/mnt/defaults"]
shm_size = "3m"
`})
	const ask = "echo $FROM $KEPT; cat /proc/sys/net/ipv4/ip_unprivileged_port_start; " +
		"df -m /dev/shm | tail -n 1 | awk '{print $2}'"
	p := nodetest.RunPod(t, n)
	device := func(c *cri.ContainerConfig) {
		c.Devices = []*cri.Device{{HostPath: "/dev/full", ContainerPath: "/dev/mine", Permissions: "rw"}}
	}
	user := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: 1000}, &cri.Int64Value{Value: 1001}
	})
	c := p.Run(device, user)
	if got := c.Sh(ask); got != "node node\n81\n2" {
		t.Errorf("a plain container has %q", got)
	}
	if got := c.Sh("cat /mnt/defaults/file; echo x 2>/dev/null >/mnt/defaults/file || echo ' read-only'"); got !=
		"of the node read-only" {
		t.Errorf("its default mount: %q", got)
	}
	if got := c.Sh("stat -c %u:%g /dev/mine /dev/null"); got != "1000:1001\n0:0" {
		t.Errorf("its devices belong to %q", got)
	}
	if got := c.Sh("[ -e /mnt/none ] || echo none; echo $PATH"); !strings.HasPrefix(got, "none\n") ||
		strings.Contains(got, "/node") {
		t.Errorf("a default mount that the host does not have, and the image's PATH: %q", got)
	}
	own := p.Run(func(c *cri.ContainerConfig) { c.Envs = []*cri.KeyValue{{Key: "FROM", Value: []byte("container")}} },
		nodetest.Mounts(&cri.Mount{HostPath: "/etc/hostname", ContainerPath: "/mnt/defaults"}))
	if got := own.Sh("echo $FROM $KEPT; [ -f /mnt/defaults ] && echo own"); got != "container node\nown" {
		t.Errorf("a container with values of its own has %q", got)
	}
	other := nodetest.RunPodHandler(t, n, "other")
	if got := other.Run().Sh(ask + "; head -c 4 /mnt/defaults"); got != "handler node\n82\n3\nroot" {
		t.Errorf("a container of another handler has %q", got)
	}
	const devices = "(: </dev/given) && echo readable; (: >/dev/given) 2>/dev/null || echo read-only; " +
		"[ -e /dev/no-such ] || echo none"
	if got := c.Sh(devices); got != "readable\nread-only\nnone" {
		t.Errorf("its default devices: %q", got)
	}
	missing := filepath.Join(t.TempDir(), "missing")
	_, err := p.TryCreate(nodetest.Mounts(&cri.Mount{HostPath: missing, ContainerPath: "/m"}))
	nodetest.WantCode(t, err, codes.InvalidArgument)
	if _, err := nodetest.DialV1alpha2(n).CreateContainer(nodetest.Context(t), &cri.CreateContainerRequest{
		PodSandboxId: p.ID, SandboxConfig: p.Config,
		Config: p.ContainerConfig(nodetest.Mounts(&cri.Mount{HostPath: missing, ContainerPath: "/m"})),
	}); err != nil || !exists(missing) {
		t.Errorf("create_host_paths names v1alpha2, which made no directory: %v", err)
	}
	never := filepath.Join(dir, "never")
	_, err = nodetest.DialV1alpha2(n).CreateContainer(nodetest.Context(t), &cri.CreateContainerRequest{
		PodSandboxId: p.ID, SandboxConfig: p.Config,
		Config: p.ContainerConfig(nodetest.Mounts(&cri.Mount{HostPath: never + "/", ContainerPath: "/m"})),
	})
	nodetest.WantCode(t, err, codes.InvalidArgument)
	if exists(never) {
		t.Error("refuse_missing_host_paths names a path that was made")
	}
}

func TestDeclaredVolumesAreIgnoredWhereTheConfigurationSaysSo(t *testing.T) {
	nodetest.BerthOnly(t, "this is a key of Berth's configuration")
	n := nodetest.Start(t, node.Options{Tables: "[image]\ndeclared_volumes = \"ignore\"\n"})
	c := nodetest.RunPod(t, n).Run(volumeImage(t, n))
	if got := c.Sh("grep -c -E ' (/data|/none/here|/real/x) ' /proc/mounts; cat /data/file"); got != "0\nfrom the image" {
		t.Errorf("mounts at declared volumes, and a file of one: %q", got)
	}
}
