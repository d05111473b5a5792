package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestInitContainersRunOneAfterTheOther(t *testing.T) {
	t.Parallel()
	spec := manifest("init", sh("main", "echo main sees $(cat /shared/order); "+sleep, mounted("shared", "/shared")))
	emptyDir(spec, "shared", v1.EmptyDirVolumeSource{})
	spec.Spec.InitContainers = []v1.Container{
		sh("first", "sleep 1; echo -n first >>/shared/order", mounted("shared", "/shared")),
		sh("second", "echo -n ,second >>/shared/order", mounted("shared", "/shared")),
	}
	p := shared(t).run(t, spec)
	now := p.running()
	p.log("main", "main sees first,second")
	var ended time.Time
	for _, name := range []string{"first", "second"} {
		s := status(now, name)
		if s.State.Terminated == nil || s.State.Terminated.Reason != "Completed" || s.RestartCount != 0 {
			t.Fatalf("%s is %+v", name, s)
		}
		if s.State.Terminated.StartedAt.Time.Before(ended) {
			t.Errorf("%s started before the one before it had ended", name)
		}
		ended = s.State.Terminated.FinishedAt.Time
	}
}

func TestAFailingInitContainerKeepsThePodFromStarting(t *testing.T) {
	t.Parallel()
	spec := manifest("initfails", sh("main", sleep))
	spec.Spec.InitContainers = []v1.Container{sh("init", "echo it cannot be; exit 4")}
	spec.Spec.RestartPolicy = v1.RestartPolicyNever
	now := shared(t).run(t, spec).ended(v1.PodFailed)
	if s := status(now, "init"); s.State.Terminated.ExitCode != 4 {
		t.Errorf("the init container is %+v", s.State)
	}
	if s := status(now, "main"); s.ContainerID != "" {
		t.Errorf("the main container was made: %+v", s)
	}
}

func TestSidecarContainersOutliveInitAndEndAfterThePod(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	always := v1.ContainerRestartPolicyAlways
	spec := manifest("sidecar", sh("main", "echo sidecar has $(cat /shared/started); sleep 2; "+clock("/host/main"),
		mounted("shared", "/shared"), mounted("host", "/host")))
	emptyDir(spec, "shared", v1.EmptyDirVolumeSource{})
	hostPath(spec, "host", dir, v1.HostPathDirectory)
	sidecar := sh("sidecar", "sleep 1; echo started >/shared/started; "+onTerm(clock("/host/sidecar")),
		mounted("shared", "/shared"), mounted("host", "/host"))
	sidecar.RestartPolicy = &always
	sidecar.StartupProbe = execProbe("test -e /shared/started")
	sidecar.StartupProbe.FailureThreshold = 30
	spec.Spec.InitContainers = []v1.Container{sidecar, sh("init", "test -e /shared/started", mounted("shared", "/shared"))}
	spec.Spec.RestartPolicy = v1.RestartPolicyNever
	spec.Spec.TerminationGracePeriodSeconds = ptr(int64(10))
	p := shared(t).run(t, spec)
	p.log("main", "sidecar has started")
	now := p.ended(v1.PodSucceeded)
	if s := status(now, "init"); s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
		t.Errorf("the init container after the sidecar: %+v", s.State)
	}
	if s := status(now, "sidecar"); s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 || s.RestartCount != 0 {
		t.Errorf("the sidecar is %+v", s)
	}
	if main, sidecar := stamp(t, dir, "main"), stamp(t, dir, "sidecar"); sidecar < main {
		t.Errorf("the sidecar was ended %d ms before the main container", main-sidecar)
	}
}

// uptime is the time in ms since the machine's start, as containers write it: busybox knows no finer date than seconds.
func uptime(t *testing.T) int64 {
	t.Helper()
	return stamp(t, "/proc", "uptime")
}

// stamp is the first time in the last line of a file, in seconds since the machine's start, as ms.
func stamp(t *testing.T, dir, name string) int64 {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	times := stamps(t, data)
	if len(times) == 0 {
		t.Fatalf("%s is empty", name)
	}
	return times[len(times)-1]
}

// stamps are the first times of each line, in ms.
func stamps(t *testing.T, data []byte) []int64 {
	t.Helper()
	var times []int64
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 0 {
			seconds, err := strconv.ParseFloat(fields[0], 64)
			if err != nil {
				t.Fatal(err)
			}
			times = append(times, int64(seconds*1000))
		}
	}
	return times
}

func TestASidecarThatEndsIsStartedAgain(t *testing.T) {
	t.Parallel()
	always := v1.ContainerRestartPolicyAlways
	spec := manifest("sidecarends", sh("main", sleep))
	sidecar := sh("sidecar", "echo here; sleep 1; exit 5")
	sidecar.RestartPolicy = &always
	spec.Spec.InitContainers = []v1.Container{sidecar}
	p := shared(t).run(t, spec)
	now := p.until(30*time.Second, "the sidecar was started again", func(now *v1.Pod) error {
		if s := status(now, "sidecar"); s.RestartCount < 1 || s.LastTerminationState.Terminated == nil {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if s := status(now, "sidecar"); s.LastTerminationState.Terminated.ExitCode != 5 {
		t.Errorf("it had ended with %+v", s.LastTerminationState.Terminated)
	}
	if s := status(now, "main"); s.State.Running == nil || s.RestartCount != 0 {
		t.Errorf("meanwhile the main container is %+v", s)
	}
}

func TestAFailingContainerIsRestartedWithBackOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := manifest("crash", sh("main", clock(">/host/starts")+"; echo start; exit 9", mounted("host", "/host")))
	hostPath(spec, "host", dir, v1.HostPathDirectory)
	p := shared(t).run(t, spec)
	p.until(90*time.Second, "it waits after two restarts", func(now *v1.Pod) error {
		s := status(now, "main")
		if s.RestartCount < 2 || s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" {
			return fmt.Errorf("%+v", s)
		}
		if s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 9 ||
			s.LastTerminationState.Terminated.Reason != "Error" {
			return fmt.Errorf("last state %+v", s.LastTerminationState)
		}
		return nil
	})
	data, err := os.ReadFile(filepath.Join(dir, "starts"))
	if err != nil {
		t.Fatal(err)
	}
	times := stamps(t, data)
	// The kubelet starts it again at once, then waits 10 s, then 20 s.
	if len(times) < 3 || times[2]-times[1] < 9000 {
		t.Errorf("started at %v ms", times)
	}
	if previous, err := p.logs("main", "previous=true"); err != nil || previous != "start\n" {
		t.Errorf("the log of the start before: %q, %v", previous, err)
	}
}

func TestRestartPolicies(t *testing.T) {
	t.Parallel()
	never := manifest("never", sh("main", "exit 6"))
	never.Spec.RestartPolicy = v1.RestartPolicyNever
	now := shared(t).run(t, never).ended(v1.PodFailed)
	s := status(now, "main")
	if s.State.Terminated.ExitCode != 6 || s.State.Terminated.Reason != "Error" || s.RestartCount != 0 {
		t.Errorf("Never: %+v", s)
	}
	onFailure := manifest("onfailure",
		sh("main", "if test -e /once/it; then exit 0; fi; touch /once/it; exit 1", mounted("once", "/once")))
	emptyDir(onFailure, "once", v1.EmptyDirVolumeSource{})
	onFailure.Spec.RestartPolicy = v1.RestartPolicyOnFailure
	now = shared(t).run(t, onFailure).ended(v1.PodSucceeded)
	if s := status(now, "main"); s.RestartCount != 1 || s.State.Terminated.Reason != "Completed" {
		t.Errorf("OnFailure: %+v", s)
	}
}

func TestACommandThatCannotBeStartedIsNamed(t *testing.T) {
	t.Parallel()
	c := sh("main", "")
	c.Command = []string{"/no/such/program"}
	p := shared(t).run(t, manifest("absent", c))
	p.until(30*time.Second, "the kubelet says what cannot be started", func(now *v1.Pod) error {
		s := status(now, "main")
		for _, text := range []string{message(s.State), message(s.LastTerminationState)} {
			if strings.Contains(text, "/no/such/program") {
				return nil
			}
		}
		return fmt.Errorf("%+v", s)
	})
}

func message(s v1.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return s.Waiting.Reason + " " + s.Waiting.Message
	case s.Terminated != nil:
		return s.Terminated.Reason + " " + s.Terminated.Message
	}
	return ""
}

func TestLifecycleHooks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(script string) *v1.LifecycleHandler {
		return &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"sh", "-c", script}}}
	}
	main := sh("main", onTerm(clock("/host/term")), mounted("host", "/host"))
	main.Lifecycle = &v1.Lifecycle{
		PostStart: run(clock("/host/poststart")), PreStop: run("sleep 1; " + clock("/host/prestop")),
	}
	web := sh("web", `mkdir -p /www/cgi-bin; cat >/www/cgi-bin/stop <<END
#!/bin/sh
touch /host/asked
printf 'Status: 200 OK\r\n\r\n'
END
chmod 755 /www/cgi-bin/stop; exec httpd -f -p 8080 -h /www`, mounted("host", "/host"))
	web.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{
		HTTPGet: &v1.HTTPGetAction{Path: "/cgi-bin/stop", Port: intstr.FromInt(8080)}}}
	sleeper := sh("sleeper", onTerm(clock("/host/slept")), mounted("host", "/host"))
	sleeper.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 2}}}
	spec := manifest("hooks", main, web, sleeper)
	spec.Spec.TerminationGracePeriodSeconds = ptr(int64(15))
	hostPath(spec, "host", dir, v1.HostPathDirectory)
	p := shared(t).run(t, spec)
	p.running()
	stamp(t, dir, "poststart") // the container is not running before its hook has ended
	begin := uptime(t)
	p.remove()
	eventually(t, 20*time.Second, "the pod is gone", p.gone)
	if preStop, term := stamp(t, dir, "prestop"), stamp(t, dir, "term"); preStop < begin+1000 || term < preStop {
		t.Errorf("ms after the end began: preStop ended at %d, TERM came at %d", preStop-begin, term-begin)
	}
	if _, err := os.Stat(filepath.Join(dir, "asked")); err != nil {
		t.Errorf("the HTTP hook was not asked: %v", err)
	}
	if slept := stamp(t, dir, "slept"); slept < begin+2000 {
		t.Errorf("TERM came %d ms after the end began, in spite of the hook that sleeps 2 s", slept-begin)
	}
}

func TestAFailingPostStartHookEndsItsContainer(t *testing.T) {
	t.Parallel()
	c := sh("main", sleep)
	c.Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: &v1.ExecAction{Command: []string{"false"}}}}
	p := shared(t).run(t, manifest("hookfails", c))
	p.until(30*time.Second, "the container is started again", func(now *v1.Pod) error {
		if s := status(now, "main"); s.RestartCount < 1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

func TestAStopSignalOfTheManifest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := sh("main", "trap 'echo usr1 >/host/signal; exit 0' USR1; "+onTerm("echo term >/host/signal"),
		mounted("host", "/host"))
	c.Lifecycle = &v1.Lifecycle{StopSignal: ptr(v1.SIGUSR1)}
	spec := manifest("signal", c)
	spec.Spec.OS = &v1.PodOS{Name: v1.Linux}
	hostPath(spec, "host", dir, v1.HostPathDirectory)
	p := shared(t).run(t, spec)
	now := p.running()
	if s := status(now, "main").StopSignal; s == nil || *s != v1.SIGUSR1 {
		t.Errorf("the status has stop signal %v", s)
	}
	p.remove()
	eventually(t, 20*time.Second, "the pod is gone", p.gone)
	if data, err := os.ReadFile(filepath.Join(dir, "signal")); err != nil || string(data) != "usr1\n" {
		t.Errorf("it got %q, %v", data, err)
	}
}

// stubborn is the script of a container that does not end on TERM, and writes down when it came and how long it lived.
var stubborn = "trap '" + clock("/host/term") + "' TERM; " +
	"while :; do " + clock("/host/new") + "; mv /host/new /host/alive; sleep 0.05; done"

func TestTerminationGracePeriods(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := manifest("grace", sh("main", stubborn, mounted("host", "/host")))
	hostPath(spec, "host", dir, v1.HostPathDirectory)
	spec.Spec.TerminationGracePeriodSeconds = ptr(int64(4))
	p := shared(t).run(t, spec)
	p.running()
	p.remove()
	eventually(t, 30*time.Second, "the pod is gone", p.gone)
	if lived := stamp(t, dir, "alive") - stamp(t, dir, "term"); lived < 3000 || lived > 7000 {
		t.Errorf("it was killed %d ms after TERM, with a grace period of 4 s", lived)
	}
}

func TestAProbesGracePeriodOverridesThePods(t *testing.T) {
	t.Parallel()
	c := sh("main", "trap '' TERM; while :; do sleep 0.1; done")
	c.LivenessProbe = execProbe("exit 1")
	c.LivenessProbe.TerminationGracePeriodSeconds = ptr(int64(1))
	spec := manifest("probegrace", c)
	spec.Spec.TerminationGracePeriodSeconds = ptr(int64(300))
	p := shared(t).run(t, spec)
	now := p.until(30*time.Second, "it was killed", func(now *v1.Pod) error {
		if status(now, "main").LastTerminationState.Terminated == nil {
			return fmt.Errorf("%s", states(now))
		}
		return nil
	})
	if s := status(now, "main").LastTerminationState.Terminated; s.ExitCode != 137 {
		t.Errorf("it ended with %+v", s)
	}
	// Let the test end soon.
	p.spec.Spec.TerminationGracePeriodSeconds = ptr(int64(1))
	p.write()
	p.until(20*time.Second, "the pod has a shorter grace period", func(now *v1.Pod) error {
		if grace := *now.Spec.TerminationGracePeriodSeconds; grace != 1 {
			return fmt.Errorf("it is %d s", grace)
		}
		return nil
	})
}

func TestTerminationMessages(t *testing.T) {
	t.Parallel()
	fallback := func(c *v1.Container) { c.TerminationMessagePolicy = v1.TerminationMessageFallbackToLogsOnError }
	spec := manifest("message",
		sh("file", "echo -n from the file >/dev/termination-log; exit 1"),
		sh("elsewhere", "echo -n from elsewhere >/tmp/message; exit 0",
			func(c *v1.Container) { c.TerminationMessagePath = "/tmp/message" }),
		sh("log", "echo first line; echo from the log; exit 1", fallback),
		sh("both", "echo from the log; echo -n the file wins >/dev/termination-log; exit 1", fallback),
		sh("success", "echo from the log; exit 0", fallback),
		sh("long", "head -c 10000 /dev/zero | tr '\\0' x >/dev/termination-log; exit 1"),
	)
	spec.Spec.RestartPolicy = v1.RestartPolicyNever
	now := shared(t).run(t, spec).ended(v1.PodFailed)
	for name, want := range map[string]string{
		"file": "from the file", "elsewhere": "from elsewhere", "log": "first line\nfrom the log\n", "both": "the file wins",
		"success": "", "long": strings.Repeat("x", 2048), // the kubelet shares 12 KiB among the containers of a pod
	} {
		if got := status(now, name).State.Terminated.Message; got != want {
			t.Errorf("%s: %d bytes: %.100q", name, len(got), got)
		}
	}
}

func TestTheExitIsReportedAsItWas(t *testing.T) {
	t.Parallel()
	spec := manifest("exit", // the kubelet makes $$ of $$$$
		sh("zero", "exit 0"), sh("code", "exit 77"), sh("killed", "kill -KILL $$$$"),
		sh("aborted", "kill -ABRT $$$$; sleep 5"))
	spec.Spec.RestartPolicy = v1.RestartPolicyNever
	spec.Spec.ShareProcessNamespace = ptr(true) // the shell is no PID 1, which signals of its own do not end
	p := shared(t).run(t, spec)
	now := p.ended(v1.PodFailed)
	for name, want := range map[string]int32{"zero": 0, "code": 77, "killed": 137, "aborted": 134} {
		s := status(now, name).State.Terminated
		if s.ExitCode != want {
			t.Errorf("%s ended with %+v", name, s)
		}
		if s.StartedAt.IsZero() || s.FinishedAt.Time.Before(s.StartedAt.Time) {
			t.Errorf("%s ran from %v to %v", name, s.StartedAt, s.FinishedAt)
		}
		if runtime := p.container(name); runtime.State != cri.ContainerState_CONTAINER_EXITED || runtime.ExitCode != want {
			t.Errorf("the runtime says of %s: %v, %d", name, runtime.State, runtime.ExitCode)
		}
	}
}
