package namespace

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/asroot"
	"berth/internal/model"
)

func TestASetOutlivesTheThreadThatMadeIt(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	s := Set{Dir: filepath.Join(t.TempDir(), "ns")}
	err := s.Create(Options{
		Kinds:    []Kind{Network, IPC, UTS},
		Hostname: "a-pod",
		Sysctls:  map[string]string{"net.ipv4.ip_unprivileged_port_start": "80", "kernel.shm_rmid_forced": "1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []Kind{Network, IPC, UTS} {
		if !s.Pinned(k) {
			t.Errorf("%s is not pinned", k)
		}
	}
	pinned, err := os.Stat(s.Path(Network))
	if err != nil {
		t.Fatal(err)
	}
	if os.SameFile(own, pinned) {
		t.Error("the pinned network namespace is our own")
	}
	err = Do(s.Path(Network), func() error {
		b, err := os.ReadFile("/proc/thread-self/net/dev")
		if err == nil && strings.Contains(string(b), "eth0") {
			t.Error("the host's eth0 is inside the pod's network namespace")
		}
		// /proc/sys/net follows the thread that reads.
		p, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start")
		if err == nil && strings.TrimSpace(string(p)) != "80" {
			t.Errorf("sysctl in the namespace: %q", p)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // idempotent
		if err := s.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("directory is still there: %v", err)
	}
}

// TestANetworkNamespaceIsPinnedElsewhere, and found by the link where the others are.
func TestANetworkNamespaceIsPinnedElsewhere(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	shared := filepath.Join(t.TempDir(), "netns")
	for range 2 { // the second time it is a mount already
		if err := Share(shared); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(shared, 0); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(shared, 0); err == nil {
			t.Error("it was mounted twice")
		}
	})
	s := Set{Dir: filepath.Join(t.TempDir(), "ns"), Network: filepath.Join(shared, "berth-1")}
	if err := os.Mkdir(s.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// What a reboot leaves of a pod with its namespaces in one place.
	if err := os.WriteFile(s.Path(Network), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if err := s.Create(Options{Kinds: []Kind{Network, IPC}}); err != nil {
		t.Fatal(err)
	}
	if got := s.Target(Network); got != s.Network {
		t.Errorf("the network namespace is at %s", got)
	}
	if got := s.Target(IPC); got != s.Path(IPC) {
		t.Errorf("the IPC namespace is at %s", got)
	}
	elsewhere := Set{Dir: shared}
	if !s.Pinned(Network) || !elsewhere.Pinned("berth-1") || !s.Pinned(IPC) {
		t.Error("a namespace is not pinned")
	}
	later := Set{Dir: s.Dir} // another configuration, by then
	for range 2 {
		if err := later.Remove(); err != nil {
			t.Fatal(err)
		}
	}
	if entries, err := os.ReadDir(shared); err != nil || len(entries) > 0 {
		t.Errorf("left are %v, %v", entries, err)
	}
}

// TestTheNetworkNamespaceStaysWhereItIsStillNeeded: the others go without it.
func TestTheNetworkNamespaceStaysWhereItIsStillNeeded(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	for name, elsewhere := range map[string]string{"beside them": "", "elsewhere": filepath.Join(t.TempDir(), "berth-p")} {
		t.Run(name, func(t *testing.T) {
			set := Set{Dir: filepath.Join(t.TempDir(), "ns"), Network: elsewhere}
			if err := set.Create(Options{Kinds: []Kind{Network, IPC, UTS}}); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := set.RemoveOthers(); err != nil {
					t.Error(err)
				}
			}
			if !set.Pinned(Network) || set.Pinned(IPC) || set.Pinned(UTS) {
				t.Errorf("pinned are the network: %v, IPC: %v, UTS: %v", set.Pinned(Network), set.Pinned(IPC), set.Pinned(UTS))
			}
			if err := set.Remove(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(set.Dir); set.Pinned(Network) || !errors.Is(err, os.ErrNotExist) {
				t.Errorf("after Remove the network is pinned: %v; the directory: %v", set.Pinned(Network), err)
			}
		})
	}
}

func TestADirectoryOnASharedMountIsShared(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	dir := t.TempDir()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(dir, "netns")
	if err := Share(shared); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(shared, 0); err == nil {
		t.Error("it is a mount of its own, so that each pin is mounted twice")
	}
}

func TestAFailedCreateLeavesNothing(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	s := Set{Dir: filepath.Join(t.TempDir(), "ns")}
	err := s.Create(Options{Kinds: []Kind{Network}, Sysctls: map[string]string{"net.no.such": "1"}})
	if err == nil || !strings.Contains(err.Error(), "net.no.such") {
		t.Fatalf("error %v does not name the sysctl", err)
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("directory is still there: %v", err)
	}
}

func TestPinnedSeesThroughAPlainFile(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	s := Set{Dir: t.TempDir()}
	if err := os.WriteFile(s.Path(IPC), nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if s.Pinned(IPC) {
		t.Error("a plain file counts as a pin")
	}
	if err := unix.Mount("/proc/self/ns/ipc", s.Path(IPC), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if !s.Pinned(IPC) {
		t.Error("a pin does not count")
	}
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
}

func TestSysctlPath(t *testing.T) {
	for in, want := range map[string]string{
		"net.ipv4.ip_forward":          "/net/ipv4/ip_forward",
		"net/ipv4/conf/eth0.1/rp":      "/net/ipv4/conf/eth0.1/rp",
		"net.ipv4.conf.eth0/1.rp":      "/net/ipv4/conf/eth0.1/rp",
		"../../etc/passwd":             "/.etc.passwd",  // below /proc/sys once joined to it
		"kernel/../../../etc/hostname": "/etc/hostname", // likewise
	} {
		if got := sysctlPath(in); got != want {
			t.Errorf("sysctlPath(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestSysctlsOfOneInterfaceAreForLater(t *testing.T) {
	beginning := map[string]string{
		"net.ipv4.ip_forward": "1", "net.ipv4.conf.all.rp_filter": "1", "net/ipv6/conf/default/accept_ra": "0",
		"net.ipv4.conf.lo.forwarding": "1", "kernel.shm_rmid_forced": "1", "net.netfilter.nf_conntrack_max": "1",
	}
	interfaces := map[string]string{
		"net.ipv4.conf.eth0.rp_filter": "2", "net/ipv6/neigh/eth0.1/retrans_time_ms": "3", "net.mpls.conf.net1.input": "1",
	}
	all := maps.Clone(beginning)
	maps.Copy(all, interfaces)
	given := maps.Clone(all)
	gotBeginning, gotInterfaces := SplitSysctls(given)
	if !maps.Equal(gotBeginning, beginning) || !maps.Equal(gotInterfaces, interfaces) || !maps.Equal(given, all) {
		t.Errorf("got %v and %v of %v", gotBeginning, gotInterfaces, given)
	}
	if _, none := SplitSysctls(beginning); none != nil {
		t.Errorf("got %v", none)
	}
}

const limitsTest = "BERTH_TEST_NAMESPACE_LIMITS"

// The limits are those of a user namespace of the test's own, in which it runs itself again.
func TestALimitOfNamespacesIsNotToldAsAFullDisk(t *testing.T) {
	asroot.Need(t, "namespaces")
	if os.Getenv(limitsTest) == "" {
		all := []syscall.SysProcIDMap{{Size: 1 << 16}}
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), limitsTest+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	for _, limit := range []string{"net", "user"} {
		if err := os.WriteFile("/proc/sys/user/max_"+limit+"_namespaces", []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
		o := Options{Kinds: []Kind{Network, UTS}}
		if limit == "user" {
			ids := []model.IDMapping{{HostID: 0, Length: 1 << 16}}
			o.User = &UserMappings{UIDs: ids, GIDs: ids}
		}
		err := Set{Dir: filepath.Join(t.TempDir(), "ns")}.Create(o)
		if !errdefs.IsResourceExhausted(err) || errors.Is(err, unix.ENOSPC) ||
			!strings.Contains(err.Error(), "user.max_"+limit+"_namespaces is 0") {
			t.Errorf("no %s namespace may be made: %v", limit, err)
		}
	}
}

// TestASysctlThatNobodyMayWriteIsRefused, and the error names it. It was seen to have no class.
func TestASysctlThatNobodyMayWriteIsRefused(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	ids := []model.IDMapping{{ContainerID: 0, HostID: 200000, Length: 65536}}
	for name, user := range map[string]*UserMappings{"the node's users": nil, "its own users": {UIDs: ids, GIDs: ids}} {
		t.Run(name, func(t *testing.T) {
			const readonly = "net.ipv4.tcp_available_congestion_control"
			err := Set{Dir: filepath.Join(t.TempDir(), "ns")}.Create(Options{
				Kinds: []Kind{Network}, User: user, Sysctls: map[string]string{readonly: "reno"},
			})
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), readonly) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestAUserNamespaceOwnsTheOthers: sysctls of each kind can be written, also those of IPC, which the kernel lets only
// the root of the owning user namespace write. They were seen to fail with "permission denied".
func TestAUserNamespaceOwnsTheOthers(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	s := Set{Dir: filepath.Join(t.TempDir(), "ns")}
	ids := []model.IDMapping{{ContainerID: 0, HostID: 200000, Length: 65536}}
	err := s.Create(Options{
		Kinds:    []Kind{Network, IPC, UTS},
		User:     &UserMappings{UIDs: ids, GIDs: ids},
		Hostname: "a-pod",
		Sysctls: map[string]string{
			"net.ipv4.ip_unprivileged_port_start": "80",
			"kernel.domainname":                   "a-domain",
			"kernel.shm_rmid_forced":              "1",
			"kernel.sem":                          "100 2000 50 60",
			"fs.mqueue.msg_max":                   "20",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.Stat(s.Path(User))
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []Kind{Network, IPC, UTS} {
		f, err := os.Open(s.Path(k))
		if err != nil {
			t.Fatal(err)
		}
		owner, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		o := os.NewFile(uintptr(owner), "owner")
		if info, err := o.Stat(); err != nil || !os.SameFile(info, user) {
			t.Errorf("%s belongs to another user namespace (%v)", k, err)
		}
		o.Close()
	}
	if err := s.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
		t.Errorf("directory is still there: %v", err)
	}
}
