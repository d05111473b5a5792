// Program guest is the agent in the virtual machine: it lays out what the host shares, and runs what the host asks for.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"berth/test/vm/wire"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

func serve() error {
	port, err := os.OpenFile("/dev/virtio-ports/"+wire.Port, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer port.Close()
	out := &replies{encoder: json.NewEncoder(port)}
	ready := wire.Reply{Ready: true}
	if err := overlays(); err != nil {
		ready = wire.Reply{Error: err.Error()}
	}
	if err := out.send(ready); err != nil {
		return err
	}
	commands := json.NewDecoder(port)
	for {
		var c wire.Command
		if err := commands.Decode(&c); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := out.send(run(c, out)); err != nil {
			return err
		}
	}
}

// replies are written one at a time.
type replies struct {
	mu      sync.Mutex
	encoder *json.Encoder
}

func (r *replies) send(reply wire.Reply) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.encoder.Encode(reply)
}

// Write sends output of a command.
func (r *replies) Write(p []byte) (int, error) {
	if err := r.send(wire.Reply{Output: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// overlays puts each shared directory where it is on the host, with a layer of the guest's own on top of it.
func overlays() error {
	data, err := os.ReadFile(filepath.Join(wire.Share, wire.DirsFile))
	if err != nil {
		return err
	}
	var dirs []string
	if err := json.Unmarshal(data, &dirs); err != nil {
		return err
	}
	for i, dir := range dirs {
		own := filepath.Join("/var/lib/vm", strconv.Itoa(i))
		upper, work := filepath.Join(own, "upper"), filepath.Join(own, "work")
		for _, d := range []string{upper, work, dir} {
			if err := os.MkdirAll(d, 0o755); err != nil {
				return err
			}
		}
		layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", filepath.Join(wire.Share, "tree", dir), upper, work)
		if err := syscall.Mount("overlay", dir, "overlay", 0, layers); err != nil {
			return fmt.Errorf("mount an overlay at %s: %w", dir, err)
		}
	}
	return nil
}

// run runs a command to its end. What it has left running in its process group ends with it.
func run(c wire.Command, out io.Writer) wire.Reply {
	if len(c.Args) == 0 {
		return wire.Reply{Done: true, Code: -1, Error: "no command"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.Limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second // a daemon may have inherited the output
	err := cmd.Run()
	reply := wire.Reply{Done: true, Code: cmd.ProcessState.ExitCode()}
	switch {
	case ctx.Err() != nil:
		reply.Code, reply.Error = -1, fmt.Sprintf("killed after %v", c.Limit)
	case err != nil && cmd.ProcessState == nil:
		reply.Code, reply.Error = -1, err.Error()
	case errors.Is(err, exec.ErrWaitDelay):
		reply.Error = "it left processes behind that hold its output"
	}
	return reply
}
