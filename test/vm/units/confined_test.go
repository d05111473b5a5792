package units

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node/nodetest"
)

// exposure is the most that systemd-analyze security may say of a unit, in tenths: what docs/security.md gives.
var exposure = map[string]string{"berthd": "77", "berth-keeper": "96", "berth-device-plugin": "11",
	"berth-apply": "47"}

// TestUnitsAreNoMoreExposedThanIsSaid. Seen to fail without RestrictAddressFamilies, SystemCallFilter,
// CapabilityBoundingSet or RestrictRealtime in berthd's unit; what weighs less than a tenth is lost in the rounding.
func TestUnitsAreNoMoreExposedThanIsSaid(t *testing.T) {
	installed(t)
	for unit, most := range exposure {
		path := strings.TrimSpace(property(t, unit, "FragmentPath"))
		if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold="+most,
			path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", unit, err, out)
		}
	}
}

// TestUnitsTakeNothingFromContainers: what systemd takes from berthd and the keeper is not missing in what they start.
//
// Seen to fail with CapabilityBoundingSet=~CAP_SYS_TIME, NoNewPrivileges, SystemCallFilter=~@clock, PrivateTmp
// or LimitCORE=0 in the keeper's unit, and without CapabilityBoundingSet in berthd's.
func TestUnitsTakeNothingFromContainers(t *testing.T) {
	n := installed(t)
	field := func(pid, name string) string {
		t.Helper()
		b, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if value, ok := strings.CutPrefix(line, name+":"); ok {
				return strings.TrimSpace(value)
			}
		}
		return ""
	}
	for _, unit := range []string{"berthd", "berth-keeper"} {
		pid := property(t, unit, "MainPID")
		for _, ns := range []string{"mnt", "net", "uts", "ipc", "user"} {
			own, err := os.Readlink("/proc/" + pid + "/ns/" + ns)
			if err != nil {
				t.Fatal(err)
			}
			if host, _ := os.Readlink("/proc/1/ns/" + ns); own != host {
				t.Errorf("%s has a %s namespace of its own: what it mounts, and pods' namespaces, would not be the host's",
					unit, ns)
			}
		}
	}
	if got, host := field(property(t, "berthd", "MainPID"), "CapBnd"), field("1", "CapBnd"); got == host {
		t.Error("berthd has all capabilities")
	}

	const status = `grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\t' | tr '\n' ' '
		umask; grep 'core file' /proc/self/limits | awk '{print $5}'`
	p := nodetest.RunPod(t, n, func(c *cri.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	privileged := p.Run(nodetest.Security(func(s *cri.LinuxContainerSecurityContext) { s.Privileged = true }))
	plain := p.Run()
	want := func(bounding string) string { return "CapBnd:" + bounding + " NoNewPrivs:0 Seccomp:0 0022\nunlimited" }
	if got := privileged.Sh(status); got != want(field("1", "CapBnd")) {
		t.Errorf("a privileged container: %q, and not %q", got, want(field("1", "CapBnd")))
	}
	if got := plain.Sh(status); got != want("00000000a80425fb") {
		t.Errorf("a container: %q, and not %q", got, want("00000000a80425fb"))
	}
	first := p.Run(nodetest.Sh(status + "; sleep 3600"))
	first.WaitLog("unlimited")
	if got := strings.TrimSuffix(first.Stdout(), "\n"); got != want("00000000a80425fb") {
		t.Errorf("the init process: %q", got)
	}

	// Devices of the host.
	privileged.Sh(
		"dd if=/dev/fuse of=/dev/null count=0 2>&1 || test ! -e /dev/fuse; dd if=/dev/loop-control of=/dev/null count=0")

	// What others mount after the start reaches a container, as in a namespace that follows the host's.
	dir := t.TempDir()
	follower := p.Run(nodetest.Mounts(&cri.Mount{HostPath: dir, ContainerPath: "/shared",
		Propagation: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}))
	at := filepath.Join(dir, "late")
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	must(t, "mount", "-t", "tmpfs", "late", at)
	t.Cleanup(func() { must(t, "umount", at) })
	if err := os.WriteFile(filepath.Join(at, "file"), []byte("late"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := follower.Sh("cat /shared/late/file"); got != "late" {
		t.Errorf("a mount of the host's: %q", got)
	}

	// Addresses of the host.
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintln(c, "reached")
			c.Close()
		}
	}()
	port := l.Addr().(*net.TCPAddr).Port
	if got := plain.Sh(fmt.Sprintf("gateway=$(ip route | awk '/default/{print $3}'); nc $gateway %d </dev/null",
		port)); got != "reached" {
		t.Errorf("a container reaches the host: %q", got)
	}
	server := p.Run(nodetest.Sh("while :; do echo hello | nc -l -p 8080; done"))
	_ = server
	nodetest.Eventually(t, 20*time.Second, "a container's server answers", func() error {
		r, err := plain.Exec(20, "sh", "-c", "nc "+p.IP()+" 8080 </dev/null")
		if err == nil && !strings.Contains(string(r.Stdout), "hello") {
			err = fmt.Errorf("it says %q %q", r.Stdout, r.Stderr)
		}
		return err
	})
	hooked(t, p, port)
	p.Remove()
	nothingLeft(t)
}

// hooked starts a container with an OCI hook, which runs in the keeper's own cgroup. The hook opens devices that no
// DevicePolicy of systemd's allows by itself, connects to a port of the host, and listens on one.
func hooked(t *testing.T, p *nodetest.Pod, port int) {
	t.Helper()
	dir := t.TempDir()
	program, ran := filepath.Join(dir, "hook"), filepath.Join(dir, "ran")
	text := fmt.Sprintf(`#!/bin/bash
exec 2>>%[1]s
set -ex
for device in /dev/loop-control /dev/fuse; do
	[ ! -e $device ] || : <$device
done
read -r line </dev/tcp/127.0.0.1/%[2]d
[ "$line" = reached ]
perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0) or die $!; bind(S, sockaddr_in(0, INADDR_ANY)) or die $!'
echo done >&2
`, ran, port)
	if err := os.WriteFile(program, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "hook.json"), fmt.Appendf(nil, `{"version": "1.0.0",
		"hook": {"path": %q}, "when": {"always": true}, "stages": ["createRuntime"]}`, program), 0o644); err != nil {
		t.Fatal(err)
	}
	write(t, "/etc/berth/config.d/91-hooks.toml", fmt.Sprintf("hooks_dirs = [%q]\n", dir))
	must(t, "systemctl", "reload", "berthd")
	nodetest.Eventually(t, 30*time.Second, "a hook has run to its end", func() error {
		c, err := p.TryCreate()
		if err != nil {
			return err
		}
		err = c.TryStart()
		said, _ := os.ReadFile(ran)
		if err != nil || !strings.HasSuffix(string(said), "done\n") {
			return fmt.Errorf("the hook says %q, and the start %v", said, err)
		}
		return nil
	})
}
