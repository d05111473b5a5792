package kubelet

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestEventedPLEG: a kubelet that asks the runtime for its pods every 5 minutes only, and for the rest relies on the
// runtime's events, sees a container end within a second.
func TestEventedPLEG(t *testing.T) {
	t.Parallel()
	k := own(t, node.Options{}, options{gates: map[string]bool{"EventedPLEG": true}})
	p := k.run(t, manifest("events", sh("main", sleep), sh("short", "sleep 3; exit 5"), sh("failing", "echo x; exit 1")))
	spec := manifest("job", sh("main", "sleep 1"))
	spec.Spec.RestartPolicy = v1.RestartPolicyNever
	k.run(t, spec).ended(v1.PodSucceeded)
	now := p.until(30*time.Second, "the container that ended is started again", func(now *v1.Pod) error {
		s := status(now, "short")
		if s.RestartCount < 1 || s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 5 {
			return fmt.Errorf("%s", states(now))
		}
		return nil
	})
	if s := status(now, "main"); s.RestartCount != 0 || s.State.Running == nil {
		t.Errorf("main is %+v", s)
	}
	if metrics, err := k.get(t.Context(), "/metrics"); err != nil {
		t.Fatal(err)
	} else {
		connections := value(metrics, "kubelet_evented_pleg_connection_success_count")
		if connections < 1 {
			t.Errorf("the kubelet has made %v connections for events", connections)
		}
		if relists := value(metrics, "kubelet_pleg_relist_duration_seconds_count"); relists > 10 {
			t.Errorf("the kubelet has asked for all pods %v times: it does not rely on events", relists)
		}
	}
	// The runtime is restarted. A kubelet that cannot connect five times, and it tries without a pause, asks from then
	// on as if there were no events. Either way it sees what happens.
	if err := k.node.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := k.node.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the kubelet notices", func() error {
		metrics, err := k.get(t.Context(), "/metrics")
		if err == nil && value(metrics, "kubelet_evented_pleg_connection_error_count") < 1 {
			err = fmt.Errorf("%v errors", value(metrics, "kubelet_evented_pleg_connection_error_count"))
		}
		return err
	})
	spec = manifest("job", sh("main", "sleep 1; exit 3"))
	spec.Spec.RestartPolicy = v1.RestartPolicyNever
	k.run(t, spec).ended(v1.PodFailed)
	p.remove()
	eventually(t, 20*time.Second, "the pod is gone", p.gone)
}

// value is the value of a metric without labels; -1 where there is none.
func value(metrics, name string) float64 {
	for line := range strings.Lines(metrics) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			if v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64); err == nil {
				return v
			}
		}
	}
	return -1
}
