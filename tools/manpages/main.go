// Command manpages writes the manual pages of berth, a page for each of its commands, and of berthd:
//
//	manpages DIR BERTHD
//
// SOURCE_DATE_EPOCH is their date.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra/doc"

	"berth/internal/cli"
)

func main() {
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manpages:", err)
		os.Exit(1)
	}
}

func write(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("a directory and the path of berthd are needed, not %q", args)
	}
	dir := args[0]
	command := cli.Command("")
	command.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Source: "Berth", Manual: "Berth"}
	if err := doc.GenManTree(command, header, filepath.Join(dir, "man1")); err != nil {
		return err
	}
	help, err := exec.Command(args[1], "--help").Output()
	if err != nil {
		return fmt.Errorf("%s --help: %w", args[1], err)
	}
	return os.WriteFile(filepath.Join(dir, "man8", "berthd.8"), []byte(daemon(string(help))), 0o644)
}

// daemon is the page of berthd, whose command is a program of its own: its help as it prints it.
func daemon(help string) string {
	quoted := strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(help)
	var lines []string
	for line := range strings.Lines(quoted) {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line
		}
		lines = append(lines, line)
	}
	return ".TH BERTHD 8 \"\" \"Berth\" \"Berth\"\n.SH NAME\nberthd \\- node container runtime for Kubernetes\n" +
		".SH DESCRIPTION\n.nf\n" + strings.Join(lines, "") + ".fi\n.SH SEE ALSO\n.BR berth (1)\n"
}
