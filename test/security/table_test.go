package security

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// number is that of a published hole.
var number = regexp.MustCompile(`CVE-\d{4}-\d{4,}|GHSA(?:-[0-9a-z]{4}){3}|GO-\d{4}-\d{4,}`)

// numbers are those in a text, each once.
func numbers(text string) []string {
	found := number.FindAllString(text, -1)
	slices.Sort(found)
	return slices.Compact(found)
}

// attacks are the tests of this package that are attacks, with their comments, and all numbers that its files speak of.
func attacks(t *testing.T) (comments map[string]string, all []string) {
	t.Helper()
	files := token.NewFileSet()
	comments = map[string]string{}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() || !strings.HasSuffix(e.Name(), "_test.go") || e.Name() == "table_test.go" {
			continue
		}
		file, err := parser.ParseFile(files, e.Name(), nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range file.Comments {
			all = append(all, numbers(c.Text())...)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") &&
				f.Name.Name != "TestMain" {
				comments[f.Name.Name] = f.Doc.Text()
			}
		}
	}
	slices.Sort(all)
	return comments, slices.Compact(all)
}

// rows are those of the table in docs/security.md: for each test the numbers and the whole text.
func rows(t *testing.T) map[string]string {
	t.Helper()
	doc, err := fs.ReadFile(os.DirFS("../../docs"), "security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(doc), "\n## Published attacks\n")
	if !found {
		t.Fatal("docs/security.md has no section 'Published attacks'")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	of := map[string]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || number.FindString(cells[0]) == "" {
			continue
		}
		if len(cells) != 4 {
			t.Errorf("a row has %d cells: %s", len(cells), line)
			continue
		}
		test, linked := strings.CutSuffix(strings.TrimPrefix(strings.TrimSpace(cells[3]), "["), "](../test/security)")
		if !linked {
			t.Errorf("the last cell of a row is no test: %s", cells[3])
		}
		if of[test] != "" {
			t.Errorf("%s has two rows", test)
		}
		if strings.Contains(cells[1]+cells[2], "](") || strings.TrimSpace(cells[1]) == "" ||
			strings.TrimSpace(cells[2]) == "" {
			t.Errorf("the row of %s says nothing, or has a link", test)
		}
		of[test] = line
	}
	return of
}

// TestTheTableOfAttacks: docs/security.md has a row for each attack here, with the numbers that its comment has,
// and no other row; each test is named by one of its numbers, and says how it was seen to fail.
//
// Seen to fail with a row left out, a row for a test that is not there, a number in a comment alone,
// and one in the table alone.
func TestTheTableOfAttacks(t *testing.T) {
	comments, all := attacks(t)
	table := rows(t)
	listed := map[string]bool{}
	for test, row := range table {
		comment, ok := comments[test]
		if !ok {
			t.Errorf("docs/security.md has a row for %s, and there is no such test", test)
		}
		if inRow, inComment := numbers(row), numbers(comment); !slices.Equal(inRow, inComment) {
			t.Errorf("%s: its row speaks of %q, and its comment of %q", test, inRow, inComment)
		}
		for _, n := range numbers(row) {
			listed[n] = true
		}
	}
	for test, comment := range comments {
		if table[test] == "" {
			t.Errorf("docs/security.md has no row for %s", test)
		}
		if !slices.ContainsFunc(numbers(comment), func(n string) bool {
			return strings.HasPrefix(test, "Test"+strings.ReplaceAll(n, "-", "_")+"_")
		}) {
			t.Errorf("%s is not named by a number of its comment", test)
		}
		if !strings.Contains(strings.Join(strings.Fields(comment), " "), "een to fail") &&
			!strings.Contains(comment, "een to succeed") {
			t.Errorf("the comment of %s does not say how it was seen to fail", test)
		}
	}
	for _, n := range all {
		if !listed[n] {
			t.Errorf("%s is in a comment, and not in docs/security.md", n)
		}
	}
}
