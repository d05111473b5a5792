package command

import (
	"strings"

	"github.com/spf13/cobra"
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
	var out, words []string
	end := func() {
		line := ""
		for _, word := range words {
			switch {
			case line == "":
				line = word
			case len(line)+1+len(word) > helpWidth:
				out = append(out, line)
				line = word
			default:
				line += " " + word
			}
		}
		if line != "" {
			out = append(out, line)
		}
		words = nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		if line == "" || line[0] == ' ' {
			end()
			out = append(out, line)
			continue
		}
		words = append(words, strings.Fields(line)...)
	}
	end()
	return strings.Join(out, "\n")
}
