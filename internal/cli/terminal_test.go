package cli

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/containerd/console"

	"berth/internal/cli/command"
)

// terminal is a pseudo-terminal of so many columns, and the lines that appear on it.
func terminal(t *testing.T, columns uint16) (screen *os.File, lines <-chan string) {
	t.Helper()
	master, path, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := master.Resize(console.WinSize{Width: columns, Height: 24}); err != nil {
		t.Fatal(err)
	}
	screen, err = os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan string)
	go func() { // ends with the terminal
		defer close(read)
		for scanner := bufio.NewScanner(master); scanner.Scan(); {
			read <- scanner.Text()
		}
	}()
	return screen, read
}

var colour = regexp.MustCompile("\x1b\\[[0-9]*m")

// TestDoctorFitsItsTerminal. Seen to fail where the terminal's width does not reach the findings.
func TestDoctorFitsItsTerminal(t *testing.T) {
	screen, lines := terminal(t, 72)
	dir := t.TempDir()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer screen.Close()
		run(t.Context(), "test", []string{"--address", filepath.Join(dir, "s"), "doctor", "--root", dir, "--state", dir,
			"--cni-conf-dir", filepath.Join(dir, "cni")}, os.Stdin, screen, screen)
	}()
	found := 0
	for line := range lines {
		found++
		line = colour.ReplaceAllString(strings.TrimRight(line, "\r"), "")
		// A path may be longer than a line.
		if utf8.RuneCountInString(line) > 72 && len(strings.Fields(line[25:])) > 1 {
			t.Errorf("%q", line)
		}
	}
	<-ended
	if found < 20 {
		t.Errorf("only %d lines were written", found)
	}
}

// TestAnArchiveIsNeitherReadFromATerminalNorWrittenToOne. Seen to fail where load waited for somebody to type it, and
// where save ended with 1.
func TestAnArchiveIsNeitherReadFromATerminalNorWrittenToOne(t *testing.T) {
	for _, args := range [][]string{{"load"}, {"load", "-i", "-"}, {"save", "busybox"}} {
		screen, lines := terminal(t, 80)
		ended := make(chan int, 1)
		go func() {
			defer screen.Close()
			ended <- run(t.Context(), "test", append([]string{"--address", filepath.Join(t.TempDir(), "s")}, args...), screen,
				screen, screen)
		}()
		var says strings.Builder
		for line := range lines {
			says.WriteString(line)
		}
		if code := <-ended; code != command.ExitUsage ||
			!strings.Contains(says.String(), "a terminal: give a file with -") {
			t.Errorf("%q: exit code %d, %q", args, code, says.String())
		}
	}
}
