package command

import (
	"context"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"berth/internal/cli/connection"
	"berth/internal/cli/poddir"
	"berth/internal/cli/streaming"
	"berth/internal/cli/table"
)

// App is one command line: the flags that all commands have, and where it reads and writes.
type App struct {
	In      *os.File
	Out     io.Writer
	Err     io.Writer // text for people, see table.Text
	RawErr  io.Writer // the same file, for output of containers and for bars of progress
	Version string
	Address string // of the runtime's socket
	DataDir string // of the pods that this command line makes
	Format  table.Format

	input   *streaming.Input
	helpErr error // of a help text that could not be written: cobra has no place for it
}

// New is a command line of a version of Berth with its standard input and outputs.
func New(version string, in *os.File, out, errOut io.Writer) *App {
	return &App{Version: version, In: in, Out: out, Err: table.Text(errOut), RawErr: errOut,
		input: streaming.NewInput(in)}
}

// Input is standard input until ctx ends: a read of In does not end with Ctrl-C.
func (a *App) Input(ctx context.Context) io.Reader { return a.input.Reader(ctx) }

// Dial connects to the runtime.
func (a *App) Dial(ctx context.Context) (*connection.Connection, error) {
	return connection.Dial(ctx, a.Address)
}

// Connected is what a command does with the runtime.
func (a *App) Connected(do func(ctx context.Context, conn *connection.Connection,
	args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		conn, err := a.Dial(cmd.Context())
		if err != nil {
			return err
		}
		defer conn.Close()
		return do(cmd.Context(), conn, args)
	}
}

// Output adds -o to a command that prints a table.
func (a *App) Output(cmd *cobra.Command) {
	cmd.Flags().VarP(&a.Format, "output", "o",
		"json, yaml, jsonpath=TEMPLATE, go-template=TEMPLATE or wide (more columns)")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		slices.Concat(table.Formats, table.Templates), cobra.ShellCompDirectiveNoFileComp))
}

// Structured adds -o to a command whose output has no columns: wide would change nothing, and is refused.
func (a *App) Structured(cmd *cobra.Command) {
	cmd.Flags().VarP(&table.StructuredFlag{Format: &a.Format}, "output", "o",
		"json, yaml, jsonpath=TEMPLATE or go-template=TEMPLATE")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions(append([]string{string(table.JSON), string(table.YAML)}, table.Templates...),
			cobra.ShellCompDirectiveNoFileComp))
}

// Details prints what a command shows whole, as JSON where no format for programs is asked for.
func (a *App) Details(all any) error {
	format := a.Format
	if !format.Structured() {
		format = table.JSON
	}
	return table.Document(a.Out, format, all)
}

// Store is the directories of pods that this command line has started on its runtime.
func (a *App) Store(conn *connection.Connection) *poddir.Store {
	return &poddir.Store{Root: a.DataDir, Address: conn.Address}
}

// Columns is how many columns the terminal has that an output is; 0: it is none, or does not say.
func Columns(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	columns, _ := streaming.Size(file)
	return int(columns)
}

// Colored tells whether an output is a terminal that shows colors, and its user wants them.
func Colored(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && streaming.IsTerminal(file) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
