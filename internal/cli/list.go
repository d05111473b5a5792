package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth/internal/cli/connection"
	"berth/internal/cli/table"
)

// listCommand completes a command that prints a list: what it asks the runtime for, given its arguments, and how
// its table shows that.
func listCommand[T any](a *app, cmd *cobra.Command,
	rows func(ctx context.Context, conn *connection.Connection, args []string) ([]T, error),
	columns []table.Column[T]) *cobra.Command {
	cmd.RunE = a.connected(func(ctx context.Context, conn *connection.Connection, args []string) error {
		list, err := rows(ctx, conn, args)
		if err != nil {
			return err
		}
		return table.Print(a.out, a.format, list, columns)
	})
	a.output(cmd)
	return cmd
}
