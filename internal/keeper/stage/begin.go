package stage

// #include "stage.h"
import "C"

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// First is a container's first process before it is the program. It sets itself up, says that it is ready, and waits; it ends
// if whoever holds the First does.
type First struct {
	pid    int  // 0: not known yet
	parent int  // one that forks this; 0: none
	held   bool // somebody else reaps it
	proc   *Process
	setup  *Setup
	status *os.File
	word   *os.File // what it waits for comes from here
}

// Begin starts the first process of a container.
func (p *Program) Begin(s *Setup, proc *Process, stdio Stdio, console *os.File) (*First, error) {
	plan, err := proc.file(s.encode)
	if err != nil {
		return nil, err
	}
	defer plan.Close()
	status, theirStatus, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer theirStatus.Close()
	theirWord, word, err := os.Pipe()
	if err != nil {
		status.Close()
		return nil, err
	}
	defer theirWord.Close()
	pid, err := p.spawn(&spawn{
		plan: plan, status: theirStatus, other: int(theirWord.Fd()), stdio: stdio, console: console,
		mounts: p.mounts, cgroups: s.Cgroups, cgroup: s.Cgroup, flags: uintptr(s.Make & unix.CLONE_NEWPID),
	})
	if err != nil {
		status.Close()
		word.Close()
		return nil, err
	}
	f := &First{pid: pid, proc: proc, setup: s, status: status, word: word}
	if s.forks() {
		f.pid, f.parent = 0, pid
	}
	return f, nil
}

// Spawned is the process that Setup.Wait is about.
func (f *First) Spawned() int { return max(f.pid, f.parent) }

// Start lets it begin, if it waits for that, and returns the number of the container's first process.
func (f *First) Start() (pid int, err error) {
	if f.setup.Wait {
		if err := f.say(); err != nil {
			return 0, err
		}
	}
	if f.parent == 0 {
		return f.pid, nil
	}
	step, err := f.hear()
	if err == nil && step != C.STEP_PID {
		err = fmt.Errorf("the stage says %d in place of its process's number", step)
	}
	if err != nil {
		return 0, err
	}
	reap(f.parent)
	f.parent = 0
	return f.pid, nil
}

// ErrSilent is the error of a process that has ended without saying why.
var ErrSilent = errors.New("the container's first process was killed while it was set up")

// Ready returns when all is set up.
func (f *First) Ready() error {
	step, err := f.hear()
	if err == nil && step != C.STEP_READY {
		err = fmt.Errorf("the stage says %d in place of being ready", step)
	}
	return err
}

// Run lets it become the program, and returns when it is, or with the error that keeps it from that.
func (f *First) Run() error {
	if err := f.say(); err != nil {
		return err
	}
	switch _, err := f.hear(); {
	case errors.Is(err, ErrSilent):
		return nil
	case err != nil:
		return err
	}
	return errors.New("the stage says more than that it is ready")
}

// Disown leaves it to somebody else to reap the process.
func (f *First) Disown() { f.held = true }

// Close lets go of it. What is not the program yet ends.
func (f *First) Close() {
	f.word.Close()
	f.status.Close()
}

// Kill ends what has been started, and returns when it has ended.
func (f *First) Kill() {
	for _, pid := range []int{f.parent, f.pid} {
		if pid == 0 {
			continue
		}
		_ = unix.Kill(pid, unix.SIGKILL)
		if f.held {
			_ = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		} else {
			reap(pid)
		}
	}
}

func (f *First) say() error {
	_, err := f.word.Write([]byte{0})
	if errors.Is(err, unix.EPIPE) {
		if _, why := f.hear(); why != nil {
			return why
		}
	}
	return err
}

// hear waits for one word of the stage's; an error is what has failed.
func (f *First) hear() (step int32, err error) {
	var s struct{ Step, Value, Operation int32 }
	switch err := binary.Read(f.status, binary.NativeEndian, &s); {
	case errors.Is(err, io.EOF):
		return 0, ErrSilent
	case err != nil:
		return 0, fmt.Errorf("read what the stage says: %w", err)
	}
	switch s.Step {
	case C.STEP_PID:
		f.pid = int(s.Value)
		return s.Step, nil
	case C.STEP_READY:
		return s.Step, nil
	}
	if err := f.setup.failure(s.Step, s.Operation, unix.Errno(s.Value)); err != nil {
		return 0, err
	}
	return 0, f.proc.failure(s.Step, s.Operation, unix.Errno(s.Value))
}
