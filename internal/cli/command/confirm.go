package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/cli/streaming"
)

// Removal is what a command asks before it removes things that nobody has named.
type Removal struct {
	Dry   bool // only list them
	Force bool // do not ask
}

// Add adds the flags to a command.
func (r *Removal) Add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&r.Dry, "dry-run", false, "only list what would be removed")
	cmd.Flags().BoolVarP(&r.Force, "force", "f", false, "do not ask")
}

// Check refuses a command line that has to be confirmed where nobody can.
func (r *Removal) Check(a *App, cmd *cobra.Command) error {
	if !r.Dry && !r.Force && !streaming.IsTerminal(a.In) {
		return Usage(cmd, errors.New("standard input is not a terminal, and nobody can confirm: give -f, or --dry-run"))
	}
	return nil
}

// Confirm lists what would be removed, unless it is removed without a question, and asks. It returns false if there is
// nothing to remove, or if it is only to be listed.
func (r *Removal) Confirm(ctx context.Context, a *App, names []string) (bool, error) {
	if !r.Force || r.Dry {
		for _, name := range names {
			if _, err := fmt.Fprintln(a.Out, name); err != nil {
				return false, err
			}
		}
	}
	if r.Dry || len(names) == 0 {
		return false, nil
	}
	if r.Force {
		return true, nil
	}
	fmt.Fprint(a.Err, "Remove these? [y/N] ")
	answer, _ := bufio.NewReader(a.Input(ctx)).ReadString('\n')
	if ctx.Err() != nil {
		fmt.Fprintln(a.Err)
		return false, ctx.Err()
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return false, errors.New("nothing was removed")
	}
	return true, nil
}
