package migrate

import (
	"regexp"
	"strings"
	"sync"

	"berth/docs"
)

// Runtimes that a node comes from, as docs/migrating.md heads its columns.
const (
	Containerd = "containerd"
	CRIO       = "CRI-O"
)

// twin is what docs/migrating.md says of a key.
type twin struct {
	is   string // a key of Berth, or one of always, never and no
	text string
}

// needless is whether nothing is lost with the key.
func (t twin) needless() bool {
	return strings.HasPrefix(t.is, "always") || strings.HasPrefix(t.is, "never")
}

// reason is the text for somebody who has configured the key.
func (t twin) reason() string {
	is, text := plain(t.is), plain(t.text)
	switch {
	case t.is == "no" && text != "":
		return text
	case t.is == "no":
		return "Berth has nothing of the kind"
	case t.needless() && text != "":
		return is + ": " + text
	case t.needless():
		return is
	case text == "" || text == "the same":
		return "by hand: " + is
	}
	return "by hand: " + is + ": " + text
}

var (
	quoted = regexp.MustCompile("`([^`]+)`")
	link   = regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)
)

// plain is Markdown without its marks.
func plain(text string) string { return strings.ReplaceAll(link.ReplaceAllString(text, "$1"), "`", "") }

// twins are the rows of the tables of docs/migrating.md by runtime and key.
var twins = sync.OnceValue(func() map[string]map[string]twin {
	all := map[string]map[string]twin{Containerd: {}, CRIO: {}}
	var columns []string
	for line := range strings.Lines(docs.Migrating) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			columns = nil
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if columns == nil {
			columns = cells
			continue
		}
		var t twin
		for i, column := range columns {
			switch {
			case i >= len(cells):
			case column == "Berth":
				t.is = cells[i]
			case column == "":
				t.text = cells[i]
			}
		}
		for i, column := range columns {
			if all[column] == nil || i >= len(cells) {
				continue
			}
			for _, key := range quoted.FindAllStringSubmatch(cells[i], -1) {
				if _, again := all[column][key[1]]; !again {
					all[column][key[1]] = t
				}
			}
		}
	}
	return all
})
