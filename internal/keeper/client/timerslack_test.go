package client_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	keeper "berth/internal/keeper/client"
)

// A thread's sleeps in the keeper end late (package timerslack), but for the one that forks stages. Those of containers
// do not, whatever sets them up. Without ThreadAsUsual in package keeper/stage, the containers of the stage and execs
// have the keeper's slack, without AsUsual in runtime/oci those of binaries, and with a constructor that knows no
// commands those of libcontainer.
func TestSleepsOfContainersEndInTime(t *testing.T) {
	const usual = "50000\n"
	runtimes(t, func(t *testing.T, n *node, use func(*keeper.RunRequest) *keeper.RunRequest) {
		threads, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(n.pid()), "task"))
		if err != nil {
			t.Fatal(err)
		}
		inTime := 0
		for _, thread := range threads {
			slack, err := os.ReadFile(filepath.Join("/proc", thread.Name(), "timerslack_ns"))
			if err == nil && string(slack) == usual {
				inTime++
			}
		}
		if inTime > 1 {
			t.Errorf("%d threads of the keeper have a slack of %s ns", inTime, strings.TrimSpace(usual))
		}
		n.run(use(n.request("a", "sh", "-c", "cat /proc/self/timerslack_ns; sleep 1000")))
		n.until("the container has told its slack", func() bool { return n.output("stdout", n.logPath("a")) != "" })
		if slack := n.output("stdout", n.logPath("a")); slack != usual {
			t.Errorf("a container has a slack of %s ns", strings.TrimSpace(slack))
		}
		if slack, _ := n.exec("a", 0, "cat", "/proc/self/timerslack_ns"); slack != usual {
			t.Errorf("an exec has a slack of %s ns", strings.TrimSpace(slack))
		}
	})
}
