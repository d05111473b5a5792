package life

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// typed runs a command line of berth on a node.
func typed(t *testing.T, n *node.Node, args ...string) (code int, out, complaints string) {
	t.Helper()
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(nodetest.Context(t), filepath.Join(binaries, "berth"),
		append([]string{"--address", n.Address}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatalf("berth %s: %v", strings.Join(args, " "), err)
	}
	return cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()
}

func TestTheCommandLinePullsOnAfterAFailure(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	nodetest.Pull(t, n, node.Busybox)
	missing := "127.0.0.1:1/missing:1" // nobody listens on port 1
	code, out, complaints := typed(t, n, "pull", "-q", missing, node.Busybox)
	if code != 1 || strings.Count(out, "\n") != 1 || !strings.Contains(complaints, "pull "+missing+": ") {
		t.Errorf("exit code %d, %q, %q", code, out, complaints)
	}
}

func TestTheCommandLineListsNamesAndIDs(t *testing.T) {
	nodetest.BerthOnly(t, "the command speaks to Berth's own service")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	name := p.Config.Metadata.Name
	if p.Config.Metadata.Namespace != "default" {
		name = p.Config.Metadata.Namespace + "/" + name
	}
	for want, args := range map[string][]string{
		c.ID:                                {"ps", "-q", p.ID},
		name + "/" + c.Config.Metadata.Name: {"ps", "-o", "name", p.ID},
	} {
		if code, out, complaints := typed(t, n, args...); code != 0 || out != want+"\n" {
			t.Errorf("%v: exit code %d, %q, want %q: %s", args, code, out, want, complaints)
		}
	}
	for _, list := range []string{"ps", "pods"} {
		if code, out, complaints := typed(t, n, list, "-q", "-n", "nobody-has-it"); code != 0 || out != "" {
			t.Errorf("%s of a namespace without pods: exit code %d, %q, %s", list, code, out, complaints)
		}
		if code, out, complaints := typed(t, n, list, "-q", "-l", "nobody=has-it"); code != 0 || out != "" {
			t.Errorf("%s of a label without pods: exit code %d, %q, %s", list, code, out, complaints)
		}
	}
	if _, out, _ := typed(t, n, "pods", "--no-headers", "--sort-by", "age"); strings.Contains(out, "POD") {
		t.Errorf("--no-headers prints\n%s", out)
	}
}
