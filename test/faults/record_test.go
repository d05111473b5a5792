package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// flip changes one byte of a file, at the given part of its length.
func flip(t *testing.T, path string, part float64) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) == 0 {
		return
	}
	data[min(int(part*float64(len(data))), len(data)-1)] ^= 0x20
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// rewrite changes the text of a file.
func rewrite(t *testing.T, path string, change func(string) string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	next := change(string(data))
	if next == string(data) {
		t.Fatalf("%s has changed: %s", path, data)
	}
	if err := os.WriteFile(path, []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
}

func replace(old, by string) func(string) string {
	return func(s string) string { return strings.Replace(s, old, by, 1) }
}

var seal = regexp.MustCompile(`,"_format":[0-9]+(,"_copy":true)?,"_sum":"[0-9a-f]+"}$`)

// unseal makes a record what a berthd wrote that put no seals on records.
func unseal(record string) string { return seal.ReplaceAllString(record, "}") }

func podRecord(n *node.Node, p *nodetest.Pod) string {
	return filepath.Join(n.Root, "pods", p.ID, "pod.json")
}

func containerRecord(n *node.Node, c *nodetest.Container) string {
	return filepath.Join(n.Root, "containers", c.ID, "container.json")
}

// said is how long the log is, for logged.
func said(t *testing.T, n *node.Node) int {
	t.Helper()
	info, err := os.Stat(n.DaemonLog)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

// logged checks that the log says something since it had a length.
func logged(t *testing.T, n *node.Node, since int, texts ...string) {
	t.Helper()
	data, err := os.ReadFile(n.DaemonLog)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		if !strings.Contains(string(data[since:]), text) {
			t.Errorf("the log does not say %q:\n%s", text, n.LogTail())
		}
	}
}

// TestASpoiltRecordCostsARunningPodNothing: one byte of the newest version of a record is another while berthd is down.
// It was seen to fail without the checksum, and, for an older version, without what adoptOlderSandbox
// and adoptOlderContainer do.
func TestASpoiltRecordCostsARunningPodNothing(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	created := p.Create(nodetest.Sh("echo created before"))
	ended := p.Run(nodetest.Sh("exit 7"))
	ended.WaitExit()
	ip := p.Status().Network.Ip
	pod := podRecord(n, p)
	container := func(c *nodetest.Container) string { return containerRecord(n, c) }
	// older makes the second file of a record a version from before its last change.
	older := func(path, phase string, drop ...string) {
		rewrite(t, path+".spare", func(record string) string {
			record = unseal(record)
			record = regexp.MustCompile(`"phase":"[a-z]+"`).ReplaceAllString(record, `"phase":"`+phase+`"`)
			for _, field := range drop {
				record = regexp.MustCompile(`,"`+field+`":(\[[^\]]*\]|"[^"]*"|[0-9]+|true)`).ReplaceAllString(record, "")
			}
			return record
		})
	}
	beingMade := func() { older(pod, "creating", "ips", "interface", "sharedTmpfs", "reaperPID"); flip(t, pod, 0.5) }
	for _, damage := range []struct {
		name  string
		spoil func()
	}{
		{"the first byte of the pod's", func() { flip(t, pod, 0) }},
		{"the pod's phase", func() { rewrite(t, pod, replace(`"phase":"ready"`, `"phase":"seady"`)) }},
		{"the pod's address", func() { rewrite(t, pod, replace(`"`+ip+`"`, `"0`+ip[1:]+`"`)) }},
		{"the phase of a running one", func() {
			rewrite(t, container(w.Container), replace(`"phase":"running"`, `"phase":"sunning"`))
		}},
		{"the middle of the pod's", func() { flip(t, pod, 0.5) }},
		{"the end of the pod's", func() { flip(t, pod, 1) }},
		{"the middle of a running one's", func() { flip(t, container(w.Container), 0.5) }},
		{"the middle of a created one's", func() { flip(t, container(created), 0.5) }},
		{"the middle of an ended one's", func() { flip(t, container(ended), 0.5) }},
		{"the pod's, and it was being made", beingMade},
		{"a running one's, which was made", func() {
			older(container(w.Container), "created", "pid")
			flip(t, container(w.Container), 0.5)
		}},
		{"a running one's, being made", func() {
			older(container(w.Container), "creating", "pid")
			flip(t, container(w.Container), 0.5)
		}},
		{"the pod's, which is deleted", func() { os.Remove(pod) }},
		{"a running one's, which is deleted", func() { os.Remove(container(w.Container)) }},
		{"the pod's, cut off", func() { os.Truncate(pod, 100) }},
		{"the second file of the pod's", func() { flip(t, pod+".spare", 0.5) }},
	} {
		t.Run(damage.name, func(t *testing.T) {
			if err := n.Kill(); err != nil {
				t.Fatal(err)
			}
			before := said(t, n)
			damage.spoil()
			if err := n.Restart(nodetest.Context(t)); err != nil {
				t.Fatal(err)
			}
			w.check(t)
			if s := p.Status(); s.State != cri.PodSandboxState_SANDBOX_READY || s.Network.Ip != ip {
				t.Errorf("the pod is %v at %q, and had %q", s.State, s.Network.GetIp(), ip)
			}
			if s := created.Status(); s.State != cri.ContainerState_CONTAINER_CREATED {
				t.Errorf("the container that is created is %v", s.State)
			}
			if s := ended.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != 7 {
				t.Errorf("the container that has ended is %v, with %d", s.State, s.ExitCode)
			}
			if !strings.Contains(damage.name, "second") {
				logged(t, n, before, "the newest version of a record is spoilt")
			}
			// Both files are whole again.
			if fresh := p.Run(nodetest.Sh("echo fresh")); fresh.WaitExit().ExitCode != 0 {
				t.Error("no container runs in the pod any more")
			}
		})
	}
	created.Start()
	if s := created.WaitExit(); s.ExitCode != 0 || created.Stdout() != "created before\n" {
		t.Errorf("the container that was created: %d, %q", s.ExitCode, created.Log())
	}
	nothingLeft(t, n)
}

// TestWhatHasNoRecordIsEndedAndSaidSo: both versions of a pod's record are spoilt. The pod cannot be told of,
// and ends with an error in the log; another goes on, and berthd becomes ready. It was seen to fail with a warning
// that names no process.
func TestWhatHasNoRecordIsEndedAndSaidSo(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	w := newWitness(t, nodetest.RunPod(t, n))
	// one that a client names is the client's
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Linux.CgroupParent = "" })
	c := p.Run(nodetest.Sh("echo precious >/file; sleep 1000"))
	alone := nodetest.RunPod(t, n).Run()
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{podRecord(n, p), containerRecord(n, alone)} {
		flip(t, path, 0.5)
		flip(t, path+".spare", 0.5)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	list, err := n.Runtime.ListContainers(nodetest.Context(t), &cri.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Containers) != 1 || list.Containers[0].Id != w.ID {
		t.Errorf("containers: %v", list.Containers)
	}
	for _, id := range []string{c.ID, alone.ID} {
		if pid, err := n.ContainerPID(id); err == nil {
			t.Errorf("process %d runs without a record", pid)
		}
	}
	logged(t, n, 0, "end what runs without a record", c.ID, alone.ID, p.ID)
	kept, err := os.ReadFile(filepath.Join(n.Root, "spoilt", "containers-"+c.ID, "upper", "file"))
	if err != nil || string(kept) != "precious\n" {
		t.Errorf("what it had written: %q, %v", kept, err)
	}
	if err := os.RemoveAll(filepath.Join(n.Root, "spoilt")); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, n)
}

// TestWhatTheKeeperHasLostIsNotToldAsEndedWhileItLives: berthd and the keeper are killed, and with them all that was in
// escrow. One file of a record is spoilt: the container runs on. Both are: what runs of it is ended, with an error in
// the log, before it is told as ended with 255; one whose end berthd knew keeps its code. It was seen to fail with
// neither endLost nor endUnlisted, where nothing said what was ended.
func TestWhatTheKeeperHasLostIsNotToldAsEndedWhileItLives(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	kept, lost, ended := p.Run(), p.Run(), p.Run(nodetest.Sh("exit 7"))
	ended.WaitExit()
	pids := map[*nodetest.Container]int{}
	for _, c := range []*nodetest.Container{kept, lost} {
		pid, err := n.ContainerPID(c.ID)
		if err != nil {
			t.Fatal(err)
		}
		pids[c] = pid
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	recordOf := func(c *nodetest.Container) string { return filepath.Join(n.State, "keeper", "rows", c.ID+".json") }
	flip(t, recordOf(kept), 0.5)
	flip(t, recordOf(lost), 0.5)
	flip(t, recordOf(lost)+".spare", 0.5)
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if s := kept.Status(); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("one with a whole record is %v: %s", s.State, s.Message)
	}
	if err := syscall.Kill(pids[kept], 0); err != nil {
		t.Errorf("its process: %v", err)
	}
	if got := kept.Sh("echo well"); got != "well" {
		t.Errorf("an exec in it says %q", got)
	}
	if s := lost.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != 255 {
		t.Errorf("one without a record is %v with %d", s.State, s.ExitCode)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pids[lost]))
	if err == nil && !strings.Contains(string(stat), ") Z ") { // what the dead keeper was to reap may take a moment
		t.Errorf("it is told as ended, and its process runs: %s", stat)
	}
	// Whichever of the two came to it first.
	told := ""
	for _, path := range []string{n.DaemonLog, filepath.Join(n.State, "keeper", "keeper.log")} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		told += string(data)
	}
	if !strings.Contains(told, "end what runs of a container that the keeper does not know") &&
		!strings.Contains(told, "a container whose record is lost is ended") {
		t.Errorf("no log says what was ended:\n%s", n.LogTail())
	}
	if s := ended.Status(); s.State != cri.ContainerState_CONTAINER_EXITED || s.ExitCode != 7 {
		t.Errorf("one that had ended is %v with %d", s.State, s.ExitCode)
	}
	nothingLeft(t, n)
}

// TestARemovalThatWaitsDoesNotKeepTheDaemonDown: the record of a pod says that it is being removed, and its container
// runs. It was seen to fail where the start of berthd waited for the container's end, of which nobody told it.
func TestARemovalThatWaitsDoesNotKeepTheDaemonDown(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	w := newWitness(t, nodetest.RunPod(t, n))
	p := nodetest.RunPod(t, n)
	p.Run(nodetest.Sh("trap '' TERM; while :; do sleep 1; done"))
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	rewrite(t, podRecord(n, p), func(record string) string {
		return strings.Replace(unseal(record), `"phase":"ready"`, `"phase":"removing"`, 1)
	})
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	nodetest.Eventually(t, node.Patience(time.Minute), "the removal comes to its end", func() error {
		list, err := n.Runtime.ListPodSandbox(nodetest.Context(t),
			&cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{Id: p.ID}})
		if err == nil && len(list.Items) > 0 {
			err = errors.New("the pod is still there")
		}
		return err
	})
	nothingLeft(t, n)
}

// futureDaemon is a berthd that writes records of a version that this one does not know.
func futureDaemon(t *testing.T) string {
	t.Helper()
	root, err := node.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	ours, err := node.Binaries(nodetest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"berth-keeper", "berth-unpack", "berth"} {
		if err := os.Symlink(filepath.Join(ours, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(nodetest.Building(t), "go", "build", "-buildvcs=false", "-tags", "seccomp",
		"-ldflags", "-s -w -X main.version=future -X berth/internal/state.format=2",
		"-o", filepath.Join(dir, "berthd"), "./cmd/berthd")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build a berthd of the future: %v\n%s", err, out)
	}
	return dir
}

// TestPodsRunOnOverAnUpgradeAndADowngrade of the format of records: a newer berthd reads those of this one,
// and those from before records had a version; this one says which file it does not understand, and touches nothing;
// and the newer one goes on. It was seen to fail with versions not compared.
func TestPodsRunOnOverAnUpgradeAndADowngrade(t *testing.T) {
	future := futureDaemon(t)
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	// One record of each kind as it was before there were versions.
	for _, path := range []string{podRecord(n, p), containerRecord(n, w.Container)} {
		rewrite(t, path, unseal)
		if err := os.Remove(path + ".spare"); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	w.check(t)

	ours := n.Programs()
	n.SetPrograms(future)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	w.check(t)
	newer := newWitness(t, p)
	other := nodetest.RunPod(t, n)
	second := newWitness(t, other)

	n.SetPrograms(ours)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err == nil {
		t.Fatal("an older berthd serves pods whose records it does not know")
	}
	logged(t, n, 0,
		"has version 2 of the format of records, which a newer berthd has written; this one knows versions up to 1", n.Root)
	for _, c := range []*witness{w, newer, second} {
		before := c.lines(t)
		nodetest.Eventually(t, 10*time.Second, "the log goes on", func() error {
			if c.lines(t) <= before {
				return errors.New("it does not")
			}
			return nil
		})
	}

	n.SetPrograms(future)
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*witness{w, newer, second} {
		c.check(t)
	}
	nothingLeft(t, n)
}

// TestASpoiltDatabaseOfImagesCostsNothing: berthd becomes ready, containers run on, and the image is there.
// It was seen to fail without the check, where bbolt's panic ended each start.
func TestASpoiltDatabaseOfImagesCostsNothing(t *testing.T) {
	n := nodetest.Start(t, node.Options{})
	p := nodetest.RunPod(t, n)
	w := newWitness(t, p)
	images := func() string {
		list, err := n.Images.ListImages(nodetest.Context(t), &cri.ListImagesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return list.String()
	}
	want := images()
	path := filepath.Join(n.Root, "images", "images.db")
	for _, damage := range []struct {
		name  string
		spoil func(whole []byte) []byte
	}{
		{"the kinds of all pages are others", func(whole []byte) []byte {
			for at := 2 * os.Getpagesize(); at < len(whole); at += os.Getpagesize() {
				whole[at+8] ^= 0x40
			}
			return whole
		}},
		{"it is cut off", func(whole []byte) []byte { return whole[:100] }},
		{"it is emptied", func([]byte) []byte { return nil }},
		{"it is deleted", nil},
	} {
		t.Run(damage.name, func(t *testing.T) {
			if err := n.Kill(); err != nil {
				t.Fatal(err)
			}
			whole, err := os.ReadFile(path)
			if err == nil && damage.spoil == nil {
				err = os.Remove(path)
			} else if err == nil {
				err = os.WriteFile(path, damage.spoil(whole), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			before := said(t, n)
			if err := n.Restart(nodetest.Context(t)); err != nil {
				t.Fatal(err)
			}
			logged(t, n, before, "made anew of what is beside the layers", "has been made anew")
			w.check(t)
			if got := images(); got != want {
				t.Errorf("images are %s, and were %s", got, want)
			}
			if c := p.Run(nodetest.Sh("exit 3")); c.WaitExit().ExitCode != 3 {
				t.Error("no container runs of the image any more")
			}
		})
	}
	nothingLeft(t, n)
}
