package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/connection"
	"berth/internal/cli/crilog"
	"berth/internal/cli/launch"
	"berth/internal/cli/lookup"
)

func (a *app) logsCommand() *cobra.Command {
	var follow, stamps, previous bool
	var tail int
	var since string
	cmd := &cobra.Command{
		Use:   "logs CONTAINER",
		Short: "Show what a container wrote",
		Long: `Show what a container wrote, its standard output on standard output and its standard error on standard error.
The container is named as pod/container, by its ID, or by its pod's name where that has but one.`,
		Args:              arguments(cobra.ExactArgs(1)),
		ValidArgsFunction: a.complete(1, containerNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			options := crilog.Options{Tail: tail, Follow: follow}
			var err error
			if options.Since, err = parseSince(since, time.Now()); err != nil {
				return &usageError{err, cmd.CommandPath()}
			}
			ctx := cmd.Context()
			conn, err := a.dial(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			container, err := lookup.FindContainer(ctx, conn.Runtime, args[0])
			if err != nil {
				return err
			}
			if previous {
				if container, err = lookup.Previous(ctx, conn.Runtime, container); err != nil {
					return err
				}
			}
			return a.showLog(ctx, conn, container, options, stamps)
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&follow, "follow", "f", false, "go on until the container has ended")
	flags.IntVar(&tail, "tail", -1, "only so many lines from the end; negative: all")
	flags.StringVar(&since, "since", "", "only what is newer: a time (RFC 3339) or how long ago (10m, 2h)")
	flags.BoolVar(&stamps, "timestamps", false, "when each line was written before it")
	flags.BoolVarP(&previous, "previous", "p", false, "of the container that ran before under this name")
	return cmd
}

// parseSince reads a time, or a span before now. Empty is the zero time.
func parseSince(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if span, err := time.ParseDuration(text); err == nil {
		return now.Add(-span), nil
	}
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at, nil
	}
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		return time.Unix(seconds, 0), nil
	}
	return time.Time{}, fmt.Errorf("--since: %q is neither a span (10m) nor a time (2026-01-31T12:00:00Z)", text)
}

func (a *app) showLog(ctx context.Context, conn *connection.Connection, c *lookup.Container, options crilog.Options,
	stamps bool) error {
	response, err := conn.Runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id})
	if err != nil {
		return err
	}
	status := response.GetStatus()
	if status.GetLogPath() == "" {
		return fmt.Errorf("container %s has no log: it was created without a log path", c.ShortName())
	}
	if options.Follow {
		ended := make(chan struct{})
		options.Ended = ended
		watchCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		watch := launch.NewWatch(watchCtx, conn.Runtime)
		go func() {
			defer close(ended)
			_, _ = watch.Exited(watchCtx, c.Id) // gone or unknown: nothing more comes either
		}()
	}
	err = crilog.Read(ctx, status.GetLogPath(), options, func(line *crilog.Line) error {
		out := a.out
		if line.Stream == crilog.Stderr {
			out = a.err
		}
		if stamps && !line.Continued {
			if _, err := fmt.Fprintf(out, "%s ", line.Time); err != nil {
				return err
			}
		}
		if !line.Partial {
			line.Text = append(line.Text, '\n')
		}
		_, err := out.Write(line.Text)
		return err
	})
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w\nThe logs of containers belong to root: run the command as root (sudo)", err)
	case errors.Is(err, fs.ErrNotExist) && status.GetState() == cri.ContainerState_CONTAINER_CREATED:
		return fmt.Errorf("container %s has not been started", c.ShortName())
	}
	return err
}
