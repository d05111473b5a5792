package nri

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestMain(m *testing.M) {
	if idx := os.Getenv("NRI_PLUGIN_IDX"); idx != "" { // berthd has started this program as a plugin
		if err := launched(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	nodetest.Main(m)
}

// timeout of a request to a plugin on these nodes. Plugins that do not hang answer within it on a busy machine, too.
var timeout = node.Lapse(5 * time.Second)

// start is a node whose socket plugins may connect to.
func start(t *testing.T, tables string) *node.Node {
	t.Helper()
	return startPatient(t, timeout, tables)
}

// startPatient is start for a node whose plugins have so long for a request.
func startPatient(t *testing.T, timeout time.Duration, tables string) *node.Node {
	t.Helper()
	nodetest.BerthOnly(t, "Debian's version is older than these plugins")
	return nodetest.Start(t, node.Options{
		Tables:  fmt.Sprintf("[nri]\nplugin_request_timeout = %q\n%s", timeout, tables),
		Prepare: func(n *node.Node) error { return os.MkdirAll(filepath.Dir(n.NRISocket), 0o700) },
	})
}
