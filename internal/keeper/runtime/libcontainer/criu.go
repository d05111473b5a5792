package libcontainer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"time"

	"berth/internal/disk"
	"berth/internal/keeper/hook"
	"berth/internal/keeper/procfs"
	"berth/internal/keeper/runtime"
	"berth/internal/keeper/runtime/plan"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/opencontainers/runc/libcontainer/keys"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/selinux/go-selinux"
	"golang.org/x/sys/unix"
)

// CRIU runs below a process of its own, this program under another argument: libcontainer's calls of it know no
// deadline, and a process can be killed. criu notices that whoever started it is gone, undoes what it has begun and
// ends.

// CRIUCommand is the argument that makes this program that process; CRIU is its main function then.
const CRIUCommand = "criu"

// Descriptors of that process beside the container's own three.
const (
	criuRequestFD = 3 + iota
	criuResultFD
	criuConsoleFD
)

// criuGrace is how long criu may take to undo what it has begun.
const criuGrace = 10 * time.Second

// criuSettings is CRIU's configuration for all that this program does. A restored container has other addresses than
// the one that was written down: its connections are closed, and so need not be held still while they are written down.
// A file that is open and has no name is kept with the images.
const criuSettings = "tcp-close\nghost-limit 1G\n"

type criuCall struct {
	Restore   bool        `json:"restore"`
	StateRoot string      `json:"stateRoot"`
	Dir       runtime.Dir `json:"dir"` // the keeper's
	ID        string      `json:"id"`
	CRIU      string      `json:"criu,omitempty"`
	Images    string      `json:"images"`
	Work      string      `json:"work"`
	Spec      *specs.Spec `json:"spec,omitempty"` // of what is restored
	Systemd   bool        `json:"systemd,omitempty"`

	group func(pgid int) // see runtime.Dump; nil: nobody is to be told
}

type criuResult struct {
	PID          int    `json:"pid,omitempty"`
	Error        string `json:"error,omitempty"`
	Precondition bool   `json:"precondition,omitempty"` // the node lacks what is needed
	Unsupported  bool   `json:"unsupported,omitempty"`  // the node has no CRIU that works
}

// callCRIU runs a process that makes one call of CRIU.
func (e *Engine) callCRIU(
	ctx context.Context, c runtime.Container, call *criuCall, io runtime.Stdio, console *os.File,
) (*criuResult, error) {
	call.StateRoot, call.Dir, call.ID = e.dir.States(), e.dir, c.ID()
	if err := e.writeCRIUSettings(); err != nil {
		return nil, err
	}
	request, err := json.Marshal(call)
	if err != nil {
		return nil, err
	}
	mem, err := unix.MemfdCreate("criu-request", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	in := os.NewFile(uintptr(mem), "criu-request")
	defer in.Close()
	if _, err := in.WriteAt(request, 0); err != nil {
		return nil, err
	}
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	defer theirs.Close()
	cmd := criuCommand(call, io, in, theirs, console)
	started, waited := make(chan error, 1), make(chan error, 1)
	go func() {
		// The kernel sends the signal when the thread ends that has started the process.
		goruntime.LockOSThread()
		defer goruntime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			waited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start criu's process: %w", err)
	}
	theirs.Close()
	if call.group != nil {
		call.group(cmd.Process.Pid)
	}
	select {
	case err = <-waited:
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		select {
		case <-waited:
		case <-time.After(criuGrace): // the process waits for a file system that does not answer
		}
		endGroup(cmd.Process.Pid, criuGrace)
		return nil, fmt.Errorf("criu: %w", context.Cause(ctx))
	}
	// What criu has started may hold the pipe, so only what is there is read.
	_ = out.SetReadDeadline(time.Now().Add(time.Second))
	line, _ := bufio.NewReader(out).ReadBytes('\n')
	res := &criuResult{}
	if jerr := json.Unmarshal(line, res); jerr != nil {
		endGroup(cmd.Process.Pid, criuGrace)
		return nil, fmt.Errorf("criu's process gave no result: %w", errors.Join(err, jerr))
	}
	if res.Error != "" {
		return nil, call.failure(res)
	}
	return res, nil
}

// writeCRIUSettings writes CRIU's configuration, if there is none or one of another version of this program. A criu of
// another call may read the file meanwhile: it is replaced as a whole.
func (e *Engine) writeCRIUSettings() error {
	e.criuSettings.Lock()
	defer e.criuSettings.Unlock()
	if is, err := os.ReadFile(e.dir.CRIUConfig()); err == nil && string(is) == criuSettings {
		return nil
	}
	return disk.WriteFile(e.dir.CRIUConfig(), []byte(criuSettings), 0o600)
}

// failure makes an error with a class of a result that has one, with the reasons that CRIU's log gives.
func (call *criuCall) failure(res *criuResult) error {
	text := res.Error
	if said := criuSaid(call); said != "" {
		text += ": " + said
	}
	if res.Unsupported && !call.Restore {
		return fmt.Errorf("%s: %w", text, errdefs.ErrNotImplemented)
	}
	if res.Precondition || res.Unsupported {
		return fmt.Errorf("%s: %w", text, errdefs.ErrFailedPrecondition)
	}
	for _, dir := range []string{call.Images, call.Work} {
		if free, full := diskFull(dir); full {
			return fmt.Errorf("%s; the disk of %s is full (%s): %w", text, dir, free, errdefs.ErrResourceExhausted)
		}
	}
	return errors.New(text)
}

// diskRoom is what a disk has left when it counts as full: what failed to be written was larger than what is left, and
// CRIU and the programs that it runs write a few pages at a time.
const diskRoom = 64 << 10

// diskFull says what room a directory's disk has, and whether it is full. CRIU's errors do not tell.
func diskFull(dir string) (free string, full bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", false
	}
	bytes := st.Bavail * uint64(st.Bsize)
	full = bytes < diskRoom || st.Files > 0 && st.Ffree == 0
	return fmt.Sprintf("%d bytes and %d inodes are free", bytes, st.Ffree), full
}

// criuCommand is the process that makes the call. request and result are its ends of what it is told and answers;
// console is nil where the container has no terminal.
func criuCommand(call *criuCall, io runtime.Stdio, request, result, console *os.File) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", CRIUCommand)
	cmd.Args[0] = "berth-keeper"
	cmd.Env = []string{"PATH=" + searchPath()}
	cmd.Dir = "/"
	// A group of its own, so that criu can be found and killed when the process above it is gone.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	if call.Restore {
		// libcontainer mounts the root file system once more for CRIU: nothing of it stays, however this ends.
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS
	}
	cmd.ExtraFiles = []*os.File{request, result}
	if console != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, console)
	}
	if io.In != nil {
		cmd.Stdin = io.In
	}
	if io.Out != nil {
		cmd.Stdout = io.Out
	}
	if io.Err != nil {
		cmd.Stderr = io.Err
	}
	return cmd
}

// endGroup waits until all processes of a group are gone, and kills those that stay for longer than the grace period.
// What does not end within the same time after that, as it waits for a file system that does not answer, is left to the
// keeper, which reaps orphans.
func endGroup(pgid int, grace time.Duration) {
	if groupEnds(pgid, grace) {
		return
	}
	_ = unix.Kill(-pgid, unix.SIGKILL)
	groupEnds(pgid, grace)
}

// groupEnds reaps the processes of a group, which are children of this process by now, and says whether all are gone
// within the limit.
func groupEnds(pgid int, limit time.Duration) bool {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		for {
			if pid, err := unix.Wait4(-pgid, nil, unix.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
		if unix.Kill(-pgid, 0) != nil {
			return true
		}
	}
	return false
}

// EndDump waits until the CRIU of a checkpoint has ended that another keeper has begun, in the process group that
// Dump.Group was called with. CRIU freezes the container again as it ends. It is killed if it takes too long.
func EndDump(pgid int) {
	for deadline := time.Now().Add(criuGrace); time.Now().Before(deadline) && len(criuOf(pgid)) > 0; {
		time.Sleep(10 * time.Millisecond)
	}
	for _, pid := range criuOf(pgid) {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// criuOf are the processes of a group that run CRIU, or the process above it.
func criuOf(pgid int) []int {
	var out []int
	all, _ := procfs.All()
	for _, pid := range all {
		f := procfs.Status(pid)
		if len(f) < 3 || f[0] == "Z" || f[2] != strconv.Itoa(pgid) {
			continue
		}
		// The number may be another group's by now. libcontainer runs "criu swrk 3".
		cmd := procfs.CommandLine(pid)
		if strings.Contains(cmd, "\x00swrk\x00") || strings.HasSuffix(cmd, "\x00"+CRIUCommand+"\x00") {
			out = append(out, pid)
		}
	}
	return out
}

// searchPath is the PATH in which criu, and the tar that it runs, are looked for.
func searchPath() string {
	if p := os.Getenv("PATH"); p != "" {
		return p
	}
	return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

// criuSaid is what CRIU's log gives as the reason: the first errors, the later ones follow from them.
func criuSaid(call *criuCall) string {
	name := "dump.log"
	if call.Restore {
		name = "restore.log"
	}
	f, err := os.Open(filepath.Join(call.Work, name))
	if err != nil {
		return ""
	}
	defer f.Close()
	var said []string
	lines := bufio.NewScanner(f)
	for lines.Scan() && len(said) < 2 {
		// (00.029102) Error (criu/util.c:1533): what is wrong
		_, rest, ok := strings.Cut(lines.Text(), "Error (")
		if !ok || strings.Contains(rest, "rlimit: Can't setup RLIMIT_NOFILE for self") { // only a wish of criu's
			continue
		}
		if _, text, ok := strings.Cut(rest, "): "); ok {
			said = append(said, strings.TrimSpace(text))
		}
	}
	return strings.Join(said, "; ")
}

// CRIU makes the one call that its parent asks for, and returns the process's exit code.
func CRIU() int {
	goruntime.LockOSThread() // a session keyring is a thread's, see joinKeyring
	// A process that is restored must not inherit what this one talks to its parent with.
	for fd := criuRequestFD; fd <= criuConsoleFD; fd++ {
		unix.CloseOnExec(fd)
	}
	out := os.NewFile(criuResultFD, "result")
	res := &criuResult{}
	if err := makeCall(res); err != nil {
		res.Error = err.Error()
		res.Precondition = errors.Is(err, errdefs.ErrFailedPrecondition)
		res.Unsupported = errors.Is(err, errNoCRIU)
	}
	if err := json.NewEncoder(out).Encode(res); err != nil || res.Error != "" {
		return 1
	}
	return 0
}

func makeCall(res *criuResult) error {
	in := os.NewFile(criuRequestFD, "request")
	b, err := io.ReadAll(io.NewSectionReader(in, 0, 1<<26))
	if err != nil {
		return err
	}
	call := &criuCall{}
	if err := json.Unmarshal(b, call); err != nil {
		return err
	}
	if err := call.find(); err != nil {
		return err
	}
	if call.Restore {
		return call.restore(res)
	}
	lib, err := libcontainer.Load(call.StateRoot, call.ID)
	if err != nil {
		return err
	}
	st, err := lib.State()
	if err != nil {
		return err
	}
	if err := mountsHaveTheirKeys(&st.Config, st.InitProcessPid); err != nil {
		return err
	}
	opts := call.options()
	opts.LeaveRunning = true
	return lib.Checkpoint(opts)
}

// errNoCRIU is a node that has no CRIU which works.
var errNoCRIU = errors.New("no criu that works")

// find sees to it that libcontainer, which looks for "criu" in PATH, finds the one that is meant.
func (call *criuCall) find() error {
	path := call.CRIU
	if path == "" {
		found, err := exec.LookPath("criu")
		if err != nil {
			return fmt.Errorf("criu is not installed on this node (package criu): %w", errNoCRIU)
		}
		path = found
	}
	if err := unix.Access(path, unix.X_OK); err != nil {
		return fmt.Errorf("criu at %s: %w: %w", path, err, errNoCRIU)
	}
	if filepath.Base(path) != "criu" {
		return fmt.Errorf("criu at %s: the program's name has to be criu: %w", path, errdefs.ErrFailedPrecondition)
	}
	if err := os.Setenv("PATH", filepath.Dir(path)+":"+searchPath()); err != nil {
		return err
	}
	// CRIU looks at the kernel before anything else, and says there why it cannot work with it.
	out, err := exec.Command(path, "check").CombinedOutput()
	if err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("criu at %s does not work on this kernel: %s (%w): %w", path, first, err, errNoCRIU)
	}
	if call.Spec != nil && call.Spec.Process.NoNewPrivileges {
		return keepsPrivileges(path)
	}
	return nil
}

// keepsPrivileges refuses a CRIU before 3.19, whose processes may gain privileges though they could not when they were
// written down.
func keepsPrivileges(path string) error {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return fmt.Errorf("%s --version: %w", path, err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "Version: %d.%d", &major, &minor); err != nil {
		return fmt.Errorf("%s --version says %q: %w", path, out, err)
	}
	if major < 3 || major == 3 && minor < 19 {
		return fmt.Errorf("criu %d.%d at %s does not restore no_new_privs, which the container asks for; 3.19 does: %w",
			major, minor, path, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// mayGain says whether a process may gain privileges by what it executes.
func mayGain(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && bytes.Contains(status, []byte("\nNoNewPrivs:\t0\n"))
}

func (call *criuCall) options() *libcontainer.CriuOpts {
	return &libcontainer.CriuOpts{
		ImagesDirectory: call.Images,
		WorkDirectory:   call.Work,
		FileLocks:       true,
		LinkRemap:       true,
		// The network is the pod's, and not the container's to write down.
		EmptyNs: unix.CLONE_NEWNET,
		// The restored processes stay where libcontainer has put criu: in the new container's cgroup.
		ManageCgroupsMode: "ignore",
		StatusFd:          -1,
	}
}

func (call *criuCall) restore(res *criuResult) error {
	config, err := plan.Config(call.Dir, call.ID, call.Systemd, call.Spec)
	if err != nil {
		return err
	}
	// CRIU gives the processes the filters that they had; this one is for execs.
	if profile := call.Spec.Linux.Seccomp; profile != nil {
		if config.Seccomp, err = (&interned{}).get(profile); err != nil {
			return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
		}
	}
	if _, err := externals(config); err != nil {
		return err
	}
	lib, err := libcontainer.Create(call.StateRoot, call.ID, config)
	if err != nil {
		return err
	}
	p := &libcontainer.Process{Init: true}
	if call.Spec.Process.Terminal {
		p.ConsoleSocket = os.NewFile(criuConsoleFD, "console")
	} else {
		p.Stdin, p.Stdout, p.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	if err := joinKeyring(config, call.ID); err != nil {
		return err
	}
	opts := call.options()
	if profile := call.Spec.Process.ApparmorProfile; profile != "" {
		opts.LsmProfile = "apparmor:" + profile
	}
	if label := call.Spec.Process.SelinuxLabel; label != "" {
		opts.LsmProfile, opts.LsmMountContext = "selinux:"+label, call.Spec.Linux.MountLabel
	}
	if err := lib.Restore(p, opts); err != nil {
		hook.AfterRemoval(lib.Config().Hooks, lib.ID(), func(path string, failed error) {
			err = errors.Join(err, fmt.Errorf("poststop hook %s: %w", path, failed))
		})
		derr := lib.Destroy()
		return errors.Join(err, derr)
	}
	res.PID, err = p.Pid()
	return err
}

// joinKeyring gives this thread, and criu, which it starts, a session keyring of the container's, as libcontainer gives
// one to a container's init process. CRIU knows no keyrings: restored processes have the one that they inherit, which
// would be the keeper's, and that of all other restored containers.
func joinKeyring(config *configs.Config, id string) error {
	if config.NoNewKeyring {
		return nil
	}
	if config.ProcessLabel != "" {
		if err := selinux.SetKeyLabel(config.ProcessLabel); err != nil {
			return fmt.Errorf("label of the session keyring: %w", err)
		}
	}
	ring, err := keys.JoinSessionKeyring("_ses." + id)
	if errors.Is(err, unix.ENOSYS) {
		return nil // a kernel without keyrings
	}
	if err != nil {
		return err
	}
	if err := keys.ModKeyringPerm(ring, 0xffffffff, plan.KeyringSearch); err != nil {
		return fmt.Errorf("permissions of the session keyring: %w", err)
	}
	return nil
}
