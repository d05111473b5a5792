package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth/internal/keeper/handover"
)

// EscrowFlag makes this program an escrow process: see client.HoldEscrow.
const EscrowFlag = "custodian"

const (
	// All of these together are less than the 90 s that systemd gives a service to stop (DefaultTimeoutStopSec). On a
	// node that is far too busy a program takes many seconds to begin.
	escrowProcessWait = time.Minute     // for an escrow process to have everything
	shutdownWait      = 5 * time.Second // for what is under way

	escrowProcessPoll = 10 * time.Millisecond // how often a keeper looks whether it has ended
)

// shutdown ends the keeper in order: somebody holds in escrow what containers need, nothing new begins, and all that
// was read of their output is in the log.
func (s *Server) shutdown() {
	if err := s.startEscrowProcess(); err != nil {
		s.log.Error("nobody but berthd holds the containers' pipes when this keeper is gone", "error", err)
	}
	if !s.gate.Close() {
		return
	}
	within(shutdownWait, s.gate.Wait)
	s.disconnect()
	within(shutdownWait, func() { // a log may be on a disk that hangs
		var all sync.WaitGroup
		for _, c := range s.containers.all() {
			all.Go(c.quiesce)
		}
		all.Wait()
		s.watching.Wait() // who has just seen a process end writes that down
	})
}

// quiesce stops the container's waiters and log pumps, and writes to the log what these have of a line.
func (c *container) quiesce() {
	c.stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pumps {
		p.Flush()
	}
}

// within waits for something, but no longer than the limit.
func within(limit time.Duration, wait func()) {
	done := make(chan struct{})
	go func() {
		wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(limit):
	}
}

// startEscrowProcess starts an escrow process, which is left behind with duplicates of all pipes and pidfds. berthd may
// be about to end, too, and systemd forgets the descriptors of a service that is stopped (before version 254).
func (s *Server) startEscrowProcess() error {
	if !s.hasEscrow() {
		return nil
	}
	cmd := exec.Command(s.cfg.Binary, "--"+EscrowFlag, "--dir", s.cfg.Dir)
	cmd.Dir, cmd.Stderr = "/", os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "NOTIFY_SOCKET=") && !strings.HasPrefix(e, handover.Environment+"=") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	defer out.Close()
	s.orphans.Begin() // it is reaped by whoever comes after this process
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start escrow process: %w", err)
	}
	said := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(out, make([]byte, 1))
		said <- err
	}()
	select {
	case err = <-said:
	case <-time.After(escrowProcessWait):
		err = errors.New("it is not ready in time")
	}
	if err != nil {
		_ = cmd.Process.Kill()
		return fmt.Errorf("escrow process %d: %w", cmd.Process.Pid, errors.Join(err, cmd.Wait()))
	}
	s.log.Info("an escrow process has everything until the next keeper comes", "pid", cmd.Process.Pid)
	return nil
}

// hasEscrow says whether anything belongs into escrow: what would be lost with this process.
func (s *Server) hasEscrow() bool {
	for _, c := range s.containers.all() {
		p, err := c.escrowPacket()
		if p != nil {
			p.CloseFiles()
		}
		if p != nil || err != nil {
			return true
		}
	}
	return false
}
