package faults

import (
	"context"
	"fmt"
	"math/rand"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/faults/tally"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// victims are who is killed, at a random moment within a call of some kind, among pods that come and go.
// The tests that kill keepers were seen to fail with Detach's ErrNotFound passed over (an attach succeeded,
// with 0 of 18,893 bytes), and, in a shared PID namespace, where a stage that had ended counted as begun (a container
// had exited with 121, and its program ran 0 times).
type victims struct {
	daemon, keeper bool
	twice          bool // the successor is killed, too, as it comes up or a little later
}

func TestKillsOfTheDaemonAreNotNoticed(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	killed(t, n, victims{daemon: true}, int(number(t, "BERTH_KILLS", int64(size(8, 40)))))
}

func TestDoubleKillsOfTheDaemonAreNotNoticed(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	killed(t, n, victims{daemon: true, twice: true}, int(number(t, "BERTH_KILLS", int64(size(3, 40)))))
}

func TestKillsOfTheKeeperAreNotNoticed(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	killed(t, n, victims{keeper: true}, int(number(t, "BERTH_KILLS", int64(size(8, 40)))))
}

func TestDoubleKillsOfTheKeeperAreNotNoticed(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	killed(t, n, victims{keeper: true, twice: true}, int(number(t, "BERTH_KILLS", int64(size(3, 40)))))
}

// With the store of a service manager nothing is lost, as with the units of systemd.
func TestKillsOfBothAreNotNoticed(t *testing.T) {
	killed(t, startManaged(t), victims{daemon: true, keeper: true}, int(number(t, "BERTH_KILLS", int64(size(4, 40)))))
}

func TestDoubleKillsOfBothAreNotNoticed(t *testing.T) {
	killed(t, startManaged(t), victims{daemon: true, keeper: true, twice: true},
		int(number(t, "BERTH_KILLS", int64(size(3, 40)))))
}

// piecewise writes numbered lines for ever, each in two pieces.
const piecewise = `i=0; while :; do i=$((i+1)); printf li; sleep 0.003; printf "ne $i\n"; done`

// bursts writes some thousand numbered lines a second for ever.
const bursts = `i=0; while :; do
	j=0; while [ $j -lt 200 ]; do j=$((j+1)); echo line $((i+j)); done
	i=$((i+200)); sleep 0.05
done`

// killed kills so many times, under a churn, and looks whether anybody but a client whose call was cut off has noticed.
func killed(t *testing.T, n *node.Node, v victims, kills int) {
	r := chance(t)
	counts := count(t)
	p := nodetest.RunPod(t, n)
	witnesses := []*witness{newWitness(t, p), newWitness(t, p, nodetest.Sh(piecewise)),
		newWitness(t, p, nodetest.Sh(bursts))}
	counts.before(t, n)
	pods := startChurn(t, n, size(3, 20))
	pods.orphans.Store(v.keeper)
	for i := range kills {
		pods.wait(r, calls[r.Intn(len(calls))])
		began := time.Now()
		v.kill(t, n)
		if v.twice {
			v.comeUp(t, n, r)
			v.kill(t, n)
		}
		if err := n.Launch(); err != nil {
			t.Fatal(err)
		}
		answers(t, n, witnesses[0])
		counts.answered(time.Since(began))
		counts.add(tally.Rounds, 1)
		pods.kills.Add(1)
		time.Sleep(time.Duration(r.Intn(200)) * time.Millisecond)
		if t.Failed() {
			t.Logf("after %d kills", i+1)
			break
		}
	}
	pods.finish(t)
	for _, w := range witnesses {
		w.check(t)
	}
	nothingLeft(t, n)
}

// kill ends them with SIGKILL, the keeper first.
func (v victims) kill(t *testing.T, n *node.Node) {
	t.Helper()
	if v.keeper {
		_ = n.KillKeeper() // one that has yet to come up answers nobody
	}
	if v.daemon {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
}

// comeUp lets the successors begin.
func (v victims) comeUp(t *testing.T, n *node.Node, r *rand.Rand) {
	t.Helper()
	if err := n.Launch(); err != nil {
		t.Fatal(err)
	}
	if v.keeper {
		keeperAgain(t, n, 0)
	}
	time.Sleep(time.Duration(r.Intn(150)) * time.Millisecond)
}

// answers waits until the node is ready and runs an exec in a container that has been there all the time.
func answers(t *testing.T, n *node.Node, w *witness) {
	t.Helper()
	if err := n.WaitReady(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := again("exec in a container that runs on", func(ctx context.Context) error {
		r, err := n.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: w.ID, Cmd: []string{"true"}, Timeout: 60})
		if err == nil && r.ExitCode != 0 {
			err = fmt.Errorf("it ended with %d: %s", r.ExitCode, r.Stderr)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
