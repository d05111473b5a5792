package life

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// envInside is set where this test runs in a pod.
const envInside = "BERTH_TEST_INSIDE"

// TestBerthRunsInAPod runs this test's own program, with a berthd and a keeper, in a privileged container, as nodes in
// containers are. On cgroup v1 such a container sees only its own cgroup of each hierarchy, while /proc has paths from
// the hierarchy's root. With OCI runtimes it was seen to fail where these paths were taken for directories: containers
// could be neither stopped nor removed.
func TestBerthRunsInAPod(t *testing.T) {
	nodetest.BerthOnly(t, "the test's program starts a node")
	if os.Getenv(envInside) != "" {
		runInside(t)
		return
	}
	nodetest.Root(t)
	n := nodetest.Shared(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	mounts := []*cri.Mount{{HostPath: dir, ContainerPath: dir}}
	for _, path := range []string{
		"/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", filepath.Dir(program), n.Programs(),
	} {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			mounts = append(mounts, &cri.Mount{HostPath: real, ContainerPath: path, Readonly: true})
		}
	}
	p := nodetest.RunPod(t, n, podSecurity(func(s *cri.LinuxSandboxSecurityContext) { s.Privileged = true }))
	c := p.Run(nodetest.Mounts(mounts...),
		nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true }),
		func(c *cri.ContainerConfig) {
			c.Command = []string{program, "-test.run", "^TestBerthRunsInAPod$", "-test.v"}
			for key, value := range map[string]string{
				envInside: "1", "BERTH_BIN": n.Programs(), "TMPDIR": dir, "HOME": dir, "PATH": os.Getenv("PATH"),
			} {
				c.Envs = append(c.Envs, &cri.KeyValue{Key: key, Value: []byte(value)})
			}
		})
	nodetest.Eventually(t, 2*time.Minute, "the test in the pod ends", func() error {
		if s := c.Status(); s.State != cri.ContainerState_CONTAINER_EXITED {
			return fmt.Errorf("it is %v: %s", s.State, c.Stdout())
		}
		return nil
	})
	if s := c.Status(); s.ExitCode != 0 {
		t.Errorf("it ended with %d: %s", s.ExitCode, c.Stdout())
	}
}

func runInside(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	handlers := []string{""}
	for handler := range n.Handlers {
		handlers = append(handlers, handler)
	}
	for _, handler := range handlers {
		p := nodetest.RunPodHandler(t, n, handler)
		first, second := p.Run(), p.Run()
		if got := first.Sh("echo in a pod in a pod"); got != "in a pod in a pod" {
			t.Errorf("handler %q: %q", handler, got)
		}
		first.Stop(0)
		second.Remove() // while it runs
		p.Remove()
	}
}

// TestAContainerThatLeftItsCgroupsEnds: something on the node moves a container's init process into another cgroup,
// where a search for the container's processes does not find it. Before, only what was found was killed: this test was
// seen to fail then.
func TestAContainerThatLeftItsCgroupsEnds(t *testing.T) {
	n := nodetest.Shared(t)
	hierarchies, err := node.CgroupMounts()
	if err != nil {
		t.Fatal(err)
	}
	// Containers that share a PID namespace: the kernel ends no other process with the init process.
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD}))
	for name, end := range map[string]func(c *nodetest.Container){
		"stop":   func(c *nodetest.Container) { c.Stop(0) },
		"remove": func(c *nodetest.Container) { c.Remove() },
	} {
		t.Run(name, func(t *testing.T) {
			c := p.Run()
			pid := hostPID(t, c)
			for _, root := range hierarchies {
				if err := join(root, pid); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			end(c)
			if took := time.Since(began); took > node.Patience(20*time.Second) {
				t.Errorf("it took %s", took)
			}
		})
	}
}
