package command

import (
	"bytes"
	"cmp"
	"context"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/cli/table"
)

// helpWidth is how many columns a help text takes: those of a terminal that nobody has made wider.
const helpWidth = 80

// Help has the help texts of a command line fit into 80 columns, and gives it a command that shows them. A text that
// cannot be written is an error, as other output is.
func (a *App) Help(cmd *cobra.Command) {
	cobra.AddTemplateFunc("wrap", wrap)
	cmd.SetUsageTemplate(strings.ReplaceAll(cmd.UsageTemplate(), "Flags.FlagUsages |", "Flags.FlagUsagesWrapped 80 |"))
	cmd.SetHelpTemplate(strings.Replace(cmd.HelpTemplate(), "{{. | trim", "{{. | wrap | trim", 1))
	show := cmd.HelpFunc()
	cmd.SetHelpFunc(func(sub *cobra.Command, args []string) {
		var text bytes.Buffer
		cmd.SetOut(&text)
		show(sub, args)
		cmd.SetOut(a.Out)
		_, a.helpErr = a.Out.Write(text.Bytes())
	})
	cmd.SetHelpCommand(helpCommand())
}

// Execute runs a command line.
func (a *App) Execute(ctx context.Context, cmd *cobra.Command) error {
	return cmp.Or(cmd.ExecuteContext(ctx), a.helpErr)
}

// helpCommand is that of cobra, which ends with 0 where there is no such command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Help about any command",
		Long:  "Show the help of a command, as its flag --help does.",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			var names []string
			for _, sub := range found.Commands() {
				if sub.IsAvailableCommand() && strings.HasPrefix(sub.Name(), typed) {
					names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil {
				return Usage(cmd, err)
			}
			if err := Subcommand(found, rest); err != nil {
				return err
			}
			found.InitDefaultHelpFlag()
			found.InitDefaultVersionFlag()
			return found.Help()
		},
	}
}

// wrap breaks the paragraphs of a text anew. Lines that begin with a space, such as examples, stay as they are.
func wrap(text string) string {
	var out, paragraph []string
	end := func() {
		out = append(out, table.Fill(strings.Join(paragraph, " "), helpWidth)...)
		paragraph = nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == ' ' {
			end()
			out = append(out, line)
			continue
		}
		paragraph = append(paragraph, line)
	}
	end()
	return strings.Join(out, "\n")
}
