package verifier

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"berth/internal/firstbytes"
)

const (
	// maxOutput is how many bytes are read of a program's stdout and of its stderr, as in containerd. What it writes
	// beyond is passed over.
	maxOutput = 32 << 10
	// killWait is how long it may take the kernel to end a program that was killed.
	killWait = 2 * time.Second
	// busyTries and busyWait are for a program that is just being written.
	busyTries = 5
	busyWait  = 100 * time.Millisecond
)

// run runs a program until it has ended. An error says that it has given no answer: it could not be started, was
// killed, or did not end in time.
func (v *Verifiers) run(ctx context.Context, p Program, args []string, stdin []byte) (*answer, error) {
	limited, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	type ended struct {
		*answer
		err error
	}
	done := make(chan ended, 1)
	go func() {
		// The kernel ends the program with the thread that has started it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		a, err := v.start(limited, p, args, stdin)
		done <- ended{a, err}
	}()
	select {
	case e := <-done:
		if limited.Err() != nil {
			break
		}
		return e.answer, e.err
	case <-limited.Done():
		// A program that waits for a disk or for NFS ends when that answers. This pull does not wait for it.
		select {
		case <-done:
		case <-time.After(killWait):
		}
	}
	return nil, fmt.Errorf("it has not answered within image_verifier.per_verifier_timeout, which is %s", v.cfg.Timeout)
}

// start starts a program and waits for its end. It is the first process of a PID namespace: with it, the kernel ends
// all that it has started, also where it ends because berthd does.
func (v *Verifiers) start(ctx context.Context, p Program, args []string, stdin []byte) (*answer, error) {
	for try := 1; ; try++ {
		stdout, stderr := &firstbytes.Buffer{Left: maxOutput}, &firstbytes.Buffer{Left: maxOutput}
		cmd := exec.CommandContext(ctx, p.path, args...)
		cmd.Dir = "/"
		cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"},
			v.cfg.Env...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), stdout, stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL, Setsid: true,
		}
		cmd.WaitDelay = killWait
		err := cmd.Start()
		if errors.Is(err, syscall.ETXTBSY) && try < busyTries {
			select {
			case <-ctx.Done():
			case <-time.After(busyWait):
			}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("it could not be run: %w", err)
		}
		first(cmd.Process.Pid)
		err = cmd.Wait()
		a := &answer{reason: line(stdout.Bytes(), stdout.Over), stderr: line(stderr.Bytes(), stderr.Over)}
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && exit.Exited():
			a.code = exit.ExitCode()
		case errors.As(err, &exit):
			return a, fmt.Errorf("it was ended by a signal: %s", exit)
		case err != nil:
			return a, fmt.Errorf("it gave no answer: %w", err)
		}
		return a, nil
	}
}

// first has the kernel end a program before other processes when memory is short: a pull can be repeated. berthd itself
// is the last, which programs would inherit.
func first(pid int) {
	_ = os.WriteFile("/proc/"+strconv.Itoa(pid)+"/oom_score_adj", []byte("1000"), 0) // it may have ended
}
