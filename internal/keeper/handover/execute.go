package handover

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/mountns"
)

// Environment is the variable with the number of the memfd that holds the state. It is not for other programs.
const Environment = "BERTH_KEEPER_STATE"

// checkWait is how long a new program may take to say which state it understands.
const checkWait = time.Minute

// Check makes sure that a program can run here and understands the state.
func Check(binary string) error {
	ctx, cancel := context.WithTimeout(context.Background(), checkWait)
	defer cancel()
	out, err := exec.CommandContext(ctx, binary, "--state-format").Output()
	if err != nil {
		return fmt.Errorf("%s: %w", binary, err)
	}
	if got := strings.TrimSpace(string(out)); got != strconv.Itoa(Format) {
		return fmt.Errorf("%s has state format %s, not %d", binary, got, Format)
	}
	return nil
}

// Execute executes a program in place of this one, with the state and all its descriptors. It returns only if that
// failed. No process may be started meanwhile: it would inherit them. last is called right before the execve. hangup is
// where SIGHUP arrives; nil: it is not caught.
func Execute(binary string, s *State, hangup chan<- os.Signal, last func() error) error {
	mem, err := s.write()
	if err != nil {
		return err
	}
	defer unix.Close(mem)
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, Environment+"=") {
			env = append(env, e)
		}
	}
	env = append(env, Environment+"="+strconv.Itoa(mem))
	kept := []int{mem}
	if fd, variable := mountns.Inherited(); fd >= 0 {
		kept, env = append(kept, fd), append(env, variable)
	}
	syscall.ForkLock.Lock()
	defer syscall.ForkLock.Unlock()
	fds := append(s.descriptors(), kept...)
	defer closeOnExec(fds)
	for _, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return fmt.Errorf("keep descriptor %d: %w", fd, err)
		}
	}
	// Caught, it would have its default action in the new program until that catches it, and end the keeper.
	if hangup != nil {
		signal.Ignore(unix.SIGHUP)
		defer signal.Notify(hangup, unix.SIGHUP)
	}
	if err := last(); err != nil {
		return err
	}
	return fmt.Errorf("execute %s: %w", binary, syscall.Exec(binary, os.Args, env))
}

// write returns a memfd with the state.
func (s *State) write() (mem int, err error) {
	b, err := json.Marshal(s)
	if err != nil {
		return -1, err
	}
	if mem, err = unix.MemfdCreate("berth-keeper-state", unix.MFD_CLOEXEC); err != nil {
		return -1, os.NewSyscallError("memfd_create", err)
	}
	for done := 0; done < len(b); {
		n, err := unix.Write(mem, b[done:])
		if err != nil {
			unix.Close(mem)
			return -1, fmt.Errorf("write state: %w", err)
		}
		done += n
	}
	return mem, nil
}

// Load returns the state that the program has left which this one has replaced; nil if there was none.
func Load() (*State, error) {
	v, ok := os.LookupEnv(Environment)
	if !ok {
		return nil, nil
	}
	os.Unsetenv(Environment)
	fd, err := strconv.Atoi(v)
	if err != nil {
		return nil, fmt.Errorf("%s=%q: %w", Environment, v, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("saved state: %w", err)
	}
	b := make([]byte, st.Size)
	if _, err := unix.Pread(fd, b, 0); err != nil {
		return nil, fmt.Errorf("saved state: %w", err)
	}
	s := &State{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("saved state: %w", err)
	}
	if s.Format != Format {
		return nil, fmt.Errorf("saved state has format %d, not %d", s.Format, Format)
	}
	closeOnExec(s.descriptors())
	return s, nil
}

func closeOnExec(fds []int) {
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
}

// Listener takes a listening socket of the state over.
func Listener(fd int) (*net.UnixListener, error) {
	f := os.NewFile(uintptr(fd), "listener")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u := l.(*net.UnixListener)
	u.SetUnlinkOnClose(false)
	return u, nil
}
