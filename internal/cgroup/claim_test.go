package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
)

// helperEnv makes this test's program one that claims a cgroup, says so, and holds it until its standard input ends.
const helperEnv = "BERTH_TEST_CLAIM"

func TestMain(m *testing.M) {
	if cgroup, ok := os.LookupEnv(helperEnv); ok {
		h, err := Host()
		if err == nil {
			var c *Claim
			if c, err = h.Claim(context.Background(), cgroup,
				false, Owner{PID: os.Getpid(), Root: "/other/root", Address: "/other/sock"}); err == nil {
				fmt.Println("claimed")
				_, _ = os.Stdin.Read(make([]byte, 1))
				err = c.Release(context.Background())
			}
		}
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// claimant is a process of its own that claims a cgroup.
type claimant struct {
	cmd  *exec.Cmd
	said string
	end  func() error // lets it give the claim back, and waits for it
}

func claims(t *testing.T, cgroup string, flags uintptr) *claimant {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+cgroup)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 4096)
	n, _ := out.Read(said)
	c := &claimant{cmd: cmd, said: strings.TrimSpace(string(said[:n]))}
	ended := false
	c.end = func() error {
		if ended {
			return nil
		}
		ended = true
		in.Close()
		return cmd.Wait()
	}
	t.Cleanup(func() { _ = c.end() })
	return c
}

// testRoot is a cgroup for a test, which must be gone at its end.
func testRoot(t *testing.T) (*Hierarchies, string) {
	t.Helper()
	h, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	root := fmt.Sprintf("/berth-test-claim-%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Cleanup(func() {
		if h.Exists(root) {
			t.Errorf("%s is left", root)
			if err := h.Remove(context.Background(), root); err != nil {
				t.Error(err)
			}
		}
	})
	return h, root
}

func claim(t *testing.T, h *Hierarchies, cgroup string) *Claim {
	t.Helper()
	c, err := h.Claim(t.Context(), cgroup, false, Owner{PID: os.Getpid(), Root: "/a/root", Address: "/a/sock"})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func release(t *testing.T, c *Claim) {
	t.Helper()
	if err := c.Release(context.Background()); err != nil {
		t.Error(err)
	}
}

// everyNamespace are those that a node of its own on one machine may have for itself.
const everyNamespace = syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS |
	syscall.CLONE_NEWIPC | syscall.CLONE_NEWCGROUP

// TestASecondClaimIsRefusedAndNamesTheFirst: from whatever namespaces it comes; and it has the cgroup when the first
// has given it back. It was seen to fail without the lock.
func TestASecondClaimIsRefusedAndNamesTheFirst(t *testing.T) {
	asroot.Need(t, "cgroups")
	h, root := testRoot(t)
	c := claim(t, h, root)
	for name, flags := range map[string]uintptr{"the same namespaces": 0, "namespaces of its own": everyNamespace} {
		other := claims(t, root, flags)
		for _, want := range []string{root, fmt.Sprintf("process %d", os.Getpid()), "root /a/root", "address /a/sock"} {
			if !strings.Contains(other.said, want) {
				t.Errorf("from %s: %q does not say %q", name, other.said, want)
			}
		}
		if inOther := strings.Contains(other.said, "of another PID namespace"); inOther != (flags != 0) {
			t.Errorf("from %s it says %q", name, other.said)
		}
		if other.end() == nil {
			t.Errorf("from %s the cgroup was claimed", name)
		}
	}
	_, err := h.Claim(t.Context(), root, false, Owner{PID: 1})
	var claimed *ClaimedError
	if !errors.As(err, &claimed) || !errors.Is(err, errdefs.ErrFailedPrecondition) || claimed.Owner.Root != "/a/root" {
		t.Errorf("got %v", err)
	}
	release(t, c)
	other := claims(t, root, everyNamespace)
	if other.said != "claimed" {
		t.Errorf("after the first: %q", other.said)
	}
	if err := other.end(); err != nil {
		t.Error(err)
	}
}

// TestThreeNodesOfOneMachineHaveACgroupEach: each in namespaces of its own.
func TestThreeNodesOfOneMachineHaveACgroupEach(t *testing.T) {
	asroot.Need(t, "cgroups")
	_, root := testRoot(t)
	var all []*claimant
	for i := range 3 {
		c := claims(t, fmt.Sprintf("%s-%d", root, i), everyNamespace)
		if c.said != "claimed" {
			t.Errorf("node %d: %q", i, c.said)
		}
		all = append(all, c)
	}
	for _, c := range all {
		if err := c.end(); err != nil {
			t.Error(err)
		}
	}
}

// TestAKilledOwnersClaimIsGone: at once, though what it left is there.
func TestAKilledOwnersClaimIsGone(t *testing.T) {
	asroot.Need(t, "cgroups")
	h, root := testRoot(t)
	first := claims(t, root, everyNamespace)
	if first.said != "claimed" {
		t.Fatal(first.said)
	}
	if err := first.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.end()
	if !h.Exists(path.Join(root, claimName)) {
		t.Error("a killed owner has left nothing: it proves nothing")
	}
	release(t, claim(t, h, root))
}

// TestAnOwnerWhoIsDownKeepsTheClaimForItsPods: however it ended, another node is refused and told whose pods these are,
// and the owner's own next start has it. Without pods, or where the mark of an owner is lost, anybody has it.
// It was seen to fail without the look at the mark, and with a mark that goes with its owner.
func TestAnOwnerWhoIsDownKeepsTheClaimForItsPods(t *testing.T) {
	asroot.Need(t, "cgroups")
	for how, end := range map[string]func(*claimant) error{
		"killed": func(c *claimant) error {
			err := c.cmd.Process.Kill()
			_ = c.end()
			return err
		},
		"ended": func(c *claimant) error { return c.end() },
	} {
		h, root := testRoot(t)
		pod := path.Join(root, strings.Repeat("a", 64))
		first := claims(t, root, 0)
		if err := h.Create(pod); err != nil {
			t.Fatal(err)
		}
		if err := end(first); err != nil {
			t.Fatal(err)
		}
		_, err := h.Claim(t.Context(), root, false, Owner{PID: os.Getpid(), Root: "/a/root", Address: "/a/sock"})
		var claimed *ClaimedError
		if !errors.As(err, &claimed) || claimed.Owner.Root != "/other/root" {
			t.Fatalf("%s: got %v", how, err)
		}
		for _, want := range []string{root, pod, "root /other/root", "address /other/sock"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q does not say %q", how, err, want)
			}
		}
		again := claims(t, root, 0)
		if again.said != "claimed" {
			t.Errorf("%s: its next start is told %q", how, again.said)
		}
		if err := end(again); err != nil {
			t.Error(err)
		}
		if err := h.Remove(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		c := claim(t, h, root)
		if err := h.Create(pod); err != nil {
			t.Fatal(err)
		}
		if err := unix.Fremovexattr(int(c.lock.Fd()), ownerXattr); err != nil {
			t.Fatal(err)
		}
		release(t, c)
		c = claim(t, h, root)
		if err := h.Remove(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		release(t, c)
	}
}

// TestAClaimAboveOrBelowIsRefused, but not one beside, one on the root of all, nor one in a pod's cgroup,
// where it is that pod's affair. It was seen to fail without the look at what is above and below.
func TestAClaimAboveOrBelowIsRefused(t *testing.T) {
	asroot.Need(t, "cgroups")
	h, root := testRoot(t)
	refused := func(cgroup, other string) {
		t.Helper()
		var claimed *ClaimedError
		if c, err := h.Claim(t.Context(), cgroup, false, Owner{}); err == nil {
			t.Errorf("%s was claimed", cgroup)
			release(t, c)
		} else if !errors.As(err, &claimed) || claimed.Other != other || !strings.Contains(err.Error(), "/a/root") ||
			!strings.Contains(err.Error(), other) {
			t.Errorf("%s: %v does not name %s", cgroup, err, other)
		}
	}
	top := claim(t, h, root)
	refused(root+"/x", root)
	refused(root+"/x/y/z", root)
	pod := root + "/" + strings.Repeat("a", 64) + "/" + strings.Repeat("b", 64) + "/berth"
	release(t, top)
	deep := claim(t, h, root+"/x/y")
	refused(root, root+"/x/y")
	refused(root+"/x", root+"/x/y")
	refused(root+"/x/y/z", root+"/x/y")
	beside := claim(t, h, root+"/x/z")
	release(t, beside)
	all := claim(t, h, "/")
	refused("/", "/")
	release(t, all)
	release(t, deep)
	inPod := claim(t, h, pod)
	top = claim(t, h, root)
	release(t, top)
	release(t, inPod)
	if err := h.Remove(t.Context(), root); err != nil {
		t.Fatal(err)
	}
}

// TestAClaimLeavesWhatIsInItsCgroup: pods live on when it is given back, and what they have is theirs.
func TestAClaimLeavesWhatIsInItsCgroup(t *testing.T) {
	asroot.Need(t, "cgroups")
	h, root := testRoot(t)
	c := claim(t, h, root)
	if err := h.Create(root + "/pod"); err != nil {
		t.Fatal(err)
	}
	release(t, c)
	if !h.Exists(root+"/pod") || h.Exists(path.Join(root, claimName)) {
		t.Errorf("the other cgroup is there: %v, the claim's: %v", h.Exists(root+"/pod"),
			h.Exists(path.Join(root, claimName)))
	}
	c = claim(t, h, root)
	if err := h.RemoveEmpty(t.Context(), root); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a cgroup with others in it: %v", err)
	}
	if err := h.Remove(t.Context(), root+"/pod"); err != nil {
		t.Fatal(err)
	}
	release(t, c)
	if err := h.RemoveEmpty(t.Context(), root); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if err := h.RemoveEmpty(t.Context(), "/x/.."); err == nil {
		t.Error("the root was removed")
	}
}

// TestNobodyButRootCanHoldAClaim: whoever can open a file can lock it, and a user of the node must not keep a berthd
// from starting. It was seen to fail with a directory of mode 0755.
func TestNobodyButRootCanHoldAClaim(t *testing.T) {
	asroot.Need(t, "cgroups")
	h, root := testRoot(t)
	c := claim(t, h, root)
	defer release(t, c)
	dir := c.dir(root)
	for _, mode := range []os.FileMode{0o700, 0o755} { // the second as somebody else may have made it
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := c.lock.Close(); err != nil {
			t.Fatal(err)
		}
		*c = *claim(t, h, root)
		cmd := exec.Command("flock", "--nonblock", "--shared", dir, "true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
		if out, err := cmd.CombinedOutput(); err == nil ||
			!strings.Contains(strings.ToLower(string(out)), "permission denied") {
			t.Errorf("a user of the node who locks it is told %q (%v)", out, err)
		}
		if _, err := os.ReadDir(filepath.Dir(dir)); err != nil {
			t.Error(err)
		}
	}
}

// TestOneOfManyHasTheClaim: claimants that come, go and are killed never have it at the same time, and the last leaves
// nothing.
func TestOneOfManyHasTheClaim(t *testing.T) {
	asroot.Need(t, "cgroups")
	_, root := testRoot(t)
	deadline := time.Now().Add(5 * time.Second)
	holding := filepath.Join(t.TempDir(), "holding")
	done := make(chan error)
	for range 6 {
		go func() {
			done <- func() error {
				h, err := Host()
				if err != nil {
					return err
				}
				for time.Now().Before(deadline) {
					c, err := h.Claim(context.Background(), root, false, Owner{PID: os.Getpid()})
					var claimed *ClaimedError
					if errors.As(err, &claimed) {
						continue
					}
					if err != nil {
						return err
					}
					if err := os.Mkdir(holding, 0o700); err != nil {
						return fmt.Errorf("two have it: %w", err)
					}
					time.Sleep(time.Millisecond)
					if err := os.Remove(holding); err != nil {
						return err
					}
					if err := c.Release(context.Background()); err != nil {
						return err
					}
				}
				return nil
			}()
		}()
	}
	for range 6 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestASliceIsClaimed: where systemd makes cgroups, the slice and the claim in it outlive all that runs in it,
// and go with the claim.
func TestASliceIsClaimed(t *testing.T) {
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		t.Skip("systemd is not the init of this machine")
	}
	h, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("berthtest%d.slice", os.Getpid())
	slice, err := Slice(name)
	if err != nil {
		t.Fatal(err)
	}
	take := func() (*Claim, error) {
		return h.Claim(t.Context(), slice, true, Owner{PID: os.Getpid(), Root: "/a/root", Address: "/a/sock"})
	}
	c, err := take()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if out, err := exec.Command("systemd-run", "--scope", "--quiet", "--slice="+name,
			"true").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if out, err := exec.Command("systemctl", "daemon-reload").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var claimed *ClaimedError
	if _, err := take(); !errors.As(err, &claimed) || claimed.Owner.Root != "/a/root" {
		t.Errorf("a second claim: %v", err)
	}
	if !stands(c.lock, c.dir(slice)) {
		t.Error("systemd has removed the claim")
	}
	release(t, c)
	if h.Exists(slice) {
		t.Errorf("%s is there after the claim", slice)
	}
	if out, _ := exec.Command("systemctl", "is-active", name).Output(); strings.TrimSpace(string(out)) == "active" {
		t.Errorf("%s is active after the claim", name)
	}
}

// Cgroups below a claimed one have processors and memory nodes at once: nobody has to write them, which the kernel
// compares with all cpusets of the node. Seen to fail without cloneCPUSets.
func TestCPUSetsBelowAClaimBeginFilled(t *testing.T) {
	asroot.Need(t, "cgroups")
	h, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	if h.Version == V2 || !h.Has("cpuset") {
		t.Skip("needs cpusets of cgroup v1")
	}
	name := fmt.Sprintf("/berth-test-cpuset-%d", os.Getpid())
	c, err := h.Claim(context.Background(), name, false, Owner{PID: os.Getpid(), Root: "/root", Address: "/sock"})
	if err != nil {
		t.Fatal(err)
	}
	top := h.Dir("cpuset", name)
	pod := filepath.Join(top, "pod")
	container := filepath.Join(pod, "container")
	defer func() {
		if err := errors.Join(unix.Rmdir(container), unix.Rmdir(pod), c.Release(context.Background())); err != nil {
			t.Error(err)
		}
	}()
	for _, dir := range []string{pod, container} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			want, err := os.ReadFile(filepath.Join(top, file))
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil || len(strings.TrimSpace(string(got))) == 0 || string(got) != string(want) {
				t.Errorf("%s of %s is %q, %v; want %q", file, dir, got, err, want)
			}
		}
	}
}

// TestACgroupThatAnotherHasClaimedStaysAsItIs. Seen to fail where the cpusets are set before the claim is made.
func TestACgroupThatAnotherHasClaimedStaysAsItIs(t *testing.T) {
	asroot.Need(t, "cgroups")
	h, err := Host()
	if err != nil {
		t.Fatal(err)
	}
	if h.Version == V2 || !h.Has("cpuset") {
		t.Skip("needs cpusets of cgroup v1")
	}
	name := fmt.Sprintf("/berth-test-claimed-%d", os.Getpid())
	c, err := h.Claim(context.Background(), name, false, Owner{PID: os.Getpid(), Root: "/root", Address: "/sock"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Release(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	file := filepath.Join(h.Dir("cpuset", name), "cgroup.clone_children")
	if err := os.WriteFile(file, []byte("0"), 0); err != nil { // as if its owner wanted it so
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := h.Claim(ctx, name, false, Owner{PID: 1, Root: "/other", Address: "/other"}); err == nil {
		t.Fatal("a second claim is made")
	}
	if got, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(got)) != "0" {
		t.Errorf("clone_children is %q, %v", got, err)
	}
}

// TestAnOtherLockOfTheFileSystemIsSeen: only where there is none the cgroups below are not searched for claims.
func TestAnOtherLockOfTheFileSystemIsSeen(t *testing.T) {
	asroot.Need(t, "a mount")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	lock := func(name string, how int) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if err := unix.Flock(int(f.Fd()), how); err != nil {
			t.Fatal(err)
		}
		return f
	}
	own := lock("own", unix.LOCK_EX)
	expect := func(when string, want bool) {
		t.Helper()
		only, err := onlyLock(own)
		if err != nil || only != want {
			t.Errorf("%s: the only lock: %v, want %v, error %v", when, only, want, err)
		}
	}
	var ns unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &ns); err != nil {
		t.Fatal(err)
	}
	first := ns.Ino == firstPIDNamespace // elsewhere the list may leave locks out, and says nothing
	expect("alone", first)
	other := lock("other", unix.LOCK_SH)
	expect("beside another", false)
	other.Close()
	expect("alone again", first)

	// The lock of a process that has ended, which its child holds.
	child := exec.Command("sh", "-c", "exec 9>\"$0\"; flock 9; sleep 1000 & echo $!", filepath.Join(dir, "child"))
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var holder int
	if _, err := fmt.Fscan(out, &holder); err != nil {
		t.Fatal(err)
	}
	out.Close()
	t.Cleanup(func() { _ = unix.Kill(holder, unix.SIGKILL) })
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	expect("beside the lock of a process that has ended", false)
}

func TestALockIsFoundInTheKernelsList(t *testing.T) {
	const own = "1: FLOCK  ADVISORY  WRITE 6481 00:1f:5351148 0 EOF\n"
	for _, c := range []struct {
		name, list string
		only       bool
	}{
		{"alone", own, true},
		{"beside those of other file systems", "1: FLOCK  ADVISORY  READ 1 fe:00:9773061 0 EOF\n" +
			"2: POSIX  ADVISORY  READ 1 00:1f:7 128 128\n3: OFDLCK ADVISORY  WRITE -1 00:1f:15 0 EOF\n" + own, true},
		{"somebody waits for it", own + "1: -> FLOCK  ADVISORY  WRITE 6482 00:1f:5351148 0 EOF\n", true},
		{"beside another", own + "2: FLOCK  ADVISORY  READ 6444 00:1f:9773061 0 EOF\n", false},
		{"another whose number begins as its own", own + "2: FLOCK  ADVISORY  READ 6444 00:1f:53511480 0 EOF\n", false},
		{"not listed", "1: FLOCK  ADVISORY  WRITE 6481 00:1e:5351148 0 EOF\n", false},
		{"an empty list", "", false},
	} {
		if got := soleLock([]byte(c.list), 0, 0x1f, 5351148); got != c.only {
			t.Errorf("%s: %v, want %v", c.name, got, c.only)
		}
	}
}
