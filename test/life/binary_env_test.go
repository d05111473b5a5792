package life

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	keeper "berth/internal/keeper/client"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// secret is a variable with the value of a Secret whose data is not UTF-8, as a kubelet sends it.
func secret(c *cri.ContainerConfig) {
	c.Envs = append(c.Envs, &cri.KeyValue{Key: "BEFORE", Value: []byte("b")},
		&cri.KeyValue{Key: "BINARY", Value: []byte("a=\xff\xfe\xc3(")}, &cri.KeyValue{Key: "AFTER", Value: []byte("a")})
}

// hasBinary prints "same" where the variable has the value, and otherwise what there is.
const hasBinary = `if [ "$BINARY" = "$(printf 'a=\377\376\303(')" ]; then echo same; else env; fi`

// TestAVariableKeepsBytesThatAreNotUTF8 in a container that is started by the berthd that has created it, or the next
// one, and in its execs, whichever program of Berth's was killed meanwhile. Seen to fail with JSON's own strings.
func TestAVariableKeepsBytesThatAreNotUTF8(t *testing.T) {
	nodetest.BerthOnly(t, "kills its programs")
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	script := nodetest.Sh(hasBinary + "; sleep 3600")
	running, later := p.Run(secret, script), p.Create(secret, script)
	check := func(c *nodetest.Container) {
		t.Helper()
		c.WaitLog("\n")
		if got := c.Stdout(); got != "same\n" {
			t.Errorf("the program has %q", got)
		}
		if got := c.Sh(hasBinary); got != "same" {
			t.Errorf("an exec has %q", got)
		}
	}
	check(running)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	later.Start()
	check(running)
	check(later)
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	check(running)
	check(later)
}

// TestAnEngineThatCannotPassBytesRefusesThem: OCI runtimes, shims and libcontainer read JSON.
func TestAnEngineThatCannotPassBytesRefusesThem(t *testing.T) {
	nodetest.BerthOnly(t, "has handlers of its own")
	refused := func(p *nodetest.Pod) {
		t.Helper()
		_, err := p.TryCreate(secret)
		nodetest.WantCode(t, err, codes.InvalidArgument)
		if err == nil || !strings.Contains(err.Error(), "config.envs[1].value: the value of BINARY is not UTF-8") ||
			strings.Contains(err.Error(), "a=") {
			t.Errorf("%v", err)
		}
	}
	n := nodetest.Start(t, node.Options{Setup: "libcontainer"})
	refused(nodetest.RunPod(t, n))
	if n.Handlers["runc"] != "" {
		refused(nodetest.RunPodHandler(t, n, "runc"))
	}
}

// TestACheckpointKeepsBytesThatAreNotUTF8 for the processes. libcontainer starts the execs of a restored container and
// cannot pass them on, so that these fail, and say so.
func TestACheckpointKeepsBytesThatAreNotUTF8(t *testing.T) {
	n := checkpointNode(t, "")
	p := nodetest.RunPod(t, n)
	c := p.Run(secret, nodetest.Sh("while true; do "+hasBinary+"; sleep 0.2; done"))
	c.WaitLog("same")
	archive := filepath.Join(t.TempDir(), "archive.tar")
	if err := tryCheckpoint(t, n, c, archive, 0); err != nil {
		t.Fatal(err)
	}
	restored := p.Run(func(config *cri.ContainerConfig) { config.Image.Image, config.Command = archive, nil })
	restored.WaitLog("same")
	if _, err := restored.Exec(60, "true"); err == nil || !strings.Contains(err.Error(), "BINARY is not UTF-8") {
		t.Errorf("an exec: %v", err)
	}
}

// TestAVariableKeepsBytesWhereLibcontainerSetsTheContainerUp: the stage comes last then, also without a seccomp
// profile. Seen to fail where it came last only to load a filter.
func TestAVariableKeepsBytesWhereLibcontainerSetsTheContainerUp(t *testing.T) {
	nodetest.BerthOnly(t, "has hooks")
	dir := t.TempDir()
	hook := `{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": true}, "stages": ["createRuntime"]}`
	if err := os.WriteFile(filepath.Join(dir, "hook.json"), []byte(hook), 0o644); err != nil {
		t.Fatal(err)
	}
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir)})
	p := nodetest.RunPod(t, n)
	filtered := nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_RuntimeDefault}
	})
	for _, edits := range [][]nodetest.ContainerEdit{{secret}, {secret, filtered}} {
		c := p.Run(append(edits, nodetest.Sh(hasBinary+"; sleep 3600"))...)
		c.WaitLog("same")
		if got := c.Sh(hasBinary); got != "same" {
			t.Errorf("an exec has %q", got)
		}
		if s := setupOf(t, n, c.ID); s.Engine != keeper.EngineLibcontainerStage {
			t.Errorf("it was set up by %+v", s)
		}
	}
}
