package life

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/manifest"
	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

func TestPruneRemovesWhatHasEnded(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "named volumes are Berth's")
	n := nodetest.Start(t, node.Options{})
	r, host := broken(t, n)
	for _, name := range []string{"unused:1", "pinned:1"} {
		push(t, r, name, image(t, registrytest.Label("name", name)))
		if err := pull(t, n, host+"/"+name, nil); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(t.TempDir(), "data")
	must := func(args ...string) string {
		t.Helper()
		code, out, complaints := typed(t, n, append([]string{"--data-dir", data}, args...)...)
		if code != 0 {
			t.Fatalf("%q: exit code %d, %s", args, code, complaints)
		}
		return out
	}
	must("pin", host+"/pinned:1")
	foreign := nodetest.RunPod(t, n) // of a kubelet, and ended
	foreign.Run().Stop(0)
	foreign.Stop()
	must("run", "--rm=false", "--name", "ended", "-v", "of-ended:/data", node.Busybox, "true")
	must("run", "-d", "--name", "lives", "-v", "of-lives:/data", node.Busybox, "sleep", "1000")
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if code, _, complaints := typed(t, n, "--data-dir", elsewhere, "run", "--rm=false", "--name", "elsewhere",
		node.Busybox, "true"); code != 0 {
		t.Fatal(complaints)
	}
	watched := commandLine(t, n, "--data-dir", data, "run", "--name", "watched", "-t", node.Busybox, "sh", "-c",
		"trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done")
	p := terminal(t, watched)
	p.await(t, "ready")

	want := "pod ended\nimage " + host + "/unused:1\nvolume of-ended\n"
	if out := must("prune", "--dry-run", "--images", "--volumes"); out != want {
		t.Errorf("a dry run says %q, want %q", out, want)
	}
	// Somebody says no.
	asked := commandLine(t, n, "--data-dir", data, "prune", "--volumes")
	shown := terminal(t, asked)
	shown.await(t, "Remove these? [y/N] ")
	shown.write(t, "n\r")
	if err := asked.Wait(); err == nil {
		t.Error("a prune that was not confirmed succeeds")
	}
	if out := must("prune", "--dry-run"); out != "pod ended\n" {
		t.Errorf("after a no: %q", out)
	}
	asked = commandLine(t, n, "--data-dir", data, "prune")
	shown = terminal(t, asked)
	shown.await(t, "pod ended")
	shown.write(t, "y\r")
	if err := asked.Wait(); err != nil {
		t.Error(err)
	}
	// All images that no container uses, but those that are pinned: the same question.
	if code, _, complaints := typed(t, n, "--data-dir", data, "rmi", "--unused"); code != 2 ||
		!strings.Contains(complaints, "give -f, or --dry-run") {
		t.Errorf("rmi --unused without a terminal: exit code %d, %s", code, complaints)
	}
	asked = commandLine(t, n, "--data-dir", data, "rmi", "--unused")
	shown = terminal(t, asked)
	shown.await(t, host+"/unused:1")
	shown.await(t, "Remove these? [y/N] ")
	shown.write(t, "n\r")
	if err := asked.Wait(); err == nil {
		t.Error("an rmi --unused that was not confirmed succeeds")
	}
	if out := must("rmi", "--unused", "--dry-run"); strings.Count(out, "\n") != 1 ||
		!strings.HasSuffix(out, " "+host+"/unused:1\n") || !strings.Contains(must("images", "-o", "name"), "unused:1") {
		t.Errorf("rmi --unused --dry-run says %q", out)
	}
	if out := must("prune", "-f", "--images", "--volumes"); out != strings.TrimPrefix(want, "pod ended\n") {
		t.Errorf("then %q", out)
	}
	if out := must("prune", "-f", "--images", "--volumes"); out != "" {
		t.Errorf("once more %q", out)
	}
	pods, images, volumes := must("pods", "-o", "name"), must("images", "-o", "name"), must("volume", "ls", "-q")
	if strings.Contains(pods, "ended") || strings.Count(pods, "\n") != 4 || strings.Contains(images, "unused") ||
		!strings.Contains(images, "pinned") || volumes != "of-lives\n" {
		t.Errorf("left are pods %q, images %q, volumes %q", pods, images, volumes)
	}
	if err := pull(t, n, host+"/unused:1", nil); err != nil {
		t.Fatal(err)
	}
	if out := must("rmi", "--unused", "-f"); !strings.HasSuffix(out, " "+host+"/unused:1\n") ||
		strings.Contains(must("images", "-o", "name"), "unused:1") {
		t.Errorf("rmi --unused -f says %q", out)
	}
	p.write(t, "\x03")
	_ = watched.Wait()
	must("rm", "-f", "lives")
	must("volume", "rm", "of-lives")
	typed(t, n, "--data-dir", elsewhere, "rm", "elsewhere")
}

// TestNoPodOfAKubeletIsRemovedForItsAnnotations: whoever may make pods in a cluster chooses their annotations, and so
// can have a kubelet's pod say that `berth run` has made it of a document. Seen to fail without Store.Owns.
func TestNoPodOfAKubeletIsRemovedForItsAnnotations(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	data := filepath.Join(t.TempDir(), "data")
	berth := func(args ...string) (int, string, string) {
		return typed(t, n, append([]string{"--data-dir", data}, args...)...)
	}
	forged := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) {
		c.Annotations = map[string]string{manifest.AnnotationOwner: "Deployment/default/forged",
			manifest.AnnotationDirectory: filepath.Join(data, "pods",
				c.Metadata.Namespace+"_"+c.Metadata.Name+"_"+c.Metadata.Uid)}
	})
	forged.Run()
	file := written(t, `apiVersion: apps/v1
kind: Deployment
metadata: {name: forged}
spec:
  selector: {matchLabels: {app: forged}}
  template:
    metadata: {labels: {app: forged}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: IMAGE, command: [sleep, "600"]}]
`)
	for _, args := range [][]string{{"down", file}, {"run", "-d", "--replace", file}} {
		code, _, complaints := berth(args...)
		if code != 1 || !strings.Contains(complaints, "not one that `berth run` has made") {
			t.Errorf("%q: exit code %d, %s", args, code, complaints)
		}
	}
	forged.Stop()
	if code, out, complaints := berth("prune", "-f"); code != 0 || out != "" {
		t.Errorf("prune: exit code %d, %q, %s", code, out, complaints)
	}
	if _, err := n.Runtime.PodSandboxStatus(nodetest.Context(t),
		&cri.PodSandboxStatusRequest{PodSandboxId: forged.ID}); err != nil {
		t.Error(err)
	}
}

// TestAnImageThatIsAVolumeIsInUse: without it the container could not be started again. Seen to fail where only the
// image counts of which a container is made.
func TestAnImageThatIsAVolumeIsInUse(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	r, host := broken(t, n)
	push(t, r, "data:1", image(t, registrytest.WithFiles(map[string]string{"file": "x"})))
	data := filepath.Join(t.TempDir(), "data")
	berth := func(args ...string) (int, string, string) {
		return typed(t, n, append([]string{"--data-dir", data}, args...)...)
	}
	file := written(t, `apiVersion: v1
kind: Pod
metadata: {name: has-image}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: IMAGE, command: [sleep, "600"], volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, image: {reference: "`+host+`/data:1"}}]
`)
	if code, _, complaints := berth("run", "-d", file); code != 0 {
		t.Fatal(complaints)
	}
	defer berth("down", file)
	if code, out, complaints := berth("prune", "--dry-run", "--images"); code != 0 || strings.Contains(out, host) {
		t.Errorf("prune: exit code %d, %q, %s", code, out, complaints)
	}
	if code, _, complaints := berth("rmi", host+"/data:1"); code != 1 || !strings.Contains(complaints, "has-image") {
		t.Errorf("rmi: exit code %d, %s", code, complaints)
	}
	if code, _, complaints := berth("restart", "-t", "1", "has-image"); code != 0 {
		t.Errorf("restart: %s", complaints)
	}
}

// TestAPodThatIsBeingStartedIsNotPruned: its init container has ended, and no other is made yet.
func TestAPodThatIsBeingStartedIsNotPruned(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	data, shared := filepath.Join(t.TempDir(), "data"), t.TempDir()
	file := written(t, `apiVersion: v1
kind: Pod
metadata: {name: starting, labels: {app: starting}}
spec:
  terminationGracePeriodSeconds: 1
  initContainers:
  - name: before
    image: IMAGE
    command: [sh, -c, "touch /shared/runs; while [ ! -e /shared/end ]; do sleep 0.1; done"]
    volumeMounts: [{name: shared, mountPath: /shared}]
  containers: [{name: c, image: IMAGE, command: [sleep, "600"]}]
  volumes: [{name: shared, hostPath: {path: `+shared+`}}]
`)
	cmd := commandLine(t, n, "--data-dir", data, "run", "-d", file)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, time.Minute, "the init container runs", func() error {
		_, err := os.Stat(filepath.Join(shared, "runs"))
		return err
	})
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(shared, "end"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, time.Minute, "the init container ends", func() error {
		if _, out, _ := typed(t, n, "--data-dir", data, "ps", "-a", "-l", "app=starting", "-o",
			"jsonpath={[*].state}"); strings.TrimSpace(out) != "exited" {
			return errors.New(out)
		}
		return nil
	})
	code, out, says := typed(t, n, "--data-dir", data, "prune", "-f")
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if code != 0 || out != "" {
		t.Errorf("prune: exit code %d, %q, %s", code, out, says)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("run -d: %v, %s", err, complaints.String())
	}
	typed(t, n, "--data-dir", data, "down", file)
}
