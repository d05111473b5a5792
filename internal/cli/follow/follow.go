// Package follow shows the output of containers that a command has started, until they have ended, and notes how they
// ended.
package follow

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/crilog"
	"berth/internal/cli/launch"
	"berth/internal/cli/logview"
	"berth/internal/cli/table"
)

// Follower shows the logs of containers and notes how they end.
type Follower struct {
	Printer *logview.Printer
	Err     io.Writer // how containers fail, and which logs cannot be read
	Fail    func()    // is called once the output cannot be written; it may be called again
	Several bool      // pods: lines bear the pod's name too
	// Plain: the output is shown as the container wrote it, and its end is noted only where there is more to say of it
	// than its exit code.
	Plain bool

	mu      sync.Mutex // guards names and failed
	names   map[string]logview.Name
	failed  error
	workers sync.WaitGroup // logs
}

// name is how lines show a container, the same for all its attempts.
func (f *Follower) name(text string) logview.Name {
	f.mu.Lock()
	defer f.mu.Unlock()
	name, known := f.names[text]
	if !known {
		if f.names == nil {
			f.names = map[string]logview.Name{}
		}
		name = f.Printer.Name(text)
		f.names[text] = name
	}
	return name
}

// Start follows a container until it has ended and all of its log is shown.
func (f *Follower) Start(ctx context.Context, watch *launch.Watch, pod *launch.Pod, c *launch.Container) {
	name := c.Name
	if f.Several {
		name = pod.Name + "/" + name
	}
	var label logview.Name
	if !f.Plain {
		label = f.name(name)
	}
	ended := make(chan struct{})
	f.workers.Go(func() {
		defer close(ended)
		status, err := watch.Exited(ctx, c.ID)
		if err != nil {
			if connection.Code(err) != codes.NotFound && ctx.Err() == nil {
				fmt.Fprintf(f.Err, "container %s: %v\n", name, err)
			}
			return
		}
		if c.Kind != "" {
			return
		}
		why := because(status, c)
		if code := status.GetExitCode(); code != 0 && (why != "" || !f.Plain) {
			fmt.Fprintf(f.Err, "container %s ended with exit code %d%s\n", name, code, why)
		}
	})
	// Opened now: a pod that fails is removed with its logs.
	log, err := crilog.Open(c.LogPath, crilog.Options{Tail: -1, Follow: true, Ended: ended,
		Bad: func(err error) { fmt.Fprintf(f.Err, "log of %s: %v\n", name, err) }})
	if err != nil {
		fmt.Fprintf(f.Err, "log of %s: %v\n", name, err)
		return
	}
	f.workers.Go(func() {
		defer log.Close()
		unwritten := false
		if err := log.Run(ctx, func(line *crilog.Line) error {
			err := f.Printer.Print(label, line)
			if err != nil {
				unwritten = true
				f.fail(err)
			}
			return err
		}); err != nil && ctx.Err() == nil && !unwritten {
			fmt.Fprintf(f.Err, "log of %s: %v\n", name, err)
		}
	})
}

// fail notes that the output cannot be written.
func (f *Follower) fail(err error) {
	f.mu.Lock()
	if f.failed == nil {
		f.failed = err
	}
	f.mu.Unlock()
	f.Fail()
}

// maxMessage is how much of a container's message is shown, in bytes: the limit of a kubelet.
const maxMessage = 4096

// because is the reason of an exit: what the runtime says, and what the container wrote for it.
func because(status *cri.ContainerStatus, c *launch.Container) string {
	reason, message := status.GetReason(), status.GetMessage()
	if reason == "Error" {
		reason = ""
	}
	// O_NONBLOCK: a process that holds a lease of the file would hold up the open.
	if file, err := os.OpenFile(c.MessagePath, os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
		own, _ := io.ReadAll(io.LimitReader(file, maxMessage))
		file.Close()
		if text := table.Sentence(string(own)); text != "" {
			message = strings.TrimPrefix(message+": "+text, ": ")
		}
	}
	switch {
	case reason != "" && message != "":
		return " (" + reason + ": " + message + ")"
	case reason+message != "":
		return " (" + reason + message + ")"
	}
	return ""
}

// Wait waits for the logs. Containers that are not removed must have ended. The error is the first of those with which
// the output could not be written.
func (f *Follower) Wait() error {
	f.workers.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}
