package client_test

import (
	enc "encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	keeper "berth/internal/keeper/client"
	"berth/internal/model"
	"berth/internal/namespace"
)

// confinement says, from the inside, all that a container may tell of how it is confined. Mounts are sorted: a newer
// kernel lists them in the order in which they were made, which is the stage's own.
const confinement = `grep -vE '^(Name|Pid|PPid|NSpid|NStgid|NSpgid|NSsid|Tgid|Ngid|TracerPid)' /proc/self/status |
	grep -vE '^(Vm|Rss|Hugetlb|FDSize|voluntary|nonvoluntary|Threads|SigQ|State|Mems|Core|THP|untag)'
echo; cat /proc/self/cgroup; cat /proc/self/limits | tr -s ' '
cat /proc/self/oom_score_adj; env; readlink /proc/self/cwd
for fd in /proc/self/fd/*; do test -e $fd && echo ${fd##*/}; done
test -e /proc/self/fd/0 && tty; cat /proc/self/uid_map
cat /proc/sys/kernel/hostname /proc/sys/kernel/domainname /proc/sys/kernel/msgmax
ls -lRn /dev /run 2>&1 | grep -vE ' (pts|mqueue|shm|fd|console)$|^/dev/(pts|fd)|[0-9]:[0-9][0-9] [0-9]$'
ls -dn /etc /etc/new /a /a/b /tmp /dev /dev/shm 2>&1
while read id parent dev rest; do echo $rest; done </proc/self/mountinfo | sort`

// own matches numbers and names that each container has for itself.
var own = regexp.MustCompile(
	`(master|shared|propagate_from):\d+ |/(ours|theirs|whole)\b|size=\d+k|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d`)

// olderRunc is what runc before 1.2 does not do: domain names, options of file systems, and propagation of the root.
var olderRunc = regexp.MustCompile(`(?m)^(a-domain|\(none\))\n|,(mode=777|#,nr_inodes=1)\b| #-`)

var olderExec = regexp.MustCompile(`Umask:\s*\d+|Max open files \d+`)

// TestAContainerIsConfinedAsByRunc compares what the keeper makes with what runc makes of the same specification: first
// processes and execs, from the inside, and their seccomp filters from the outside.
func TestAContainerIsConfinedAsByRunc(t *testing.T) {
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skipf("needs runc: %v", err)
	}
	mask := uint32(0o027)
	score := 500
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	for name, edit := range map[string]func(*specs.Spec){
		"root":              func(s *specs.Spec) { s.Process.NoNewPrivileges = false },
		"no new privileges": func(*specs.Spec) {},
		"user": func(s *specs.Spec) {
			s.Process.User = specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{1001, 2000, 3000}}
			s.Process.NoNewPrivileges = false
			s.Process.Env = []string{"PATH=/bin:/sbin", "A=1", "A=2"} // HOME is that of /etc/passwd
		},
		"unknown user": func(s *specs.Spec) {
			s.Process.User = specs.User{UID: 4321, GID: 4321}
			s.Process.Env = []string{"PATH=/bin", "HOME="}
		},
		"user with ambient capabilities": func(s *specs.Spec) {
			s.Process.User = specs.User{UID: 1000, GID: 1001}
			s.Process.Capabilities.Inheritable = []string{"CAP_KILL", "CAP_NET_BIND_SERVICE"}
			s.Process.Capabilities.Ambient = []string{"CAP_NET_BIND_SERVICE"}
		},
		"no capabilities": func(s *specs.Spec) {
			s.Process.Capabilities = &specs.LinuxCapabilities{}
			s.Process.NoNewPrivileges = false
		},
		"unconfined": func(s *specs.Spec) { s.Linux.Seccomp = nil },
		"limits": func(s *specs.Spec) {
			s.Process.OOMScoreAdj = &score
			s.Process.User.Umask = &mask
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200}, {Type: "RLIMIT_CORE"}}
			s.Process.Cwd = "/tmp"
			shares, limit, pids := uint64(512), int64(64<<20), int64(100)
			s.Linux.Resources.CPU = &specs.LinuxCPU{Shares: &shares}
			s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit}
			s.Linux.Resources.Pids = &specs.LinuxPids{Limit: &pids}
			s.Linux.MaskedPaths = []string{"/proc/timer_list", "/proc/keys"}
			s.Linux.ReadonlyPaths = []string{"/proc/sys", "/proc/bus"}
		},
		"user namespace": func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace},
				specs.LinuxNamespace{Type: specs.CgroupNamespace})
			s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
			s.Process.User = specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{2000}}
			s.Process.NoNewPrivileges = false
		},
		"a pod's user namespace": func(s *specs.Spec) {
			inPod(s, ids, specs.UserNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace)
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
			s.Process.User = specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{2000}}
			s.Process.NoNewPrivileges = false
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 100, Hard: 200},
				{Type: "RLIMIT_NPROC", Soft: 50, Hard: 60}}
			s.Mounts = append(s.Mounts, podMounts...)
			s.Linux.MaskedPaths = []string{"/proc/kcore", "/proc/keys", "/sys/firmware", "/proc/scsi", "/no/such"}
			s.Linux.ReadonlyPaths = []string{"/proc/bus", "/proc/sys", "/no/such"}
			s.Linux.Sysctl = map[string]string{"kernel.msgmax": "1234"}
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/full", Type: "c", Major: 1, Minor: 7},
				{Path: "/dev/loop-control", Type: "c", Major: 10, Minor: 237}}
		},
		"terminal in a pod's user namespace": func(s *specs.Spec) {
			inPod(s, ids, specs.UserNamespace)
			s.Process.Terminal = true
		},
		"a pod's processes": func(s *specs.Spec) {
			inPod(s, nil, specs.PIDNamespace)
			s.Process.NoNewPrivileges = false
			s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NPROC", Soft: 50, Hard: 60}}
			s.Linux.MaskedPaths = []string{"/proc/kcore", "/proc/keys"}
			s.Linux.ReadonlyPaths = []string{"/proc/bus", "/proc/sys"}
			s.Linux.Sysctl = map[string]string{"kernel.msgmax": "1234", "fs.mqueue.msg_max": "20"}
		},
		"terminal among a pod's processes": func(s *specs.Spec) {
			inPod(s, nil, specs.PIDNamespace)
			s.Process.Terminal = true
		},
		"user among a pod's processes": func(s *specs.Spec) {
			inPod(s, nil, specs.PIDNamespace)
			s.Process.User = specs.User{UID: 1000, GID: 1001, AdditionalGids: []uint32{1001, 2000, 3000}}
			s.Process.Env = []string{"PATH=/bin:/sbin"}
		},
		"a pod's processes in its user namespace": func(s *specs.Spec) {
			inPod(s, ids, specs.UserNamespace, specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace,
				specs.UTSNamespace)
			s.Mounts = append(s.Mounts, podMounts...)
			s.Linux.MaskedPaths = []string{"/proc/kcore", "/proc/keys", "/sys/firmware"}
			s.Linux.ReadonlyPaths = []string{"/proc/bus", "/proc/sys"}
		},
		"terminal":           func(s *specs.Spec) { s.Process.Terminal = true },
		"terminal of a user": func(s *specs.Spec) { s.Process.Terminal, s.Process.User.UID = true, 1000 },
		"node's processes": func(s *specs.Spec) {
			s.Linux.Namespaces = s.Linux.Namespaces[1:]
		},
		"mounts": func(s *specs.Spec) {
			s.Root.Readonly = true
			s.Mounts = append(s.Mounts,
				specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs",
					Options: []string{"nosuid", "noexec", "nodev", "ro"}},
				specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
					Options: []string{"nosuid", "relatime", "ro"}},
				specs.Mount{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue",
					Options: []string{"nosuid", "noexec", "nodev"}},
				specs.Mount{Destination: "/dev/shm", Type: "tmpfs", Source: "shm",
					Options: []string{"nosuid", "mode=1777", "size=65536k"}},
				specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"ro", "noatime"}},
				specs.Mount{Destination: "/etc/new/file", Type: "bind", Source: "/etc/passwd", Options: []string{"bind", "ro"}},
				specs.Mount{Destination: "/a/b", Type: "bind", Source: "/usr",
					Options: []string{"rbind", "ro", "nosuid", "rslave"}},
				specs.Mount{Destination: "/a/b/share", Type: "bind", Source: "/etc",
					Options: []string{"rbind", "rro", "noexec", "rprivate"}},
				specs.Mount{Destination: "/c", Type: "bind", Source: "/usr", Options: []string{"bind"}},
				specs.Mount{Destination: "/d", Type: "bind", Source: "/usr",
					Options: []string{"rbind", "nodev", "noatime", "nodiratime"}},
				specs.Mount{Destination: "/e", Type: "bind", Source: "/usr", Options: []string{"rbind", "strictatime", "ro"}})
			s.Linux.MaskedPaths = []string{"/proc/kcore", "/proc/keys", "/sys/firmware", "/proc/scsi", "/a/b/bin", "/no/such"}
			s.Linux.ReadonlyPaths = []string{"/proc/bus", "/proc/sys", "/c/lib", "/no/such"}
			s.Linux.Sysctl = map[string]string{"kernel.msgmax": "1234", "fs.mqueue.msg_max": "20"}
			s.Hostname, s.Domainname = "a-name", "a-domain"
		},
		"a cgroup namespace": func(s *specs.Spec) {
			s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.CgroupNamespace})
			s.Mounts = append(s.Mounts,
				specs.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev"}},
				specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup",
					Options: []string{"nosuid", "noexec", "nodev", "relatime"}})
		},
		"shared mounts": func(s *specs.Spec) {
			s.Linux.RootfsPropagation = "shared"
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/a", Type: "bind", Source: "/usr",
				Options: []string{"rbind", "rshared"}})
		},
		"devices": func(s *specs.Spec) {
			mode, id := os.FileMode(0o640), uint32(5)
			s.Linux.Devices = []specs.LinuxDevice{
				{Path: "/dev/sub/fuse", Type: "c", Major: 10, Minor: 229, FileMode: &mode, UID: &id, GID: &id},
				{Path: "/dev/loop9", Type: "b", Major: 7, Minor: 9}, {Path: "/run/fifo", Type: "p"},
			}
		},
		"other namespaces": func(s *specs.Spec) {
			for i, ns := range s.Linux.Namespaces {
				if name := map[specs.LinuxNamespaceType]string{specs.IPCNamespace: "ipc",
					specs.UTSNamespace: "uts"}[ns.Type]; name != "" {
					s.Linux.Namespaces[i].Path = "/proc/self/ns/" + name // of the keeper, and of runc
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			n.reachable()
			// As berthd's are. One that is not has the mount that it is in made private, and the host's with it.
			if err := unix.Mount(n.root, n.root, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(n.root, unix.MNT_DETACH) })
			passwd := "root:x:0:0:root:/root:/bin/sh\n# no user\nname:x:1000:1001::/home/name:/bin/sh"
			if err := os.WriteFile(filepath.Join(n.root, "etc/passwd"), []byte(passwd), 0o644); err != nil {
				t.Fatal(err)
			}
			// Both in a directory of the host of one mode, whoever is root.
			_ = os.Chmod(filepath.Join(n.root, "tmp"), 0o777)
			// One that has loaded a device program (cgroup v2) has raised the keeper's limit of locked memory.
			n.run(n.request("before", "true"))
			// The third is set up by libcontainer alone.
			var first, further, filters [3]string
			pod := &testPod{node: n}
			for i, id := range []string{"ours", "theirs", "whole"} {
				req := n.request(id, "sh", "-c", confinement+"\necho complete; exec sleep 1000")
				req.Spec.Linux.Seccomp = profile()
				edit(req.Spec)
				pod.fit(req)
				switch id {
				case "ours":
					req.Setup = keeper.SetupStage
				case "theirs":
					req.RuntimePath, req.Setup = runc, ""
				case "whole":
					req.Setup = keeper.SetupLibcontainer
				}
				res := n.run(req)
				pid := res.PID
				if alone := res.Setup.Engine == keeper.EngineLibcontainer &&
					res.Setup.ExecEngine == keeper.EngineLibcontainer; alone != (id == "whole") {
					t.Errorf("%s: %+v", id, res.Setup)
				}
				n.until("it has said all", func() bool { return strings.Contains(n.output("stdout", n.logPath(id)), "complete") })
				first[i] = own.ReplaceAllString(n.output("stdout", n.logPath(id)), "#")
				filters[i] = loaded(t, pid)
				p := *req.Spec.Process
				p.Args = []string{"sh", "-c", confinement}
				further[i] = own.ReplaceAllString(n.execProcess(id, &p), "#")
				if id == "ours" {
					// What no stage does, libcontainer does as if it had started the container.
					p.IOPriority = &specs.LinuxIOPriority{Class: specs.IOPRIO_CLASS_BE, Priority: 4}
					if whole := own.ReplaceAllString(n.execProcess(id, &p), "#"); whole != further[i] {
						t.Errorf("exec by a stage, and by libcontainer:\n%s", difference(t, further[i], whole))
					}
				}
			}
			compare := func(what, a, b string) {
				t.Helper()
				if a != b {
					t.Errorf("%s:\n%s", what, difference(t, a, b))
				}
			}
			older := func(s string) string {
				return olderRunc.ReplaceAllStringFunc(s, func(s string) string {
					if s == " #-" {
						return " -"
					}
					return ""
				})
			}
			compare("init process, and that of runc", older(first[0]), older(first[1]))
			compare("init process, and that of libcontainer alone", first[0], first[2])
			compare("exec, and that of libcontainer alone", further[0], further[2])
			// runc before 1.2 gives execs its own umask, and as many open files as the hard limit has.
			compare("exec, and that of runc", olderExec.ReplaceAllString(older(further[0]), ""),
				olderExec.ReplaceAllString(older(further[1]), ""))
			// Another version of runc compiles a profile to another program; the same library to one with the
			// same verdicts (architectures come in any order).
			sameVerdicts(t, filters[0], filters[2])
			if want := name != "unconfined"; (filters[0] != "") != want || strings.Contains(first[0], "Seccomp:\t2") != want ||
				strings.Contains(further[0], "Seccomp:\t2") != want {
				t.Errorf("seccomp filter of %d bytes\n%s", len(filters[0]), further[0])
			}
		})
	}
}

// podMounts are such as the containers of a pod with a user namespace have.
var podMounts = []specs.Mount{
	{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
	{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "mode=1777", "size=65536k"}},
	{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"noatime"}},
	{Destination: "/tmp/file", Type: "bind", Source: "/etc/passwd", Options: []string{"bind", "ro"}},
	{Destination: "/tmp/b", Type: "bind", Source: "/usr", Options: []string{"rbind", "ro", "nosuid", "rslave"}},
	{Destination: "/tmp/b/share", Type: "bind", Source: "/etc", Options: []string{"rbind", "rro", "noexec", "rprivate"}},
	{Destination: "/tmp/c", Type: "bind", Source: "/usr", Options: []string{"bind"}},
	{Destination: "/tmp/s", Type: "bind", Source: "/dev/shm", Options: []string{"rbind", "rw"}},
}

// inPod has a container join namespaces of a pod: testPod.fit says which those are.
func inPod(s *specs.Spec, ids []specs.LinuxIDMapping, types ...specs.LinuxNamespaceType) {
	s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
	for _, t := range types {
		s.Linux.Namespaces = slices.DeleteFunc(s.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == t })
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: t, Path: "pod"})
	}
}

// testPod has namespaces that containers share.
type testPod struct {
	*node
	pins *namespace.Set
	init int // the process whose PID namespace it is
}

// fit makes a container one of the pod, and fills in the namespaces that inPod has named.
func (p *testPod) fit(r *keeper.RunRequest) {
	p.Helper()
	r.PodID = "pod"
	s := r.Spec
	kinds := map[specs.LinuxNamespaceType]namespace.Kind{
		specs.UserNamespace: namespace.User, specs.NetworkNamespace: namespace.Network, specs.IPCNamespace: namespace.IPC,
		specs.UTSNamespace: namespace.UTS,
	}
	for i := range s.Linux.Namespaces {
		switch ns := &s.Linux.Namespaces[i]; {
		case ns.Path != "pod":
		case ns.Type == specs.PIDNamespace:
			if p.init == 0 {
				req := p.request("pod-init", "sleep", "1000")
				req.PodID = r.PodID
				for _, other := range s.Linux.Namespaces {
					if other.Type == specs.UserNamespace {
						inPod(req.Spec, s.Linux.UIDMappings, specs.UserNamespace)
						p.fit(req)
					}
				}
				p.init = p.run(req).PID
			}
			ns.Path = fmt.Sprintf("/proc/%d/ns/pid", p.init)
		default:
			if p.pins == nil {
				p.pin(s.Linux.UIDMappings)
			}
			ns.Path = p.pins.Path(kinds[ns.Type])
		}
	}
}

func (p *testPod) pin(ids []specs.LinuxIDMapping) {
	p.Helper()
	p.pins = &namespace.Set{Dir: filepath.Join(filepath.Dir(p.dir), "pins")}
	o := namespace.Options{Kinds: []namespace.Kind{namespace.Network, namespace.IPC, namespace.UTS}}
	if len(ids) > 0 {
		o.User = &namespace.UserMappings{}
		for _, m := range ids {
			m := model.IDMapping{ContainerID: m.ContainerID, HostID: m.HostID, Length: m.Size}
			o.User.UIDs, o.User.GIDs = append(o.User.UIDs, m), append(o.User.GIDs, m)
		}
	}
	if err := p.pins.Create(o); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		if err := p.pins.Remove(); err != nil {
			p.Error(err)
		}
	})
}

var probes atomic.Int32

// execProcess runs an exec and returns all that it wrote.
func (n *node) execProcess(id string, p *specs.Process) string {
	n.Helper()
	req := &keeper.ExecRequest{ContainerID: id, ExecID: fmt.Sprint("probe", probes.Add(1)), Process: p}
	var out *os.File
	if !p.Terminal {
		r, w, err := os.Pipe()
		if err != nil {
			n.Fatal(err)
		}
		req.Stdout, req.Stderr = w, w
		defer w.Close()
		out = r
	}
	res, err := n.client.Exec(n.ctx(), req)
	if err != nil {
		n.Fatalf("exec in %s: %v", id, err)
	}
	if p.Terminal {
		out = res.Console
	} else {
		req.Stdout.Close()
	}
	defer out.Close()
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		k, err := out.Read(buf)
		b.Write(buf[:k])
		if err != nil { // of a terminal, EIO
			return b.String()
		}
	}
}

func difference(t *testing.T, a, b string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"ours": a, "theirs": b} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("diff", "-u", "ours", "theirs")
	cmd.Dir = dir
	out, _ := cmd.Output()
	return string(out)
}

// loaded is a process's seccomp filter, empty if it has none.
func loaded(t *testing.T, pid int) string {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(pid); err != nil {
		t.Fatalf("seize %d: %v", pid, err)
	}
	if err := unix.PtraceInterrupt(pid); err != nil {
		t.Fatal(err)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.PtraceDetach(pid) }()
	get := func(to unsafe.Pointer) (uintptr, syscall.Errno) {
		n, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SECCOMP_GET_FILTER, uintptr(pid), 0, uintptr(to), 0, 0)
		return n, errno
	}
	n, errno := get(nil)
	switch {
	case errno == unix.EIO || errno == unix.EACCES:
		t.Skipf("the kernel shows no filters: %v", errno)
	case errno == unix.EINVAL || errno == unix.ENOENT:
		return ""
	case errno != 0:
		t.Fatal(errno)
	}
	program := make([]unix.SockFilter, n)
	if _, errno := get(unsafe.Pointer(&program[0])); errno != 0 {
		t.Fatal(errno)
	}
	return string(unsafe.Slice((*byte)(unsafe.Pointer(&program[0])), n*8))
}

// sameVerdicts runs both filters on all calls of all architectures that they may know, with some arguments.
func sameVerdicts(t *testing.T, a, b string) {
	t.Helper()
	if len(a) != len(b) {
		t.Fatalf("seccomp filters of %d and %d bytes", len(a), len(b))
	}
	if a == b {
		return
	}
	machine := func(program string) *bpf.VM {
		var list []bpf.Instruction
		for i := 0; i < len(program); i += 8 {
			list = append(list, bpf.RawInstruction{
				Op: enc.NativeEndian.Uint16([]byte(program[i:])), Jt: program[i+2], Jf: program[i+3],
				K: enc.NativeEndian.Uint32([]byte(program[i+4:])),
			}.Disassemble())
		}
		vm, err := bpf.NewVM(list)
		if err != nil {
			t.Fatal(err)
		}
		return vm
	}
	one, other := machine(a), machine(b)
	arguments := [][6]uint64{{}, {2: 1}, {1: 0x7e020000}, {40}, {0x20000}, {0xffffffff}, {16, 3, 5}}
	for _, arch := range []uint32{unix.AUDIT_ARCH_X86_64, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_AARCH64,
		unix.AUDIT_ARCH_ARM, 1} {
		for number := range uint32(1200) {
			for _, x32 := range []uint32{0, 0x40000000} {
				for _, args := range arguments {
					// struct seccomp_data in the byte order of packets, which the machine is made for.
					data := enc.BigEndian.AppendUint32(nil, number|x32)
					data = enc.BigEndian.AppendUint32(data, arch)
					data = append(data, make([]byte, 8)...)
					for _, arg := range args {
						data = enc.BigEndian.AppendUint32(data, uint32(arg))
						data = enc.BigEndian.AppendUint32(data, uint32(arg>>32))
					}
					v, err := one.Run(data)
					w, err2 := other.Run(data)
					if v != w || err != nil || err2 != nil {
						t.Fatalf("call %d of architecture %#x: %#x (%v), %#x (%v)", number|x32, arch, v, err, w, err2)
					}
				}
			}
		}
	}
}
