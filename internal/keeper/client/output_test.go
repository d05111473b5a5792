package client_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Whenever a keeper is killed, its successor has in the log what the dead one had read: lines that come in pieces, a
// terminal's, and those of a container that writes as fast as it can. With buffers that are not put into escrow all
// three are seen to lose.
func TestKeeperKilledLosesNoOutput(t *testing.T) {
	n := start(t)
	rounds, lines := 6, 3000000
	if os.Getenv("BERTH_LONG") != "" {
		rounds, lines = 40, 8000000
	}
	pieces := "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); " +
		"printf 'a%d ' $i; usleep 300; printf 'b%d ' $i; usleep 300; echo c$i; done; " +
		"echo last $i"
	n.run(n.request("pieces", "sh", "-c", pieces))
	// each piece is a record
	slow := n.request("slow", "sh", "-c", strings.ReplaceAll(pieces, "usleep 300", "usleep 70000"))
	n.run(slow)
	tty := n.request("tty", "sh", "-c", "stty -onlcr; "+pieces)
	tty.Spec.Process.Terminal = true
	n.run(tty)
	n.run(n.request("fast", "sh", "-c", fmt.Sprintf("seq 1 %d; until [ -e /tmp/stop ]; do usleep 1000; done", lines)))
	for range rounds {
		pid := n.pid()
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.until("another keeper answers", func() bool { return n.pid() != pid })
	}
	if err := os.WriteFile(n.root+"/tmp/stop", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"pieces", "slow", "tty", "fast"} {
		n.ended(id)
	}
	n.sequence(lines, n.logPath("fast"))
	for _, id := range []string{"pieces", "slow", "tty"} {
		next := 1
		for line := range strings.Lines(n.output("stdout", n.logPath(id))) {
			switch strings.TrimRight(line, "\r\n") {
			case fmt.Sprintf("a%d b%d c%d", next, next, next):
				next++
			case fmt.Sprintf("last %d", next-1):
				next = -next
			default:
				t.Fatalf("%s: line %q, want %d", id, line, next)
			}
		}
		if next >= 0 {
			t.Errorf("%s: the log ends after line %d", id, next-1)
		}
	}
}
