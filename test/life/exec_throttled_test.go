package life

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cgroup"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestAContainerWithoutProcessorTimeHoldsUpNoOther: a container uses its quota of processor time up, so that a new
// process of it runs only after seconds. Execs are started in it all the time. Execs in another pod take about as long
// as they do while the container has a larger quota.
//
// Seen to fail where the keeper created the processes in their cgroup: it waited for each until it had executed the
// stage.
func TestAContainerWithoutProcessorTimeHoldsUpNoOther(t *testing.T) {
	nodetest.BerthOnly(t, "it is the keeper's promise")
	if host, err := cgroup.Host(); err != nil {
		t.Fatal(err)
	} else if host.Version != cgroup.V2 {
		t.Skip("on cgroup v1 a process joins the cgroup that has the quota when it has executed the stage")
	}
	n := nodetest.Start(t, node.Options{Setup: "stage"})
	nodetest.Pull(t, n, node.Busybox)
	other := nodetest.RunPod(t, n).Run(sleeps)
	busy := nodetest.RunPod(t, n).Run(nodetest.Sh(
		"for i in $(seq 30); do while :; do :; done & done; echo they run; wait"))
	busy.WaitLog("they run")
	busy.Sh("true")

	// beside measures execs in the other container while four loops start execs in the busy one.
	const execs = 10
	beside := func() (all, slowest time.Duration) {
		ctx, cancel := context.WithCancel(nodetest.Context(t))
		var loops sync.WaitGroup
		defer loops.Wait()
		defer cancel()
		for range 4 {
			loops.Go(func() {
				for ctx.Err() == nil {
					_, _ = n.Runtime.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: busy.ID, Cmd: []string{"true"}, Timeout: 600})
				}
			})
		}
		for range execs {
			time.Sleep(100 * time.Millisecond)
			began := time.Now()
			if r, err := other.Exec(600, "true"); err != nil || r.ExitCode != 0 {
				t.Error(r, err)
			}
			took := time.Since(began)
			all, slowest = all+took, max(slowest, took)
		}
		return all, slowest
	}
	limit := func(quota int64) {
		t.Helper()
		if _, err := n.Runtime.UpdateContainerResources(nodetest.Context(t), &cri.UpdateContainerResourcesRequest{
			ContainerId: busy.ID, Linux: &cri.LinuxContainerResources{CpuPeriod: 100000, CpuQuota: quota},
		}); err != nil {
			t.Fatal(fmt.Errorf("set the quota %d: %w", quota, err))
		}
	}
	limit(20000) // what the shells take is small in both measurements, and an exec in the container takes its turn
	beside()     // the first execs of a node take longer
	usual, usualSlowest := beside()
	limit(1000)
	defer limit(100000) // they end sooner
	time.Sleep(time.Second)
	throttled, slowest := beside()
	t.Logf("%d execs take %v, the slowest %v; beside a container without processor time %v, the slowest %v", execs, usual,
		usualSlowest, throttled, slowest)
	if throttled > 3*usual+time.Second {
		t.Errorf("execs in another pod take %v, and %v beside a container without processor time", usual, throttled)
	}
}
