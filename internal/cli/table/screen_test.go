package table

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestATableFitsATerminal: the titles and the first lines stay on the screen, however many there are. Seen to fail
// without the cut of lines and of columns.
func TestATableFitsATerminal(t *testing.T) {
	var text strings.Builder
	text.WriteString("POD\n")
	for i := range 1000 {
		fmt.Fprintf(&text, "pod-%d %s\n", i, strings.Repeat("x", 90))
	}
	got := Fit(text.String(), 80, 24)
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) != 23 || lines[0] != "POD" || !strings.HasPrefix(lines[21], "pod-20 ") ||
		!strings.HasPrefix(lines[22], "… and 979 more lines") {
		t.Errorf("%d lines:\n%s", len(lines), got)
	}
	for _, line := range lines {
		if utf8.RuneCountInString(line) > 80 {
			t.Errorf("too long: %q", line)
		}
	}
	for _, c := range []struct{ columns, rows int }{{0, 0}, {200, 2000}, {200, 4}} {
		if got := Fit("A\nb\nc\n", c.columns, c.rows); got != "A\nb\nc\n" {
			t.Errorf("%v: %q", c, got)
		}
	}
}
