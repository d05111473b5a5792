package life

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"berth/test/node/nodetest"
)

// waiting is how many of the tests that run in parallel run at a time, unless -parallel says it. They spend their time
// with waits for grace periods, deadlines and intervals, so that they can be more than there are processors.
const waiting = 4

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", fmt.Sprint(waiting)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	nodetest.Main(m)
}
