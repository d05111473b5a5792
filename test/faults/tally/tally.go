// Package tally says what scenarios of test/faults count, adds the counts of many rounds up, and writes them
// as a table. Tests append rows to a file, which the command of test/faults/rounds reads.
package tally

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// EnvFile names the file that rows are appended to. Where it is not set, nobody counts, and scenarios are short.
const EnvFile = "BERTH_FAULT_COUNTS"

// Column is one number that is counted. Most come in pairs: how many there were, and how many of them
// were not as promised.
type Column string

// The columns. What a scenario does not look at stays 0 in both of a pair, and is a dash in the table.
const (
	Rounds        Column = "rounds" // kills, floods, spoilt files: whatever the scenario repeats
	Failed        Column = "failed" // runs of the scenario that did not pass
	Skipped       Column = "skipped"
	Programs      Column = "programs" // of containers and execs whose start was answered with OK, or was cut off
	ProgramsWrong Column = "programs_wrong"
	Exits         Column = "exits" // of containers
	ExitsWrong    Column = "exits_wrong"
	// 255, since a kernel before 6.15 keeps no exit code of what another process has reaped
	ExitsUntold  Column = "exits_untold"
	Lines        Column = "lines"       // of logs
	LinesWrong   Column = "lines_wrong" // lost, doubled, or in pieces
	Bytes        Column = "bytes"       // of execs and attaches that were answered with OK
	BytesWrong   Column = "bytes_wrong"
	Pulls        Column = "pulls" // that were answered with OK
	PullsWrong   Column = "pulls_wrong"
	Leaked       Column = "leaked"     // processes, mounts, interfaces, rules, addresses, cgroups, directories, sockets
	Silence      Column = "silence_ns" // the longest time until a call was answered again
	MemoryBefore Column = "pss_before" // bytes, berthd and keeper together
	MemoryAfter  Column = "pss_after"  // the same at the end
	FilesBefore  Column = "files_before"
	FilesAfter   Column = "files_after" // descriptors, berthd and keeper together
)

// largest are columns of which a sum would say nothing.
var largest = map[Column]bool{Silence: true, MemoryBefore: true, MemoryAfter: true, FilesBefore: true, FilesAfter: true}

// Row is what a scenario has counted.
type Row struct {
	Scenario string           `json:"scenario"`
	Counts   map[Column]int64 `json:"counts"`
}

// Add counts more. Of a time, of memory and of descriptors the largest is kept.
func (r *Row) Add(column Column, n int64) {
	if r.Counts == nil {
		r.Counts = map[Column]int64{}
	}
	if largest[column] {
		r.Counts[column] = max(r.Counts[column], n)
	} else {
		r.Counts[column] += n
	}
}

// Append writes a row at the end of a file, in one write, so that processes can share it.
func (r *Row) Append(path string) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// Table is rows by scenario, in the order in which scenarios came first.
type Table struct {
	rows  map[string]*Row
	order []string
}

// Row is that of a scenario, which is made where it is missing.
func (t *Table) Row(scenario string) *Row {
	if row := t.rows[scenario]; row != nil {
		return row
	}
	if t.rows == nil {
		t.rows = map[string]*Row{}
	}
	row := &Row{Scenario: scenario, Counts: map[Column]int64{}}
	t.rows[scenario] = row
	t.order = append(t.order, scenario)
	return row
}

// Read adds the rows of a file up.
func (t *Table) Read(r io.Reader) error {
	for rows := json.NewDecoder(r); ; {
		var row Row
		if err := rows.Decode(&row); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("rows of scenarios: %w", err)
		}
		total := t.Row(row.Scenario)
		for column, n := range row.Counts {
			total.Add(column, n)
		}
	}
}

// Markdown writes the table.
func (t *Table) Markdown(w io.Writer) error {
	_, err := fmt.Fprint(w, "| scenario | rounds | runs failed | programs that ran other than once | wrong exit codes | "+
		"log lines lost or doubled | bytes of streams lost | pulls lost | leaked | longest silence | "+
		"memory | descriptors |\n"+
		"|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, scenario := range t.order {
		if err == nil {
			_, err = fmt.Fprintln(w, t.rows[scenario].markdown())
		}
	}
	return err
}

func (r *Row) markdown() string {
	c := r.Counts
	rounds := digits(c[Rounds])
	if c[Rounds] == 0 && c[Skipped] > 0 {
		rounds = "skipped"
	}
	exits := of(c[ExitsWrong], c[Exits])
	if n := c[ExitsUntold]; n > 0 {
		exits += fmt.Sprintf(" (%s that the kernel did not keep)", digits(n))
	}
	return fmt.Sprintf("| %s | %s | %d | %s | %s | %s | %s | %s | %d | %s | %s | %s |", r.Scenario, rounds, c[Failed],
		of(c[ProgramsWrong], c[Programs]), exits, of(c[LinesWrong], c[Lines]), of(c[BytesWrong], c[Bytes]),
		of(c[PullsWrong], c[Pulls]), c[Leaked], silence(c[Silence]), memory(c[MemoryBefore], c[MemoryAfter]),
		change(c[FilesBefore], c[FilesAfter]))
}

// of is "0 of 1,234", or a dash where nothing was looked at.
func of(wrong, all int64) string {
	if all == 0 && wrong == 0 {
		return "–"
	}
	return digits(wrong) + " of " + digits(all)
}

func silence(ns int64) string {
	if ns == 0 {
		return "–"
	}
	return time.Duration(ns).Round(10 * time.Millisecond).String()
}

func memory(before, after int64) string {
	if after == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f → %.1f MiB", float64(before)/(1<<20), float64(after)/(1<<20))
}

func change(before, after int64) string {
	if after == 0 {
		return "–"
	}
	return fmt.Sprintf("%d → %d", before, after)
}

// digits groups by three: 1,234,567.
func digits(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
