package command

import (
	"context"
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"berth/internal/cli/connection"
	"berth/internal/cli/lookup"
	"berth/internal/cli/table"
)

// List completes a command that prints a list: what it asks the runtime for, given its arguments, and how
// its table shows that.
func List[T any](a *App, cmd *cobra.Command,
	rows func(ctx context.Context, conn *connection.Connection, args []string) ([]T, error),
	list table.List[T]) *cobra.Command {
	var view table.View
	show := a.Connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
		found, err := rows(ctx, conn, args)
		if err != nil {
			return err
		}
		return list.Print(a.Out, a.Format, view, found)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := list.Check(view)
		switch {
		case view.Quiet && (view.Names || a.Format != table.Table):
			err = errors.New("--quiet and --output exclude each other")
		case view.NoHeaders && (view.Quiet || view.Names || a.Format.Structured()):
			err = errors.New("--no-headers is for tables only")
		}
		if err != nil {
			return Usage(cmd, err)
		}
		return show(cmd, args)
	}
	flags := cmd.Flags()
	flags.VarP(&table.ListFlag{Format: &a.Format, Names: &view.Names}, "output", "o",
		"json, yaml, jsonpath=TEMPLATE, go-template=TEMPLATE, name or wide (more columns)")
	_ = cmd.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions(slices.Concat([]string{"name"}, table.Formats, table.Templates),
			cobra.ShellCompDirectiveNoFileComp))
	flags.BoolVarP(&view.Quiet, "quiet", "q", false, "print only IDs, or names if the objects have no ID")
	flags.BoolVar(&view.NoHeaders, "no-headers", false, "print no line with the titles of the columns")
	flags.StringVar(&view.SortBy, "sort-by", "", "sort by this column of -o wide, such as age")
	return cmd
}

// Select adds -n and -l to a list of pods or containers. A selector that cannot be read is a usage error.
func Select(cmd *cobra.Command, check cobra.PositionalArgs) *lookup.Selection {
	s := &lookup.Selection{}
	cmd.Flags().StringVarP(&s.Namespace, "namespace", "n", "", "only pods of this namespace")
	cmd.Flags().StringVarP(&s.Labels, "selector", "l", "", "only pods with these labels, such as app=web,tier!=db")
	cmd.Args = Arguments(func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return err
		}
		return s.Parse()
	})
	return s
}
