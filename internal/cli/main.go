package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"berth/internal/cli/command"
	"berth/internal/cli/connection"
	"berth/internal/cli/images"
	"berth/internal/cli/node"
	"berth/internal/cli/poddir"
	"berth/internal/cli/pods"
	"berth/internal/cli/volumes"
)

// Main runs a command line of the version that is given and returns its exit code.
func Main(version string, args []string) int {
	// client-go logs what its connections go through; what matters comes back as errors.
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), interrupts()...)
	defer stop()
	// A write to a pipe that nobody reads any more is an error, which ends the command in its usual way: pods are removed
	// and terminals restored. Ignored, the signal would be ignored in children too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// The second signal ends the command at once.
	context.AfterFunc(ctx, stop)
	return run(ctx, version, args, os.Stdin, os.Stdout, os.Stderr)
}

// interrupts are the signals that end a command in its usual way. Whoever starts a command with one of them ignored
// wants it to go on: nohup ignores SIGHUP, and a shell without job control ignores SIGINT for what it runs in the
// background. To ask for a signal would undo that.
func interrupts() []os.Signal {
	return append(slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGHUP}, signal.Ignored), syscall.SIGTERM)
}

// Command is the command line's tree of commands, for what describes it, such as manual pages.
func Command(version string) *cobra.Command {
	return root(command.New(version, os.Stdin, os.Stdout, os.Stderr))
}

func run(ctx context.Context, version string, args []string, in *os.File, out, errOut io.Writer) int {
	a := command.New(version, in, out, errOut)
	root := root(a)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(a.Err)
	return command.Exit(ctx, a.Execute(ctx, root), a.Err)
}

func root(a *command.App) *cobra.Command {
	root := &cobra.Command{
		Use:           "berth",
		Short:         "Run and manage pods on this machine",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          command.Subcommand,
		Version:       a.Version,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(command.Usage)
	a.Help(root)
	flags := root.PersistentFlags()
	flags.StringVar(&a.Address, "address", fromEnv("BERTH_ADDRESS", connection.DefaultAddress),
		"socket of the runtime ($BERTH_ADDRESS)")
	flags.StringVar(&a.DataDir, "data-dir", fromEnv("BERTH_DATA_DIR", poddir.DefaultRoot),
		"directory for logs and volumes of the pods that run starts ($BERTH_DATA_DIR)")
	for _, group := range []struct {
		id, title string
		commands  []*cobra.Command
	}{
		{"pods", "Pods and containers:", pods.Commands(a)},
		{"images", "Images:", images.Commands(a)},
		{"volumes", "Volumes:", volumes.Commands(a)},
		{"node", "The runtime and this machine:", node.Commands(a)},
	} {
		root.AddGroup(&cobra.Group{ID: group.id, Title: group.title})
		for _, cmd := range group.commands {
			cmd.GroupID = group.id
			root.AddCommand(cmd)
		}
	}
	root.SetCompletionCommandGroupID("node")
	root.SetHelpCommandGroupID("node")
	return root
}

func fromEnv(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}
