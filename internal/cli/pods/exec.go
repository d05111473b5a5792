package pods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	berthv1 "berth/api/berth/v1"
	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/imagepod"
	"berth/internal/cli/listing"
	"berth/internal/cli/lookup"
	"berth/internal/cli/play"
	"berth/internal/cli/streaming"
	"berth/internal/manifest"
)

func execCommand(a *command.App) *cobra.Command {
	var stdin, tty bool
	var container, user, cwd string
	var given []string // variables
	cmd := &cobra.Command{
		Use:   "exec POD|CONTAINER COMMAND [ARG...]",
		Short: "Run a command in a running container",
		Long: `Run a command in a running container. The exit code is that of the command.

In a pod with several containers, -c names the container. Without -c it is the one that kubectl takes: that of the pod's
annotation kubectl.kubernetes.io/default-container, or the pod's first.

The command runs as the user, in the working directory and with the environment variables of the container's main
process. -u, -w and -e change these. A user of -u belongs to the groups that the container's /etc/group lists for it.`,
		Example: `  berth exec -it hello/web sh
  berth exec -u nobody -e DEBUG=1 -w /tmp hello env
  tar c . | berth exec -i hello/web tar x -C /srv`,
		Args:              command.Arguments(cobra.MinimumNArgs(2)),
		ValidArgsFunction: a.Complete(1, command.ContainerNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] == "--" {
				args = append(args[:1:1], args[2:]...)
			}
			if len(args) < 2 {
				return command.Usage(cmd, errors.New("no command is given"))
			}
			env, err := checkExec(a, given, cwd, stdin && tty)
			if err != nil {
				return command.Usage(cmd, err)
			}
			ctx := cmd.Context()
			conn, err := a.Dial(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			c, err := runningContainer(ctx, a, conn, args[0], container)
			if err != nil {
				return err
			}
			return command.ProgramError(session(ctx, a, stdin, tty, nil, func(ctx context.Context) (string, error) {
				if user == "" && len(env) == 0 && cwd == "" { // any runtime can do that
					response, err := conn.Runtime.Exec(ctx, &cri.ExecRequest{
						ContainerId: c.Id, Cmd: args[1:], Tty: tty, Stdin: stdin, Stdout: true, Stderr: !tty,
					})
					return response.GetUrl(), connection.Plain(err)
				}
				response, err := conn.Containers.Exec(ctx, &berthv1.ExecRequest{
					ContainerId: c.Id, Cmd: args[1:], Tty: tty, Stdin: stdin, Stdout: true, Stderr: !tty,
					User: user, Env: env, Cwd: cwd,
				})
				return response.GetUrl(), connection.Plain(err)
			}))
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the container is the command's
	cmd.Flags().BoolVarP(&stdin, "interactive", "i", false, "pass standard input to the command")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	cmd.Flags().StringVarP(&container, "container", "c", "", "container of the pod")
	cmd.Flags().StringVarP(&user, "user", "u", "", "user to run as: name or number[:group]")
	cmd.Flags().StringArrayVarP(&given, "env", "e", nil, "variable `NAME=value`, or NAME with the value that it has here")
	cmd.Flags().StringVarP(&cwd, "workdir", "w", "", "directory to run in, an absolute path in the container")
	return cmd
}

// checkExec refuses what no exec can have before the runtime is asked, and returns the variables of -e.
func checkExec(a *command.App, given []string, directory string, interactive bool) (env []string, err error) {
	if interactive && !streaming.IsTerminal(a.In) {
		return nil, errNoTerminal
	}
	if err := imagepod.CheckDirectory(directory); err != nil {
		return nil, err
	}
	variables, err := imagepod.Variables(given)
	if err != nil {
		return nil, err
	}
	for _, v := range variables {
		env = append(env, v.Name+"="+v.Value)
	}
	for what, texts := range map[string][]string{"--env": env, "--workdir": {directory}} {
		for _, text := range texts {
			if !utf8.ValidString(text) { // a message of gRPC cannot have it
				return nil, fmt.Errorf("%s %q: is not UTF-8", what, text)
			}
		}
	}
	return env, nil
}

func attachCommand(a *command.App) *cobra.Command {
	var stdin, tty bool
	var name string
	cmd := &cobra.Command{
		Use:   "attach POD|CONTAINER",
		Short: "Attach to the main process of a running container",
		Long: `Attach to the main process of a running container: show its output from now on, and pass input to it.
On a terminal, Ctrl-P Ctrl-Q detaches and leaves the process running.

For containers that berth run started, the command knows whether they have an input and a terminal. For other
containers, give -i and -t.`,
		Args:              command.Arguments(cobra.ExactArgs(1)),
		ValidArgsFunction: a.Complete(1, command.ContainerNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			conn, err := a.Dial(ctx)
			if err != nil {
				return err
			}
			defer conn.Close()
			container, err := runningContainer(ctx, a, conn, args[0], name)
			if err != nil {
				return err
			}
			if has, ok := container.Annotations[manifest.AnnotationInput]; ok {
				if !cmd.Flags().Changed("tty") {
					tty = strings.Contains(has, manifest.InputTTY)
				}
				if !cmd.Flags().Changed("interactive") {
					stdin = strings.Contains(has, manifest.InputStdin)
				}
			}
			err = attached(ctx, a, stdin, tty, func(ctx context.Context) (string, error) {
				response, err := conn.Runtime.Attach(ctx, &cri.AttachRequest{
					ContainerId: container.Id, Tty: tty, Stdin: stdin, Stdout: true, Stderr: !tty,
				})
				return response.GetUrl(), connection.Plain(err)
			})
			if errors.Is(err, play.ErrDetached) {
				fmt.Fprintf(a.Err, "\ndetached from %s\n", container.ShortName())
				return nil
			}
			return err
		},
	}
	cmd.Flags().BoolVarP(&stdin, "interactive", "i", false, "pass standard input to the container")
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "the container has a terminal")
	cmd.Flags().StringVarP(&name, "container", "c", "", "container of the pod")
	return cmd
}

// attached is a session of the main process of a container. Where it has the terminal, the keys for that end it: the
// error is play.ErrDetached then.
func attached(ctx context.Context, a *command.App, stdin, tty bool,
	address func(context.Context) (string, error)) error {
	ctx, detach := context.WithCancel(ctx)
	defer detach()
	var left atomic.Bool
	err := session(ctx, a, stdin, tty, func() { left.Store(true); detach() }, address)
	if left.Load() {
		return play.ErrDetached
	}
	return err
}

// runningContainer finds a container, the one called in where name is a pod, and says what to try where it does not
// run.
func runningContainer(ctx context.Context, a *command.App, conn *connection.Connection,
	name, in string) (*lookup.Container, error) {
	c, err := lookup.DefaultContainer(ctx, conn.Runtime, name, in)
	if err != nil {
		return nil, err
	}
	if notice := c.Notice(); notice != "" {
		fmt.Fprintln(a.Err, notice)
	}
	if c.State != cri.ContainerState_CONTAINER_RUNNING {
		return nil, fmt.Errorf("container %s is not running (%s). `berth logs %s` shows what it wrote", c.ShortName(),
			listing.StateName(c.State), c.ShortName())
	}
	return c.Container, nil
}

var errNoTerminal = errors.New(
	"standard input is not a terminal: omit -t (-i alone passes a pipe or a file to the command)")

// session runs an exec or attach with this command's input and output. detach, which an attach has, is called
// when the keys for it are typed. The terminal of an exec is that of this command; that of a container is there anyway,
// and takes what comes from a pipe, too.
func session(ctx context.Context, a *command.App, stdin, tty bool, detach func(),
	address func(context.Context) (string, error)) error {
	s := &streaming.Session{URL: address, Stdout: a.Out, TTY: tty}
	if !tty {
		s.Stderr = a.RawErr
	}
	terminal := streaming.IsTerminal(a.In)
	if stdin {
		s.Stdin = a.In
		if terminal { // what is typed after this session is for the next one
			var end context.CancelFunc
			ctx, end = context.WithCancel(ctx)
			defer end()
			s.Stdin = a.Input(ctx)
		}
		s.StdinEnds = !terminal || !tty
	}
	if tty && stdin && !terminal && detach == nil {
		return errNoTerminal
	}
	if tty && stdin && terminal {
		raw, err := streaming.OpenTerminal(a.In)
		if err != nil {
			return err
		}
		defer raw.Restore()
		s.Sizes = raw
		if detach != nil {
			s.Stdin = &streaming.DetachReader{Reader: s.Stdin, Detach: detach}
		}
	}
	return s.Run(ctx)
}
