package life

import (
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// finding is what berth doctor says of one thing.
type finding struct{ Subject, Level, Detail, Advice string }

// examine is berth doctor for a node, by subject. Its exit code is about the machine.
func examine(t *testing.T, n *node.Node) map[string]finding {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), filepath.Join(n.Programs(), "berth"),
		"--address", n.Address, "doctor", "-o", "json").Output()
	var list []finding
	if json.Unmarshal(out, &list) != nil {
		t.Fatalf("berth doctor: %v: %s", err, out)
	}
	found := map[string]finding{}
	for _, f := range list {
		found[f.Subject] = f
	}
	return found
}

// TestDoctorAsksTheDaemonThatRuns: its directories, its keeper, and its program, which checks what it reads.
func TestDoctorAsksTheDaemonThatRuns(t *testing.T) {
	nodetest.BerthOnly(t, "it is Berth's command")
	n := nodetest.Start(t, node.Options{})
	found := examine(t, n)
	if f := found["daemon"]; f.Level != "good" || !strings.Contains(f.Detail, n.Root) ||
		!strings.Contains(f.Detail, n.State) {
		t.Errorf("%+v", f)
	}
	if f := found["configuration"]; f.Level != "good" || f.Detail != "the configuration is good" {
		t.Errorf("%+v", f)
	}
	if f := found["disk of the state"]; !strings.HasSuffix(f.Detail, n.State) {
		t.Errorf("%+v", f)
	}
	configure(t, n, "[runtimes.gone]\ntype = \"oci\"\npath = \"/no/such\"\n")
	if f := examine(t, n)["configuration"]; f.Level != "poor" || !strings.Contains(f.Detail, "50-test.toml:3") ||
		!strings.Contains(f.Advice, "systemctl reload berthd") {
		t.Errorf("with a handler whose program is not there: %+v", f)
	}
	configure(t, n, "")
	resume := hold(t, keeperPID(t, n))
	if f := examine(t, n)["daemon"]; f.Level != "bad" || !strings.Contains(f.Detail, "keeper does not answer") {
		t.Errorf("while the keeper hangs: %+v", f)
	}
	resume()
}
