package tally

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Rows of several runs become one row of a scenario: counts are summed, times and sizes are the largest.
// Seen to fail with all summed.
func TestRowsOfAScenarioAddUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rows")
	for i := range int64(3) {
		row := &Row{Scenario: "kills"}
		row.Add(Rounds, 500)
		row.Add(Programs, 700)
		row.Add(ProgramsWrong, i)
		row.Add(Silence, 1e9*(3-i))
		row.Add(MemoryBefore, 10<<20)
		row.Add(MemoryAfter, 12<<20)
		if err := row.Append(path); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var table Table
	if err := table.Read(f); err != nil {
		t.Fatal(err)
	}
	table.Row("others").Add(Skipped, 1)
	var out strings.Builder
	if err := table.Markdown(&out); err != nil {
		t.Fatal(err)
	}
	const want = "| kills | 1,500 | 0 | 3 of 2,100 | – | – | – | – | 0 | 3s | 10.0 → 12.0 MiB | – |\n" +
		"| others | skipped | 0 | – | – | – | – | – | 0 | – | – | – |\n"
	if _, rows, _ := strings.Cut(out.String(), "|---|\n"); rows != want {
		t.Errorf("the table is\n%swant\n%s", rows, want)
	}
}
