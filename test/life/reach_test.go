package life

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/quota/quotatest"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// stranger is a user of the node who has nothing to do with Berth.
const stranger = 54321

// as makes a command, which is busybox or a copy of it, run as a user of the node without groups or capabilities.
func as(id uint32, command ...string) *exec.Cmd {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Args[0], cmd.Dir = "busybox", "/" // the name that a copy of busybox under another one must be called by
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: id, Gid: id}}
	return cmd
}

// everything lists all that is in a node's root and state, mounts included, as the node's root sees it, and which of it
// are setuid programs. What stands on a mount of the kernel's own, such as the pin of a namespace, is not looked into.
func everything(t *testing.T, n *node.Node) (paths, setuid []string) {
	t.Helper()
	for _, top := range []string{n.Root, n.State} {
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				if os.IsNotExist(err) {
					return nil
				}
				return err
			}
			if strings.Contains(path, "\n") {
				return nil
			}
			paths = append(paths, path)
			if info, err := entry.Info(); err == nil && info.Mode()&os.ModeSetuid != 0 && info.Mode().IsRegular() {
				setuid = append(setuid, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return paths, setuid
}

// reached are those of the paths that a user of the node gets to, who knows the names of all of them.
func reached(t *testing.T, id uint32, paths []string) []string {
	t.Helper()
	// Through a busybox that this user may execute: the test's own program lies where only root goes.
	cmd := as(id,
		"busybox", "sh", "-c", `while IFS= read -r p; do if [ -e "$p" ] || [ -L "$p" ]; then echo "$p"; fi; done`)
	cmd.Stdin = strings.NewReader(strings.Join(paths, "\n") + "\n")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("look as %d: %v: %s", id, err, &stderr)
	}
	return strings.Fields(string(out))
}

// found is what a user of the node finds who looks below a directory.
func found(t *testing.T, id uint32, dir string) []string {
	t.Helper()
	out, _ := as(id, "busybox", "find", dir, "-mindepth", "1").Output() // what it may not list is an error
	return strings.Fields(string(out))
}

// setuidPrograms has a container make setuid programs of the node's root everywhere that it can write.
func setuidPrograms(c *nodetest.Container) {
	c.Sh(`umask 0; for f in /setuid /volume/setuid /dev/shm/setuid /etc/hosts /etc/resolv.conf /etc/hostname; do
		cat /bin/busybox >$f && chmod 6755 $f || exit 1; done; chmod 777 / /volume`)
}

// reachable is a node whose root is on a file system of a kind, and to whose directories everybody may go.
func reachable(t *testing.T, kind string) *node.Node {
	t.Helper()
	var o node.Options
	switch kind {
	case "ext4":
		o.Root = filepath.Join(quotatest.Mount(t, kind, "defaults"), "root")
	case "tmpfs":
		at := t.TempDir()
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=755,size=512m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(at, 0); err != nil {
				t.Error(err)
				_ = unix.Unmount(at, unix.MNT_DETACH)
			}
		})
		o.Root = filepath.Join(at, "root")
	}
	// Go makes temporary directories for their owner alone, and nobody may be kept out by those.
	for dir := filepath.Dir(o.Root); o.Root != "" && dir != filepath.Clean(os.TempDir()) &&
		dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n := nodetest.Start(t, o)
	if got := reached(t, stranger, []string{n.Root, n.State}); len(got) != 2 {
		t.Fatalf("a user of the node gets to %q of its directories: whatever is below them proves nothing", got)
	}
	return n
}

// TestNoUserOfTheNodeReachesAFileOfAContainer: containers make setuid programs wherever they can, and a user
// of the node who knows the name of each gets to none (CVE-2021-41103). It was seen to fail with root, containers
// and containers/ID made 0711 as before, and with the directory of a pod below state made 0711, with a user namespace
// or without.
func TestNoUserOfTheNodeReachesAFileOfAContainer(t *testing.T) {
	nodetest.NodeMounts(t)
	nodetest.BerthOnly(t, "its directories differ")
	for _, kind := range []string{"as the machine has it", "ext4", "tmpfs"} {
		t.Run(kind, func(t *testing.T) {
			n := reachable(t, kind)
			withVolumes := volumeImage(t, n)
			nodetest.Pull(t, n, node.Busybox)
			plain := nodetest.RunPod(t, n)
			shared := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD}))
			ofNode := nodetest.RunPod(t, n, podNamespaces(&cri.NamespaceOption{
				Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER, Ipc: cri.NamespaceMode_CONTAINER}))
			mapped := nodetest.RunPod(t, n,
				podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD, UsernsOptions: userNamespace(200000, 65536)}))
			for _, p := range []*nodetest.Pod{plain, shared, ofNode, mapped} {
				c := p.Run(withVolumes,
					nodetest.Mounts(&cri.Mount{ContainerPath: "/image", Image: &cri.ImageSpec{Image: node.Busybox}, Readonly: true}))
				c.Sh("mkdir -p /volume; ! touch /image/new 2>/dev/null")
				setuidPrograms(c)
				c.Sh("cat /bin/busybox >/data/setuid && chmod 4755 /data/setuid")
				p.Create(withVolumes) // one that is not started has a root file system, too
			}
			if n.Handlers["runc"] != "" {
				c := nodetest.RunPodHandler(t, n, "runc").Run()
				c.Sh("mkdir -p /volume")
				setuidPrograms(c)
			}
			paths, setuid := everything(t, n)
			for _, part := range []string{"/rootfs/", "/upper/", "/volumes/", "/etc/hostname", "/shm/", "/image-"} {
				if part != "/image-" && !slices.ContainsFunc(setuid, func(p string) bool { return strings.Contains(p, part) }) ||
					!slices.ContainsFunc(paths, func(p string) bool { return strings.Contains(p, part) }) {
					t.Errorf("no setuid program has %s in its path: there is nothing to defend", part)
				}
			}
			debug := filepath.Join(n.State, "debug.sock")
			if info, err := os.Stat(debug); err != nil || info.Mode().Perm() != 0o600 || info.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("%s is not root's alone: %v, %v", debug, info, err)
			}
			allowed := map[string]bool{
				debug: true, n.Root: true, n.State: true,
				filepath.Join(n.State, "pods"): true, filepath.Join(n.State, "keeper"): true,
				filepath.Join(n.State, "id"): true,
			}
			for _, p := range []*nodetest.Pod{plain, shared, ofNode, mapped} {
				allowed[filepath.Join(n.State, "pods", p.ID)] = true
			}
			list, err := n.Runtime.ListPodSandbox(nodetest.Context(t), &cri.ListPodSandboxRequest{})
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range list.Items {
				allowed[filepath.Join(n.State, "pods", p.Id)] = true
			}
			for _, id := range nobodys(t, n) {
				allowed[filepath.Join(n.State, "pods", id)] = true
			}
			for _, p := range reached(t, stranger, paths) {
				if !allowed[p] {
					t.Errorf("a user of the node gets to %s", p)
				}
			}
			for _, p := range setuid {
				if out, err := as(stranger, p, "id", "-u").CombinedOutput(); err == nil {
					t.Errorf("a user of the node runs %s and is %s", p, out)
				}
			}
			for _, dir := range []string{n.Root, n.State} {
				if names := found(t, stranger, dir); len(names) > 0 {
					t.Errorf("a user of the node finds %q", names)
				}
			}
		})
	}
}

// TestAUserNamespaceReachesNoOtherPod: whoever has the IDs of a pod's user namespace, as its processes
// have on the node, gets to nothing of another pod, and cannot find out what there is of its own. It was seen to fail
// with the pod's directory made 0711.
func TestAUserNamespaceReachesNoOtherPod(t *testing.T) {
	nodetest.BerthOnly(t, "its directories differ")
	n := reachable(t, "as the machine has it")
	pod := func(host uint32) *nodetest.Pod {
		p := nodetest.RunPod(t, n,
			podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD, UsernsOptions: userNamespace(host, 65536)}))
		c := p.Run()
		c.Sh("mkdir /volume")
		setuidPrograms(c)
		return p
	}
	one, two := pod(200000), pod(300000)
	paths, _ := everything(t, n)
	for host, own := range map[uint32]*nodetest.Pod{200000: one, 300000: two} {
		dir := filepath.Join(n.State, "pods", own.ID)
		passed := false
		for _, p := range reached(t, host, paths) {
			switch {
			case p == filepath.Join(dir, "rootfs"):
				passed = true
			case strings.HasPrefix(p, dir+"/") || p == n.Root || p == n.State || filepath.Dir(p) == n.State ||
				filepath.Dir(p) == filepath.Join(n.State, "pods"):
			default:
				t.Errorf("user %d gets to %s", host, p)
			}
		}
		if !passed {
			t.Errorf("user %d, the root of the pod's containers, does not get to their root file systems in %s", host, dir)
		}
		if names := found(t, host, filepath.Join(n.State, "pods")); len(names) > 0 {
			t.Errorf("user %d finds %q", host, names)
		}
	}
}

// TestAContainersRootIsNoWayToItsSetuidPrograms: /proc/PID/root of a container's process is closed to users
// of the node, and to the one whom the process runs as, who may enter it, a setuid program behind it gives nothing.
// This is the kernel's doing.
func TestAContainersRootIsNoWayToItsSetuidPrograms(t *testing.T) {
	nodetest.BerthOnly(t, "it says nothing of the runtime")
	n := nodetest.Shared(t)
	p := nodetest.RunPod(t, n)
	c := p.Run()
	c.Sh("mkdir /volume")
	setuidPrograms(c)
	if out, err := as(stranger, "busybox", "ls", fmt.Sprintf("/proc/%d/root/", hostPID(t, c))).
		CombinedOutput(); err == nil {
		t.Errorf("a user of the node sees a container's root: %s", out)
	}
	same := p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) {
		s.RunAsUser, s.RunAsGroup = &cri.Int64Value{Value: stranger}, &cri.Int64Value{Value: stranger}
	}))
	program := fmt.Sprintf("/proc/%d/root/who", hostPID(t, same))
	compile := exec.Command("gcc", "-static", "-x", "c", "-o", program, "-") // busybox gives up what it gains
	compile.Stdin = strings.NewReader(
		"#include <stdio.h>\n#include <unistd.h>\nint main(void) { printf(\"%d\\n\", geteuid()); }\n")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chmod(program, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	out, err := as(stranger, program).CombinedOutput()
	if got := strings.TrimSpace(string(out)); err != nil || got != fmt.Sprint(stranger) {
		t.Errorf("through /proc/PID/root a setuid program of a container runs as %q (%v)", got, err)
	}
	if got := same.Sh("/who"); got != "0" {
		t.Errorf("in the container it runs as %q: it is no setuid program", got)
	}
}

// TestDirectoriesOfAnEarlierVersionAreClosed: what that let users of the node pass is for root alone after the next
// start, and pods go on, those with a user namespace and containers that had not been started included. It was seen
// to fail without the correction of the modes, without state being opened, and with the path of the root file system
// that the specification has.
func TestDirectoriesOfAnEarlierVersionAreClosed(t *testing.T) {
	nodetest.NodeMounts(t)
	nodetest.BerthOnly(t, "its directories differ")
	n := reachable(t, "as the machine has it")
	plain := nodetest.RunPod(t, n)
	mapped := nodetest.RunPod(t, n,
		podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD, UsernsOptions: userNamespace(200000, 65536)}))
	var running, created []*nodetest.Container
	for _, p := range []*nodetest.Pod{plain, mapped} {
		running, created = append(running, p.Run()), append(created, p.Create())
	}
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	modes := map[string]os.FileMode{n.Root: 0o700, n.State: 0o711, filepath.Join(n.State, "pods"): 0o711}
	for _, dir := range []string{"containers", "pods", "trash"} {
		modes[filepath.Join(n.Root, dir)] = 0o700
	}
	for _, c := range append(slices.Clone(running), created...) {
		modes[filepath.Join(n.Root, "containers", c.ID)] = 0o700
	}
	for p, mode := range map[*nodetest.Pod]os.FileMode{plain: 0o700, mapped: 0o710} {
		modes[filepath.Join(n.Root, "pods", p.ID)] = 0o700
		modes[filepath.Join(n.State, "pods", p.ID)] = mode
	}
	for dir := range modes {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(n.State, 0o700); err != nil { // as a keeper that comes first would make it
		t.Fatal(err)
	}
	// Where that version mounted the root file system of a container in a user namespace.
	earlier := filepath.Join(n.Root, "containers", created[1].ID, "rootfs")
	if err := os.MkdirAll(earlier, 0o755); err != nil {
		t.Fatal(err)
	}
	now := filepath.Join(n.State, "pods", mapped.ID, "rootfs", created[1].ID)
	if err := unix.Mount(now, earlier, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(now, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	spec := filepath.Join(n.Root, "containers", created[1].ID, "spec.json")
	data, err := os.ReadFile(spec)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(now)) {
		t.Fatalf("the specification does not have %s", now)
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(bytes.ReplaceAll(data, []byte(now), []byte(earlier)), &members); err != nil {
		t.Fatal(err)
	}
	for _, seal := range []string{"_format", "_copy", "_sum"} { // that version had none
		delete(members, seal)
	}
	if data, err = json.Marshal(members); err == nil {
		err = os.WriteFile(spec, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	for dir, want := range modes {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v in place of %v (%v)", dir, info.Mode().Perm(), want, err)
		}
	}
	for _, c := range created {
		c.Start()
	}
	for _, c := range append(running, created...) {
		if got := c.Sh("echo goes on"); got != "goes on" {
			t.Errorf("%s: %q", c.ID, got)
		}
	}
}

// TestAGroupReachesTheSocketAndNothingElse: a member of socket_group speaks to the CRI where the directory
// of the socket was not there before Berth, and a pod with a user namespace and a shared PID namespace runs there.
func TestAGroupReachesTheSocketAndNothingElse(t *testing.T) {
	nodetest.NodeMounts(t)
	nodetest.BerthOnly(t, "its directories differ")
	const group = 54322
	n := nodetest.Start(t, node.Options{Config: fmt.Sprintf("socket_group = \"%d\"\n", group)})
	ctx := nodetest.Context(t)
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.KillKeeper(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(n.State); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	p := nodetest.RunPod(t, n,
		podNamespaces(&cri.NamespaceOption{Pid: cri.NamespaceMode_POD, UsernsOptions: userNamespace(200000, 65536)}))
	if got := p.Run().Sh("id -u"); got != "0" {
		t.Errorf("in its container: %q", got)
	}
	for dir, want := range map[string]os.FileMode{n.State: 0o711, filepath.Join(n.State, "keeper"): 0o700} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v in place of %v (%v)", dir, info.Mode().Perm(), want, err)
		}
	}
	// The socket lies where a member gets to it: with the default configuration in state itself.
	member := func(command ...string) *exec.Cmd {
		cmd := as(stranger, command...)
		cmd.SysProcAttr.Credential.Groups = []uint32{group}
		return cmd
	}
	if out, err := member("busybox", "test", "-w", n.Socket).CombinedOutput(); err != nil {
		t.Errorf("a member of the group may not use %s: %v: %s", n.Socket, err, out)
	}
	if err := as(stranger, "busybox", "test", "-w", n.Socket).Run(); err == nil {
		t.Error("whoever is no member may use the socket")
	}
	paths, _ := everything(t, n)
	cmd := member("busybox", "sh", "-c", `while IFS= read -r p; do [ ! -e "$p" ] || echo "$p"; done`)
	cmd.Stdin = strings.NewReader(strings.Join(paths, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range strings.Fields(string(out)) {
		if path != n.Root && path != n.State && filepath.Dir(path) != n.State &&
			filepath.Dir(path) != filepath.Join(n.State, "pods") {
			t.Errorf("a member of the group gets to %s", path)
		}
	}
}
