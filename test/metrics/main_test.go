package metrics

import (
	"testing"

	"berth/test/node/nodetest"
)

func TestMain(m *testing.M) { nodetest.Main(m) }
