package life

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// attempts are the numbers and states of a pod's containers, newest first.
func attempts(t *testing.T, n *node.Node, pod string) []*cri.Container {
	t.Helper()
	list, err := n.Runtime.ListContainers(nodetest.Context(t), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{
		LabelSelector: map[string]string{"io.kubernetes.pod.name": pod}}})
	if err != nil {
		t.Fatal(err)
	}
	return list.Containers
}

func TestWhatRunHasLeftRunningIsRestarted(t *testing.T) {
	nodetest.BerthOnly(t, "named volumes are Berth's")
	n := nodetest.Shared(t)
	data := filepath.Join(t.TempDir(), "data")
	berth := func(args ...string) (int, string, string) {
		return typed(t, n, append([]string{"--data-dir", data}, args...)...)
	}
	must := func(args ...string) string {
		t.Helper()
		code, out, complaints := berth(args...)
		if code != 0 {
			t.Fatalf("%q: exit code %d, %s", args, code, complaints)
		}
		return out
	}
	volume := strings.ToLower(t.Name())
	must("run", "-d", "--name", "again", "-e", "A=$1", "-v", volume+":/data", "-v", "/scratch", node.Busybox, "sh", "-c",
		`trap 'exit 0' TERM; echo "$A" >>/data/starts; cp /data/starts /scratch; echo start; touch /mark 2>/dev/null
		[ $(wc -l </data/starts) -gt 3 ] && exit 9; while :; do sleep 0.1; done`)
	defer func() {
		must("rm", "-f", "again")
		must("volume", "rm", volume)
	}()
	for i := 1; i <= 2; i++ {
		if out := must("restart", "again"); out != "again\n" {
			t.Errorf("restart prints %q", out)
		}
		all := attempts(t, n, "again")
		if len(all) != 2 || all[0].Metadata.Attempt != uint32(i) || all[0].State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("restart %d: %v", i, all)
		}
		nodetest.Eventually(t, 10*time.Second, "it has started", func() error {
			return says(must("logs", "again"), "start\n")
		})
	}
	if out := must("exec", "again", "cat", "/data/starts", "/scratch/starts"); out != strings.Repeat("$1\n", 6) {
		t.Errorf("starts: %q", out)
	}
	if out := must("logs", "-p", "again"); out != "start\n" {
		t.Errorf("the log of the last attempt: %q", out)
	}
	// One container, by its name; and one that has ended.
	must("restart", "again/busybox", "-t", "0")
	nodetest.Eventually(t, 10*time.Second, "the fourth attempt ends", func() error {
		return says(must("ps", "-a", "-o", "json", "again"), `"exitCode": 9`)
	})
	must("stop", "again")
	must("restart", "again")
	pods := must("pods", "-o", "name")
	if strings.Count(pods, "again") != 1 || len(attempts(t, n, "again")) != 1 {
		t.Errorf("after the pod was stopped: pods %q, containers %v", pods, attempts(t, n, "again"))
	}
	if out := must("ps", "-a", "--no-headers", "again"); !strings.Contains(out, "again") {
		t.Errorf("ps: %q", out)
	}
}

func TestWhatRunHasNotLeftRunningIsNotRestarted(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	p.Run()
	if code, _, complaints := typed(t, n, "restart", p.ID); code != 1 || !strings.Contains(complaints, "kubelet") {
		t.Errorf("a pod of others: exit code %d, %s", code, complaints)
	}
	data := filepath.Join(t.TempDir(), "data")
	cmd := commandLine(t, n, "--data-dir", data, "run", "--name", "watched", "--rm=false", node.Busybox, "sh", "-c",
		"trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done")
	shown := terminal(t, cmd)
	shown.await(t, "ready")
	if code, _, complaints := typed(t, n, "--data-dir", data, "restart", "watched"); code != 1 ||
		!strings.Contains(complaints, "without -d runs it") {
		t.Errorf("a pod that a command runs: exit code %d, %s", code, complaints)
	}
	shown.write(t, "\x03")
	_ = cmd.Wait()
	// It has been kept, and nobody runs it any more.
	for _, args := range [][]string{{"restart", "watched"}, {"rm", "-f", "watched"}} {
		if code, _, complaints := typed(t, n, append([]string{"--data-dir", data}, args...)...); code != 0 {
			t.Errorf("%q: %s", args, complaints)
		}
	}
}

func TestAManifestsContainersAreRestarted(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	data := filepath.Join(t.TempDir(), "data")
	berth := func(args ...string) (int, string, string) {
		return typed(t, n, append([]string{"--data-dir", data}, args...)...)
	}
	manifest := written(t, `apiVersion: v1
kind: ConfigMap
metadata: {name: words}
data: {word: same}
---
apiVersion: v1
kind: Pod
metadata: {name: pair}
spec:
  initContainers:
  - name: first
    image: IMAGE
    command: [sh, -c, "echo once >>/shared/init"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  containers:
  - name: c
    image: IMAGE
    env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]
    command: [sh, -c, 'trap "exit 0" TERM; echo $IP >>/sub/ips; cat /word /shared/init; while :; do sleep 0.1; done']
    volumeMounts:
    - {name: words, mountPath: /word, subPath: word}
    - {name: shared, mountPath: /shared}
    - {name: shared, mountPath: /sub, subPath: below}
  - {name: d, image: IMAGE, command: [sleep, "1000"]}
  volumes:
  - {name: words, secret: {secretName: words, optional: true}}
  - {name: shared, emptyDir: {}}
---
apiVersion: v1
kind: Secret
metadata: {name: words}
stringData: {word: "same\n"}
`)
	if code, _, complaints := berth("run", "-d", manifest); code != 0 {
		t.Fatal(complaints)
	}
	defer berth("rm", "-f", "pair")
	started := func() { // it writes this right after the program's address
		t.Helper()
		nodetest.Eventually(t, 10*time.Second, "it has started", func() error {
			_, out, complaints := berth("logs", "-c", "c", "pair")
			return says(out+complaints, "same\nonce\n")
		})
	}
	started()
	if code, _, complaints := berth("restart", "-t", "1", "pair"); code != 0 {
		t.Fatal(complaints)
	}
	started()
	_, out, complaints := berth("exec", "-c", "c", "pair", "sh", "-c", "uniq /sub/ips | wc -l; wc -l </sub/ips")
	if strings.Join(strings.Fields(out), " ") != "1 2" {
		t.Errorf("addresses: %q, %s", out, complaints)
	}
	if code, _, complaints := berth("restart", "pair/first"); code != 0 {
		t.Errorf("an init container by name: %s", complaints)
	}
	berth("stop", "-t", "1", "pair")
	if code, _, complaints := berth("restart", "pair"); code != 1 || !strings.Contains(complaints, "--replace") {
		t.Errorf("a stopped pod of a manifest: exit code %d, %s", code, complaints)
	}
}

// says is an error unless a text holds another one.
func says(text, what string) error {
	if !strings.Contains(text, what) {
		return fmt.Errorf("it says %q", text)
	}
	return nil
}
