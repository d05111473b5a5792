package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"berth/internal/cli/connection"
	"berth/internal/cli/poddir"
	"berth/internal/cli/streaming"
	"berth/internal/cli/table"
)

// Exit codes beside those of the commands that are run.
const (
	exitError       = 1
	exitUsage       = 2
	exitFile        = 78  // EX_CONFIG of sysexits.h: units are not started again after it
	exitForbidden   = 126 // a shell's for a command that cannot be run
	exitMissing     = 127 // and for one that does not exist
	exitInterrupted = 130
)

// app holds what all commands share: flags, input and output.
type app struct {
	in      *os.File
	out     io.Writer
	err     io.Writer // text for people, see table.Text
	rawErr  io.Writer // the same file, for output of containers and for bars of progress
	version string
	address string
	dataDir string
	format  table.Format
}

// Main runs a command line of the version that is given and returns its exit code.
func Main(version string, args []string) int {
	// client-go logs what its connections go through; what matters comes back as errors.
	klog.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// The second signal ends the command at once.
	context.AfterFunc(ctx, stop)
	return run(ctx, version, args, os.Stdin, os.Stdout, os.Stderr)
}

// Command is the command line's tree of commands, for what describes it, such as manual pages.
func Command(version string) *cobra.Command {
	a := &app{version: version, in: os.Stdin, out: os.Stdout, err: table.Text(os.Stderr), rawErr: os.Stderr}
	return a.root()
}

func run(ctx context.Context, version string, args []string, in *os.File, out, errOut io.Writer) int {
	a := &app{version: version, in: in, out: out, err: table.Text(errOut), rawErr: errOut}
	errOut = a.err
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	var exit *streaming.ExitError
	var command *commandError
	var usage *usageError
	var file *fileError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &command):
		fmt.Fprintf(errOut, "berth: %s\n", connection.Message(err))
		return command.code
	case errors.Is(err, syscall.EPIPE): // such as `berth logs | head`
		return 0
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown command"):
		fmt.Fprintf(errOut, "berth: %v\n", err)
		return exitUsage
	case errors.As(err, &file):
		fmt.Fprintf(errOut, "berth: %v\n", err)
		return exitFile
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || connection.Code(err).String() == "Canceled"):
		return exitInterrupted
	}
	fmt.Fprintf(errOut, "berth: %s\n", connection.Message(err))
	return exitError
}

// usageError is a command line that cannot be meant.
type usageError struct {
	err     error
	command string
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%v\n`%s --help` says how it is used.", e.err, e.command)
}

func (e *usageError) Unwrap() error { return e.err }

// fileError is a configuration with which a command that runs on cannot begin, however often it is started.
type fileError struct{ err error }

func (e *fileError) Error() string { return e.err.Error() }

func (e *fileError) Unwrap() error { return e.err }

// commandError is a command in a container that could not be run, with the exit code that a shell has for it.
type commandError struct {
	err  error
	code int
}

func (e *commandError) Error() string { return e.err.Error() }

func (e *commandError) Unwrap() error { return e.err }

var (
	commandMissing   = regexp.MustCompile(`exec: "[^"]*": (executable file not found|no such file or directory)`)
	commandForbidden = regexp.MustCompile(`exec: "[^"]*": (permission denied|exec format error|is a directory)`)
)

// commandCode gives an error about a command in a container that does not exist, or that cannot be run, the exit code
// of a shell: 127 and 126. Others stay as they are.
func commandCode(err error) error {
	switch {
	case err == nil:
		return nil
	case commandMissing.MatchString(err.Error()):
		return &commandError{err, exitMissing}
	case commandForbidden.MatchString(err.Error()):
		return &commandError{err, exitForbidden}
	}
	return err
}

// arguments makes the errors of a validator usage errors.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{err, cmd.CommandPath()}
		}
		return nil
	}
}

// subcommand refuses what is no command of cmd, and names those that are spelt like it.
func subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		text += "\nDid you mean " + strings.Join(near, " or ") + "?"
	}
	return &usageError{errors.New(text), cmd.CommandPath()}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "berth",
		Short:         "Run and manage pods on this machine",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          subcommand,
		Version:       a.version,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{err, cmd.CommandPath()} })
	flags := root.PersistentFlags()
	flags.StringVar(&a.address, "address", fromEnv("BERTH_ADDRESS", connection.DefaultAddress),
		"socket of the runtime ($BERTH_ADDRESS)")
	flags.StringVar(&a.dataDir, "data-dir", fromEnv("BERTH_DATA_DIR", poddir.DefaultRoot),
		"directory for logs and volumes of the pods that run starts ($BERTH_DATA_DIR)")
	root.AddGroup(&cobra.Group{ID: "pods", Title: "Pods and containers:"}, &cobra.Group{ID: "images", Title: "Images:"},
		&cobra.Group{ID: "volumes", Title: "Volumes:"}, &cobra.Group{ID: "node", Title: "The runtime and this machine:"})
	group := func(id string, commands ...*cobra.Command) {
		for _, command := range commands {
			command.GroupID = id
			root.AddCommand(command)
		}
	}
	group("pods", a.runCommand(), a.applyCommand(), a.downCommand(), a.psCommand(), a.podsCommand(), a.logsCommand(),
		a.execCommand(), a.attachCommand(), a.cpCommand(), a.portForwardCommand(), a.statsCommand(), a.inspectCommand(),
		a.timelineCommand(),
		a.pauseCommand(), a.unpauseCommand(), a.killCommand(), a.waitCommand(), a.checkpointCommand(), a.stopCommand(),
		a.restartCommand(), a.rmCommand(), a.pruneCommand())
	group("images", a.imagesCommand(), a.pullCommand(), a.loadCommand(), a.saveCommand(), a.pushCommand(),
		a.loginCommand(), a.logoutCommand(), a.tagCommand(),
		a.pinCommand("pin", "Pin images, so that a kubelet does not remove them", true),
		a.pinCommand("unpin", "Unpin images, so that a kubelet may remove them again", false), a.rmiCommand())
	group("volumes", a.volumeCommand())
	group("node", a.dashboardCommand(), a.eventsCommand(), a.systemCommand(), a.devicesCommand(), a.devicePluginCommand(),
		a.doctorCommand(), a.bundleCommand(), a.migrateCommand(), a.versionCommand())
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

// output adds -o to a command that prints a table.
func (a *app) output(cmd *cobra.Command) {
	cmd.Flags().VarP(&a.format, "output", "o",
		"json, yaml, jsonpath=TEMPLATE, go-template=TEMPLATE or wide (more columns)")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		slices.Concat(table.Formats, table.Templates), cobra.ShellCompDirectiveNoFileComp))
}

// structured adds -o to a command whose output has no columns: wide would change nothing, and is refused.
func (a *app) structured(cmd *cobra.Command) {
	cmd.Flags().VarP(&table.StructuredFlag{Format: &a.format}, "output", "o",
		"json, yaml, jsonpath=TEMPLATE or go-template=TEMPLATE")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions(append([]string{string(table.JSON), string(table.YAML)}, table.Templates...),
			cobra.ShellCompDirectiveNoFileComp))
}

// dial connects to the runtime.
func (a *app) dial(ctx context.Context) (*connection.Connection, error) {
	return connection.Dial(ctx, a.address)
}

// connected is what a command does with the runtime.
func (a *app) connected(do func(ctx context.Context, conn *connection.Connection,
	args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		conn, err := a.dial(cmd.Context())
		if err != nil {
			return err
		}
		defer conn.Close()
		return do(cmd.Context(), conn, args)
	}
}

// details prints what a command shows whole, as JSON where no format for programs is asked for.
func (a *app) details(all any) error {
	format := a.format
	if !format.Structured() {
		format = table.JSON
	}
	return table.Document(a.out, format, all)
}

// store is the directories of pods that this command line has started on its runtime.
func (a *app) store(conn *connection.Connection) *poddir.Store {
	return &poddir.Store{Root: a.dataDir, Address: conn.Address}
}
