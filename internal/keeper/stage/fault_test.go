package stage

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/opencontainers/runc/libcontainer/specconv"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/filter"
	"berth/internal/model"
	"berth/internal/namespace"
)

// TestMain also is the compiler of seccomp profiles, as the keeper's binary is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == filter.Argument {
		filter.Main()
	}
	startForkerOfLeader()
	os.Exit(m.Run())
}

// said is what a container says of how it is confined. It starts one process after another: the shell's own calls
// are asked about as well, and one that the end of another process interrupts fails in the shell.
const said = `grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp|Umask)' /proc/self/status
cat /proc/self/cgroup /proc/self/oom_score_adj
grep -E 'open files|processes' /proc/self/limits; readlink /proc/self/cwd
for n in ipc net user uts; do readlink /proc/self/ns/$n; done
ls /proc/self/fd; cat /proc/sys/kernel/msgmax; cat /proc/self/mountinfo; echo complete`

// mountLine is a line of mountinfo, with the numbers of the mount, its parent and its device.
var mountLine = regexp.MustCompile(`(?m)^\d+ \d+ \d+:\d+ (.*)$`)

// inOrder is what two containers that are confined alike both say: mounts without their numbers, in the order
// of their places.
func inOrder(output string) string {
	var mounts []string
	rest := mountLine.ReplaceAllStringFunc(output, func(line string) string {
		mounts = append(mounts, mountLine.FindStringSubmatch(line)[1])
		return ""
	})
	if len(mounts) == 0 {
		return output
	}
	slices.Sort(mounts)
	return strings.Join(mounts, "\n") + "\n" + rest
}

// lab is a place where stages are started and their system calls are decided upon.
type lab struct {
	testing.TB
	real, launcher *Program
	root           string
	cgroup         string // of version 2, or the freezer's of version 1
	v1             []string
	v2             string // empty: there is no version 2
	filter         *filter.Filter
	host, user     *namespace.Set
	standing       int // processes of the cgroup that are there all the time
}

func newLab(t testing.TB) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	l := &lab{TB: t, root: filepath.Join(t.TempDir(), "root")}
	for d := l.root; d != "/" && d != "/tmp"; d = filepath.Dir(d) {
		_ = os.MkdirAll(d, 0o755)
		if st, err := os.Stat(d); err == nil && st.Mode()&1 == 0 {
			_ = os.Chmod(d, st.Mode()|0o111)
		}
	}
	for _, d := range []string{"bin", "proc", "dev", "tmp", "etc", "sys"} {
		l.must(os.MkdirAll(filepath.Join(l.root, d), 0o755))
	}
	busybox, err := os.ReadFile("/bin/busybox")
	l.must(err)
	l.must(os.WriteFile(filepath.Join(l.root, "bin/busybox"), busybox, 0o755))
	for _, a := range []string{"sh", "grep", "cat", "tr", "readlink", "ls", "sed", "sort", "sleep", "echo"} {
		l.must(os.Symlink("busybox", filepath.Join(l.root, "bin", a)))
	}
	l.must(os.WriteFile(filepath.Join(l.root, "etc/passwd"),
		[]byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\n"), 0o644))
	l.must(unix.Mount(l.root, l.root, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(l.root, unix.MNT_DETACH) })

	self, err := os.Executable()
	l.must(err)
	exe, err := os.Open(self)
	l.must(err)
	l.real, err = newProgram(exe)
	l.must(err)
	l.must(l.real.PrepareSetups(t.TempDir()))
	launcher := filepath.Join(t.TempDir(), "launch")
	out, err := exec.Command("gcc", "-Wall", "-O2", "-static", "-DPROGRAM="+strconv.Quote(self), "-o", launcher,
		"testdata/launch.c").CombinedOutput()
	if err != nil {
		t.Fatalf("build the launcher: %v\n%s", err, out)
	}
	exe, err = os.Open(launcher)
	l.must(err)
	l.launcher, err = newProgram(exe)
	l.must(err)
	l.launcher.mounts, l.launcher.many = l.real.mounts, 0 // one with the forker, one without
	t.Cleanup(func() {
		for _, f := range []*os.File{l.real.exe, l.launcher.exe, l.real.mounts} {
			f.Close()
		}
	})

	name := fmt.Sprintf("berth-stage-test-%d", os.Getpid())
	l.cgroup = "/sys/fs/cgroup/" + name
	l.v2 = l.cgroup
	if !exists("/sys/fs/cgroup/cgroup.controllers") {
		if l.v2 = "/sys/fs/cgroup/unified/" + name; !exists(filepath.Dir(l.v2)) {
			l.v2 = ""
		}
		l.cgroup = "/sys/fs/cgroup/freezer/" + name
		for _, controller := range []string{"freezer", "memory", "pids"} {
			l.v1 = append(l.v1, "/sys/fs/cgroup/"+controller+"/"+name)
		}
	}
	for _, dir := range append([]string{l.cgroup, l.v2}, l.v1...) {
		if dir == "" {
			continue
		}
		l.must(os.MkdirAll(dir, 0o755))
		t.Cleanup(func() {
			if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
				t.Errorf("remove cgroup %s: %v", dir, err)
			}
		})
	}

	profile, err := specconv.SetupSeccomp(&specs.LinuxSeccomp{
		DefaultAction: specs.ActAllow,
		Syscalls:      []specs.LinuxSyscall{{Names: []string{"swapon", "reboot"}, Action: specs.ActErrno}},
	})
	l.must(err)
	l.filter, err = filter.Compile(t.Context(), profile)
	l.must(err)
	l.host, l.user = l.pins(nil), l.pins(&namespace.UserMappings{
		UIDs: []model.IDMapping{{HostID: 100000, Length: 65536}}, GIDs: []model.IDMapping{{HostID: 100000, Length: 65536}},
	})
	return l
}

func (l *lab) pins(user *namespace.UserMappings) *namespace.Set {
	l.Helper()
	set := &namespace.Set{Dir: filepath.Join(l.TempDir(), "pins")}
	l.must(set.Create(namespace.Options{Kinds: []namespace.Kind{namespace.Network, namespace.IPC, namespace.UTS},
		User: user}))
	l.Cleanup(func() { l.must(set.Remove()) })
	return set
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func (l *lab) process(args ...string) *Process {
	return &Process{
		Args: args, Env: []string{"PATH=/bin"}, Cwd: "/tmp", UID: 1000, GID: 1000, Groups: []uint32{2000},
		Capabilities: &Capabilities{Bounding: 0x21, Effective: 0x1, Permitted: 0x1}, Filter: l.filter,
	}
}

var limits = []Limit{{Resource: unix.RLIMIT_NOFILE, Soft: 100, Hard: 200},
	{Resource: unix.RLIMIT_NPROC, Soft: 300, Hard: 400}}

// setup is that of a container in pins, with the PID namespace of a process or its own.
func (l *lab) setup(pins *namespace.Set, user bool, init int) *Setup {
	score := 500
	s := &Setup{
		Root: l.root, Cgroups: l.v1, Make: unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP, Umask: 0o027,
		OOMScore: &score, Keyring: "_ses.x",
		KeyringRight: 0x80000, Limits: limits, ReopenNull: true,
		Join: []Namespace{
			{unix.CLONE_NEWNET, pins.Path(namespace.Network)}, {unix.CLONE_NEWIPC, pins.Path(namespace.IPC)},
			{unix.CLONE_NEWUTS, pins.Path(namespace.UTS)},
		},
		Operations: []Operation{
			{Kind: Mount, Type: "proc", Source: "proc", Target: "/proc", Flags: unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC,
				Set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC, PlainTarget: true},
			{Kind: Mount, Type: "tmpfs", Source: "tmpfs", Target: "/dev", Flags: unix.MS_NOSUID,
				Data: "mode=755", CopyMode: true},
			{Kind: Mount, Type: "devpts", Source: "devpts", Target: "/dev/pts", Flags: unix.MS_NOSUID | unix.MS_NOEXEC,
				Data: "newinstance,ptmxmode=0666"},
			{Kind: Mount, Type: "sysfs", Source: "sysfs", Target: "/sys", Flags: unix.MS_RDONLY, PlainTarget: true},
			{Kind: Bind, Source: "/usr", Target: "/tmp/usr", Set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID,
				Recursive: true},
			{Kind: Bind, Source: "/etc/passwd", Target: "/tmp/file", Set: unix.MOUNT_ATTR_RDONLY},
		},
	}
	device := Operation{Kind: Device, Target: "/dev/null", Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 3}
	if user {
		s.User, s.KeyringRight = pins.Path(namespace.User), 0x8
		device = Operation{Kind: Bind, Source: "/dev/null", Target: "/dev/null"}
	}
	s.Operations = append(s.Operations, device,
		Operation{Kind: Link, Target: "/dev/ptmx", Source: "pts/ptmx", Replace: true},
		Operation{Kind: Pivot}, Operation{Kind: RootReadonly},
		Operation{Kind: Sysctl, Source: "kernel/msgmax", Data: "1234"},
		Operation{Kind: Protect, Target: "/proc/sys"}, Operation{Kind: Mask, Target: "/proc/keys"},
		Operation{Kind: Mask, Target: "/proc/scsi"},
		Operation{Kind: Mask, Target: "/proc/bus"})
	s.Cgroup, s.Clone = l.v2, l.v2 != ""
	if init > 0 {
		s.Join = append(s.Join, Namespace{unix.CLONE_NEWPID, fmt.Sprintf("/proc/%d/ns/pid", init)})
	} else {
		s.Make |= unix.CLONE_NEWPID
	}
	return s
}

// target is a running container that is joined.
func (l *lab) target(pidfd int, user bool) *Target {
	score := 600
	t := &Target{
		Pidfd: pidfd, Cgroups: l.v1, OOMScore: &score, Keyring: "_ses.x", Limits: limits,
		Namespaces: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS |
			unix.CLONE_NEWCGROUP,
	}
	if user {
		t.Namespaces |= unix.CLONE_NEWUSER
	}
	t.Cgroup, t.Clone = l.v2, l.v2 != ""
	return t
}

// begun is a container that runs.
type begun struct {
	*Starting
	pidfd int
}

func (l *lab) run(s *Setup, args ...string) *begun {
	l.Helper()
	f, err := l.real.Begin(s, l.process(args...), Stdio{}, nil)
	l.must(err)
	pid, err := f.Start()
	l.must(err)
	l.must(f.Ready())
	l.must(f.Run())
	fd, err := unix.PidfdOpen(pid, 0)
	l.must(err)
	b := &begun{f, fd}
	l.Cleanup(func() {
		b.Kill()
		b.Close()
		unix.Close(b.pidfd)
	})
	return b
}

// outcome is what became of a start.
type outcome struct {
	output string // of the program
	err    error
	killed bool // the process was killed
}

// start starts a process, and lets decide answer for each of its system calls.
func (l *lab) start(begin func(*Program, Stdio) (*Starting, error),
	decide func(*notification) int32) (calls int, o outcome) {
	l.Helper()
	r, w, err := os.Pipe()
	l.must(err)
	var said bytes.Buffer
	read := make(chan struct{})
	go func() { _, _ = io.Copy(&said, r); close(read) }()
	f, err := begin(l.launcher, Stdio{1: w, 2: w})
	w.Close()
	l.must(err)
	sup := l.supervise(f.Spawned(), decide)
	o.err = func() error {
		if _, err := f.Start(); err != nil {
			return err
		}
		if f.setup != nil {
			if err := f.Ready(); err != nil {
				return err
			}
		}
		return f.Run()
	}()
	if o.err != nil {
		f.Kill()
	} else {
		var ws unix.WaitStatus
		_, err := unix.Wait4(f.pid, &ws, 0, nil)
		l.must(err)
		o.killed = ws.Signaled()
	}
	f.Close()
	// Until the last one has gone its calls are answered: without a supervisor they fail, exit_group(2) too.
	for deadline := time.Now().Add(time.Minute); len(l.members()) != l.standing; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			l.Fatalf("%v are left; the start: %v", l.members(), o.err)
		}
	}
	calls = sup.stop()
	<-read
	r.Close()
	o.output = inOrder(said.String())
	return calls, o
}

// notification is struct seccomp_notif.
type notification struct {
	ID         uint64
	PID, Flags uint32
	Number     int32
	Arch       uint32
	IP         uint64
	Args       [6]uint64
}

// supervisor answers for system calls.
type supervisor struct {
	fd    int
	calls int
	done  sync.WaitGroup
	quit  int // an eventfd
}

// pretended is the answer to a call that is not made, and succeeds.
const pretended = -1

const (
	notifRecv     = 0xc0502100
	notifSend     = 0xc0182101
	notifContinue = 1
)

// supervise finds the descriptor that the launcher has.
func (l *lab) supervise(pid int, decide func(*notification) int32) *supervisor {
	l.Helper()
	target, err := unix.PidfdOpen(pid, 0)
	l.must(err)
	defer unix.Close(target)
	s := &supervisor{fd: -1}
	for deadline := time.Now().Add(time.Minute); s.fd < 0; {
		fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		for _, e := range fds {
			if name, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name())); err == nil &&
				strings.Contains(name, "seccomp") {
				n, _ := strconv.Atoi(e.Name())
				if s.fd, err = unix.PidfdGetfd(target, n, 0); err != nil {
					s.fd = -1
				}
			}
		}
		if time.Now().After(deadline) {
			l.Fatal("the launcher has not asked for a supervisor")
		}
	}
	s.quit, err = unix.Eventfd(0, unix.EFD_CLOEXEC)
	l.must(err)
	s.done.Go(func() { s.answer(decide) })
	return s
}

// answer counts calls from the first of the stage's own until its program is executed.
func (s *supervisor) answer(decide func(*notification) int32) {
	staged, program := false, false
	for {
		p := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}, {Fd: int32(s.quit), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, -1); err == unix.EINTR {
			continue
		}
		if p[1].Revents != 0 || p[0].Revents&(unix.POLLIN|unix.POLLHUP) == unix.POLLHUP {
			return // nobody wants to know any more, or the last process has gone
		}
		if p[0].Revents&unix.POLLIN == 0 {
			// POLLERR: a signal came as the kernel waited for its lock (seccomp_notify_poll), which Go's runtime sends to
			// its threads. Without another look the stage would wait for an answer for ever.
			continue
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s.fd), notifRecv, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue
		}
		if !staged && n.Number == unix.SYS_PRCTL && n.Args[0] == unix.PR_SET_DUMPABLE {
			staged = true
		}
		answer := struct {
			ID           uint64
			Value        int64
			Error, Flags int32
		}{ID: n.ID, Flags: notifContinue}
		if staged && !program {
			s.calls++
			switch errno := decide(&n); {
			case errno == pretended:
				answer.Flags = 0
			case errno != 0:
				answer.Error, answer.Flags = -errno, 0
			default:
				program = n.Number == unix.SYS_EXECVE
			}
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(s.fd), notifSend, uintptr(unsafe.Pointer(&answer)))
	}
}

func (s *supervisor) stop() (calls int) {
	_, _ = unix.Write(s.quit, binaryOne)
	s.done.Wait()
	unix.Close(s.fd)
	unix.Close(s.quit)
	return s.calls
}

var binaryOne = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// members are the processes of the lab's cgroup.
func (l *lab) members() []string {
	b, err := os.ReadFile(filepath.Join(l.cgroup, "cgroup.procs"))
	l.must(err)
	return strings.Fields(string(b))
}

func (l *lab) freeze(on bool) {
	if l.v1 == nil {
		l.must(os.WriteFile(filepath.Join(l.cgroup, "cgroup.freeze"), []byte(map[bool]string{true: "1", false: "0"}[on]), 0))
		return
	}
	l.must(os.WriteFile(filepath.Join(l.cgroup, "freezer.state"),
		[]byte(map[bool]string{true: "FROZEN", false: "THAWED"}[on]), 0))
}

// TestAFaultInAStageNeverConfinesLess has each system call of a stage fail, or its process killed or frozen at it,
// for containers and execs, with and without a PID namespace that is shared and a user namespace. Either the start
// fails with an error and nothing of it is left, or the program runs with all that it has when nothing fails.
//
// Seen to fail with the results of setgid(2), of seccomp(2), and of the prctl(2) that drops capabilities
// of the bounding set, not looked at, and with an EPERM of setgroups(2) passed over in user namespaces.
func TestAFaultInAStageNeverConfinesLess(t *testing.T) {
	l := newLab(t)
	sleeps := []string{"sleep", "1000"}
	own, ownUser := l.run(l.setup(l.host, false, 0), sleeps...), l.run(l.setup(l.user, true, 0), sleeps...)
	l.standing = 2 // counted, and not read: the child that made a stage may not have gone yet
	script := []string{"sh", "-c", said}
	begin := func(s func() *Setup) func(*Program, Stdio) (*Starting, error) {
		return func(p *Program, io Stdio) (*Starting, error) { return p.Begin(s(), l.process(script...), io, nil) }
	}
	join := func(b *begun, user bool) func(*Program, Stdio) (*Starting, error) {
		return func(p *Program, io Stdio) (*Starting, error) {
			return p.Join(l.target(b.pidfd, user), l.process(script...), io, nil)
		}
	}
	stride := 13 // every so many-th call; a long run takes all
	if os.Getenv("BERTH_LONG") != "" {
		stride = 1
	}
	for name, start := range map[string]func(*Program, Stdio) (*Starting, error){
		"container":                            begin(func() *Setup { return l.setup(l.host, false, 0) }),
		"container in a pod's processes":       begin(func() *Setup { return l.setup(l.host, false, own.pid) }),
		"container in a user namespace":        begin(func() *Setup { return l.setup(l.user, true, 0) }),
		"container in processes and namespace": begin(func() *Setup { return l.setup(l.user, true, ownUser.pid) }),
		"exec":                                 join(own, false),
		"exec in a user namespace":             join(ownUser, true),
	} {
		t.Run(name, func(t *testing.T) {
			total, want := l.start(start, func(*notification) int32 { return 0 })
			if want.err != nil || !strings.HasSuffix(want.output, "complete\n") {
				t.Fatalf("without a fault: %v, %q", want.err, want.output)
			}
			ran, failed, offset := 0, 0, 0
			for what, fault := range map[string]func(n *notification) int32{
				"EPERM":  func(*notification) int32 { return int32(unix.EPERM) },
				"ENOENT": func(*notification) int32 { return int32(unix.ENOENT) },
				"EIO":    func(*notification) int32 { return int32(unix.EIO) },
				"killed": func(n *notification) int32 { _ = unix.Kill(int(n.PID), unix.SIGKILL); return 0 },
				"frozen": func(*notification) int32 {
					// Not longer than the call: a program that is thawed in one that is asked about here sees it interrupted.
					l.freeze(true)
					time.Sleep(5 * time.Millisecond)
					l.freeze(false)
					return 0
				},
			} {
				offset++
				for k := 1 + offset%stride; k <= total; k += stride {
					var hit notification
					i := 0
					_, got := l.start(start, func(n *notification) int32 {
						if i++; i != k || n.Number == unix.SYS_UMASK { // which cannot fail
							return 0
						}
						hit = *n
						errno := fault(n)
						if n.Number == unix.SYS_OPENAT2 && errno == int32(unix.ENOENT) {
							return 0 // what is not there is not masked
						}
						return errno
					})
					at := fmt.Sprintf("%s at call %d of %d (number %d)", what, k, total, hit.Number)
					switch {
					case got.err != nil && errors.Is(got.err, ErrInterrupted), what == "frozen" && got.err != nil:
						t.Errorf("%s: %v", at, got.err)
					case got.err != nil:
						failed++
						if got.output != "" {
							t.Errorf("%s: %v, but the program has run: %q", at, got.err, got.output)
						}
					case got.killed:
						if what != "killed" || strings.Contains(got.output, "complete") {
							t.Errorf("%s: killed, output %q", at, got.output)
						}
					case got.output != want.output:
						t.Errorf("%s: the program runs otherwise:\n%s\nand not\n%s", at, got.output, want.output)
					default:
						ran++
					}
				}
			}
			t.Logf("%d calls; %d starts failed, %d programs ran as they should", total, failed, ran)
		})
	}
}

// TestALimitOfFilesInAUserNamespaceIsRaisedOnTheHost: a container in a user namespace may have a higher limit of open
// files than the keeper. Only on the host there is the right to raise it (CAP_SYS_RESOURCE). The answers here are those
// of a kernel to a keeper that has this right, whether or not this process has it.
//
// Seen to fail where the stage put the keeper's limit back in the user namespace first: EPERM.
func TestALimitOfFilesInAUserNamespaceIsRaisedOnTheHost(t *testing.T) {
	l := newLab(t)
	var own unix.Rlimit
	l.must(unix.Getrlimit(unix.RLIMIT_NOFILE, &own))
	want := unix.Rlimit{Cur: own.Max + 1000, Max: own.Max + 2000}
	// The container's root may not make them.
	l.must(os.MkdirAll(filepath.Join(l.root, "tmp/usr"), 0o755))
	l.must(os.WriteFile(filepath.Join(l.root, "tmp/file"), nil, 0o644))
	for name, c := range map[string]struct {
		limits []Limit
		want   unix.Rlimit
	}{
		"above the keeper's": {[]Limit{{Resource: unix.RLIMIT_NOFILE, Soft: want.Cur, Hard: want.Max}}, want},
		"the keeper's":       {nil, own},
	} {
		t.Run(name, func(t *testing.T) {
			has, inside := own, false
			setup := l.setup(l.user, true, 0)
			setup.Limits = c.limits
			_, got := l.start(func(p *Program, io Stdio) (*Starting, error) {
				return p.Begin(setup, l.process("echo", "complete"), io, nil)
			}, func(n *notification) int32 {
				if n.Number == unix.SYS_SETNS && n.Args[1] == unix.CLONE_NEWUSER {
					inside = true
				}
				if n.Number != unix.SYS_PRLIMIT64 || n.Args[1] != unix.RLIMIT_NOFILE || n.Args[2] == 0 {
					return 0
				}
				var to unix.Rlimit
				b := unsafe.Slice((*byte)(unsafe.Pointer(&to)), unsafe.Sizeof(to))
				_, err := unix.ProcessVMReadv(int(n.PID), []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}},
					[]unix.RemoteIovec{{Base: uintptr(n.Args[2]), Len: len(b)}}, 0)
				if err != nil {
					t.Error(err)
				}
				if to.Max > has.Max && inside {
					return int32(unix.EPERM)
				}
				has = to
				return pretended
			})
			if got.err != nil || got.output != "complete\n" || has != c.want {
				t.Errorf("it has said %q, with the limit %+v, and not %+v: %v", got.output, has, c.want, got.err)
			}
		})
	}
}
