package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"berth/internal/keeper/gate"
	"berth/internal/keeper/logpump"
)

// What the keeper says of a start keeps its kind on the way to the client; only what the program itself causes is a
// start error. Seen to fail without ErrAborted: a client took an exec whose command may have run for a command that
// cannot be run.
func TestOnlyProgramsCauseStartErrors(t *testing.T) {
	for err, code := range map[error]int32{
		errUncertain: 0,
		fmt.Errorf("container c: %w", errdefs.ErrAlreadyExists):      0,
		fmt.Errorf("container c: %w", errdefs.ErrFailedPrecondition): 0,
		fmt.Errorf("spec: %w", errdefs.ErrInvalidArgument):           0,
		gate.ErrUpgrading: 0,
		errors.New(`exec: "nothing": executable file not found in $PATH`): 127,
		errors.New("exec /etc/passwd: permission denied"):                 126,
		errors.New("mount of /x: input/output error"):                     128,
	} {
		switch got := startError(err); {
		case got.GetExitCode() != code:
			t.Errorf("%v: exit code %d, want %d", err, got.GetExitCode(), code)
		case code != 0 && got.Message != err.Error():
			t.Errorf("%v: message %q", err, got.Message)
		}
	}
}

// TestNoDescriptorIsClosedTwice: a container's output of which one stream cannot be read is closed once. It was closed
// by the pumps and again as the start was undone: the number might be another file's by then.
func TestNoDescriptorIsClosedTwice(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[1])
	// High numbers, which no file gets that others open meanwhile.
	out, err := unix.FcntlInt(uintptr(pipe[0]), unix.F_DUPFD_CLOEXEC, 1000)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(pipe[0])
	none := out + 1 // nothing has it
	e := ends{in: -1, out: out, err: none}
	log := logpump.New("", logpump.NewBacklogs(t.TempDir()), slog.New(slog.DiscardHandler))
	if pumps, err := e.pumps(log); !errors.Is(err, unix.EBADF) {
		t.Fatalf("%v, %v", pumps, err)
	}
	// Others get the numbers.
	for _, fd := range []int{out, none} {
		if err := unix.Dup3(pipe[1], fd, unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
	}
	e.close()
	for _, fd := range []int{out, none} {
		if err := unix.Close(fd); err != nil {
			t.Errorf("descriptor %d, which is another's by now: %v", fd, err)
		}
	}
}

// TestAProcessIsKnownByItsArguments, which the kernel sets a moment after the start of a proxy or of a runtime's
// process returns. Without them the next keeper took a process that still waited for the program. Seen to fail where
// they were read once.
func TestAProcessIsKnownByItsArguments(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	usual := commandLine
	defer func() { commandLine = usual }()
	looks := 0
	commandLine = func(pid int) string {
		if looks++; looks <= 2 {
			return ""
		}
		return usual(pid)
	}
	if line := waitingLine(cmd.Process.Pid); line != "sleep\x001000\x00" {
		t.Errorf("after %d looks it is %q", looks, line)
	}
	looks = 0
	commandLine = func(pid int) string {
		if looks++; looks == 1 { // the machine stands still
			time.Sleep(3 * time.Second / 2)
			return ""
		}
		return usual(pid)
	}
	if line := waitingLine(cmd.Process.Pid); line != "sleep\x001000\x00" {
		t.Errorf("after a halt and %d looks it is %q", looks, line)
	}
	commandLine = usual
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	looks = 0
	commandLine = func(pid int) string { looks++; return usual(pid) }
	if line := waitingLine(cmd.Process.Pid); line != "" || looks != 1 {
		t.Errorf("the line of a process that has ended is %q after %d looks", line, looks)
	}
	_ = cmd.Wait()
}
