package ocispec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/asroot"
	"berth/internal/cgroup"
	"berth/internal/keeper/null"
	"berth/internal/model"
)

// busybox is a root file system with busybox, its applets and two users. The test is skipped where there is no busybox.
func busybox(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("no busybox: ", err)
	}
	if _, err := exec.LookPath("runc"); err != nil {
		t.Skip("no runc: ", err)
	}
	root := t.TempDir()
	must(t, os.Chmod(root, 0o755))
	must(t, os.MkdirAll(filepath.Join(root, "bin"), 0o755))
	must(t, os.MkdirAll(filepath.Join(root, "tmp"), 0o755))
	must(t, os.Chmod(filepath.Join(root, "tmp"), 0o1777))
	content, err := os.ReadFile(program)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(root, "bin/busybox"), content, 0o755))
	for _, applet := range []string{"sh",
		"id", "cat", "mount", "touch", "mkdir", "unshare", "hostname", "tty", "ls", "grep", "env", "chown"} {
		must(t, os.Symlink("busybox", filepath.Join(root, "bin", applet)))
	}
	write(t, filepath.Join(root, "etc/passwd"), passwd)
	write(t, filepath.Join(root, "etc/group"), group)
	return root
}

// reachable lets others than root come to a directory of the test. The directories above are the machine's.
func reachable(t *testing.T, dir string) {
	t.Helper()
	for ; strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
		must(t, os.Chmod(dir, 0o755))
	}
}

// runnable is input with a real root file system and namespaces of its own.
func runnable(t *testing.T, script string) Input {
	t.Helper()
	in := input(t)
	in.Rootfs = busybox(t)
	in.Host = nil
	in.ContainerID = fmt.Sprintf("berth-test-spec-%d-%d", os.Getpid(), time.Now().UnixNano())
	in.CgroupsPath = "/" + in.ContainerID
	in.Namespaces = Namespaces{Network: Fresh, IPC: Fresh, UTS: Fresh}
	in.Container.Command = []string{"/bin/sh", "-c", script}
	in.Container.Security.Seccomp = &model.SecurityProfile{Type: model.ProfileRuntimeDefault}
	return in
}

// underRunc and underCrun are how to start either. crun does not start where a v2 hierarchy with controllers stands
// beside v1 ones, so it gets a view without that one.
var (
	underRunc = []string{"runc"}
	underCrun = []string{"unshare",
		"-m", "sh", "-c", "umount /sys/fs/cgroup/unified 2>/dev/null; exec crun \"$@\"", "crun"}
)

// run runs a container with an OCI runtime and returns what it prints and its exit code.
func run(t *testing.T, runtime []string, in Input) (string, int) {
	t.Helper()
	return runSpec(t, runtime, in, build(t, in).Spec)
}

func runSpec(t *testing.T, runtime []string, in Input, spec *specs.Spec) (string, int) {
	t.Helper()
	bundle := t.TempDir()
	config, err := json.Marshal(spec)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(bundle, "config.json"), config, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, runtime[0], append(slices.Clone(runtime[1:]),
		"--root", filepath.Join(bundle, "state"), "run", "--bundle", bundle, in.ContainerID)...)
	cmd.WaitDelay = time.Second
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	t.Cleanup(func() {
		_ = exec.Command(runtime[0], append(slices.Clone(runtime[1:]),
			"--root", filepath.Join(bundle, "state"), "delete", "--force", in.ContainerID)...).Run()
		h, err := cgroup.Host()
		must(t, err)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must(t, h.Remove(ctx, in.CgroupsPath))
	})
	var printed bytes.Buffer
	if in.Container.TTY {
		master, slave, err := console.NewPty()
		must(t, err)
		tty, err := os.OpenFile(slave, os.O_RDWR|syscall.O_NOCTTY, 0)
		must(t, err)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
		must(t, cmd.Start())
		tty.Close()
		_, _ = io.Copy(&printed, master) // ends with EIO when the last one has closed its end
		master.Close()
		err = cmd.Wait()
		return printed.String(), exitCode(t, err)
	}
	// crun gives its stdin to the container's user: it must not be the host's.
	nothing, err := null.Open()
	must(t, err)
	defer nothing.Close()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nothing, &printed, &printed
	err = cmd.Run()
	return printed.String(), exitCode(t, err)
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	must(t, err)
	return 0
}

func TestSpecsRun(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	for _, c := range []struct {
		name   string
		script string
		change func(t *testing.T, in *Input)
		wants  []string
		not    []string
		code   int
		crun   bool
	}{
		{name: "default", script: "id; hostname; cat /proc/self/status; env; touch /etc/x && echo wrote; " +
			"unshare -U true || echo filtered; cat /proc/kcore | wc -c; exit 7",
			change: func(t *testing.T, in *Input) { in.Container.WorkingDir = "/made/dir" },
			wants: []string{"uid=0", "podhost", "CapEff:\t00000000a80425fb", "Seccomp:\t2", "NoNewPrivs:\t0", "wrote",
				"filtered", "PWD=/made/dir"}, code: 7},
		{name: "user", script: "id; cat /proc/self/status; touch /etc/x || echo denied",
			change: func(t *testing.T, in *Input) {
				in.Container.Security.RunAsUsername = "web"
				in.Container.Security.NoNewPrivs = true
				in.Container.Security.SupplementalGroups = []int64{4321}
			},
			wants: []string{"uid=1000(web) gid=1000(web) groups=50(staff),1000(web),4321,50000(image)",
				"CapEff:\t0000000000000000", "NoNewPrivs:\t1", "denied"}},
		{name: "read-only root",
			script: "touch /x || echo ro; touch /etc/hosts || echo ro-hosts; touch /data/y && echo data; cat /etc/hosts",
			change: func(t *testing.T, in *Input) {
				in.Container.Security.ReadonlyRootfs = true
				hosts := filepath.Join(t.TempDir(), "hosts")
				write(t, hosts, "10.0.0.1 podhost\n")
				in.Files.Hosts = hosts
				in.Container.Mounts = []model.Mount{{ContainerPath: "/data", HostPath: t.TempDir()}}
			},
			wants: []string{"ro\n", "ro-hosts", "data", "10.0.0.1 podhost"}, not: []string{"wrote"}},
		{name: "privileged", script: "cat /proc/self/status; ls /dev; mkdir /sys/fs/cgroup/x 2>/dev/null; " +
			"mount -t tmpfs x /tmp && echo mounted; grep ' /sys ' /proc/mounts",
			change: func(t *testing.T, in *Input) { in.Container.Security.Privileged = true },
			wants:  []string{"Seccomp:\t0", "mounted", "kmsg", "sysfs rw"}},
		{name: "read-only mount and masked path",
			script: "touch /m/x || echo ro; touch /m/sub/x || echo rro; cat /masked/secret; true",
			change: func(t *testing.T, in *Input) {
				dir := t.TempDir()
				must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o777))
				must(t, syscall.Mount("t", filepath.Join(dir, "sub"), "tmpfs", 0, ""))
				t.Cleanup(func() { must(t, syscall.Unmount(filepath.Join(dir, "sub"), syscall.MNT_DETACH)) })
				write(t, filepath.Join(in.Rootfs, "masked/secret"), "visible-secret")
				in.Container.Security.MaskedPaths = []string{"/masked"}
				in.Container.Mounts = []model.Mount{{ContainerPath: "/m", HostPath: dir, Readonly: true, RecursiveReadOnly: true}}
			},
			wants: []string{"ro\n", "rro\n"}, not: []string{"visible-secret"}},
		{name: "device", script: "cat /dev/mine | head -c 2 | wc -c; cat /dev/other",
			change: func(t *testing.T, in *Input) {
				must(t, os.Symlink("busybox", filepath.Join(in.Rootfs, "bin/head")))
				must(t, os.Symlink("busybox", filepath.Join(in.Rootfs, "bin/wc")))
				in.Container.Devices = []model.Device{{HostPath: "/dev/zero", ContainerPath: "/dev/mine", Permissions: "r"}}
			},
			wants: []string{"2\n", "can't open '/dev/other'"}, code: 1},
		{name: "limits", script: "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max " +
			"/sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null; true",
			change: func(t *testing.T, in *Input) {
				in.Handler.PidsLimit = 77
				in.Container.Resources = &model.Resources{MemoryLimit: 64 << 20, CPUShares: 100, CPUPeriod: 100000, CPUQuota: 50000}
			},
			wants: []string{"67108864\n", "77\n"}},
		{name: "terminal", script: "tty; echo $TERM; exit 3",
			change: func(t *testing.T, in *Input) { in.Container.TTY = true },
			wants:  []string{"/dev/pts/0", "xterm"}, code: 3},
		{name: "user namespace", script: "id -u; cat /proc/self/uid_map; grep mapped /proc/self/mountinfo; ls -nd /mapped; " +
			"touch /mapped/x && ls -n /mapped",
			change: func(t *testing.T, in *Input) {
				mapping := []model.IDMapping{{HostID: 200000, Length: 65536}}
				in.Container.Security.Namespaces.User = &model.UserNamespace{Mode: model.NamespacePod, UIDs: mapping, GIDs: mapping}
				must(t, filepath.WalkDir(in.Rootfs, func(p string, _ os.DirEntry, err error) error {
					if err != nil {
						return err
					}
					return os.Lchown(p, 200000, 200000)
				}))
				reachable(t, in.Rootfs) // 200000 has to get there
				in.Container.Mounts = []model.Mount{{ContainerPath: "/mapped", HostPath: t.TempDir(), UIDMappings: mapping,
					GIDMappings: mapping}}
			},
			// runc before 1.2 does not know ID-mapped mounts.
			wants: []string{"0\n", "200000      65536", "0        0"}, crun: true},
		{name: "default under crun", script: "id; cat /proc/self/status; exit 5",
			wants: []string{"uid=0", "CapEff:\t00000000a80425fb", "Seccomp:\t2"}, code: 5, crun: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := runnable(t, c.script)
			if c.change != nil {
				c.change(t, &in)
			}
			runtime := underRunc
			if c.crun {
				if _, err := exec.LookPath("crun"); err != nil {
					t.Skip("no crun: ", err)
				}
				runtime = underCrun
			}
			printed, code := run(t, runtime, in)
			if code != c.code {
				t.Errorf("exit code %d, want %d", code, c.code)
			}
			for _, want := range c.wants {
				if !strings.Contains(strings.ReplaceAll(printed, "\r\n", "\n"), want) {
					t.Errorf("it did not print %q", want)
				}
			}
			for _, not := range c.not {
				if strings.Contains(printed, not) {
					t.Errorf("it printed %q", not)
				}
			}
			if t.Failed() {
				t.Logf("printed:\n%s", printed)
			}
		})
	}
}

func TestTheReapersSpecRuns(t *testing.T) {
	asroot.Need(t, "namespaces and mounts")
	in := runnable(t, "")
	dir := t.TempDir()
	reachable(t, dir)
	program, err := os.ReadFile(filepath.Join(in.Rootfs, "bin/busybox"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "busybox"), program, 0o755))
	spec, err := Reaper(ReaperInput{SandboxID: "pod", Rootfs: dir, CgroupsPath: in.CgroupsPath})
	must(t, err)
	spec.Process.Args = []string{"/busybox",
		"sh", "-c", "/busybox cat /proc/self/status; /busybox touch /x; echo my pid is $$"}
	printed, code := runSpec(t, underRunc, in, spec)
	for _, want := range []string{"Uid:\t65535",
		"CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Read-only", "my pid is 1"} {
		if !strings.Contains(printed, want) {
			t.Errorf("it did not print %q", want)
		}
	}
	if code != 0 || t.Failed() {
		t.Errorf("exit code %d, printed:\n%s", code, printed)
	}
}
