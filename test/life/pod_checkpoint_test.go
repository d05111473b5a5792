package life

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

func tryPodCheckpoint(ctx context.Context, p *nodetest.Pod, dir string, containers ...*nodetest.Container) error {
	req := &cri.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: dir}
	for _, c := range containers {
		req.ContainerIds = append(req.ContainerIds, c.ID)
	}
	_, err := p.Node.Runtime.CheckpointPod(ctx, req)
	return err
}

// restoreRequest asks for a pod like another one, with containers like that one's.
func restoreRequest(p *nodetest.Pod, dir string, containers ...*nodetest.Container) *cri.RestorePodRequest {
	req := &cri.RestorePodRequest{CheckpointPath: dir, Config: proto.CloneOf(p.Config)}
	req.Config.Metadata.Uid += "-again"
	req.Config.LogDirectory += "-again"
	for _, c := range containers {
		req.ContainerConfigs = append(req.ContainerConfigs, proto.CloneOf(c.Config))
	}
	return req
}

// restorePod makes the pod, and returns its containers, which are not started.
func restorePod(t *testing.T, n *node.Node, req *cri.RestorePodRequest) (*nodetest.Pod, []*nodetest.Container) {
	t.Helper()
	resp, err := n.Runtime.RestorePod(nodetest.Context(t), req)
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	p := nodetest.Adopt(t, n, resp.PodSandboxId, req.Config)
	if len(resp.RestoredContainers) != len(req.ContainerConfigs) {
		t.Fatalf("%d containers, and %d were asked for", len(resp.RestoredContainers), len(req.ContainerConfigs))
	}
	var list []*nodetest.Container
	for i, made := range resp.RestoredContainers {
		config := req.ContainerConfigs[i]
		if made.Name != config.Metadata.Name {
			t.Errorf("container %d is called %q, want %q", i, made.Name, config.Metadata.Name)
		}
		list = append(list, &nodetest.Container{Pod: p, ID: made.ContainerId, Config: config})
	}
	return p, list
}

// noPodMore says whether a node has other pods than before.
func noPodMore(t *testing.T, n *node.Node) func() {
	t.Helper()
	list := func() int {
		resp, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return len(resp.Items)
	}
	before := list()
	return func() {
		t.Helper()
		if now := list(); now != before {
			t.Errorf("there are %d pods, and were %d", now, before)
		}
	}
}

func TestAPodsCheckpointIsGoneOnWithInAnotherPod(t *testing.T) {
	n := checkpointNode(t, "")
	dir := t.TempDir()
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_CONTAINER}))
	volume := t.TempDir()
	with := func(c *cri.ContainerConfig) {
		counting(c)
		c.Envs = []*cri.KeyValue{{Key: "WHO", Value: []byte(c.Metadata.Name)}}
		c.Mounts = []*cri.Mount{{HostPath: volume, ContainerPath: "/volume", MountOptions: []string{"noexec"}}}
	}
	a, b, other := p.Run(with), p.Run(with), p.Run()
	a.Sh("echo a >/kept && rm /etc/passwd")
	waitCount(t, a, 3)
	waitCount(t, b, 3)
	if err := tryPodCheckpoint(nodetest.Context(t), p, dir, a, b); err != nil {
		t.Fatalf("checkpoint: %v", err)
	}
	atA := waitCount(t, a, last(a)) // they go on
	waitCount(t, b, last(b))
	if got := other.Sh("echo lives"); got != "lives" {
		t.Errorf("a container that was not chosen: %q", got)
	}
	for path, mode := range map[string]os.FileMode{
		"pod.json": 0o600, "container-0": os.ModeDir | 0o700, "container-1/config.dump": 0o600,
		"container-1/checkpoint/inventory.img": 0o600, "container-0/rootfs-diff.tar": 0o600,
	} {
		if st, err := os.Stat(filepath.Join(dir, path)); err != nil || st.Mode() != mode && filepath.Ext(path) != ".img" &&
			filepath.Ext(path) != ".dump" {
			t.Errorf("%s: %v (%v)", path, st, err)
		}
	}
	waitCount(t, a, atA+20)
	before := treeOf(t, dir)

	p2, list := restorePod(t, n, restoreRequest(p, dir, b, a))
	rb, ra := list[0], list[1]
	for _, c := range list {
		if s := c.Status(); s.State != cri.ContainerState_CONTAINER_CREATED {
			t.Errorf("a restored container is %v", s.State)
		}
	}
	for _, c := range []*nodetest.Container{ra, rb} {
		c.Start()
		waitCount(t, c, waitCount(t, c, 0)+3)
		for i, line := range strings.Split(strings.TrimSpace(c.Stdout()), "\n") {
			if want := fmt.Sprintf("count %d", i+1); line != want {
				t.Fatalf("line %d of the log is %q: a count was lost or made twice", i+1, line)
			}
		}
		if got := c.Sh("echo $WHO"); got != c.Config.Metadata.Name {
			t.Errorf("%s is the process of %s", c.Config.Metadata.Name, got)
		}
	}
	if got := ra.Sh("cat /kept; test -e /etc/passwd || echo gone; grep -c /volume.*noexec /proc/mounts"); got !=
		"a\ngone\n1" {
		t.Errorf("files: %q", got)
	}
	if got := rb.Sh("test -e /kept || echo none"); got != "none" {
		t.Errorf("the other container's files: %q", got)
	}
	if got, want := namespace(t, hostPID(t, ra), "net"), namespace(t, hostPID(t, rb), "net"); got != want {
		t.Errorf("the containers are in the networks %s and %s", got, want)
	}
	if p2.IP() == p.IP() {
		t.Error("both pods have one address")
	}
	if after := treeOf(t, dir); after != before {
		t.Errorf("the checkpoint was changed:\n%s\nand was\n%s", after, before)
	}
	if left, _ := filepath.Glob(filepath.Join(n.Root, "containers", "*", "restore")); len(left) > 0 {
		t.Errorf("the checkpoint is still kept: %v", left)
	}
	// It is a pod like any other: it survives berthd, and can be written down again.
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	waitCount(t, ra, last(ra))
	again := t.TempDir()
	if err := tryPodCheckpoint(nodetest.Context(t), p2, again, rb, ra); err != nil {
		t.Fatalf("checkpoint of a restored pod: %v", err)
	}
	_, third := restorePod(t, n, restoreRequest(p2, again, ra, rb))
	third[0].Start()
	waitCount(t, third[0], last(third[0]))
}

// treeOf describes the files below a directory: names, sizes, modes and times.
func treeOf(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.Walk(dir, func(path string, st os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintln(&out, path, st.Size(), st.Mode(), st.ModTime().UnixNano())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestAPodWithOnePIDNamespaceIsRestored(t *testing.T) {
	n := checkpointNode(t, "")
	dir := t.TempDir()
	p := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD}))
	a, b := p.Run(counting), p.Run(counting)
	waitCount(t, a, 1)
	waitCount(t, b, 1)
	if err := tryPodCheckpoint(nodetest.Context(t), p, dir, a, b); err != nil {
		t.Fatal(err)
	}
	at := last(b)
	_, list := restorePod(t, n, restoreRequest(p, dir, a, b))
	for _, c := range list {
		c.Start()
	}
	waitCount(t, list[1], at)
	if got, want := namespace(t, hostPID(t, list[0]), "pid"), namespace(t, hostPID(t, list[1]), "pid"); got != want {
		t.Errorf("the containers are in the PID namespaces %s and %s", got, want)
	}
}

// All containers stand still while one of them is written down. Seen to fail without the freezing before.
func TestAllContainersStandStillForAPodsCheckpoint(t *testing.T) {
	criu := newHeldCRIU(t)
	n := nodetest.Start(t, node.Options{Tables: criu.config()})
	p := nodetest.RunPod(t, n)
	list := []*nodetest.Container{p.Run(counting), p.Run(counting), p.Run(counting), p.Run(counting)}
	for _, c := range list {
		waitCount(t, c, 1)
	}
	criu.stop()
	defer criu.release()
	result := make(chan error, 1)
	go func() { result <- tryPodCheckpoint(nodetest.Context(t), p, t.TempDir(), list...) }()
	criu.await()
	counts := func() (n []int) {
		for _, c := range list {
			n = append(n, last(c))
		}
		return n
	}
	// What was written before may still be on its way to the logs. criu goes on after a minute.
	nodetest.Eventually(t, 30*time.Second, "the counters stand still", func() error {
		before := counts()
		time.Sleep(time.Second)
		if now := counts(); !slices.Equal(now, before) {
			return fmt.Errorf("they went on from %v to %v", before, now)
		}
		return nil
	})
	select {
	case err := <-result:
		t.Errorf("criu was not held up: %v", err)
		return
	default:
	}
	criu.release()
	if err := <-result; err != nil {
		t.Error(err)
	}
	for _, c := range list {
		waitCount(t, c, last(c))
	}
}

func TestAPodsCheckpointThatCannotBeIsRefused(t *testing.T) {
	criu, fail := failingCRIU(t)
	n := nodetest.Start(t, node.Options{Tables: fmt.Sprintf("[checkpoint]\ncriu = %q\n", criu)})
	ctx := nodetest.Context(t)
	dir := t.TempDir()
	p := nodetest.RunPod(t, n)
	c, foreign := p.Run(counting), nodetest.RunPod(t, n).Run()
	ended := p.Run(nodetest.Sh("exit 0"))
	ended.WaitExit()
	created := p.Create()
	full, open := t.TempDir(), t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(full, "file"), nil, 0o600), os.Chmod(open, 0o777),
		os.Symlink(t.TempDir(), filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	absent := *c
	absent.ID = strings.Repeat("0", 64)
	link := filepath.Join(dir, "link")
	dir = t.TempDir()
	want := func(err error, code codes.Code, says string) {
		t.Helper()
		if status.Code(err) != code || !strings.Contains(err.Error(), says) {
			t.Errorf("want %v with %q: %v", code, says, err)
		}
	}
	want(tryPodCheckpoint(ctx, p, "", c), codes.InvalidArgument, "output_path")
	want(tryPodCheckpoint(ctx, p, "relative", c), codes.InvalidArgument, "output_path")
	want(tryPodCheckpoint(ctx, p, filepath.Join(dir, "no"), c), codes.InvalidArgument, "no such directory")
	want(tryPodCheckpoint(ctx, p, full, c), codes.InvalidArgument, "not empty")
	want(tryPodCheckpoint(ctx, p, open, c), codes.InvalidArgument, "others than root")
	want(tryPodCheckpoint(ctx, p, link, c), codes.InvalidArgument, "not a directory")
	want(tryPodCheckpoint(ctx, p, dir), codes.InvalidArgument, "container_ids")
	want(tryPodCheckpoint(ctx, p, dir, c, c), codes.InvalidArgument, "twice")
	again := p.Run(func(config *cri.ContainerConfig) {
		config.Metadata = &cri.ContainerMetadata{Name: c.Config.Metadata.Name, Attempt: 1}
		config.LogPath = "again.log"
	})
	want(tryPodCheckpoint(ctx, p, dir, c, again), codes.InvalidArgument, "two of the containers are called")
	want(tryPodCheckpoint(ctx, p, dir, c, foreign), codes.InvalidArgument, "another pod")
	want(tryPodCheckpoint(ctx, p, dir, c, ended), codes.FailedPrecondition, "not running")
	want(tryPodCheckpoint(ctx, p, dir, c, created), codes.FailedPrecondition, "not running")
	want(tryPodCheckpoint(ctx, p, dir, c, &absent), codes.NotFound, "")
	_, err := n.Runtime.CheckpointPod(ctx, &cri.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: dir,
		ContainerIds: []string{c.ID}, Options: map[string]string{"compress": "yes"}})
	want(err, codes.InvalidArgument, `options["compress"]`)
	if n.Handlers["runc"] != "" {
		binary := nodetest.RunPodHandler(t, n, "runc")
		want(tryPodCheckpoint(ctx, binary, dir, binary.Run()), codes.Unimplemented, "runc")
	}
	// One that CRIU cannot write down: all go on, and nothing is left.
	second := p.Run(counting)
	waitCount(t, second, 1)
	if err := os.WriteFile(fail, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tryPodCheckpoint(ctx, p, dir, c, second); err == nil {
		t.Error("a criu that fails made a checkpoint")
	}
	for _, d := range []string{dir, open} {
		if entries, _ := os.ReadDir(d); len(entries) > 0 {
			t.Errorf("left over: %v", entries)
		}
	}
	waitCount(t, c, last(c))
	waitCount(t, second, last(second))
}

func TestAPodsCheckpointThatIsCutOffLeavesThePodAlive(t *testing.T) {
	criu := newHeldCRIU(t)
	n := nodetest.Start(t, node.Options{Tables: criu.config()})
	for what, cut := range map[string]func(a, b *nodetest.Container, cancel func()) error{
		"the client goes":        func(_, _ *nodetest.Container, cancel func()) error { cancel(); return nil },
		"berthd is killed":       func(_, _ *nodetest.Container, _ func()) error { return n.Kill() },
		"the keeper is killed":   func(_, _ *nodetest.Container, _ func()) error { return n.KillKeeper() },
		"a container is stopped": func(_, b *nodetest.Container, _ func()) error { b.Stop(0); return nil },
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			p := nodetest.RunPod(t, n)
			a, b := p.Run(counting), p.Run(counting)
			waitCount(t, a, 1)
			waitCount(t, b, 1)
			ctx, cancel := context.WithCancel(nodetest.Context(t))
			defer cancel()
			criu.stop()
			result := make(chan error, 1)
			go func() { result <- tryPodCheckpoint(ctx, p, dir, a, b) }()
			criu.await()
			if err := cut(a, b, cancel); err != nil {
				t.Fatal(err)
			}
			err := <-result
			if err == nil {
				t.Error("it succeeded")
			}
			criu.release()
			if n.PID() == 0 {
				if err := n.Restart(nodetest.Context(t)); err != nil {
					t.Fatal(err)
				}
			}
			waitCount(t, a, waitCount(t, a, last(a)))
			if b.Status().State == cri.ContainerState_CONTAINER_RUNNING {
				waitCount(t, b, last(b))
			}
			nodetest.Eventually(t, 30*time.Second, "nothing is left over", func() error {
				if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
					return fmt.Errorf("there is %v, %w", left, err)
				}
				return nil
			})
		})
	}
}

// failingCRIU is a criu that writes the second container down no more, once there is the file fail.
func failingCRIU(t *testing.T) (path, fail string) {
	t.Helper()
	dir := t.TempDir()
	path, fail = filepath.Join(dir, "criu"), filepath.Join(dir, "fail")
	// libcontainer asks for the version by the first call.
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = swrk ] && [ -e %s ]; then echo >>%s; "+
		"[ $(wc -l <%s) -lt 4 ] || exit 1; fi\nexec %s \"$@\"\n", fail, fail, fail, criuPath(t))
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, fail
}

func TestAPodThatDoesNotFitItsCheckpointIsRefused(t *testing.T) {
	n := checkpointNode(t, "")
	dir := t.TempDir()
	p := nodetest.RunPod(t, n)
	env := func(c *cri.ContainerConfig) {
		counting(c)
		c.Envs = []*cri.KeyValue{{Key: "PASSWORD", Value: []byte("hidden")}}
	}
	a, b := p.Run(env), p.Run(env)
	nodetest.Pull(t, n, node.StopSignal)
	waitCount(t, a, 1)
	if err := tryPodCheckpoint(nodetest.Context(t), p, dir, a, b); err != nil {
		t.Fatal(err)
	}
	copied := func(change func(dir string) error) string {
		t.Helper()
		to := filepath.Join(t.TempDir(), "copy")
		if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := change(to); err != nil {
			t.Fatal(err)
		}
		return to
	}
	describe := func(change func(m map[string]any)) func(string) error {
		return func(dir string) error {
			path := filepath.Join(dir, "pod.json")
			b, err := os.ReadFile(path)
			var m map[string]any
			if err == nil {
				err = json.Unmarshal(b, &m)
			}
			if err != nil {
				return err
			}
			change(m)
			b, _ = json.Marshal(m)
			return os.WriteFile(path, b, 0o600)
		}
	}
	no := noPodMore(t, n)
	first := func(r *cri.RestorePodRequest) *cri.ContainerConfig { return r.ContainerConfigs[0] }
	for what, c := range map[string]struct {
		edit func(*cri.RestorePodRequest)
		code codes.Code
		says string
	}{
		"a relative path": {func(r *cri.RestorePodRequest) {
			r.CheckpointPath = "x"
		}, codes.InvalidArgument, "checkpoint_path"},
		"no directory": {func(r *cri.RestorePodRequest) {
			r.CheckpointPath += "/no"
		}, codes.NotFound, "no such directory"},
		"not a checkpoint": {func(r *cri.RestorePodRequest) {
			r.CheckpointPath = t.TempDir()
		}, codes.InvalidArgument, "pod.json"},
		"no configuration": {func(r *cri.RestorePodRequest) { r.Config = nil }, codes.InvalidArgument, "config"},
		"no containers": {func(r *cri.RestorePodRequest) {
			r.ContainerConfigs = nil
		}, codes.InvalidArgument, "container_configs"},
		"a container less": {func(r *cri.RestorePodRequest) {
			r.ContainerConfigs = r.ContainerConfigs[:1]
		}, codes.InvalidArgument, "does not name"},
		"another container": {func(r *cri.RestorePodRequest) {
			first(r).Metadata.Name = "x"
		}, codes.InvalidArgument, "no container"},
		"one twice": {func(r *cri.RestorePodRequest) {
			r.ContainerConfigs[1] = first(r)
		}, codes.InvalidArgument, "another one"},
		"options": {func(r *cri.RestorePodRequest) {
			r.Options = map[string]string{"lazy": "1"}
		}, codes.InvalidArgument, `options["lazy"]`},
		"an unknown handler": {func(r *cri.RestorePodRequest) {
			r.RuntimeHandler = "unknown"
		}, codes.NotFound, "unknown"},
		"another command": {func(r *cri.RestorePodRequest) {
			first(r).Command[0] = "ash"
		}, codes.FailedPrecondition, "the command"},
		"further arguments": {func(r *cri.RestorePodRequest) {
			first(r).Args = []string{"x"}
		}, codes.FailedPrecondition, "the arguments"},
		"another directory": {func(r *cri.RestorePodRequest) {
			first(r).WorkingDir = "/tmp"
		}, codes.FailedPrecondition, "the working directory"},
		"another value": {func(r *cri.RestorePodRequest) {
			first(r).Envs[0].Value = []byte("x")
		}, codes.FailedPrecondition, "by PASSWORD:"},
		"a variable less": {func(r *cri.RestorePodRequest) {
			first(r).Envs = nil
		}, codes.FailedPrecondition, "by PASSWORD:"},
		"a variable more": {func(r *cri.RestorePodRequest) {
			first(r).Envs = append(first(r).Envs, &cri.KeyValue{Key: "MORE"})
		}, codes.FailedPrecondition, "by MORE:"},
		"another user": {func(r *cri.RestorePodRequest) {
			first(r).Linux.SecurityContext.RunAsUser = &cri.Int64Value{Value: 7}
		}, codes.FailedPrecondition, "the user"},
		"another group": {func(r *cri.RestorePodRequest) {
			first(r).Linux.SecurityContext.SupplementalGroups = []int64{7}
		}, codes.FailedPrecondition, "the groups"},
		"a mount more": {func(r *cri.RestorePodRequest) {
			first(r).Mounts = []*cri.Mount{{HostPath: "/tmp", ContainerPath: "/mnt"}}
		}, codes.FailedPrecondition, "mounts"},
		"fewer rights": {func(r *cri.RestorePodRequest) {
			first(r).Linux.SecurityContext.Capabilities = &cri.Capability{DropCapabilities: []string{"ALL"}}
		}, codes.FailedPrecondition, "capabilities"},
		"another image": {func(r *cri.RestorePodRequest) {
			first(r).Image.Image = node.StopSignal
		}, codes.FailedPrecondition, "the image"},
		"a file that others write": {func(r *cri.RestorePodRequest) {
			r.CheckpointPath = copied(func(dir string) error {
				return os.Chmod(filepath.Join(dir, "container-0/checkpoint/inventory.img"), 0o666)
			})
		}, codes.InvalidArgument, "others than root"},
		"a directory that others write": {func(r *cri.RestorePodRequest) {
			r.CheckpointPath = copied(func(dir string) error { return os.Chown(dir, 1, 1) })
		}, codes.InvalidArgument, "others than root"},
		"a link": {func(r *cri.RestorePodRequest) {
			r.CheckpointPath = copied(func(dir string) error {
				return errors.Join(os.RemoveAll(filepath.Join(dir, "container-0")),
					os.Symlink(filepath.Join(dir, "container-1"), filepath.Join(dir, "container-0")))
			})
		}, codes.InvalidArgument, ""},
		"a way out": {func(r *cri.RestorePodRequest) {
			r.CheckpointPath = copied(describe(func(m map[string]any) {
				m["containers"].([]any)[0].(map[string]any)["directory"] = "../copy"
			}))
		}, codes.InvalidArgument, "which is no name"},
		"another version": {func(r *cri.RestorePodRequest) {
			r.CheckpointPath = copied(describe(func(m map[string]any) { m["version"] = 2 }))
		}, codes.InvalidArgument, "version 2"},
	} {
		req := restoreRequest(p, dir, a, b)
		c.edit(req)
		_, err := n.Runtime.RestorePod(nodetest.Context(t), req)
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: want %v with %q: %v", what, c.code, c.says, err)
		}
		if err != nil && strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: the error has the value of a variable: %v", what, err)
		}
	}
	no()
	// The same request, unchanged, and copied by another program, is taken.
	_, list := restorePod(t, n, restoreRequest(p, copied(func(string) error { return nil }), a, b))
	list[0].Start()
	waitCount(t, list[0], last(list[0]))
}

// A pod that is half restored when berthd is killed is removed: its client has no ID of it, and a kubelet that found
// it would start those containers anew that are missing.
func TestAPodIsRestoredWholeOrNotAtAll(t *testing.T) {
	n := checkpointNode(t, "")
	dir := t.TempDir()
	p := nodetest.RunPod(t, n)
	a, b := p.Run(counting), p.Run(counting)
	waitCount(t, a, 1)
	waitCount(t, b, 1)
	if err := tryPodCheckpoint(nodetest.Context(t), p, dir, a, b); err != nil {
		t.Fatal(err)
	}
	whole, none := 0, 0
	for round := range 12 {
		req := restoreRequest(p, dir, a, b)
		result := make(chan error, 1)
		go func() {
			_, err := n.Runtime.RestorePod(nodetest.Context(t), req)
			result <- err
		}()
		time.Sleep(time.Duration(round) * 5 * time.Millisecond)
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		answered := <-result == nil
		if err := n.Restart(nodetest.Context(t)); err != nil {
			t.Fatal(err)
		}
		var found []string
		nodetest.Eventually(t, 30*time.Second, "the pod is whole or gone", func() error {
			pods, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{})
			if err != nil {
				return err
			}
			found = nil
			for _, item := range pods.Items {
				if item.Metadata.Uid == req.Config.Metadata.Uid {
					found = append(found, item.Id)
				}
			}
			list, err := n.Runtime.ListContainers(nodetest.Context(t), &cri.ListContainersRequest{})
			if err != nil {
				return err
			}
			created := 0
			for _, c := range list.Containers {
				if c.State == cri.ContainerState_CONTAINER_CREATED {
					created++
				}
			}
			if created != 2*len(found) || answered && len(found) == 0 {
				return fmt.Errorf("answered %t: pods %v with %d containers", answered, found, created)
			}
			return nil
		})
		if len(found) == 0 {
			none++
		}
		for _, id := range found {
			whole++
			nodetest.Adopt(t, n, id, req.Config).Remove()
		}
	}
	t.Logf("%d pods were whole, and %d are gone", whole, none)
	waitCount(t, a, last(a))
}

// The directory's disk may be full at any point: while CRIU writes memory, while files are copied, or at the last file.
func TestAPodsCheckpointOnAFullDiskLeavesNothing(t *testing.T) {
	n := checkpointNode(t, "")
	p := nodetest.RunPod(t, n)
	a, b := p.Run(counting), p.Run(counting)
	a.Sh("head -c 300000 /dev/urandom >/kept")
	waitCount(t, a, 1)
	waitCount(t, b, 1)
	dir := t.TempDir()
	made := 0
	for _, size := range []string{"4k", "64k", "256k", "512k", "768k", "1m", "1280k", "1536k", "2m", "16m"} {
		if err := syscall.Mount("small", dir, "tmpfs", 0, "mode=700,size="+size); err != nil {
			t.Fatal(err)
		}
		err := tryPodCheckpoint(nodetest.Context(t), p, dir, a, b)
		left, listErr := os.ReadDir(dir)
		if listErr != nil {
			t.Fatal(listErr)
		}
		nodetest.Eventually(t, 20*time.Second, "nothing uses the disk", func() error { return syscall.Unmount(dir, 0) })
		switch {
		case err == nil:
			made++
		case status.Code(err) != codes.ResourceExhausted:
			t.Errorf("a disk of %s: want ResourceExhausted: %v", size, err)
		case len(left) > 0:
			t.Errorf("a disk of %s: left over: %v", size, left)
		}
		waitCount(t, a, last(a)+2)
		waitCount(t, b, last(b)+2)
	}
	if made == 0 || made > 5 {
		t.Errorf("%d checkpoints of 10 were made, so that no disk was full or all were", made)
	}
}

func TestTheCommandLineWritesAPodDownAndRestoresIt(t *testing.T) {
	n := checkpointNode(t, "")
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	berth := func(args ...string) (int, string, string) {
		t.Helper()
		return typed(t, n, append([]string{"--data-dir", data}, args...)...)
	}
	good := func(args ...string) string {
		t.Helper()
		code, out, complaints := berth(args...)
		if code != 0 {
			t.Fatalf("berth %v: exit code %d: %s", args, code, complaints)
		}
		return out
	}
	manifest := filepath.Join(dir, "pod.yaml")
	text := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: counters}
spec:
  terminationGracePeriodSeconds: 1
  hostAliases: [{ip: 192.0.2.1, hostnames: [elsewhere]}]
  initContainers:
  - name: first
    image: %[1]s
    command: [sh, -c, echo once]
  - name: beside
    image: %[1]s
    restartPolicy: Always
    command: [sh, -c, %[2]q]
  containers:
  - name: a
    image: %[1]s
    command: [sh, -c, %[2]q]
    volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes: [{name: scratch, emptyDir: {}}]
`, node.Busybox, counter)
	if err := os.WriteFile(manifest, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	counts := func(container string, to int) {
		t.Helper()
		nodetest.Eventually(t, 30*time.Second, fmt.Sprintf("%s counts to %d", container, to), func() error {
			if log := good("logs", "counters", "-c", container); !strings.Contains(log, fmt.Sprintf("count %d\n", to)) {
				return fmt.Errorf("its log is %q", log)
			}
			return nil
		})
	}
	good("run", "-d", manifest)
	counts("a", 3)
	counts("beside", 3)
	good("exec", "counters/a", "sh", "-c", "echo kept >/kept")
	written := filepath.Join(dir, "written")
	if got := strings.TrimSpace(good("checkpoint", "--pod", "counters", "-o", written)); got != written {
		t.Errorf("it says %q", got)
	}
	if code, _, complaints := berth("checkpoint", "--pod", "counters", "-o", written); code == 0 ||
		!strings.Contains(complaints, "not empty") {
		t.Errorf("to a directory that is not empty: exit code %d: %s", code, complaints)
	}
	lines := map[string]int{}
	for _, container := range []string{"a", "beside"} {
		lines[container] = strings.Count(good("logs", "counters", "-c", container), "\n")
	}
	good("rm", "--force", "counters")

	changed := filepath.Join(dir, "changed.yaml")
	if err := os.WriteFile(changed, []byte(strings.ReplaceAll(text, "name: a\n", "name: b\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, complaints := berth("run", "-d", "--restore", written, changed); code == 0 ||
		!strings.Contains(complaints, `it has no container ["b"]`) {
		t.Errorf("another container: exit code %d: %s", code, complaints)
	}
	if pods := good("pods", "-q"); pods != "" {
		t.Errorf("a pod that was not restored is left: %s", pods)
	}

	good("run", "-d", "--restore", written, manifest)
	for container, had := range lines {
		counts(container, had+5)
		if log := good("logs", "counters", "-c", container); strings.Count(log, "count 1\n") != 1 {
			t.Errorf("%s counted anew: %q", container, log)
		}
	}
	if list := good("ps", "-a", "--no-headers"); strings.Contains(list, "first") || strings.Count(list, "\n") != 2 {
		t.Errorf("the containers are %s", list)
	}
	if got := good("exec", "counters/a", "sh", "-c", "cat /kept; grep -c elsewhere /etc/hosts; "+
		"grep -c counters /etc/hosts"); got != "kept\n1\n1\n" {
		t.Errorf("it finds %q", got)
	}
	good("rm", "--force", "counters")
}
