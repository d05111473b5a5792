package kubelet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

func TestAFailingLivenessProbeRestartsItsContainer(t *testing.T) {
	t.Parallel()
	executed := sh("exec", "touch /tmp/alive; sleep 2; rm /tmp/alive; "+sleep)
	executed.LivenessProbe = execProbe("test -e /tmp/alive")
	http := sh("http", "mkdir /www; echo fine >/www/health; (sleep 3; rm /www/health) & exec httpd -f -p 8080 -h /www")
	http.LivenessProbe = httpProbe(8080, "/health")
	http.LivenessProbe.FailureThreshold = 2
	tcp := sh("tcp", "mkdir /www; httpd -p 8081 -h /www; sleep 3; killall httpd; "+sleep)
	tcp.LivenessProbe = tcpProbe(8081)
	tcp.LivenessProbe.FailureThreshold = 2
	steady := sh("steady", sleep)
	steady.LivenessProbe = execProbe("true")
	p := shared(t).run(t, manifest("liveness", executed, http, tcp, steady))
	now := p.until(40*time.Second, "three containers were started again", func(now *v1.Pod) error {
		for _, name := range []string{"exec", "http", "tcp"} {
			if s := status(now, name); s.RestartCount < 1 {
				return fmt.Errorf("%s", states(now))
			}
		}
		return nil
	})
	if s := status(now, "steady"); s.RestartCount != 0 || s.State.Running == nil {
		t.Errorf("the one with a good probe is %+v", s)
	}
}

func TestAReadinessProbeDecidesWhetherItsContainerIsReady(t *testing.T) {
	t.Parallel()
	executed := sh("exec", sleep)
	executed.ReadinessProbe = execProbe("test -e /tmp/ready")
	http := sh("http", "mkdir /www; exec httpd -f -p 8080 -h /www")
	http.ReadinessProbe = httpProbe(8080, "/ready")
	tcp := sh("tcp", "while :; do if test -e /tmp/ready; then exec httpd -f -p 8081 -h /tmp; fi; sleep 0.1; done")
	tcp.ReadinessProbe = tcpProbe(8081)
	p := shared(t).run(t, manifest("readiness", executed, http, tcp))
	ready := func(want bool, names ...string) {
		t.Helper()
		p.until(20*time.Second, fmt.Sprintf("%v are ready: %t", names, want), func(now *v1.Pod) error {
			for _, name := range names {
				if s := status(now, name); s.State.Running == nil || s.Ready != want {
					return fmt.Errorf("%s", states(now))
				}
			}
			return nil
		})
	}
	ready(false, "exec", "http", "tcp")
	p.sh("exec", "touch /tmp/ready")
	p.sh("http", "touch /www/ready")
	p.sh("tcp", "touch /tmp/ready")
	ready(true, "exec", "http", "tcp")
	p.sh("exec", "rm /tmp/ready")
	ready(false, "exec")
	now, err := p.now()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"exec", "http", "tcp"} {
		if s := status(now, name); s.RestartCount != 0 {
			t.Errorf("%s was started again", name)
		}
	}
}

func TestAStartupProbeHoldsTheOthersBack(t *testing.T) {
	t.Parallel()
	c := sh("main", "sleep 4; touch /tmp/started; "+sleep)
	c.StartupProbe = execProbe("test -e /tmp/started")
	c.StartupProbe.FailureThreshold = 20
	c.LivenessProbe = execProbe("test -e /tmp/started")
	p := shared(t).run(t, manifest("startup", c))
	now := p.running()
	if s := status(now, "main"); s.RestartCount != 0 || s.Started == nil || !*s.Started {
		t.Errorf("%+v", s)
	}
}

// TestAnExecProbeThatHangsFailsAndLeavesNothing: the timeout is the runtime's to keep.
func TestAnExecProbeThatHangsFailsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	c := sh("main", sleep)
	c.ReadinessProbe = execProbe("sleep 1234")
	c.ReadinessProbe.TimeoutSeconds = 1
	p := shared(t).run(t, manifest("hang", c))
	eventually(t, 20*time.Second, "the kubelet counts failed probes", func() error {
		metrics, err := p.k.get(t.Context(), "/metrics/probes")
		if err != nil {
			return err
		}
		for line := range strings.Lines(metrics) {
			if strings.HasPrefix(line, "prober_probe_total") && strings.Contains(line, p.name+`"`) &&
				strings.Contains(line, `result="failed"`) && strings.Contains(line, `probe_type="Readiness"`) {
				return nil
			}
		}
		return fmt.Errorf("no such count")
	})
	time.Sleep(3 * time.Second)
	if n := p.sh("main", "ps | grep -c 'sleep 123[4]' || true"); n != "0" && n != "1" {
		t.Errorf("after several probes %s of their processes are there", n)
	}
	now, err := p.now()
	if err != nil {
		t.Fatal(err)
	}
	if s := status(now, "main"); s.Ready || s.RestartCount != 0 {
		t.Errorf("%+v", s)
	}
}
