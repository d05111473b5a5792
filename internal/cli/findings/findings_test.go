package findings

import (
	"errors"
	"os"
	"path/filepath"
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

// TestTheDaemonsProcessIsFoundBehindASocketUnit: systemd listens for it. Seen to fail where the listener was taken, and
// without the comparison of namespaces.
func TestTheDaemonsProcessIsFoundBehindASocketUnit(t *testing.T) {
	proc := t.TempDir()
	for process, links := range map[string][2]string{ // its program and its PID namespace
		"1": {"/usr/lib/systemd/systemd", "pid:[1]"}, "5": {"/usr/bin/berthd", "pid:[1]"},
		"6": {"/usr/bin/berthd (deleted)", "pid:[1]"}, "7": {"/bin/sh", "pid:[1]"}, "8": {"/sbin/init", "pid:[2]"},
		"self": {"/usr/bin/berth", "pid:[1]"},
	} {
		dir := filepath.Join(proc, process)
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "ns"), 0o700),
			os.Symlink(links[0], filepath.Join(dir, "exe")), os.Symlink(links[1], filepath.Join(dir, "ns", "pid"))); err != nil {
			t.Fatal(err)
		}
	}
	for name, tc := range map[string]struct{ listener, told, want int }{
		"it listens itself":           {5, 5, 5},
		"an older one":                {5, 0, 5},
		"systemd listens":             {1, 5, 5},
		"its file was replaced":       {1, 6, 6},
		"what it names is no berthd":  {1, 7, 1},
		"what it names has ended":     {1, 9, 1},
		"another PID namespace":       {8, 5, 8},
		"berthd listens, and is told": {6, 5, 6},
		"nobody of root's listens":    {0, 5, 0},
	} {
		if got := processOf(proc, tc.listener, tc.told); got != tc.want {
			t.Errorf("%s: process %d, want %d", name, got, tc.want)
		}
	}
}
