package dashboard

import (
	"testing"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// The node's berthd waits long for calls that are under way when it is stopped. A page that follows events is no reason
// to wait.
func TestMain(m *testing.M) { nodetest.Main(m, node.Options{Config: `shutdown_timeout = "5m"`}) }
