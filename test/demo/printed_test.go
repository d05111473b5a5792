package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// example is a command line of berth as a document or a help text prints it.
type example struct {
	where string // the page and its line, or the help text
	line  string // without indentation and without sudo
}

// section is what is typed one after another: the examples of a page, or of one help text.
type section struct {
	name     string
	examples []example
}

// typesBerth finds lines that run berth or `berthd config`: at their beginning, or after a pipe or another command.
var typesBerth = regexp.MustCompile(`(^|[|&;] )(sudo )?(berth [a-z-]|berthd config )`)

// pages are the documents whose examples are typed, and all others beside them that print a command of berth.
func pages(t *testing.T, root string) []section {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	var sections []section
	for _, name := range append([]string{filepath.Join(root, "README.md")}, names...) {
		file, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		page := section{name: filepath.Base(name)}
		lines := bufio.NewScanner(file)
		for n := 1; lines.Scan(); n++ {
			text, indented := strings.CutPrefix(lines.Text(), "    ")
			if !indented || !typesBerth.MatchString(strings.TrimSpace(text)) {
				continue
			}
			line := strings.ReplaceAll(strings.TrimSpace(text), "sudo ", "")
			page.examples = append(page.examples, example{fmt.Sprintf("%s:%d", page.name, n), line})
		}
		file.Close()
		if err := lines.Err(); err != nil {
			t.Fatal(err)
		}
		if len(page.examples) > 0 {
			sections = append(sections, page)
		}
	}
	return sections
}

// otherParts are the parts of a help text that list no commands.
var otherParts = []string{"Usage:", "Aliases:", "Flags:", "Global Flags:"}

// helpTexts are the examples that `berth COMMAND --help` prints, of all commands.
func helpTexts(ctx context.Context, t *testing.T, d *demo, command ...string) []section {
	t.Helper()
	text := d.must(ctx, t, nil, append(slices.Clone(command), "--help")...)
	help := section{name: strings.Join(append([]string{"berth"}, command...), " ") + " --help"}
	var sections []section
	part := ""
	for line := range strings.Lines(text) {
		rest, indented := strings.CutPrefix(strings.TrimRight(line, "\n"), "  ")
		switch {
		case !indented:
			part = strings.TrimSpace(line)
		case part == "Examples:":
			help.examples = append(help.examples, example{help.name, rest})
		case strings.HasSuffix(part, ":") && !slices.Contains(otherParts, part):
			// One of the groups of commands, such as "Images:".
			name := strings.Fields(rest)[0]
			if name != "help" && name != "completion" {
				sections = append(sections, helpTexts(ctx, t, d, append(slices.Clone(command), name)...)...)
			}
		}
	}
	if len(help.examples) > 0 {
		sections = append(sections, help)
	}
	return sections
}
