// Package hook runs a hook of a container in a process between it and the keeper, and sees to it that it ends:
// libcontainer waits for a hook, and for whatever has its output open, as long as these live.
package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/opencontainers/runc/libcontainer/configs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"berth/internal/firstbytes"
	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/procfs"
)

const (
	// Argument is the first argument of a keeper's program that runs a hook. Options, the limit in seconds, the path of
	// the hook's program and its arguments follow.
	Argument = "hook"
	// optionParent is followed by the process ID of who runs a hook that ends with it. That is a hook of a start, which
	// the next keeper undoes. A hook of the stage poststop has no such option and ends at its limit only: the container's
	// state is gone by then, and nobody would run the hook again.
	optionParent = "-parent"
	// optionContainer is followed by the ID of the hook's container, for Running.
	optionContainer = "-container"
	// self is the path of the keeper's program for its own children.
	self = "/proc/self/exe"
	// maxOutput is how much of a hook's output is told in an error, in bytes.
	maxOutput = 64 << 10
	// outputWait is how long a hook's output is waited for after its end: a daemon that it has left may have it open.
	outputWait = time.Second
)

// limit is how long a hook without a timeout may take, in seconds. berthd gives each hook a timeout, so this is for
// specifications that an older berthd has written.
const limit = 120

// Supervise makes those hooks of a configuration that libcontainer runs in the keeper's own process, rather than in the
// container's init process, run by this package. A keeper that takes the container over runs them in the same way.
// container is the container's ID.
func Supervise(hooks configs.Hooks, container string) {
	for _, stage := range []configs.HookName{
		configs.Prestart, configs.CreateRuntime, configs.Poststart, configs.Poststop,
	} {
		var options []string
		if stage != configs.Poststop {
			options = []string{optionContainer, container, optionParent, strconv.Itoa(os.Getpid())}
		}
		for i, h := range hooks[stage] {
			if command, ok := h.(configs.CommandHook); ok {
				hooks[stage][i] = supervised(command, options...)
			}
		}
	}
}

// supervised is a hook as this package runs it. One that is so already stays as it is. State files have hooks in this
// form, and an older keeper that reads one knows no options.
func supervised(command configs.CommandHook, options ...string) configs.CommandHook {
	if isSupervised(command) {
		return command
	}
	seconds := int64(limit)
	if command.Timeout != nil {
		seconds = max(int64(command.Timeout.Seconds()), 0)
	}
	args := append([]string{"berth-keeper", Argument}, options...)
	args = append(args, strconv.FormatInt(seconds, 10), command.Path)
	return configs.NewCommandHook(&configs.Command{
		Path: self, Args: append(args, command.Args...), Env: command.Env, Dir: command.Dir,
	})
}

func isSupervised(command configs.CommandHook) bool {
	return command.Path == self && len(command.Args) > 3 && command.Args[1] == Argument
}

// AfterRemoval has all hooks of the stage poststop run, each once, whatever the others return: the OCI runtime
// specification has a failure logged, and the removal goes on as if there had been none. libcontainer would leave out
// those after the one that fails, and fail the removal when the container's state is gone already. failed is called
// with the program of a hook that has failed. The hooks are replaced by functions, which libcontainer cannot write to a
// state file: afterwards, the configuration is good for the container's removal only.
func AfterRemoval(hooks configs.Hooks, container string, failed func(path string, err error)) {
	for i, h := range hooks[configs.Poststop] {
		command, ok := h.(configs.CommandHook)
		if !ok {
			continue
		}
		command = supervised(command) // an older keeper has not done so for a container that it has restored
		path := command.Args[3]
		run := *command.Command
		run.Args = slices.Insert(slices.Clone(command.Args), 2, optionContainer, container)
		hooks[configs.Poststop][i] = configs.NewFunctionHook(func(state *specs.State) error {
			if err := run.Run(state); err != nil {
				failed(path, err)
			}
			return nil
		})
	}
}

// split takes the options off the arguments that follow Argument.
func split(args []string) (options map[string]string, rest []string) {
	options = map[string]string{}
	for len(args) > 1 && strings.HasPrefix(args[0], "-") {
		options[args[0]] = args[1]
		args = args[2:]
	}
	return options, args
}

// Running are the containers for which this process runs a hook at this moment, each with the time at which the process
// that limits the hook has started, in clock ticks since boot. except are children of this process that limit none.
// Whoever runs a hook for a container waits for its end, and starts no other process for the container meanwhile.
func Running(except map[int]bool) map[string]uint64 {
	running := map[string]uint64{}
	for _, pid := range procfs.Children() {
		if except[pid] {
			continue
		}
		args := strings.Split(procfs.CommandLine(pid), "\x00")
		if len(args) < 2 || args[1] != Argument {
			continue
		}
		options, _ := split(args[2:])
		container := options[optionContainer]
		// A process that a container has left chooses its arguments, but not this program.
		if container == "" || !isSelf(pid) {
			continue
		}
		if start, err := pidfd.StartTime(pid); err == nil {
			running[container] = max(start, running[container])
		}
	}
	return running
}

// isSelf says whether a process executes the same file as this one.
func isSelf(pid int) bool {
	own, err := os.Stat(self)
	if err != nil {
		return false
	}
	its, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/exe")
	return err == nil && os.SameFile(own, its)
}

// Main runs the hook of this program's arguments, and returns its exit code.
func Main() int {
	if err := run(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func run(args []string) error {
	options, args := split(args)
	parent := 0
	if given, ok := options[optionParent]; ok {
		var err error
		if parent, err = strconv.Atoi(given); err != nil {
			return fmt.Errorf("parent of a hook: %w", err)
		}
	}
	if len(args) < 2 {
		return errors.New("a hook has a limit and a program")
	}
	seconds, err := strconv.ParseInt(args[0], 10, 32)
	if err != nil {
		return fmt.Errorf("limit of a hook: %w", err)
	}
	path := args[1]
	state, err := io.ReadAll(os.Stdin)
	if err != nil {
		return fmt.Errorf("state of the container: %w", err)
	}
	lost, err := watch(parent, state)
	if err != nil {
		return err
	}
	// What the hook starts becomes a child of this process when its parent ends, and so is found.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_CHILD_SUBREAPER)", err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	stdout, stderr := firstbytes.Buffer{Left: maxOutput}, firstbytes.Buffer{Left: maxOutput}
	// The kernel kills the hook if this process is killed. It would also do so at the end of the thread that starts the
	// hook, so this goroutine keeps that thread for good.
	runtime.LockOSThread()
	cmd := exec.Cmd{
		Path: path, Args: args[2:], Env: os.Environ(), Stdin: bytes.NewReader(state), Stdout: &stdout, Stderr: &stderr,
		WaitDelay: outputWait, SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	timer := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timer.Stop()
	why := ""
	select {
	case err = <-ended:
	case <-timer.C:
		why = fmt.Sprintf("it took longer than %d s", seconds)
	case why = <-lost:
	case <-stop:
		why = "it was asked to end"
	}
	if why != "" {
		killAll(cmd.Process.Pid)
		<-ended
		err = fmt.Errorf("hook %s was killed: %s", path, why)
	}
	_, _ = os.Stdout.Write(stdout.Bytes())
	_, _ = os.Stderr.Write(stderr.Bytes())
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil // it has ended well, and left a process behind
	}
	return err
}

// watch tells why nobody waits for a hook of a start any more: the keeper has ended, which is this process's parent, or
// the container's init process, of which state is the state. A parent of 0 stands for a hook that is not of a start.
func watch(parent int, state []byte) (<-chan string, error) {
	if parent == 0 {
		return nil, nil
	}
	var s specs.State
	if err := json.Unmarshal(state, &s); err != nil {
		return nil, fmt.Errorf("state of the container: %w", err)
	}
	watched := []struct {
		pid int
		why string
	}{{parent, "the keeper has ended"}}
	if s.Pid > 0 {
		watched = append(watched, struct {
			pid int
			why string
		}{s.Pid, "the container's init process has ended"})
	}
	lost := make(chan string, len(watched))
	for _, w := range watched {
		fd, err := unix.PidfdOpen(w.pid, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.why, os.NewSyscallError("pidfd_open", err))
		}
		// One that had ended before may have left its number to another process. The parent of this one then is no longer
		// the parent that started it.
		if w.pid == parent && os.Getppid() != parent {
			return nil, errors.New(w.why)
		}
		go func() {
			for {
				n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
				if n == 1 || err != nil && !errors.Is(err, unix.EINTR) {
					lost <- w.why
					return
				}
			}
		}()
	}
	return lost, nil
}

// killAll kills the hook and all that it has started, also what has left its session. The children of a process that
// ends become children of this one, and a list of children is no picture of one moment: one that was read before is too
// old, and one that changes meanwhile may lack some. So it takes several without any that live. A process that waits
// for a device or a file system without an answer cannot be killed before it has one, which may be never: the longer
// this takes, the less often it looks.
func killAll(hook int) {
	began := time.Now()
	for quiet := 0; quiet < 3; quiet++ {
		for _, pid := range procfs.Children() {
			if pid == hook { // which is waited for elsewhere
				if f := procfs.Status(pid); len(f) == 0 || f[0] == "Z" {
					continue
				}
			} else if got, _ := unix.Wait4(pid, nil, unix.WNOHANG, nil); got == pid {
				quiet = -1
				continue
			}
			quiet = -1
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(lookPause(time.Since(began)))
	}
}

// lookPause is the time between two looks of killAll, which has begun so long ago.
func lookPause(since time.Duration) time.Duration {
	return min(max(since/100, time.Millisecond), 100*time.Millisecond)
}
