package life

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/registrytest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// played runs `berth run` with manifests, each in a file of a directory, and with a data directory of its own.
func played(t *testing.T, n *node.Node, options []string, manifests ...string) (code int, out, complaints string) {
	t.Helper()
	return typed(t, n, append([]string{"--data-dir", filepath.Join(t.TempDir(), "data"), "run"},
		append(options, written(t, manifests...))...)...)
}

// written writes manifests to files of a directory. IMAGE stands for an image.
func written(t *testing.T, manifests ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, text := range manifests {
		text = strings.ReplaceAll(text, "IMAGE", node.Busybox)
		if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i))+".yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAManifestsConfigMapsAndSecretsReachItsPod(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	code, out, complaints := played(t, n, []string{"-q"}, `apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {color: blue, size: large}
---
apiVersion: v1
kind: Secret
metadata: {name: login}
stringData: {password: hush}
`, `apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {generateName: reader-, resourceVersion: "7", labels: {app: reader}}
  spec:
    serviceAccountName: default
    tolerations: [{operator: Exists}]
    securityContext: {runAsUser: 1000, fsGroup: 2000}
    containers:
    - name: c
      image: IMAGE
      envFrom: [{configMapRef: {name: settings}, prefix: SET_}]
      env: [{name: WORD, valueFrom: {secretKeyRef: {name: login, key: password}}}]
      command:
      - sh
      - -c
      - |
        echo env $SET_color $WORD
        echo map $(cat /map/size) $(stat -L -c '%g %a' /map/size)
        echo secret $(cat /secret/here) $(stat -L -c '%g %a' /secret/here) $(stat -f -c %T /secret)
        echo link $(readlink /map/size) $(cat /facts/labels)
        touch /map/new 2>/dev/null || echo read-only
        echo because of this >/dev/termination-log
        exit 7
      volumeMounts:
      - {name: map, mountPath: /map}
      - {name: secret, mountPath: /secret}
      - {name: facts, mountPath: /facts}
    volumes:
    - {name: map, configMap: {name: settings}}
    - {name: secret, secret: {secretName: login, defaultMode: 256, items: [{key: password, path: here}]}}
    - {name: facts, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  status: {phase: Running}
`)
	want := "env blue hush\nmap large 2000 644\nsecret hush 2000 440 tmpfs\nlink ..data/size app=\"reader\"\nread-only\n"
	var lines strings.Builder
	for line := range strings.Lines(out) {
		lines.WriteString(strings.TrimPrefix(line, "c | "))
	}
	if code != 7 || lines.String() != want {
		t.Errorf("exit code %d, %q, want %q; %s", code, lines.String(), want, complaints)
	}
	code, _, complaints = played(t, n, nil, `apiVersion: v1
kind: Pod
metadata: {name: bad}
spec:
  containers: [{name: c, image: IMAGE, envFrom: [{secretRef: {name: none}}]}]
`)
	if code != 1 || !strings.Contains(complaints, "spec.containers[0].envFrom[0].secretRef.name: there is no Secret") {
		t.Errorf("without the Secret: exit code %d, %q", code, complaints)
	}
}

// TestFilesOfAManifestsPodDoNotFillTheNode: a container may write to them although they are in no volume. Seen to fail
// with these files on the node's disk, and with a hosts file that is writable in a read-only root.
func TestFilesOfAManifestsPodDoNotFillTheNode(t *testing.T) {
	nodetest.BerthOnly(t, "berth run makes the pod")
	n := nodetest.Shared(t)
	code, out, complaints := played(t, n, nil, `apiVersion: v1
kind: Pod
metadata: {generateName: full-}
spec:
  hostAliases: [{ip: 192.0.2.1, hostnames: [alias]}]
  initContainers:
  - name: writable
    image: IMAGE
    command: [sh, -c, 'for f in /dev/termination-log /etc/hosts; do
      dd if=/dev/zero of=$f bs=1M count=2 2>&1 | grep -o "No space.*"; : >$f; done']
  containers:
  - name: read-only
    image: IMAGE
    securityContext: {readOnlyRootFilesystem: true}
    command: [sh, -c, '(echo x >>/etc/hosts) 2>&1 | grep -o "Read-only.*"; echo why >/dev/termination-log; exit 3']
`)
	for _, want := range []string{"writable | No space left on device\nwritable | No space left on device\n",
		"read-only | Read-only file system\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in the output\n%s", want, out)
		}
	}
	if code != 3 || !strings.Contains(complaints, "why") {
		t.Errorf("exit code %d, %s", code, complaints)
	}
}

func TestAManifestsClaimsImagesAndUserNamespaces(t *testing.T) {
	nodetest.BerthOnly(t, "named volumes are Berth's")
	n := nodetest.Shared(t)
	claim := strings.ToLower(t.Name())
	t.Cleanup(func() {
		if code, _, complaints := typed(t, n, "volume", "rm", "shop_"+claim); code != 0 {
			t.Errorf("remove the volume: %s", complaints)
		}
	})
	pod := strings.ReplaceAll(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: CLAIM, namespace: shop}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: keeper, namespace: shop}
spec:
  hostUsers: false
  containers:
  - name: c
    image: IMAGE
    command:
    - sh
    - -c
    - |
      cat /data/kept 2>/dev/null; echo kept >/data/kept
      [ -x /image/sh ] && touch /image/new 2>/dev/null || echo image
      echo $(stat -c %u /scratch) $(awk '{print $1, ($2 > 1000000), $3}' /proc/self/uid_map)
    volumeMounts:
    - {name: data, mountPath: /data}
    - {name: tools, mountPath: /image, subPath: bin}
    - {name: scratch, mountPath: /scratch}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: CLAIM}}
  - {name: tools, image: {reference: IMAGE}}
  - {name: scratch, emptyDir: {}}
`, "CLAIM", claim)
	for _, want := range []string{"", "kept\n"} {
		code, out, complaints := played(t, n, []string{"-q"}, pod)
		if want += "image\n0 0 1 65536\n"; code != 0 || strings.ReplaceAll(out, "c | ", "") != want {
			t.Errorf("exit code %d, %q, want %q; %s", code, out, want, complaints)
		}
	}
}

// TestAManifestsClaimsBelongToTheGroupOfItsPod: a user that is not root can write to a claim whose pod has an fsGroup,
// also where the daemon has just made it, and where another pod has left files of its own. A container with a group
// and no user has the user of its image. Seen to fail without the group: /data was root's alone.
func TestAManifestsClaimsBelongToTheGroupOfItsPod(t *testing.T) {
	nodetest.BerthOnly(t, "named volumes are Berth's")
	n := nodetest.Shared(t)
	claim := strings.ToLower(t.Name())
	t.Cleanup(func() {
		if code, _, complaints := typed(t, n, "volume", "rm", claim); code != 0 {
			t.Errorf("remove the volume: %s", complaints)
		}
	})
	pod := func(context, command string) string {
		return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: grouped}
spec:
  securityContext: {%s}
  initContainers:
  - {name: first, image: IMAGE, command: [sh, -c, "id -u; id -g"]}
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, '%s']
    volumeMounts: [{name: data, mountPath: /data}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: %s}}]
`, context, command, claim)
	}
	for _, c := range []struct{ context, command, want string }{
		{"runAsUser: 1001, fsGroup: 2000", "echo 1 >/data/a; mkdir /data/d; stat -c \"%a %g\" /data /data/d",
			"1001 0 2775 2000 2755 2000"},
		{"runAsGroup: 77", "umask 077; echo 2 >/data/d/b; stat -c \"%a %u %g\" /data/d/b", "0 77 600 0 2000"},
		{"runAsUser: 1001, fsGroup: 2000, fsGroupChangePolicy: OnRootMismatch", "cat /data/d/b 2>/dev/null || echo no",
			"1001 0 no"},
		{"runAsUser: 1001, fsGroup: 2000", "cat /data/d/b; echo 3 >/data/d/b && echo yes", "1001 0 2 yes"},
		{"runAsUser: 1001, fsGroup: 2001", "cat /data/d/b; stat -c %g /data/d/b", "1001 0 3 2001"},
	} {
		code, out, complaints := played(t, n, []string{"-q"}, pod(c.context, c.command))
		out = regexp.MustCompile(`(?m)^(first|c) *\| `).ReplaceAllString(out, "")
		if got := strings.Join(strings.Fields(out), " "); code != 0 || got != c.want {
			t.Errorf("%s: exit code %d, %q, want %q; %s", c.context, code, got, c.want, complaints)
		}
	}
}

// TestAReadOnlyMountIsRecursiveIfItsHandlerCan is of recursiveReadOnly: IfPossible, with a handler that cannot too.
func TestAReadOnlyMountIsRecursiveIfItsHandlerCan(t *testing.T) {
	nodetest.BerthOnly(t, "berth run is Berth's")
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skipf("there is no runc to be a handler: %v", err)
	}
	dir := t.TempDir()
	// It is runc, and says that it lacks the option.
	old := filepath.Join(dir, "old-runc")
	script := "#!/bin/sh\n[ \"$1\" = features ] || exec " + runc + " \"$@\"\n" + runc + " features | grep -v '\"rro\"'\n"
	if err := os.WriteFile(old, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	n := nodetest.Start(t, node.Options{Handlers: map[string]string{"old": old}})
	below := filepath.Join(dir, "shown", "below")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("below", below, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(below, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for handler, want := range map[string]string{"": "refused\n", "runtimeClassName: old": "written\n"} {
		code, out, complaints := played(t, n, []string{"-q"}, `apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  `+handler+`
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, "! touch /shown/a 2>&- || echo bad; touch /shown/below/a 2>&- && echo written || echo refused"]
    volumeMounts: [{name: shown, mountPath: /shown, readOnly: true, recursiveReadOnly: IfPossible}]
  volumes: [{name: shown, hostPath: {path: `+filepath.Dir(below)+`}}]
`)
		if code != 0 || strings.ReplaceAll(out, "c | ", "") != want {
			t.Errorf("%q: exit code %d, %q, want %q; %s", handler, code, out, want, complaints)
		}
	}
}

// playing is a command of berth that goes on.
type playing struct {
	t     *testing.T
	n     *node.Node
	data  string
	cmd   *exec.Cmd
	ended chan error
	mu    sync.Mutex // guards text
	text  strings.Builder
}

func (p *playing) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *playing) shown() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// play begins to run manifests.
func play(t *testing.T, n *node.Node, manifests ...string) *playing {
	t.Helper()
	return goesOn(t, n, filepath.Join(t.TempDir(), "data"), "run", written(t, manifests...))
}

// goesOn begins a command of berth.
func goesOn(t *testing.T, n *node.Node, data string, args ...string) *playing {
	t.Helper()
	binaries, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	p := &playing{t: t, n: n, data: data, ended: make(chan error, 1)}
	p.cmd = exec.CommandContext(context.WithoutCancel(nodetest.Context(t)), filepath.Join(binaries, "berth"),
		append([]string{"--address", n.Address, "--data-dir", p.data}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() { p.interrupt() })
	return p
}

// waitFor waits until the command has shown a text a number of times.
func (p *playing) waitFor(text string, times int) {
	p.t.Helper()
	for end := time.Now().Add(node.Patience(60 * time.Second)); strings.Count(p.shown(), text) < times; {
		if time.Now().After(end) {
			p.t.Fatalf("%q is not there %d times:\n%s", text, times, p.shown())
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// interrupt types Ctrl-C and waits for the end.
func (p *playing) interrupt() (code int) {
	p.t.Helper()
	return p.end(syscall.SIGINT)
}

// end ends the command by one signal: a second one would kill it at once.
func (p *playing) end(by syscall.Signal) (code int) {
	p.t.Helper()
	if p.cmd.ProcessState != nil {
		return p.cmd.ProcessState.ExitCode()
	}
	_ = p.cmd.Process.Signal(by)
	select {
	case <-p.ended:
	case <-time.After(node.Patience(60 * time.Second)):
		_ = p.cmd.Process.Kill()
		p.t.Fatalf("the command does not end:\n%s", p.shown())
	}
	return p.cmd.ProcessState.ExitCode()
}

// TestARunEndsWhereItsPodIsStoppedOrRemoved by another command, though its containers are started again as a rule. Seen
// to fail where run tried that for ever.
func TestARunEndsWhereItsPodIsStoppedOrRemoved(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	for i, args := range [][]string{{"stop"}, {"rm", "-f"}} {
		name := fmt.Sprintf("elsewhere%d", i)
		p := play(t, n, "apiVersion: v1\nkind: Pod\nmetadata: {name: "+name+"}\nspec:\n  restartPolicy: Always\n"+
			"  containers:\n  - {name: c, image: IMAGE, command: [sh, -c, 'trap \"exit 3\" TERM; sleep 1000 & wait']}\n")
		p.waitFor("pod default/"+name+" runs at", 1)
		if code, _, complaints := typed(t, n, append(append([]string{"--data-dir", p.data}, args...), name)...); code != 0 {
			t.Fatal(complaints)
		}
		select {
		case <-p.ended:
		case <-time.After(node.Patience(60 * time.Second)):
			t.Fatalf("after %q the command does not end:\n%s", args, p.shown())
		}
		// The container may have been removed before its exit code was read.
		if code := p.cmd.ProcessState.ExitCode(); code != 3 && (args[0] == "stop" || code != 1) {
			t.Errorf("after %q: exit code %d:\n%s", args, code, p.shown())
		}
		if !strings.Contains(p.shown(), "pod default/"+name+" was stopped or removed: it is not started again") ||
			strings.Contains(p.shown(), "is started again in") {
			t.Errorf("after %q it is said:\n%s", args, p.shown())
		}
	}
	wantNoPod(t, n, "elsewhere")
}

func TestAManifestsContainersAreProbedAndStartedAgain(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	p := play(t, n, `apiVersion: v1
kind: Pod
metadata: {name: restarted}
spec:
  restartPolicy: Always
  terminationGracePeriodSeconds: 5
  initContainers:
  - name: twice
    image: IMAGE
    command: [sh, -c, "[ -e /state/first ] || { touch /state/first; exit 3; }"]
    volumeMounts: [{name: state, mountPath: /state}]
  containers:
  - name: crash
    image: IMAGE
    command: [sh, -c, "echo attempt; sleep 0.2; exit 5"]
  - name: stuck
    image: IMAGE
    command: [sh, -c, "rm -f /tmp/ill; echo begins; trap 'exit 0' TERM; while :; do sleep 0.1; done"]
    startupProbe: {exec: {command: [test, -e, /tmp/hooked]}, periodSeconds: 1, failureThreshold: 300,
      timeoutSeconds: 60}
    livenessProbe: {exec: {command: [sh, -c, "! test -e /tmp/ill"]}, periodSeconds: 1, failureThreshold: 1,
      timeoutSeconds: 60}
    lifecycle:
      postStart: {exec: {command: [sh, -c, "touch /tmp/hooked"]}}
      preStop: {exec: {command: [sh, -c, "echo stopped >>/state/stops"]}}
    volumeMounts: [{name: state, mountPath: /state}]
  - name: web
    image: IMAGE
    command: [sh, -c, "until [ -e /tmp/go ]; do sleep 0.1; done; exec httpd -f -p 8080 -h /etc"]
    ports: [{name: http, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /passwd, port: http}, periodSeconds: 1, failureThreshold: 1, timeoutSeconds: 60}
  volumes: [{name: state, emptyDir: {}}]
`)
	berth := func(args ...string) string {
		code, out, complaints := typed(t, n, append([]string{"--data-dir", p.data}, args...)...)
		if code != 0 {
			t.Fatalf("berth %v: %s\n%s", args, complaints, p.shown())
		}
		return out
	}
	p.waitFor("init container twice ended with exit code 3, and is started again in 0s (restart 1)", 1)
	p.waitFor("pod default/restarted runs at", 1)
	p.waitFor("container web is not ready", 1)
	berth("exec", "restarted/web", "touch", "/tmp/go")
	p.waitFor("container web is ready", 1)
	p.waitFor("container crash is started again in 0s (restart 1)", 1)
	p.waitFor("container crash is started again in 10s (restart 2)", 1)
	berth("exec", "restarted/stuck", "touch", "/tmp/ill")
	p.waitFor("container stuck: its liveness probe fails: exit code 1", 1)
	p.waitFor("container stuck is started again in 0s (restart 1)", 1)
	p.waitFor("| begins", 2)
	if stops := berth("exec", "restarted/stuck", "cat", "/state/stops"); stops != "stopped\n" {
		t.Errorf("preStop hooks: %q", stops)
	}
	p.waitFor("| attempt", 3)
	if got := berth("logs", "-p", "-c", "crash", "restarted"); got != "attempt\n" {
		t.Errorf("the previous log is %q", got)
	}
	nodetest.Eventually(t, time.Minute, "the last two attempts of crash are kept", func() error {
		labels := map[string]string{"io.kubernetes.pod.name": "restarted", "io.kubernetes.container.name": "crash"}
		response, err := n.Runtime.ListContainers(nodetest.Context(t),
			&cri.ListContainersRequest{Filter: &cri.ContainerFilter{LabelSelector: labels}})
		if err != nil {
			return err
		}
		var attempts []int
		for _, c := range response.Containers {
			attempts = append(attempts, int(c.Metadata.Attempt))
			if count := c.Annotations["io.kubernetes.container.restartCount"]; count != fmt.Sprint(c.Metadata.Attempt) {
				t.Errorf("attempt %d has the restart count %q", c.Metadata.Attempt, count)
			}
		}
		slices.Sort(attempts)
		if len(attempts) != 2 || attempts[0] < 1 || attempts[1] != attempts[0]+1 {
			return fmt.Errorf("its attempts are %v", attempts)
		}
		return nil
	})
	begin := time.Now()
	if code := p.interrupt(); code != 130 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(begin); took > 50*time.Second {
		t.Errorf("the end took %v", took)
	}
	if code, out, _ := typed(t, n, "pods", "-o", "name", "restarted"); code == 0 && out != "" {
		t.Errorf("the pod is left: %s", out)
	}
}

func TestAFailingPodsStatusIsThatOfItsLastAttempt(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	code, out, complaints := played(t, n, nil, `apiVersion: v1
kind: Pod
metadata: {name: onfailure}
spec:
  restartPolicy: OnFailure
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, "echo run; [ -e /state/first ] || { touch /state/first; exit 3; }"]
    volumeMounts: [{name: state, mountPath: /state}]
  volumes: [{name: state, emptyDir: {}}]
`)
	if code != 0 || strings.Count(out, "run") != 2 {
		t.Errorf("exit code %d, %q; %s", code, out, complaints)
	}
	code, _, complaints = played(t, n, nil, `apiVersion: v1
kind: Pod
metadata: {name: first}
spec:
  initContainers: [{name: i, image: IMAGE, command: [sh, -c, "exit 4"]}]
  containers: [{name: c, image: IMAGE, command: [sleep, "60"]}]
`)
	if code != 4 || !strings.Contains(complaints, "init container i of pod default/first ended with exit code 4") {
		t.Errorf("an init container that fails: exit code %d, %s", code, complaints)
	}
	// The deadline stops the pod and the end of the command does: the hook runs once. Seen to fail with two runs.
	code, out, complaints = played(t, n, nil, `apiVersion: v1
kind: Pod
metadata: {name: hooked}
spec:
  activeDeadlineSeconds: 15
  terminationGracePeriodSeconds: 30
  containers:
  - name: c
    image: IMAGE
    command: [sh, -c, "trap 'exit 3' TERM; while :; do sleep 0.1; done"]
    lifecycle: {preStop: {exec: {command: [sh, -c, "echo hook >/proc/1/fd/1; sleep 2"]}}}
`)
	if code != 1 || strings.Count(out, "hook") != 1 {
		t.Errorf("a hook after a deadline: exit code %d, %q, %s", code, out, complaints)
	}
	// The time of init containers, and of the startup probes of sidecars, counts.
	for _, spec := range []string{
		`containers: [{name: c, image: IMAGE, command: [sleep, "60"]}]`,
		`initContainers: [{name: i, image: IMAGE, command: [sleep, "60"]}]
  containers: [{name: c, image: IMAGE, command: ["true"]}]`,
		`initContainers: [{name: s, image: IMAGE, command: [sleep, "60"], restartPolicy: Always,
    startupProbe: {exec: {command: ["false"]}, failureThreshold: 60, periodSeconds: 1}}]
  containers: [{name: c, image: IMAGE, command: ["true"]}]`,
	} {
		code, _, complaints = played(t, n, nil, `apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  activeDeadlineSeconds: 1
  terminationGracePeriodSeconds: 0
  `+spec+"\n")
		if code != 1 || !strings.Contains(complaints, "pod default/late: stopped after its activeDeadlineSeconds") {
			t.Errorf("after its deadline: exit code %d, %s", code, complaints)
		}
	}
}

func TestAManifestsWorkloadsRunAndAreRemoved(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	data := filepath.Join(t.TempDir(), "data")
	claims := []string{"kept-ordered-0", "kept-ordered-1"}
	t.Cleanup(func() {
		if code, _, complaints := typed(t, n, append([]string{"volume", "rm"}, claims...)...); code != 0 {
			t.Errorf("remove volumes: %s", complaints)
		}
	})
	template := `
  template:
    metadata: {labels: {app: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: IMAGE, command: [sleep, "600"]MOUNTS}
`
	head := "apiVersion: apps/v1\nkind: KIND\nmetadata: {name: NAME}\nspec:\n  selector: {matchLabels: {app: NAME}}\n"
	document := func(kind, name, spec, mounts string) string {
		return strings.NewReplacer("KIND", kind, "NAME", name, "MOUNTS", mounts).Replace(head + "  " + spec + template)
	}
	dir := written(t, document("Deployment", "many", "replicas: 2", ""),
		document("DaemonSet", "each", "minReadySeconds: 0", ""),
		document("StatefulSet", "ordered",
			"replicas: 2\n  volumeClaimTemplates: [{metadata: {name: kept}, spec: {accessModes: [ReadWriteOnce]}}]",
			", volumeMounts: [{name: kept, mountPath: /kept}]"))
	berth := func(args ...string) (int, string, string) {
		return typed(t, n, append([]string{"--data-dir", data}, args...)...)
	}
	if code, _, complaints := berth("run", "-d", "-q", dir); code != 0 {
		t.Fatalf("exit code %d, %s", code, complaints)
	}
	names := func() string {
		var all []string
		_, out, _ := berth("pods", "-o", "name", "-l", "app in (many, each, ordered)")
		for name := range strings.Lines(out) {
			all = append(all, strings.TrimSpace(name))
		}
		slices.Sort(all)
		return strings.Join(all, " ")
	}
	want := `^each-\w{5} many-(\w+)-\w{5} many-\w+-\w{5} ordered-0 ordered-1$`
	if got := names(); !regexp.MustCompile(want).MatchString(got) {
		t.Errorf("the pods are %q", got)
	}
	if code, _, complaints := berth("run", "-d", dir); code != 1 || !strings.Contains(complaints, "exists already") {
		t.Errorf("a second run: exit code %d, %s", code, complaints)
	}
	code, out, complaints := berth("down", dir)
	if code != 0 || strings.Count(out, "\n") != 5 || names() != "" {
		t.Errorf("down: exit code %d, %q, %s; left are %q", code, out, complaints, names())
	}
}

func TestAManifestsJobRunsUntilItsCompletions(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	job := func(command string) string {
		return `apiVersion: batch/v1
kind: Job
metadata: {name: count}
spec:
  completions: 3
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: IMAGE, command: [sh, -c, "` + command + `"]}]
`
	}
	code, out, complaints := played(t, n, nil, job("echo number $JOB_COMPLETION_INDEX on $(hostname)"))
	if code != 0 || !strings.Contains(complaints, "job count is complete: 3 pods succeeded") {
		t.Errorf("exit code %d, %s", code, complaints)
	}
	for _, line := range []string{"number 0 on count-0", "number 1 on count-1", "number 2 on count-2"} {
		if strings.Count(out, line) != 1 {
			t.Errorf("%q is not there once: %s", line, out)
		}
	}
	code, _, complaints = played(t, n, nil, job("exit 9"))
	if code != 9 || !strings.Contains(complaints, "job count failed") {
		t.Errorf("one that fails: exit code %d, %s", code, complaints)
	}
}

// TestAManifestsHostPathNeedsNotExist: without a type it is made as a directory, as for a kubelet's pods. Seen to be
// refused.
func TestAManifestsHostPathNeedsNotExist(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	pod := func(source string) string {
		return `apiVersion: v1
kind: Pod
metadata: {name: missing}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: IMAGE, command: [sh, -c, "echo x >/data/file"], volumeMounts: [{name: v, mountPath: /data}]}
  volumes: [{name: v, hostPath: ` + source + `}]
`
	}
	missing := filepath.Join(t.TempDir(), "a", "b")
	code, _, complaints := played(t, n, nil, pod("{path: "+missing+", type: Directory}"))
	if code != 1 || !strings.Contains(complaints, "no such file or directory") {
		t.Errorf("a directory that is not there: exit code %d, %s", code, complaints)
	}
	if code, _, complaints = played(t, n, nil, pod("{path: "+missing+"}")); code != 0 {
		t.Errorf("exit code %d, %s", code, complaints)
	}
	if text, err := os.ReadFile(filepath.Join(missing, "file")); err != nil || string(text) != "x\n" {
		t.Errorf("the container has written %q, %v", text, err)
	}
}

// TestRestartsInAllPodsOfAJobCount: the one that there may be is over when the second pod fails. Seen to fail where
// each pod had one.
func TestRestartsInAllPodsOfAJobCount(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	code, out, complaints := played(t, nodetest.Shared(t), nil, `apiVersion: batch/v1
kind: Job
metadata: {name: restarts}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  backoffLimit: 1
  template:
    spec:
      restartPolicy: OnFailure
      terminationGracePeriodSeconds: 0
      containers:
      - name: c
        image: IMAGE
        command:
        - sh
        - -c
        - |
          if [ $JOB_COMPLETION_INDEX = 1 ]; then
            until [ -e /shared/again ]; do sleep 0.1; done
            exit 4
          fi
          [ -e /v/x ] && touch /shared/again && sleep 600
          touch /v/x
          exit 3
        volumeMounts: [{name: v, mountPath: /v}, {name: shared, mountPath: /shared}]
      volumes: [{name: v, emptyDir: {}}, {name: shared, hostPath: {path: `+t.TempDir()+`}}]
`)
	if code != 4 || !strings.Contains(complaints, "job restarts failed") ||
		strings.Count(complaints, "is started again") != 1 {
		t.Errorf("exit code %d, %s, %s", code, out, complaints)
	}
}

// TestWhatIsLeftOfAManifestsPodsIsStopped: containers that run on in pods of a Job which has failed, and sidecars of
// pods that have ended, while the command goes on with another document. Seen to fail: they ran until it ended.
func TestWhatIsLeftOfAManifestsPodsIsStopped(t *testing.T) {
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	job := func(name, spec, command string) string {
		return strings.NewReplacer("NAME", name, "SPEC", spec, "COMMAND", command).Replace(`apiVersion: batch/v1
kind: Job
metadata: {name: left-NAME}
spec:
  SPEC
  template:
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 0
      initContainers: [{name: s, image: IMAGE, restartPolicy: Always, command: [sleep, "600"]}]
      containers: [{name: c, image: IMAGE, command: [sh, -c, "COMMAND"]}]
`)
	}
	p := play(t, n, `apiVersion: apps/v1
kind: Deployment
metadata: {name: left-others}
spec:
  selector: {matchLabels: {a: b}}
  template:
    metadata: {labels: {a: b}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: IMAGE, command: [sleep, "600"]}]
`, `apiVersion: v1
kind: Pod
metadata: {name: left-ended}
spec:
  terminationGracePeriodSeconds: 0
  initContainers: [{name: s, image: IMAGE, restartPolicy: Always, command: [sleep, "600"]}]
  containers: [{name: c, image: IMAGE, command: ["true"]}]
`, job("late", "activeDeadlineSeconds: 2", "sleep 600"),
		job("failed", "completionMode: Indexed\n  completions: 2\n  parallelism: 2\n  backoffLimit: 0",
			"sleep 2; [ $JOB_COMPLETION_INDEX = 1 ] && sleep 600; exit 7"),
		job("complete", "completions: 1", "sleep 1"))
	p.waitFor("pod default/left-others-", 1)
	p.waitFor("pod default/left-ended runs at", 1)
	p.waitFor("job left-late failed: its activeDeadlineSeconds are over", 1)
	p.waitFor("job left-failed failed", 1)
	p.waitFor("job left-complete is complete: 1 pods succeeded", 1)
	nodetest.Eventually(t, 20*time.Second, "only the pod of the other document runs", func() error {
		_, out, _ := typed(t, n, "--data-dir", p.data, "ps", "-o", "name")
		var left []string
		for name := range strings.FieldsSeq(out) {
			if strings.Contains(name, "left-") {
				left = append(left, name)
			}
		}
		if len(left) != 1 || !strings.HasPrefix(left[0], "left-others-") {
			return fmt.Errorf("there run %q", left)
		}
		return nil
	})
	if code := p.interrupt(); code != 130 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
	if _, out, _ := typed(t, n, "--data-dir", p.data, "pods", "-o", "name"); strings.Contains(out, "left-") {
		t.Errorf("after the end of the command there are %s", out)
	}
}

func TestAManifestsPullSecretsPull(t *testing.T) {
	nodetest.BerthOnly(t, "its configuration of registries is its own")
	n := nodetest.Shared(t)
	const user, password, host = "puller", "hunter2", "pullsecret.invalid"
	registry, err := registrytest.New(registrytest.WithBasicAuth(user, password))
	if err != nil {
		t.Fatal(err)
	}
	defer registry.Close()
	img, err := registrytest.Image(registrytest.WithFiles(map[string]string{"a": "private\n"}))
	if err != nil {
		t.Fatal(err)
	}
	if err := registry.Push("a:1", img); err != nil {
		t.Fatal(err)
	}
	hosts := filepath.Join(n.HostsDir, host)
	if err := os.Mkdir(hosts, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(hosts)
	text := "server = \"http://" + registry.Addr() + "\"\nberth_credentials = \"plain\"\n"
	if err := os.WriteFile(filepath.Join(hosts, "hosts.toml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	pod := `apiVersion: v1
kind: Secret
metadata: {name: registry}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths": {"HOST": {"auth": "AUTH"}}}'}
---
apiVersion: v1
kind: Pod
metadata: {name: private}
spec:
  imagePullSecrets: [{name: SECRET}]
  containers:
  - {name: c, image: IMAGE, command: [cat, /image/a], volumeMounts: [{name: image, mountPath: /image}]}
  volumes: [{name: image, image: {reference: "HOST/a:1", pullPolicy: Always}}]
`
	with := strings.NewReplacer("HOST", host, "AUTH", auth, "SECRET", "registry")
	if code, out, complaints := played(t, n, []string{"-q"}, with.Replace(pod)); code != 0 || out != "c | private\n" {
		t.Errorf("exit code %d, %q, %s", code, out, complaints)
	}
	without := strings.NewReplacer("HOST", host, "AUTH", auth, "SECRET", "none")
	code, _, complaints := played(t, n, []string{"-q"}, without.Replace(pod))
	if code != 1 || !strings.Contains(complaints, "volume image: image "+host+"/a:1") ||
		!strings.Contains(complaints, `there is no Secret "none"`) {
		t.Errorf("without the Secret: exit code %d, %s", code, complaints)
	}
}

func TestAManifestsFullLogsAreRotated(t *testing.T) {
	t.Parallel()
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Shared(t)
	p := play(t, n, `apiVersion: v1
kind: Pod
metadata: {name: chatty}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: IMAGE
    command:
    - sh
    - -c
    - yes | tr '\n' y | head -c 11000000; echo; until [ -e /tmp/go ]; do sleep 0.1; done; echo last line; sleep 600
`)
	p.waitFor("pod default/chatty runs at", 1)
	logs := filepath.Join(p.data, "pods", "default_chatty_*", "logs", "c", "0.log")
	rotated := func() int {
		names, err := filepath.Glob(logs + ".*")
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	for end := time.Now().Add(node.Patience(60 * time.Second)); rotated() == 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the log was not rotated")
		}
	}
	if code, _, complaints := typed(t, n, "exec", "chatty", "touch", "/tmp/go"); code != 0 {
		t.Fatal(complaints)
	}
	p.waitFor("last line", 1) // the command follows the new file
	names, err := filepath.Glob(logs)
	if err != nil || len(names) != 1 {
		t.Fatalf("the log is %v, %v", names, err)
	}
	if info, err := os.Stat(names[0]); err != nil || info.Size() > 1<<20 {
		t.Errorf("the new log: %v, %v", info, err)
	}
}
