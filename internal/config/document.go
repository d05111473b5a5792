package config

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed default.toml
var defaultFile []byte

// DefaultFile is default.toml: every key with its default and what it does.
func DefaultFile() []byte { return append([]byte(nil), defaultFile...) }

// part is a table or a key of the default file, with the comment above it.
type part struct {
	table string // of a header; empty for a key
	key   string // whole: network.mtu
	value string
	text  string
}

// parts reads the default file, which keeps to one key a line.
func parts() []part {
	var (
		out     []part
		comment []string
		table   string
	)
	for line := range strings.Lines(string(defaultFile)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "#"):
			comment = append(comment, strings.TrimSpace(strings.TrimPrefix(line, "#")))
			continue
		case strings.HasPrefix(line, "["):
			table = strings.Trim(line, "[]")
			out = append(out, part{table: table, text: strings.Join(comment, " ")})
		case line != "":
			key, value, _ := strings.Cut(line, "=")
			key = strings.TrimSpace(key)
			if table != "" {
				key = table + "." + key
			}
			out = append(out, part{key: key, value: strings.TrimSpace(value), text: strings.Join(comment, " ")})
		}
		comment = nil
	}
	return out
}

// documentation is what the default file says of each key.
func documentation() map[string]string {
	docs := map[string]string{}
	for _, p := range parts() {
		docs[p.key] = p.text
	}
	return docs
}

// summary is the first sentence, for the help of a flag.
func summary(text string) string {
	first, _, found := strings.Cut(text, ". ")
	if !found {
		first = strings.TrimSuffix(text, ".")
	}
	return first
}

// Markdown is the page of the configuration in the documentation.
func Markdown() string {
	flags := map[string]string{}
	for _, f := range fields() {
		flags[f.key] = f.flag
	}
	var b strings.Builder
	b.WriteString(`# Configuration

berthd reads ` + "`" + DefaultPath + "`" + `, or the file of ` + "`--config`" + `, in TOML. Without a file the defaults hold, and a flag overrides
its key. An unknown key, a wrong type or an impossible value is an error that names file, line and key.

    berthd config default    # the default file: every key with what it does
    berthd config check      # says what is wrong with the file

This page is made from the default file.

## Top level

`)
	row := func(p part, key string) {
		flag := ""
		if name, ok := flags[p.key]; ok {
			flag = "`--" + name + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s |\n", key, flag, p.value, strings.ReplaceAll(p.text, "|", `\|`))
	}
	const head = "| key | flag | default | |\n|---|---|---|---|\n"
	b.WriteString(head)
	for _, p := range parts() {
		if p.table == "" {
			row(p, p.key[strings.LastIndex(p.key, ".")+1:])
			continue
		}
		title := p.table
		if strings.HasPrefix(title, "runtimes.") {
			title = "runtimes.NAME"
		}
		fmt.Fprintf(&b, "\n## [%s]\n\n", title)
		if p.text != "" {
			b.WriteString(p.text + "\n\n")
		}
		b.WriteString(head)
	}
	return b.String()
}
