package kubelet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// population puts pods of several kinds down, and returns them running.
func population(t *testing.T, k *kubelet) []*pod {
	t.Helper()
	web := sh("web", serve(8080, "still here"))
	web.ReadinessProbe = httpProbe(8080, "/")
	probed := sh("probed", sleep)
	probed.LivenessProbe = execProbe("true")
	probed.LivenessProbe.FailureThreshold = 3
	always := v1.ContainerRestartPolicyAlways
	sidecar := sh("sidecar", sleep)
	sidecar.RestartPolicy = &always
	withSidecar := manifest("sidecar", sh("main", "i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.2; done"))
	withSidecar.Spec.InitContainers = []v1.Container{sh("init", "true"), sidecar}
	withVolumes := manifest("volumes", sh("main", "echo kept >/memory/file; "+sleep, mounted("memory", "/memory")))
	emptyDir(withVolumes, "memory", v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory})
	onHost := manifest("onhost", sh("main", sleep))
	onHost.Spec.HostNetwork = true
	shared := manifest("sharedpid", sh("one", sleep), sh("two", sleep))
	shared.Spec.ShareProcessNamespace = ptr(true)
	var pods []*pod
	for _, spec := range []*v1.Pod{manifest("probes", web, probed), withSidecar, withVolumes, onHost, shared} {
		pods = append(pods, k.run(t, spec))
	}
	for _, p := range pods {
		p.running()
	}
	return pods
}

// fingerprint is what must not change of a pod: its address, and which containers and processes it has.
func (p *pod) fingerprint() string {
	p.t.Helper()
	now := p.running()
	print := now.Status.PodIP
	for _, s := range append(now.Status.InitContainerStatuses, now.Status.ContainerStatuses...) {
		print += fmt.Sprintf(" %s=%s,%d", s.Name, s.ContainerID, s.RestartCount)
		if s.State.Running != nil {
			print += fmt.Sprintf(",%d", p.pid(s.Name))
		}
	}
	return print
}

// unchanged fails the test where a pod is not what it was, or does not do what it did.
func unchanged(t *testing.T, pods []*pod, before []string) {
	t.Helper()
	for i, p := range pods {
		if after := p.fingerprint(); after != before[i] {
			t.Errorf("%s was\n%s\nand is\n%s", p.name, before[i], after)
		}
	}
	now := pods[0].running()
	eventually(t, 10*time.Second, "the pod answers", func() error {
		return answers("http://"+net.JoinHostPort(now.Status.PodIP, "8080")+"/", "still here")
	})
	// The kubelet's connection comes back in its own time.
	eventually(t, time.Minute, "an exec through the kubelet reads the file in memory", func() error {
		out, code, err := pods[2].exec("main", streams{transport: spdyTransport}, "cat", "/memory/file")
		if err != nil || code != 0 || strings.TrimSpace(out) != "kept" {
			return fmt.Errorf("%q, code %d, %v", out, code, err)
		}
		return nil
	})
	last, err := pods[1].logs("main", "tailLines=1")
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "the log goes on", func() error {
		if again, err := pods[1].logs("main", "tailLines=1"); err != nil || again == last {
			return fmt.Errorf("%q, %v", again, err)
		}
		return nil
	})
}

func fingerprints(pods []*pod) []string {
	var all []string
	for _, p := range pods {
		all = append(all, p.fingerprint())
	}
	return all
}

func TestBerthdIsKilledUnderRunningPods(t *testing.T) {
	t.Parallel()
	k := own(t, node.Options{}, options{})
	pods := population(t, k)
	before := fingerprints(pods)
	for round := range 3 {
		if err := k.node.Kill(); err != nil {
			t.Fatal(err)
		}
		// For a moment, and for some probes, nobody answers.
		time.Sleep(time.Duration(round) * 2 * time.Second)
		if err := k.node.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		unchanged(t, pods, before)
	}
	// A container that ends while nobody looks is started again.
	pid := pods[4].pid("one")
	if err := k.node.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := k.node.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	now := pods[4].until(40*time.Second, "the container that ended is started again", func(now *v1.Pod) error {
		if s := status(now, "one"); s.RestartCount != 1 || s.State.Running == nil {
			return fmt.Errorf("%s", states(now))
		}
		return nil
	})
	if s := status(now, "one").LastTerminationState.Terminated; s == nil || s.ExitCode != 137 {
		t.Errorf("it ended with %+v", s)
	}
	if s := status(now, "two"); s.RestartCount != 0 {
		t.Errorf("the other container is %+v", s)
	}
	k.run(t, manifest("after", sh("main", sleep))).running()
}

func TestTheKubeletIsRestartedUnderRunningPods(t *testing.T) {
	t.Parallel()
	k := own(t, node.Options{}, options{})
	pods := population(t, k)
	before := fingerprints(pods)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := k.signal(sig); err != nil {
			t.Fatal(err)
		}
		if sig == syscall.SIGKILL { // and the runtime with it
			if err := k.node.Kill(); err != nil {
				t.Fatal(err)
			}
			if err := k.node.Restart(nodetest.Context(t)); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.start(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		unchanged(t, pods, before)
	}
	// A pod whose manifest went away meanwhile is ended.
	if err := k.signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	pods[3].remove()
	if err := k.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 40*time.Second, "the pod without a manifest is gone", pods[3].gone)
}

// TestTheNameOfTheRuntimeChangesUnderRunningPods: a kubelet writes the new name before the IDs, and starts nothing
// again.
func TestTheNameOfTheRuntimeChangesUnderRunningPods(t *testing.T) {
	t.Parallel()
	k := own(t, node.Options{}, options{})
	pods := population(t, k)
	before := fingerprints(pods)
	file := filepath.Join(k.node.Dir, "config.toml")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append([]byte("runtime_name = \"containerd\"\n"), text...), 0o600)
	}
	if err := errors.Join(err, k.signal(syscall.SIGTERM), k.node.Kill(), k.node.Restart(nodetest.Context(t)),
		k.start(t.Context())); err != nil {
		t.Fatal(err)
	}
	for i := range before {
		before[i] = strings.ReplaceAll(before[i], "berth://", "containerd://")
	}
	eventually(t, 30*time.Second, "the kubelet tells the new name", func() error {
		if got := fingerprints(pods[:1]); got[0] != before[0] {
			return errors.New(got[0])
		}
		return nil
	})
	time.Sleep(3 * time.Second)
	unchanged(t, pods, before)
}

// TestTheKeeperIsKilledUnderRunningPods: containers outlive their parent, and so does what the kubelet knows of them.
func TestTheKeeperIsKilledUnderRunningPods(t *testing.T) {
	t.Parallel()
	k := own(t, node.Options{}, options{})
	pods := population(t, k)
	before := fingerprints(pods)
	if err := k.node.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * time.Second)
	unchanged(t, pods, before)
	k.run(t, manifest("after", sh("main", sleep))).running()
}
