package command

import (
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/cli/table"
)

// helpWidth is how many columns a help text takes: those of a terminal that nobody has made wider.
const helpWidth = 80

// Help has the help texts of a command, and of those below it, fit into 80 columns.
func Help(cmd *cobra.Command) {
	cobra.AddTemplateFunc("wrap", wrap)
	cmd.SetUsageTemplate(strings.ReplaceAll(cmd.UsageTemplate(), "Flags.FlagUsages |", "Flags.FlagUsagesWrapped 80 |"))
	cmd.SetHelpTemplate(strings.Replace(cmd.HelpTemplate(), "{{. | trim", "{{. | wrap | trim", 1))
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
