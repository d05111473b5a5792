package findings

import (
	"strings"
	"testing"
	"unicode/utf8"

	"berth/internal/doctor"
)

// TestFindingsFitATerminal, word by word, and are a line each elsewhere. Seen to fail without the breaks of a detail
// and of an advice, and with breaks where there is no terminal.
func TestFindingsFitATerminal(t *testing.T) {
	words := strings.TrimSpace(strings.Repeat("berthd änd its keeper ", 20))
	found := []doctor.Finding{
		{Subject: "container metrics", Level: doctor.Poor, Detail: words, Advice: words + "\n" + words},
		{Subject: "disk", Level: doctor.Good, Detail: "/a/" + strings.Repeat("x", 100)},
	}
	for _, columns := range []int{80, 120} {
		var b strings.Builder
		if err := Print(&b, columns, false, found); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if utf8.RuneCountInString(line) > columns+1 && !strings.Contains(line, "xxx") {
				t.Errorf("%d columns: %q", columns, line)
			}
		}
		if got := strings.Count(strings.Join(strings.Fields(b.String()), " "), "berthd änd its keeper"); got != 60 {
			t.Errorf("%d columns: %d of 60 repetitions are left in\n%s", columns, got, b.String())
		}
	}
	var b strings.Builder
	if err := Print(&b, 0, false, found); err != nil || strings.Count(b.String(), "\n") != 4 {
		t.Errorf("without a terminal, %v:\n%s", err, b.String())
	}
}

// TestFindingsDoNotSpeakToTheTerminal: a process of a container that calls itself a kubelet has the words of some. Seen
// to fail where the texts were printed as they are.
func TestFindingsDoNotSpeakToTheTerminal(t *testing.T) {
	found := []doctor.Finding{{Subject: "kubelet", Level: doctor.Poor, Detail: "a\x1b[2Jb\nc", Advice: "d\x1b]0;e\a\nf"}}
	for _, columns := range []int{0, 80} {
		var b strings.Builder
		if err := Print(&b, columns, false, found); err != nil {
			t.Fatal(err)
		}
		if out := b.String(); strings.Trim(out, "\n") == "" || strings.ContainsAny(out, "\x1b\a") ||
			strings.Count(out, "\n") != 3 {
			t.Errorf("%d columns: %q", columns, out)
		}
	}
}
