package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// inText finds the command lines of berth that a sentence of a document names between backquotes.
var inText = regexp.MustCompile("`berth ([a-z][^`]*)`")

// TestTheDocumentsNameCommandsAndFlagsThatExist: a sentence such as "`berth rm --all` removes them" holds only while
// the command has the flag. Commands that stand in lines of their own are typed by test/demo.
func TestTheDocumentsNameCommandsAndFlagsThatExist(t *testing.T) {
	top := filepath.Join("..", "..")
	named := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/adr/*.md"} {
		pages, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range inText.FindAllStringSubmatch(string(text), -1) {
				named++
				if unknown := unknownIn(strings.Fields(match[1])); unknown != "" {
					t.Errorf("%s names `berth %s`: there is no %s", page, match[1], unknown)
				}
			}
		}
	}
	if named < 50 {
		t.Errorf("only %d command lines are found in the documents", named)
	}
}

// unknownIn is the first command or flag of a command line that does not exist, or nothing.
func unknownIn(line []string) string {
	cmd := Command("test")
	cmd.InitDefaultCompletionCmd()
	for len(line) > 0 && cmd.HasSubCommands() {
		var next *cobra.Command
		// A page may name several commands at once: `berth migrate containerd|crio`.
		name, _, _ := strings.Cut(line[0], "|")
		for _, sub := range cmd.Commands() {
			if sub.Name() == name {
				next = sub
			}
		}
		if next == nil {
			if strings.HasPrefix(name, "-") || name != strings.ToLower(name) {
				break // flags of the group, or a placeholder such as COMMAND
			}
			return "command " + name
		}
		cmd, line = next, line[1:]
	}
	cmd.InitDefaultHelpFlag()
	for _, word := range line {
		if word == "--" || cmd.Name() == "exec" && !strings.HasPrefix(word, "-") {
			break // what follows belongs to the command in the container
		}
		name, _, _ := strings.Cut(strings.Trim(word, "[]"), "=")
		if !hasFlag(cmd, name) {
			return "flag " + name + " of " + cmd.CommandPath()
		}
	}
	return ""
}

// hasFlag says whether a word is a flag of the command, several short ones, or no flag at all.
func hasFlag(cmd *cobra.Command, word string) bool {
	has := func(find func(*pflag.FlagSet) *pflag.Flag) bool {
		return find(cmd.Flags()) != nil || find(cmd.InheritedFlags()) != nil
	}
	if long, ok := strings.CutPrefix(word, "--"); ok {
		return has(func(f *pflag.FlagSet) *pflag.Flag { return f.Lookup(long) })
	}
	if short, ok := strings.CutPrefix(word, "-"); ok {
		for _, letter := range short {
			if !has(func(f *pflag.FlagSet) *pflag.Flag { return f.ShorthandLookup(string(letter)) }) {
				return false
			}
		}
	}
	return true
}
