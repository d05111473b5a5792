package selinux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m) }

const (
	enforce = "/sys/fs/selinux/enforce"
	current = "tr -d '\\0' </proc/self/attr/current"
)

// inside skips what needs the virtual machine, and wants it to have a policy that is enforced.
func inside(t *testing.T) {
	t.Helper()
	if os.Getenv("BERTH_VM") == "" {
		t.Skip("not in the virtual machine: make vm-selinux")
	}
	// What is not a container runs in domains that are permissive (test/vm/selinux.sh).
	if err := os.WriteFile(enforce, []byte("1"), 0); err != nil {
		t.Fatalf("enforce the policy: %v", err)
	}
	_ = exec.Command("dmesg", "-C").Run()
	t.Cleanup(func() {
		if err := os.WriteFile(enforce, []byte("0"), 0); err != nil {
			t.Error(err)
		}
		if out, err := exec.Command("dmesg").Output(); err == nil && t.Failed() {
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, "avc:") && strings.Contains(line, "permissive=0") {
					t.Log(strings.TrimSpace(line))
				}
			}
		}
	})
}

// own is the label of processes that a pod has where it asks for none: categories are its own.
var own = regexp.MustCompile(`^system_u:system_r:container_t:(s0:c\d+,c\d+)$`)

// level of a container's processes.
func level(t *testing.T, c *nodetest.Container) string {
	t.Helper()
	label := c.Sh(current)
	m := own.FindStringSubmatch(label)
	if m == nil {
		t.Fatalf("it runs as %q", label)
	}
	return m[1]
}

// fileLabel is the label of a file as a container sees it.
func fileLabel(t *testing.T, c *nodetest.Container, path string) string {
	t.Helper()
	pid, err := c.Pod.Node.ContainerPID(c.ID)
	if err != nil {
		t.Fatal(err)
	}
	return hostLabel(t, filepath.Join(fmt.Sprintf("/proc/%d/root", pid), path))
}

func hostLabel(t *testing.T, path string) string {
	t.Helper()
	buf := make([]byte, 256)
	n, err := unix.Getxattr(path, "security.selinux", buf)
	if err != nil {
		t.Fatalf("label of %s: %v", path, err)
	}
	return string(bytes.TrimRight(buf[:n], "\x00"))
}

// TestAPodHasItsOwnLabel: its containers, their execs and its init have one label, other pods have others,
// and the files of its containers belong to it.
func TestAPodHasItsOwnLabel(t *testing.T) {
	inside(t)
	n := nodetest.Shared(t)
	levels := map[string]bool{}
	for _, mode := range []cri.NamespaceMode{cri.NamespaceMode_CONTAINER, cri.NamespaceMode_POD} {
		p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: mode}
		})
		a := p.Run()
		l := level(t, a)
		if levels[l] {
			t.Errorf("two pods have the level %s", l)
		}
		levels[l] = true
		// The slow way would do as well: see keeper/runtime/plan's NotStaged.
		record, err := filepath.Glob(filepath.Join(n.State, "keeper", "*", a.ID+".json"))
		if err != nil || len(record) == 0 {
			t.Fatalf("the keeper's record of a container: %v, %v", record, err)
		}
		if data, err := os.ReadFile(record[0]); err != nil || !strings.Contains(string(data), `"whole":true`) {
			t.Errorf("libcontainer has set the container up: %s, %v", data, err)
		}
		if got := strings.TrimSpace(p.Output(current)); got != "system_u:system_r:container_t:"+l {
			t.Errorf("another container of the pod runs as %s, the first at level %s", got, l)
		}
		for _, path := range []string{
			"/", "/bin/sh", "/dev", "/dev/null", "/dev/pts", "/dev/shm", "/dev/mqueue", "/etc/hosts", "/etc/hostname",
			"/etc/resolv.conf",
		} {
			if got := fileLabel(t, a, path); got != "system_u:object_r:container_file_t:"+l {
				t.Errorf("%s has the label %s", path, got)
			}
		}
		if mode == cri.NamespaceMode_POD {
			if got := a.Sh("tr -d '\\0' </proc/1/attr/current"); got != "system_u:system_r:container_t:"+l {
				t.Errorf("the pod's init runs as %q", got)
			}
		}
		// All that a container does of itself, under a policy that is enforced.
		a.Sh("echo x >/new && echo x >/dev/shm/new && cat /etc/hosts /etc/hostname /etc/resolv.conf >/dev/null && " +
			"echo x >/dev/null && " +
			"ls /proc/self/fd >/dev/null && cat /sys/fs/cgroup/cgroup.procs >/dev/null && mkdir /dir && rm /new")
	}
	terminal := nodetest.RunPod(t, n).Run(func(c *cri.ContainerConfig) { c.Tty = true },
		nodetest.Sh("echo to the terminal; ls -l /proc/self/fd/1; sleep 3600"))
	terminal.WaitLog("/dev/pts/0")
}

// TestSELinuxCanBeOff: pods that start from then on are not confined, and those of before keep their labels.
func TestSELinuxCanBeOff(t *testing.T) {
	inside(t)
	n := nodetest.Start(t, node.Options{})
	before := nodetest.RunPod(t, n).Run()
	l := level(t, before)
	file := filepath.Join(n.Dir, "config.toml")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append([]byte("selinux = \"off\"\n"), text...), 0o600)
	}
	if err := errors.Join(err, n.Kill(), n.Restart(nodetest.Context(t))); err != nil {
		t.Fatal(err)
	}
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.SelinuxOptions = &cri.SELinuxOption{Level: "s0:c3,c4"}
	})
	c := p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.SelinuxOptions = &cri.SELinuxOption{Type: "no_such_t"}
	}))
	if got := c.Sh("cat /proc/self/attr/current"); strings.Contains(got, "container_t") || strings.Contains(got, "c3,c4") {
		t.Errorf("SELinux is off, and a container runs as %q", got)
	}
	c.Sh("echo x >/new && cat /etc/hosts >/dev/null")
	if got := level(t, before); got != l {
		t.Errorf("a container of before has level %s, and had %s", got, l)
	}
	before.Sh("echo x >/new && cat /etc/hosts >/dev/null")
}

// TestThePolicyKeepsPodsApart: a volume is for the pod that it was relabelled for, and a host path
// that was not for none but privileged containers.
func TestThePolicyKeepsPodsApart(t *testing.T) {
	inside(t)
	n := nodetest.Shared(t)
	dir := t.TempDir()
	const write = "echo x >/data/file && echo written || echo denied"
	mount := func(relabel bool) nodetest.ContainerEdit {
		return nodetest.Mounts(&cri.Mount{ContainerPath: "/data", HostPath: dir, SelinuxRelabel: relabel})
	}
	first, second := nodetest.RunPod(t, n), nodetest.RunPod(t, n)
	for _, step := range []struct {
		who, want string
		pod       *nodetest.Pod
		edits     []nodetest.ContainerEdit
	}{
		{"a pod to whose label nobody has changed it", "denied", first, []nodetest.ContainerEdit{mount(false)}},
		{"a pod that relabels it", "written", first, []nodetest.ContainerEdit{mount(true)}},
		{"the same pod, later", "written", first, []nodetest.ContainerEdit{mount(false)}},
		{"another pod", "denied", second, []nodetest.ContainerEdit{mount(false)}},
	} {
		if got := step.pod.Output(write, step.edits...); got != step.want+"\n" {
			t.Errorf("%s writes: %q", step.who, got)
		}
	}
	free := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	privileged := nodetest.Security(func(c *cri.LinuxContainerSecurityContext) { c.Privileged = true })
	if got := free.Output(write+"; "+current, mount(false), privileged); !strings.HasPrefix(got, "written\n") ||
		strings.Contains(got, "container_t:") {
		t.Errorf("a privileged container writes and is: %q", got)
	}
}

// TestAPodOfAManifestMayUseItsFiles: `berth run` asks for the labels of its volumes, of the hosts file and of the file
// for the last message, as a kubelet does.
func TestAPodOfAManifestMayUseItsFiles(t *testing.T) {
	inside(t)
	n := nodetest.Shared(t)
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pod.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(`apiVersion: v1
kind: ConfigMap
metadata: {name: map}
data: {key: of the map}
---
apiVersion: v1
kind: Pod
metadata: {name: labelled}
spec:
  hostAliases: [{ip: 192.0.2.1, hostnames: [alias]}]
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, "echo x >/data/file && echo x >/sub/file && echo x >/dev/termination-log && cat /map/key &&
      grep alias /etc/hosts && echo all is allowed"]
    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: data, mountPath: /sub, subPath: sub}
    - {name: map, mountPath: /map}
  volumes:
  - {name: data, emptyDir: {}}
  - {name: map, configMap: {name: map}}
`, "IMAGE", node.Busybox)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(nodetest.Context(t), filepath.Join(binaries, "berth"), "--address", n.Address,
		"--data-dir", filepath.Join(t.TempDir(), "data"), "run", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "all is allowed") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestLabelsThatAreAskedFor: a pod's, a container's, and one that the policy does not have.
func TestLabelsThatAreAskedFor(t *testing.T) {
	inside(t)
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.SelinuxOptions = &cri.SELinuxOption{Level: "s0:c10,c20"}
	})
	asks := func(o *cri.SELinuxOption) nodetest.ContainerEdit {
		return nodetest.Security(func(c *cri.LinuxContainerSecurityContext) { c.SelinuxOptions = o })
	}
	for want, edits := range map[string][]nodetest.ContainerEdit{
		"system_u:system_r:container_t:s0:c10,c20":   nil,
		"system_u:system_r:container_t:s0:c30,c40":   {asks(&cri.SELinuxOption{Level: "s0:c30,c40"})},
		"system_u:system_r:unconfined_t:s0:c10,c20":  {asks(&cri.SELinuxOption{Type: "unconfined_t"})},
		"unconfined_u:system_r:container_t:s0:c1,c2": {asks(&cri.SELinuxOption{User: "unconfined_u", Level: "s0:c1,c2"})},
	} {
		c := p.Run(edits...)
		if got := c.Sh("echo x >/file && " + current); got != want {
			t.Errorf("it runs as %q in place of %s", got, want)
		}
		level := want[strings.LastIndex(want, "s0:"):]
		if got := fileLabel(t, c, "/file"); !strings.HasSuffix(got, ":object_r:container_file_t:"+level) {
			t.Errorf("a file of %s has the label %s", want, got)
		}
	}
	for _, bad := range []*cri.SELinuxOption{{Type: "no_such_t"}, {Level: "s0:c5000"}, {Role: "object r"}} {
		_, err := p.TryCreate(asks(bad))
		nodetest.WantCode(t, err, codes.InvalidArgument)
		if err != nil && !strings.Contains(err.Error(), "SELinux") {
			t.Errorf("%v: %v", bad, err)
		}
		_, err = n.Runtime.RunPodSandbox(nodetest.Context(t),
			&cri.RunPodSandboxRequest{Config: nodetest.PodConfig(n, func(c *cri.PodSandboxConfig) {
				c.Linux.SecurityContext.SelinuxOptions = bad
			})})
		nodetest.WantCode(t, err, codes.InvalidArgument)
	}
}

// TestLabelsOutliveTheDaemon: after a kill of berthd a pod keeps its label, and no other gets it.
func TestLabelsOutliveTheDaemon(t *testing.T) {
	inside(t)
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	c := p.Run()
	created := p.Create()
	l := level(t, c)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	created.Start()
	for _, of := range []*nodetest.Container{c, created, p.Run()} {
		if got := level(t, of); got != l {
			t.Errorf("the level was %s and is %s", l, got)
		}
	}
	for range 3 {
		if got := level(t, nodetest.RunPod(t, n).Run()); got == l {
			t.Errorf("another pod has the level %s as well", l)
		}
	}
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, 30*time.Second, "a new keeper executes in the pod", func() error {
		r, err := c.Exec(10, "sh", "-c", current)
		if err == nil && string(r.Stdout) != "system_u:system_r:container_t:"+l {
			err = fmt.Errorf("it runs as %q", r.Stdout)
		}
		return err
	})
}

// TestUserNamespacesHaveLabels: libcontainer sets these up, and the stage finishes.
func TestUserNamespacesHaveLabels(t *testing.T) {
	inside(t)
	n := nodetest.Shared(t)
	user := &cri.UserNamespace{
		Mode: cri.NamespaceMode_POD,
		Uids: []*cri.IDMapping{{HostId: 200000, ContainerId: 0, Length: 65536}},
		Gids: []*cri.IDMapping{{HostId: 200000, ContainerId: 0, Length: 65536}},
	}
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Linux.SecurityContext.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER, UsernsOptions: user}
	})
	c := p.Run()
	l := level(t, c)
	for _, path := range []string{"/", "/dev/shm", "/etc/hosts"} {
		if got := fileLabel(t, c, path); got != "system_u:object_r:container_file_t:"+l {
			t.Errorf("%s has the label %s", path, got)
		}
	}
	c.Sh("echo x >/new && echo x >/dev/shm/new && cat /etc/hosts >/dev/null")
}
