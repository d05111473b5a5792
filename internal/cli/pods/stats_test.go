package pods

import (
	"strings"
	"testing"
	"unicode/utf8"

	"berth/internal/cli/table"
	"berth/internal/cli/usage"
)

// TestStatsFitATerminalOf80Columns: with names of 22 characters whole, and with the middle of longer ones left out.
// Elsewhere than on a terminal names are whole. Seen to fail with wider gaps, and without the cut of names.
func TestStatsFitATerminalOf80Columns(t *testing.T) {
	cpu, cpus, most, limit, pids := 9.99, 9.99, uint64(1023<<20), uint64(1023<<20), uint64(9999)
	row := func(name string) usage.Row {
		return usage.Row{Display: name, CPU: &cpu, CPULimit: &cpus, Memory: &most, MemoryLimit: &limit, Disk: &most,
			Received: &most, Sent: &most, Processes: &pids}
	}
	const long = "kube-system/coredns-7db6d8ff4d-abcde"
	for _, c := range []struct {
		name, shown string
		columns     int
	}{
		{"a-pod-with-22-letters-", "a-pod-with-22-letters-", 80},
		{long, "kube-syste", 80}, {long, "d-abcde ", 80}, {long, long, 0}, {long, long, 200}, {long, "kube-s…abcde", 10},
	} {
		var b strings.Builder
		if err := printUsage(&b, table.Table, c.columns, []usage.Row{row(c.name)}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), c.shown) {
			t.Errorf("%+v:\n%s", c, b.String())
		}
		for line := range strings.Lines(b.String()) {
			if c.columns == 80 && utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("%+v: %q", c, line)
			}
		}
	}
}
