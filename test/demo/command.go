package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// command is `berth` as a person would type it, with the address of the private daemon in its environment.
func (d *demo) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(d.binaries, "berth"), args...)
	cmd.Env = append(cmd.Environ(), "BERTH_ADDRESS="+d.node.Address, "BERTH_DATA_DIR="+d.dataDir)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// berth runs a command, shows it and what it says, and returns its standard output.
func (d *demo) berth(ctx context.Context, args ...string) (string, error) {
	fmt.Printf("   %s\n", d.bold("$ berth "+strings.Join(args, " ")))
	var out bytes.Buffer
	both := &synced{}
	cmd := d.command(ctx, args...)
	cmd.Stdout = io.MultiWriter(&out, both)
	cmd.Stderr = both
	begin := time.Now()
	err := cmd.Run()
	say(both.String())
	fmt.Printf("   %s\n", d.dim("("+rounded(time.Since(begin))+")"))
	if err != nil {
		return out.String(), fmt.Errorf("berth %s: %w", strings.Join(args, " "), err)
	}
	return out.String(), nil
}

// ask runs a command with -o json and decodes what it says, without showing it.
func (d *demo) ask(ctx context.Context, into any, args ...string) error {
	out, err := d.command(ctx, append(args, "-o", "json")...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return fmt.Errorf("berth %s: %w", strings.Join(args, " "), err)
	}
	return json.Unmarshal(out, into)
}

// synced is a buffer for two writers: cmd.Stdout and cmd.Stderr have a goroutine each.
type synced struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (s *synced) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.Write(p)
}

func (s *synced) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buffer.String()
}

// lines runs a command that goes on until it is stopped, and gives use its lines until use says that it has seen
// enough.
func (d *demo) lines(ctx context.Context, use func(line string) (enough bool), args ...string) error {
	fmt.Printf("   %s\n", d.bold("$ berth "+strings.Join(args, " ")))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := d.command(ctx, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		return err
	}
	enough := false
	scanner := bufio.NewScanner(out)
	for !enough && scanner.Scan() {
		say(scanner.Text())
		enough = use(scanner.Text())
	}
	cancel() // as Ctrl-C would
	_, _ = io.Copy(io.Discard, out)
	err = cmd.Wait()
	if !enough {
		return fmt.Errorf("berth %s ended early: %w: %s", strings.Join(args, " "), errors.Join(err, scanner.Err()),
			complaints.String())
	}
	return nil
}
