package life

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// manifests is a directory that `berth apply` keeps.
type manifests struct {
	t         *testing.T
	n         *node.Node
	dir, data string
}

func newManifests(t *testing.T, n *node.Node) *manifests {
	m := &manifests{t: t, n: n, dir: filepath.Join(t.TempDir(), "manifests"), data: filepath.Join(t.TempDir(), "data")}
	if err := os.Mkdir(m.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = m.berth("down", m.dir) }) // it fails where nothing is left to remove and no file is right
	return m
}

func (m *manifests) berth(args ...string) (code int, out, complaints string) {
	m.t.Helper()
	return typed(m.t, m.n, append([]string{"--data-dir", m.data}, args...)...)
}

// write writes a file as a careful program does: beside the others under a name that nobody reads, and then renamed.
func (m *manifests) write(name, text string) {
	m.t.Helper()
	path := filepath.Join(m.dir, name)
	if err := os.WriteFile(path+".new", []byte(strings.ReplaceAll(text, "IMAGE", node.Busybox)), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		m.t.Fatal(err)
	}
}

func (m *manifests) remove(name string) {
	m.t.Helper()
	if err := os.Remove(filepath.Join(m.dir, name)); err != nil {
		m.t.Fatal(err)
	}
}

// apply begins to keep the directory. The pods run on at its end.
func (m *manifests) apply() *playing {
	m.t.Helper()
	return goesOn(m.t, m.n, m.data, "apply", m.dir)
}

// kill ends an apply with SIGKILL.
func (m *manifests) kill(p *playing) {
	m.t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		m.t.Fatal(err)
	}
	<-p.ended
}

// running are the IDs of the running containers, by their pods' names up to the last dash of a generated one.
func (m *manifests) running() (ids []string) {
	m.t.Helper()
	code, out, complaints := m.berth("ps", "-q")
	if code != 0 {
		m.t.Fatal(complaints)
	}
	ids = strings.Fields(out)
	slices.Sort(ids)
	return ids
}

// forget removes a pod as `crictl rmp -f` does.
func (m *manifests) forget(name string) {
	m.t.Helper()
	ctx := nodetest.Context(m.t)
	list, err := m.n.Runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.name": name}}})
	if err != nil || len(list.Items) != 1 {
		m.t.Fatalf("pod %s is there %d times, %v", name, len(list.GetItems()), err)
	}
	_, err = m.n.Runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: list.Items[0].Id})
	if err == nil {
		_, err = m.n.Runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: list.Items[0].Id})
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// gone waits until no pod has a name.
func (m *manifests) gone(pod string) {
	m.t.Helper()
	nodetest.Eventually(m.t, 20*time.Second, "pod "+pod+" is gone", func() error {
		if pods := m.pods(); strings.Contains(pods, pod) {
			return fmt.Errorf("there are %s", pods)
		}
		return nil
	})
}

func (m *manifests) pods() string {
	m.t.Helper()
	code, out, complaints := m.berth("pods", "-o", "name")
	if code != 0 {
		m.t.Fatal(complaints)
	}
	return out
}

// keptPod is a pod without a restart policy, whose container runs until somebody makes /tmp/end in it.
func keptPod(name, word string) string {
	return strings.NewReplacer("NAME", name, "WORD", word).Replace(`apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, "trap 'exit 0' TERM; echo WORD; until [ -e /tmp/end ]; do sleep 0.1; done"]
`)
}

func TestApplyFollowsADirectoryOfManifests(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "the command is Berth's")
	m := newManifests(t, nodetest.Start(t, node.Options{})) // not the shared one: it counts all containers
	m.write("web.yaml", keptPod("kept-web", "one"))
	m.write(".hidden.yaml", keptPod("kept-hidden", "one"))
	m.write("web.yaml~", keptPod("kept-backup", "one"))
	p := m.apply()
	p.waitFor("pod default/kept-web runs at", 1)

	// A second apply of the directory, and a down, are refused.
	for _, args := range [][]string{{"apply", m.dir + "/."}, {"apply", "--once", m.dir}, {"down", m.dir}} {
		if code, _, complaints := m.berth(args...); code != 1 || !strings.Contains(complaints, "runs already (process ") {
			t.Errorf("berth %q beside an apply: exit code %d, %s", args, code, complaints)
		}
	}
	// A pod without a policy is started again.
	if code, _, complaints := m.berth("exec", "kept-web", "touch", "/tmp/end"); code != 0 {
		t.Fatal(complaints)
	}
	p.waitFor("pod default/kept-web: container c is started again in 0s (restart 1)", 1)

	// A new file beside the other.
	m.write("more.yaml", `apiVersion: apps/v1
kind: Deployment
metadata: {name: kept-more}
spec:
  replicas: 2
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: IMAGE, command: [sleep, "600"]}]
`)
	p.waitFor("pod default/kept-more-", 2)
	p.waitFor(" runs at ", 3)
	var before []string
	nodetest.Eventually(t, time.Minute, "all three containers run", func() error {
		if before = m.running(); len(before) != 3 {
			return fmt.Errorf("there are %q", before)
		}
		return nil
	})

	// A wrong file says what is wrong, and changes nothing. Neither does one that is empty.
	m.write("web.yaml", strings.ReplaceAll(keptPod("kept-web", "two"), "command:", "comand:"))
	p.waitFor(`web.yaml: document 1: `, 1)
	p.waitFor(`unknown field "spec.containers[0].comand"; pods of this file stay as they are`, 1)
	if err := os.Truncate(filepath.Join(m.dir, "more.yaml"), 0); err != nil {
		t.Fatal(err)
	}
	p.waitFor("more.yaml: the file holds no document", 1)
	if now := m.running(); !slices.Equal(now, before) {
		t.Errorf("with wrong files %v run, and %v before", now, before)
	}

	// A changed manifest replaces its pod and no other.
	m.write("web.yaml", keptPod("kept-web", "three"))
	p.waitFor("web.yaml is right again", 1)
	p.waitFor("pod default/kept-web has changed, and is replaced", 1)
	p.waitFor("pod default/kept-web runs at", 2)
	nodetest.Eventually(t, 10*time.Second, "the new pod has begun", func() error {
		_, out, _ := m.berth("logs", "kept-web")
		return says(out, "three\n")
	})
	after := m.running()
	kept := slices.DeleteFunc(slices.Clone(before), func(id string) bool { return !slices.Contains(after, id) })
	if len(after) != 3 || len(kept) != 2 {
		t.Errorf("after the change of one pod %v run, and %v before", after, before)
	}

	// A pod that somebody removes comes back, and one whose file is removed goes.
	if code, _, complaints := m.berth("rm", "-f", "kept-web"); code != 0 {
		t.Fatal(complaints)
	}
	p.waitFor("pod default/kept-web runs at", 3)
	// So does one that another client removes, which knows nothing of the pod's directory. Seen to fail for ever: the
	// directory existed.
	m.forget("kept-web")
	p.waitFor("pod default/kept-web runs at", 4)
	m.remove("web.yaml")
	p.waitFor("pod default/kept-web is stopped and removed: no manifest describes it any more", 1)
	m.gone("kept-web")
	if pods := m.pods(); strings.Count(pods, "kept-") != 2 {
		t.Errorf("after one file is removed these pods are there: %s", pods)
	}
	if strings.Contains(p.shown(), "kept-hidden") || strings.Contains(p.shown(), "kept-backup") {
		t.Errorf("files of editors are read:\n%s", p.shown())
	}
	if code := p.interrupt(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
	if pods := m.pods(); strings.Count(pods, "kept-more-") != 2 {
		t.Errorf("after the end of apply these pods are there: %s", pods)
	}
	// The file of the pods is empty still.
	code, out, complaints := m.berth("down", m.dir)
	if pods := m.pods(); code != 0 || strings.Count(out, "kept-more-") != 2 || strings.Contains(pods, "kept-") {
		t.Errorf("down: exit code %d, %q, %s; there are %s", code, out, complaints, pods)
	}
}

// many are pods of all kinds that apply treats in their own way.
const many = `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {word: one}
---
apiVersion: v1
kind: Pod
metadata: {name: probed}
spec:
  terminationGracePeriodSeconds: 0
  hostAliases: [{ip: 192.0.2.1, hostnames: [alias]}]
  initContainers:
  - {name: first, image: IMAGE, command: [sh, -c, "echo init >>/data/log"], volumeMounts: [{name: d, mountPath: /data}]}
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, "echo start $WORD $(grep -c alias /etc/hosts) >>/data/log; sleep 600"]
    env: [{name: WORD, valueFrom: {configMapKeyRef: {name: settings, key: word}}}]
    livenessProbe: {exec: {command: [test, "!", -e, /tmp/bad]}, periodSeconds: 1, failureThreshold: 1,
      timeoutSeconds: 60}
    volumeMounts: [{name: d, mountPath: /data}]
  volumes: [{name: d, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: ended}
spec:
  restartPolicy: Never
  containers: [{name: c, image: IMAGE, command: [sh, -c, exit 3]}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: work}
spec:
  completions: 2
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: IMAGE, command: ["true"]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: copies}
spec:
  replicas: 2
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: IMAGE, command: [sleep, "600"]}]
`

func TestApplyAdoptsThePodsThatItHasLeft(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Start(t, node.Options{})
	m := newManifests(t, n)
	m.write("many.yaml", many)
	m.write("old.yaml", keptPod("old", "one"))
	m.write("gone.yaml", keptPod("gone", "one"))
	first := m.apply()
	first.waitFor("job work is complete: 2 pods succeeded", 1)
	first.waitFor("pod default/ended has ended with exit code 3", 1)
	first.waitFor(" runs at ", 8)
	before := m.running()
	m.kill(first)

	// What happens meanwhile: a pod changes, one goes, one's container ends.
	if now := m.running(); !slices.Equal(now, before) || len(now) != 5 {
		t.Fatalf("after SIGKILL of apply %v run, and %v before", now, before)
	}
	m.write("old.yaml", keptPod("old", "two"))
	m.remove("gone.yaml")
	second := m.apply()
	second.waitFor("pod default/probed was there at", 1)
	second.waitFor("pod default/copies-", 2)
	second.waitFor("pod default/old has changed, and is replaced", 1)
	second.waitFor("pod default/gone is stopped and removed", 1)
	second.waitFor("pod default/old runs at", 1)
	second.waitFor("job work is complete: 2 pods succeeded", 1)
	m.gone("gone")
	after := m.running()
	kept := slices.DeleteFunc(slices.Clone(before), func(id string) bool { return !slices.Contains(after, id) })
	if len(after) != 4 || len(kept) != 3 {
		t.Errorf("after the adoption %v run, and %v before", after, before)
	}
	if text := second.shown(); strings.Count(text, " runs at ") != 1 {
		t.Errorf("pods that have ended, or run, are started again:\n%s", text)
	}

	// Probes and restarts of an adopted pod go on, with its volumes, environment and files, and below a berthd that is
	// restarted.
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if code, _, complaints := m.berth("exec", "probed", "touch", "/tmp/bad"); code != 0 {
		t.Fatal(complaints)
	}
	second.waitFor("container c: its liveness probe fails", 1)
	second.waitFor("container c is started again in 0s (restart 1)", 1)
	nodetest.Eventually(t, 20*time.Second, "the container has begun twice", func() error {
		_, out, _ := m.berth("exec", "probed", "cat", "/data/log")
		return says(out, "init\nstart one 1\nstart one 1\n")
	})

	// A ConfigMap that a pod refers to changes the pod.
	m.write("many.yaml", strings.ReplaceAll(many, "word: one", "word: two"))
	second.waitFor("pod default/probed has changed, and is replaced", 1)
	second.waitFor("pod default/probed runs at", 1)
	if code := second.interrupt(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
	if now := m.running(); len(now) != 4 {
		t.Errorf("after Ctrl-C %v run", now)
	}

	// After a reboot apply waits for berthd, and starts what has not ended for good.
	if err := n.Reboot(); err != nil {
		t.Fatal(err)
	}
	third := m.apply()
	third.waitFor("waiting for berthd", 1)
	if err := n.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	third.waitFor("does not run any more, and is started again", 4)
	third.waitFor(" runs at ", 4)
	third.waitFor("job work is complete: 2 pods succeeded", 1)
	third.waitFor("pod default/ended has ended with exit code 3", 1)
	if now := m.running(); len(now) != 4 {
		t.Errorf("after a reboot %v run:\n%s", now, third.shown())
	}
	if code := third.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// slow is a pod whose init container waits until somebody makes /go in it.
const slow = `apiVersion: v1
kind: Pod
metadata: {name: cut-off}
spec:
  terminationGracePeriodSeconds: 0
  initContainers:
  - {name: wait, image: IMAGE, command: [sh, -c, "until [ -e /go ]; do sleep 0.05; done"]}
  - {name: side, image: IMAGE, restartPolicy: Always, command: [sleep, "600"]}
  containers:
  - {name: c, image: IMAGE, command: [sh, -c, "until [ -e /end ]; do sleep 0.05; done; exit 4"]}
  restartPolicy: Never
`

func TestApplyGoesOnWithAStartThatWasCutOff(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	m := newManifests(t, nodetest.Shared(t))
	m.write("slow.yaml", slow)
	var before []string
	for _, end := range []func(*playing){m.kill, func(p *playing) { p.interrupt() }} {
		p := m.apply()
		nodetest.Eventually(t, 20*time.Second, "the init container runs", func() error {
			if now := m.running(); len(now) != 1 || before != nil && !slices.Equal(now, before) {
				return fmt.Errorf("%v run, and %v before", now, before)
			}
			return nil
		})
		before = m.running()
		end(p)
	}
	p := m.apply()
	if code, _, complaints := m.berth("exec", "-c", "wait", "cut-off", "touch", "/go"); code != 0 {
		t.Fatal(complaints)
	}
	p.waitFor("pod default/cut-off was there at", 1)
	if all := attempts(t, m.n, "cut-off"); len(all) != 3 || all[0].Metadata.Attempt+all[1].Metadata.Attempt != 0 {
		t.Errorf("containers: %v", all)
	}
	// The pod has ended with its only container that is no sidecar. It runs again once somebody has removed it.
	if code, _, complaints := m.berth("exec", "-c", "c", "cut-off", "touch", "/end"); code != 0 {
		t.Fatal(complaints)
	}
	p.waitFor("pod default/cut-off has ended with exit code 4", 1)
	if now := m.running(); len(now) != 0 {
		t.Errorf("the sidecar of a pod that has ended runs: %v", now)
	}
	if code, _, complaints := m.berth("prune", "-f"); code != 0 || !strings.Contains(m.pods(), "cut-off") {
		t.Errorf("prune removes a pod that apply keeps: %s", complaints)
	}
	if code, _, complaints := m.berth("rm", "cut-off"); code != 0 {
		t.Fatal(complaints)
	}
	p.waitFor("pod default/cut-off was removed, and is started again", 1)
	nodetest.Eventually(t, 20*time.Second, "it runs again", func() error {
		return says(fmt.Sprint(len(m.running())), "1")
	})
	m.remove("slow.yaml")
	p.waitFor("pod default/cut-off is stopped and removed", 1)
	m.gone("cut-off")
}

func TestApplyOnceStartsPodsAndEnds(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	m := newManifests(t, nodetest.Shared(t))
	if code, _, complaints := m.berth("apply", filepath.Join(m.dir, "none")); code != 1 ||
		!strings.Contains(complaints, "no such file") {
		t.Errorf("without the directory: exit code %d, %s", code, complaints)
	}
	m.write("web.yaml", keptPod("once-web", "one"))
	code, _, complaints := m.berth("apply", "--once", m.dir)
	if code != 0 || strings.Count(complaints, "\n") != 1 {
		t.Fatalf("exit code %d, %s", code, complaints)
	}
	before := m.running()
	m.write("bad.yaml", strings.ReplaceAll(keptPod("once-bad", "one"), "command: [sh", "command: [no-such-program"))
	m.write("wrong.yaml", "kind: Pod\n")
	code, _, complaints = m.berth("apply", "--once", m.dir)
	for _, want := range []string{"pod default/once-web was there at", "pod default/once-bad: ", "no-such-program",
		"wrong.yaml: document 1: apiVersion: "} {
		if !strings.Contains(complaints, want) {
			t.Errorf("it does not say %q: %s", want, complaints)
		}
	}
	if now := m.running(); code != 1 || !slices.Equal(now, before) || len(now) != 1 {
		t.Errorf("exit code %d; %v run, and %v before", code, now, before)
	}
	// A pod of another owner with the name of one of the directory is left alone.
	code, _, complaints = m.berth("run", "-d", "--stop-timeout", "0", "--name", "once-taken", node.Busybox, "sleep", "600")
	if code != 0 {
		t.Fatal(complaints)
	}
	m.remove("bad.yaml")
	m.remove("wrong.yaml")
	m.write("taken.yaml", keptPod("once-taken", "one"))
	if code, _, complaints := m.berth("apply", "--once", m.dir); code != 1 ||
		!strings.Contains(complaints, "is not of this directory: remove it with `berth rm -f once-taken`") {
		t.Errorf("a name that is taken: exit code %d, %s", code, complaints)
	}
	if code, _, complaints := m.berth("rm", "-f", "once-taken"); code != 0 {
		t.Error(complaints)
	}
	m.remove("taken.yaml")
	code, out, complaints := m.berth("down", m.dir)
	if code != 0 || out != "once-web\n" || len(m.running()) != 0 {
		t.Errorf("down: exit code %d, %q, %s", code, out, complaints)
	}
}
