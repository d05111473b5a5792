package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// plants are differences that a command makes, with what is said of them, and how they are undone. NAME stands
// for a name that nothing else has, PLACE for a directory of the test's, CGROUP for one of the machine's hierarchies.
var plants = []struct{ what, before, command, says, after string }{
	{"a device's owner", "mknod /dev/NAME c 1 3", "chown 200000:200001 /dev/NAME",
		"device /dev/NAME was character device 1:3, 644 of 0:0 and is character device 1:3, 644 of 200000:200001",
		"rm -f /dev/NAME"},
	{"a device's mode", "mknod /dev/NAME c 1 3", "chmod 0 /dev/NAME",
		"device /dev/NAME was character device 1:3, 644 of 0:0 and is character device 1:3, 0 of 0:0", "rm -f /dev/NAME"},
	{"a device's number", "mknod /dev/NAME c 1 3", "rm /dev/NAME; mknod /dev/NAME c 1 5", "and is character device 1:5",
		"rm -f /dev/NAME"},
	{"a device", "", "mknod /dev/NAME c 1 3", "device /dev/NAME was not there: character device 1:3", "rm -f /dev/NAME"},
	{"a sysctl", "", "echo 7 >/proc/sys/net/core/optmem_max", `sysctl net/core/optmem_max was "`, ""},
	{"forwarding", "echo 0 >/proc/sys/net/ipv4/ip_forward", "echo 1 >/proc/sys/net/ipv4/ip_forward",
		`sysctl net/ipv4/ip_forward was "0" and is "1"`, ""},
	{"a cgroup", "", "mkdir CGROUP/NAME", "cgroup CGROUP/NAME was not there", "rmdir CGROUP/NAME"},
	{"a mount", "", "mount -t tmpfs NAME PLACE", "mount PLACE: tmpfs NAME", "umount PLACE"},
	{"a mount's propagation", "mount -t tmpfs NAME PLACE; mount --make-private PLACE", "mount --make-shared PLACE",
		"mount PLACE: tmpfs NAME", "umount PLACE"},
	{"a network namespace", "", "ip netns add NAME", "mount /run/netns/NAME: nsfs", "ip netns del NAME"},
	{"an interface", "", "ip link add vNAME type veth peer name wNAME", "interface vNAME was not there: veth",
		"ip link del vNAME"},
	{"an interface that is up", "ip link add vNAME type veth peer name wNAME", "ip link set vNAME up",
		"interface vNAME was veth", "ip link del vNAME"},
	{"an address", "ip link add vNAME type veth peer name wNAME", "ip addr add 192.0.2.1/24 dev vNAME",
		"address 192.0.2.1/24 of vNAME was not there", "ip link del vNAME"},
	{"a rule of routes", "", "ip rule add from 192.0.2.1 table 77", "route rule", "ip rule del from 192.0.2.1 table 77"},
	{"a table", "", "nft add table ip NAME", "netfilter table 2 NAME was not there", "nft delete table ip NAME"},
	{"a rule", "nft add table ip NAME; nft add chain ip NAME c", "nft add rule ip NAME c accept",
		"netfilter chain 2 NAME c was 0 rules", "nft delete table ip NAME"},
	{"a file of the machine's configuration", "", "echo x >/etc/NAME", "file /etc/NAME was not there", "rm -f /etc/NAME"},
	{"a file that is another", "echo x >/etc/NAME", "echo longer >/etc/NAME", "file /etc/NAME was file",
		"rm -f /etc/NAME"},
	{"a directory's mode", "mkdir -m 1777 /run/NAME", "chmod 755 /run/NAME",
		"file /run/NAME was directory, 1777 of 0:0 and is directory, 755 of 0:0", "rmdir /run/NAME"},
	{"a directory for what is running", "", "mkdir /run/NAME", "file /run/NAME was not there", "rmdir /run/NAME"},
	{"a temporary file", "", `echo x >"$TMPDIR/NAME"`, "/NAME was not there", ""},
	{"a process", "", "setsid sleep 1003 >/dev/null 2>&1 </dev/null & sleep 0.3", "process of the command: pid", ""},
	{"what is gone", "mkdir /run/NAME", "rmdir /run/NAME", "file /run/NAME is gone", ""},
}

func shell(script string) error {
	out, err := exec.Command("sh", "-e", "-c", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", script, err, out)
	}
	return nil
}

// inNetwork runs a function in a network namespace of its own: what it plants there is nobody's.
func inNetwork(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread ends with it
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		f()
		done <- nil
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestEveryPlantedDifferenceIsFound(t *testing.T) {
	nodetest.Root(t)
	roots, err := node.CgroupMounts()
	if err != nil || len(roots) == 0 {
		t.Fatal(roots, err)
	}
	if _, err := os.Stat("/run/netns"); os.IsNotExist(err) {
		t.Cleanup(func() { // what ip netns has made, unless somebody else uses it by now
			if entries, err := os.ReadDir("/run/netns"); err == nil && len(entries) == 0 {
				_ = unix.Unmount("/run/netns", 0)
				_ = unix.Rmdir("/run/netns")
			}
		})
	}
	for i, plant := range plants {
		t.Run(plant.what, func(t *testing.T) {
			name := fmt.Sprintf("tm%d%d", os.Getpid()%100000, i)
			place := filepath.Join("/run", name+"-place")
			if err := os.Mkdir(place, 0o755); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(place)
			fill := strings.NewReplacer("NAME", name, "PLACE", place, "CGROUP", roots[0])
			inNetwork(t, func() {
				if err := shell(fill.Replace(plant.before)); err != nil {
					t.Error(err)
					return
				}
				var out bytes.Buffer
				r := &run{pause: 20 * time.Millisecond, out: &out}
				code, err := r.run([]string{"sh", "-e", "-c", fill.Replace(plant.command)})
				if err != nil || code != 1 || !strings.Contains(out.String(), fill.Replace(plant.says)) {
					t.Errorf("code %d, %v, want one line that says %q:\n%s", code, err, fill.Replace(plant.says), out.String())
				}
				if people, err := populate(r.id, r.tmp); err == nil {
					for _, p := range people.ours {
						_ = unix.Kill(p.PID, unix.SIGKILL)
					}
				}
				_ = os.RemoveAll(r.tmp)
				if err := shell(fill.Replace(plant.after)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestWhatTheCommandUndoesIsNoDifference(t *testing.T) {
	nodetest.Root(t)
	name := fmt.Sprintf("tm%d", os.Getpid())
	inNetwork(t, func() {
		var out bytes.Buffer
		r := &run{wait: time.Minute, pause: 20 * time.Millisecond, out: &out}
		// A process of the command ends a moment later, and with it what it has made.
		script := fmt.Sprintf("mkdir /run/%[1]s; ip link add v%[1]s type veth peer name w%[1]s; (sleep 0.3; "+
			"ip link del v%[1]s; rmdir /run/%[1]s) >/dev/null 2>&1 </dev/null & exit 7", name)
		if code, err := r.run([]string{"sh", "-c", script}); err != nil || code != 7 || out.Len() > 0 {
			t.Errorf("code %d, %v: %s", code, err, out.String())
		}
		if _, err := os.Stat(r.tmp); err == nil {
			t.Errorf("%s is left", r.tmp)
		}
	})
}

// Others test at the same time: what they make is not the command's, whether it comes and goes or stays.
func TestDifferencesOfOthersAreTold(t *testing.T) {
	nodetest.Root(t)
	roots, err := node.CgroupMounts()
	if err != nil || len(roots) == 0 {
		t.Fatal(roots, err)
	}
	theirs, mine := fmt.Sprintf("b%08x", os.Getpid()), fmt.Sprintf("b%08x", os.Getpid()+1)
	// As a daemon of a node that is not the command's.
	other := exec.Command("sleep", "1000")
	other.Args[0] = filepath.Join("/tmp", theirs, "sleep")
	for _, name := range []string{theirs, mine} {
		defer os.Remove(filepath.Join(roots[0], name))
	}
	inNetwork(t, func() {
		if err := other.Start(); err != nil {
			t.Error(err)
			return
		}
		defer func() {
			_ = other.Process.Kill()
			_ = other.Wait()
		}()
		var out bytes.Buffer
		r := &run{pause: 20 * time.Millisecond, out: &out}
		code, err := r.run([]string{"sh", "-e", "-c",
			fmt.Sprintf("mkdir %[1]s/%[2]s %[1]s/%[3]s; echo 1 >/proc/sys/net/ipv4/ip_forward", roots[0], theirs, mine)})
		if err != nil || code != 1 || strings.Contains(out.String(), theirs) || !strings.Contains(out.String(), mine) ||
			strings.Contains(out.String(), "ip_forward") {
			t.Errorf("code %d, %v: %s", code, err, out.String())
		}
		_ = os.RemoveAll(r.tmp)
	})
}

func TestOnlyWhatIsNewIsAllowed(t *testing.T) {
	for _, c := range []struct {
		d       difference
		allowed bool
	}{
		{difference{"module", "br_netfilter", "", there}, true},
		{difference{"module", "br_netfilter", there, ""}, false},
		{difference{"module", "vboxdrv", "", there}, false},
		{difference{"device", "/dev/loop7", "", "block device 7:7, 660 of 0:6"}, true},
		{difference{"device", "/dev/loop7", "block device 7:7, 660 of 0:6", "block device 7:7, 666 of 0:6"}, false},
		{difference{"device", "/dev/null", "a", "b"}, false},
		{difference{"file", "/run/berth-test-host", "", "file"}, false},
		{difference{"cgroup", "/sys/fs/cgroup/cpu/berth-test-7-5/a", there, ""}, true},
		{difference{"cgroup", "/sys/fs/cgroup/cpu/berth-test-7-5", "", there}, false},
		{difference{"cgroup", "/sys/fs/cgroup/cpu/kubepods", there, ""}, false},
	} {
		if got := why(c.d) != ""; got != c.allowed {
			t.Errorf("%s: allowed %t", c.d, got)
		}
	}
}

// TestAGoCommandThatOnlyBuildsIsNoTest: beside one, files that the command leaves in /tmp would be taken for another's.
func TestAGoCommandThatOnlyBuildsIsNoTest(t *testing.T) {
	for args, want := range map[string]bool{
		"go test ./...": true, "go run ./test/bench": true, "go build ./...": false, "go list -m": false, "go": false,
		"go test -c -o x ./test/life": false,
	} {
		if got := tests(node.Process{Exe: "/usr/local/go/bin/go", Args: strings.Fields(args)}); got != want {
			t.Errorf("%s: %t", args, got)
		}
	}
}
