package config

import (
	_ "embed"
	"strings"
)

//go:embed default.toml
var defaultFile []byte

// DefaultFile is default.toml: every key with its default and what it does.
func DefaultFile() []byte { return append([]byte(nil), defaultFile...) }

// Entry is a table or a key of the default file, with the comment above it.
type Entry struct {
	Table string // of a header; empty for a key
	Key   string // whole: network.mtu
	Flag  string // that overrides the key, without its dashes; empty: none
	Value string // the default, as the file has it
	Text  string // the comment

	Reload bool // of a key: a running berthd takes a new value
}

// Entries are the tables and keys of the default file, in its order. The file keeps to one key a line.
func Entries() []Entry {
	known := map[string]field{}
	for _, f := range fields() {
		known[f.key] = f
	}
	var (
		out     []Entry
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
			out = append(out, Entry{Table: table, Text: strings.Join(comment, " ")})
		case line != "":
			key, value, _ := strings.Cut(line, "=")
			key = strings.TrimSpace(key)
			if table != "" {
				key = table + "." + key
			}
			f, ok := known[key] // those of runtimes are not
			out = append(out, Entry{
				Key: key, Flag: f.flag, Value: strings.TrimSpace(value), Text: strings.Join(comment, " "),
				Reload: f.reload || !ok,
			})
		}
		comment = nil
	}
	return out
}

// documentation is what the default file says of each key.
func documentation() map[string]string {
	docs := map[string]string{}
	for _, p := range Entries() {
		docs[p.Key] = p.Text
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
