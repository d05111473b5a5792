package play

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/connection"
	"berth/internal/cli/launch"
	"berth/internal/cli/streaming"
)

// Join joins a command's input, or its terminal, to the container that it runs.
//
// With a terminal the container is started by the session that shows it, so that nothing of its output is missed. It
// is attached to for its output: the log has that too, but late, since the beginning of a line waits for its end there.
// A session that is lost, as at a restart of the runtime, is followed by one that attaches to the container.
//
// Without one only the input goes through a session. The output is read from the log, which has all of it, whatever
// happens to the runtime meanwhile.
type Join struct {
	TTY, Stdin    bool
	Width, Height uint16 // of the terminal; 0: not known
	// Run runs a session at the address that its function asks for. Its error is ErrDetached where somebody has left the
	// container, which runs on.
	Run func(ctx context.Context, tty bool, address func(context.Context) (string, error)) error
	Err io.Writer // says why the input has ended early, and where output is missing

	ended chan error // gets the result of a terminal's session; nil: there is none
}

// ErrDetached is a session that somebody has left, with the keys for that.
var ErrDetached = errors.New("detached")

// detaches says whether somebody can leave the container.
func (j *Join) detaches() bool { return j != nil && j.TTY && j.Stdin }

// start starts a container whose terminal is this command's, and returns once it runs or has ended. lives ends the
// session. endRun is called where the session fails after that.
func (j *Join) start(ctx, lives context.Context, conn *connection.Connection, watch *launch.Watch,
	c *launch.Container, endRun func()) error {
	begun, failed := context.WithCancel(ctx)
	defer failed()
	j.ended = make(chan error, 1)
	runs := make(chan bool, 1)
	go func() {
		err := j.Run(lives, true, func(ctx context.Context) (string, error) {
			response, err := conn.Containers.Start(ctx, &berthv1.StartRequest{ContainerId: c.ID, Tty: true, Stdin: j.Stdin,
				Stdout: true, Width: uint32(j.Width), Height: uint32(j.Height)})
			return response.GetUrl(), connection.Plain(err)
		})
		if err != nil && !errors.Is(err, ErrDetached) && lives.Err() == nil {
			err = j.again(lives, conn, watch, c, err)
		}
		j.ended <- err
		if err == nil {
			return
		}
		if !errors.Is(err, ErrDetached) {
			failed()
		}
		if <-runs {
			endRun()
		}
	}()
	_, err := watch.Started(begun, c.ID)
	runs <- err == nil
	if err != nil && ctx.Err() == nil && begun.Err() != nil {
		return j.wait()
	}
	return err
}

const (
	// attachTries is how often in a row a container is attached to by a session that does not last for attachLasts.
	attachTries = 10
	attachLasts = time.Second
	// attachWait is the time between two such sessions.
	attachWait = 300 * time.Millisecond
)

// again attaches to a container whose session has failed, as long as the container runs. The error is nil once the
// container has ended: its exit code says more than the connection that was lost.
func (j *Join) again(lives context.Context, conn *connection.Connection, watch *launch.Watch, c *launch.Container,
	failed error) error {
	for tries := 0; ; tries++ {
		var unwritten *streaming.OutputError
		if errors.As(failed, &unwritten) || tries == attachTries {
			return failed
		}
		status, err := watch.Status(lives, c.ID)
		switch {
		case err != nil || status.GetStartedAt() == 0: // it was not this command's session that failed, but the start
			return failed
		case status.GetState() != cri.ContainerState_CONTAINER_RUNNING:
			fmt.Fprintln(j.Err, "warning: the connection to the runtime was lost: the end of the output may be missing")
			return nil
		}
		fmt.Fprintln(j.Err, "warning: the connection to the runtime was lost: attached again; what was written meanwhile "+
			"is in the log only")
		began := time.Now()
		failed = j.Run(lives, true, func(ctx context.Context) (string, error) {
			response, err := conn.Runtime.Attach(ctx, &cri.AttachRequest{ContainerId: c.ID, Tty: true, Stdin: j.Stdin,
				Stdout: true})
			return response.GetUrl(), connection.Plain(err)
		})
		if failed == nil || errors.Is(failed, ErrDetached) || lives.Err() != nil {
			return failed
		}
		if time.Since(began) > attachLasts {
			tries = -1
		}
		select {
		case <-time.After(attachWait):
		case <-lives.Done():
		}
	}
}

// feed passes this command's input to a container that runs.
func (j *Join) feed(lives context.Context, conn *connection.Connection, c *launch.Container) {
	// Nobody waits for the end: this command may have an input that never ends.
	go func() {
		err := j.Run(lives, false, func(ctx context.Context) (string, error) {
			response, err := conn.Runtime.Attach(ctx, &cri.AttachRequest{ContainerId: c.ID, Stdin: true})
			return response.GetUrl(), connection.Plain(err)
		})
		if err == nil || lives.Err() != nil {
			return
		}
		status, _ := conn.Runtime.ContainerStatus(lives, &cri.ContainerStatusRequest{ContainerId: c.ID})
		if status.GetStatus().GetState() == cri.ContainerState_CONTAINER_RUNNING {
			fmt.Fprintf(j.Err, "warning: standard input is not passed on any more: %s\n", connection.Message(err))
		}
	}()
}

// wait waits until a terminal's session has shown all output, and returns its error once.
func (j *Join) wait() error {
	if j == nil || j.ended == nil {
		return nil
	}
	defer func() { j.ended = nil }()
	return <-j.ended
}
