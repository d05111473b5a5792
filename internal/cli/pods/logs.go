package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/crilog"
	"berth/internal/cli/launch"
	"berth/internal/cli/logview"
	"berth/internal/cli/lookup"
)

// logsOptions are the flags of logs.
type logsOptions struct {
	follow, stamps, previous, all, prefix bool
	tail                                  int
	since, container                      string
}

func logsCommand(a *command.App) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:   "logs [POD|CONTAINER...]",
		Short: "Show what containers wrote",
		Long: `Show the output of containers. What a container wrote to standard error goes to standard error.

A container is named as pod/container or by its ID. In a pod with several containers, -c names the container, and
--all-containers takes them all. Otherwise the container is the one that kubectl takes: that of the pod's annotation
kubectl.kubernetes.io/default-container, or the pod's first. The lines of several containers are shown in the order in
which they were written, each with the name of its container.`,
		Example:           "  berth logs hello\n  berth logs -f --all-containers hello\n  berth logs -l app=hello --tail 20",
		ValidArgsFunction: a.Complete(0, command.PodNames, command.ContainerNames),
	}
	chosen := command.Select(cmd, cobra.ArbitraryArgs)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		options := crilog.Options{Tail: o.tail, Follow: o.follow,
			Bad: func(err error) { fmt.Fprintln(a.Err, "berth:", err) }}
		var err error
		if options.Since, err = parseSince(o.since, time.Now()); err != nil {
			return command.Usage(cmd, err)
		}
		switch {
		case len(args) == 0 && chosen.Empty():
			return command.Usage(cmd, errors.New("name a pod or a container, or select pods with -l or -n"))
		case len(args) > 0 && !chosen.Empty():
			return command.Usage(cmd, errors.New("names and a selection by -l or -n exclude each other"))
		case o.all && o.container != "":
			return command.Usage(cmd, errors.New("--container and --all-containers exclude each other"))
		}
		ctx := cmd.Context()
		conn, err := a.Dial(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		containers, err := logged(ctx, a, conn, args, chosen, &o)
		if err != nil {
			return err
		}
		return showLogs(ctx, a, conn, containers, options, &o)
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.follow, "follow", "f", false, "show new lines until the containers have ended")
	flags.IntVar(&o.tail, "tail", -1, "number of lines to show from the end of each log; negative: all")
	flags.StringVar(&o.since, "since", "", "only lines newer than a time (RFC 3339) or a duration (10m, 2h)")
	flags.BoolVar(&o.stamps, "timestamps", false, "show before each line when it was written")
	flags.BoolVarP(&o.previous, "previous", "p", false, "show the log of the previous container with this name")
	flags.StringVarP(&o.container, "container", "c", "", "container of each pod")
	flags.BoolVar(&o.all, "all-containers", false, "all containers of each pod")
	flags.BoolVar(&o.prefix, "prefix", false, "show the container's name before each line, also of a single container")
	return cmd
}

// logged are the containers whose logs are meant.
func logged(ctx context.Context, a *command.App, conn *connection.Connection, names []string, chosen *lookup.Selection,
	o *logsOptions) ([]*lookup.Container, error) {
	var list []*lookup.Container
	one := func(name string) error {
		c, err := lookup.DefaultContainer(ctx, conn.Runtime, name, o.container)
		if err == nil {
			if notice := c.Notice(); notice != "" {
				fmt.Fprintln(a.Err, notice)
			}
			list = append(list, c.Container)
		}
		return err
	}
	all := func(pod *cri.PodSandbox) error {
		own, err := lookup.PodContainers(ctx, conn.Runtime, pod)
		list = append(list, own...)
		return err
	}
	if len(names) == 0 {
		pods, err := lookup.Pods(ctx, conn.Runtime)
		if err != nil {
			return nil, err
		}
		for _, pod := range pods {
			if !chosen.Pod(pod) {
				continue
			}
			if o.container != "" {
				err = one(pod.Id)
			} else {
				err = all(pod)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	for _, name := range names {
		err := error(nil)
		if !o.all {
			err = one(name)
		} else if pod, podErr := lookup.Pod(ctx, conn.Runtime, name); podErr != nil {
			err = podErr
		} else {
			err = all(pod)
		}
		if err != nil {
			return nil, err
		}
	}
	if len(list) == 0 {
		return nil, errors.New("no container is selected: `berth ps -a` lists what there is")
	}
	if o.previous {
		for i, c := range list {
			var err error
			if list[i], err = lookup.Previous(ctx, conn.Runtime, c); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
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

// showLogs shows the logs of containers.
func showLogs(ctx context.Context, a *command.App, conn *connection.Connection, containers []*lookup.Container,
	options crilog.Options, o *logsOptions) error {
	printer := &logview.Printer{Out: a.Out, Err: a.RawErr, Colored: command.Colored(a.Out), Stamps: o.stamps}
	var watch *launch.Watch
	if options.Follow {
		watchCtx, cancel := context.WithCancel(ctx)
		defer cancel()
		ctx, watch = watchCtx, launch.NewWatch(watchCtx, conn.Runtime)
	}
	var logs []logview.Log
	for _, c := range containers {
		log, err := logview.Of(ctx, conn.Runtime, c, options, watch)
		if err != nil {
			if len(containers) > 1 { // the others' logs are worth having
				fmt.Fprintln(a.Err, "berth:", connection.Message(err))
				continue
			}
			return err
		}
		if len(containers) > 1 || o.prefix {
			log.Name = printer.Name(c.ShortName())
		}
		logs = append(logs, log)
	}
	err := printer.Show(ctx, logs)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w\nThe logs of containers belong to root: run the command as root (sudo)", err)
	}
	return err
}
