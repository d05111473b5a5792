package security

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Println("skipped: a node needs root")
		os.Exit(0)
	}
	port, err := node.Port()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	metricsAddress = fmt.Sprintf("127.0.0.1:%d", port)
	nodetest.Main(m, node.Options{
		// Debugging lines too: a test looks for secrets in the log.
		Config: "log_level = \"debug\"\n",
		Tables: fmt.Sprintf("[metrics]\naddress = %q\n[checkpoint]\ncriu = %q\n", metricsAddress, criu()) +
			annotated(),
	})
}

// annotated are runtime handlers whose pods may pass any annotation on.
func annotated() string {
	handlers := "[runtimes.annotated]\ntype = \"builtin\"\nannotations = [\"*\"]\n"
	for _, name := range []string{"runc", "crun"} {
		if path, err := exec.LookPath(name); err == nil {
			handlers += fmt.Sprintf("[runtimes.%s-annotated]\ntype = \"oci\"\npath = %q\nannotations = [\"*\"]\n", name, path)
		}
	}
	return handlers
}

// metricsAddress is where the shared node's berthd serves metrics.
var metricsAddress string

// criu is a criu that works here, or empty.
func criu() string {
	path, _ := nodetest.TryCRIU()
	return path
}
