package client

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"berth/internal/keeper/protocol"
	"berth/internal/mountns"
)

// maxLog is the size from which on the log of earlier keepers is put aside when one is started.
const maxLog = 8 << 20

// starter starts a keeper, and again if it ended without answering (another one may have been faster).
type starter struct {
	mu      sync.Mutex
	running bool
	last    time.Time
	err     error
}

// again is how soon after one start the next one is tried.
const again = 500 * time.Millisecond

func (s *starter) start(cfg Config) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running || time.Since(s.last) < again {
		return nil
	}
	if err := protocol.MakeDir(cfg.Dir); err != nil {
		return err
	}
	path := filepath.Join(cfg.Dir, protocol.LogFile)
	if st, err := os.Stat(path); err == nil && st.Size() > maxLog {
		_ = os.Rename(path, path+".1")
	}
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"--dir", cfg.Dir}
	if cfg.Args != nil {
		args = append(args, cfg.Args()...)
	}
	cmd := exec.Command(cfg.Binary, args...)
	cmd.Dir = "/"
	cmd.Stderr = log
	mountns.Pass(cmd)
	// The keeper gets a session of its own: it outlives the process that starts it, and no terminal's signals reach it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start keeper: %w", err)
	}
	s.running, s.last = true, time.Now()
	go func() {
		err := cmd.Wait()
		s.mu.Lock()
		s.running = false
		s.err = fmt.Errorf("keeper (process %d) ended: %w; see %s", cmd.Process.Pid, err, path)
		if err == nil {
			s.err = nil
		}
		s.mu.Unlock()
	}()
	return nil
}

func (s *starter) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
