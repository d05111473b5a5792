package testindex

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheWarningsOfTheDocumentsAreInTheCode: an operator searches docs/debugging.md for a message of the log, so each
// message in the page's table of warnings has to be one that the programs write. Seen to fail with the table as it was
// before, which had a message that no program writes.
func TestTheWarningsOfTheDocumentsAreInTheCode(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(root + "/docs/debugging.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n## Warnings in the log\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(table, -1)
	if len(rows) < 5 {
		t.Fatalf("docs/debugging.md has %d warnings", len(rows))
	}
	missing := map[string]bool{}
	for _, row := range rows {
		missing[row[1]] = true
	}
	for _, dir := range []string{"cmd", "internal"} {
		err = filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			code, err := os.ReadFile(path)
			for message := range missing {
				if strings.Contains(string(code), message) {
					delete(missing, message)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for message := range missing {
		t.Errorf("docs/debugging.md has a warning that no program writes: %s", message)
	}
}
