package life

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// TestApplyStartsNoSecondAttemptBesideTheFirst: berthd is killed during the start of a container, which goes on in the
// keeper. Seen to fail where apply took the missing answer for the end of the attempt: two ran at once.
func TestApplyStartsNoSecondAttemptBesideTheFirst(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	dir := t.TempDir()
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("hooks_dirs = [%q]\n", dir)})
	nodetest.Pull(t, n, node.Busybox)
	m := newManifests(t, n)
	began, hold := filepath.Join(dir, "began"), filepath.Join(dir, "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	writeHook(t, dir, "hold", "createRuntime",
		fmt.Sprintf("touch %s; while [ -e %s ]; do sleep 0.05; done", began, hold), "")
	m.write("once.yaml", `apiVersion: v1
kind: Pod
metadata: {name: once, annotations: {hang: "yes"}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, "echo start >>/data/log; sleep 600"]
    volumeMounts: [{name: d, mountPath: /data}]
  volumes: [{name: d, emptyDir: {}}]
`)
	p := m.apply()
	nodetest.Eventually(t, 30*time.Second, "the start has begun", func() error {
		_, err := os.Stat(began)
		return err
	})
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	p.waitFor("container c runs, though its start was not answered", 1)
	p.waitFor("pod default/once runs at", 1)
	if all := attempts(t, n, "once"); len(all) != 1 || all[0].State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the containers are %v:\n%s", all, p.shown())
	}
	nodetest.Eventually(t, 20*time.Second, "the program has begun once", func() error {
		if _, out, _ := m.berth("exec", "once", "cat", "/data/log"); out != "start\n" {
			return fmt.Errorf("it has said %q:\n%s", out, p.shown())
		}
		return nil
	})
}
