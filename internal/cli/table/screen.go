package table

import (
	"fmt"
	"strings"
)

// Fit is a table with a line of titles as it fits a terminal of so many columns and rows, the last of which the cursor
// needs: long lines are cut, and a note says how many lines have no room. A size of zero is not known, and cuts
// nothing.
func Fit(text string, columns, rows int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if rest := len(lines) - (rows - 1); rows > 2 && rest > 0 {
		// The note takes the place of one more line.
		lines = append(lines[:rows-2], fmt.Sprintf("… and %d more lines; name pods to see less, or --sort-by", rest+1))
	}
	var b strings.Builder
	for _, line := range lines {
		if runes := []rune(line); columns > 0 && len(runes) > columns {
			line = string(runes[:columns])
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// Shorten cuts the middle out of a text that has more than so many characters: the beginnings and the ends of names of
// pods tell them apart.
func Shorten(text string, characters int) string {
	runes := []rune(text)
	if len(runes) <= characters {
		return text
	}
	end := (characters - 1) / 2
	return string(runes[:characters-1-end]) + "…" + string(runes[len(runes)-end:])
}
