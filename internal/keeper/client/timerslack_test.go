package client_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	keeper "berth/internal/keeper/client"
)

// A thread's sleeps in the keeper end late (package timerslack), those of containers do not, whatever sets them up.
// Without AsUsual in package keeper/stage, the containers of the stage and execs have the keeper's slack, without it in
// runtime/oci those of binaries, and with a constructor that knows no commands those of libcontainer.
func TestSleepsOfContainersEndInTime(t *testing.T) {
	const usual = "50000\n"
	runtimes(t, func(t *testing.T, n *node, use func(*keeper.RunRequest) *keeper.RunRequest) {
		threads, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(n.pid()), "task"))
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range threads {
			slack, err := os.ReadFile(filepath.Join("/proc", thread.Name(), "timerslack_ns"))
			if err == nil && string(slack) == usual {
				t.Errorf("thread %s of the keeper has a slack of %s ns", thread.Name(), strings.TrimSpace(string(slack)))
			}
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
