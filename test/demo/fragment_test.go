package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"berth/internal/device/plugin"
	"berth/test/node"
)

// beginsTOML finds the first line of a part of config.toml, or of device-plugin.toml ([[resource]]). The parts of
// hosts.toml, whose hosts are quoted, and of systemd's units, whose tables begin with a capital letter, are neither.
var beginsTOML = regexp.MustCompile(`^(\[\[?[a-z_.]+\]\]?|[a-z_.]+ = .+)$`)

// fragments are the parts of configuration files that a page shows: lines that are indented, up to an empty one.
func fragments(page string) []string {
	var found []string
	for _, block := range strings.Split(page, "\n\n") {
		var lines []string
		for line := range strings.Lines(block) {
			text, indented := strings.CutPrefix(line, "    ")
			if !indented {
				lines = nil
				break
			}
			lines = append(lines, text)
		}
		first := 0
		for first < len(lines) && strings.HasPrefix(lines[first], "#") {
			first++
		}
		if first < len(lines) && beginsTOML.MatchString(strings.TrimSpace(lines[first])) &&
			!strings.HasPrefix(lines[first], "server = ") {
			found = append(found, strings.Join(lines, "")+"\n")
		}
	}
	return found
}

// TestTheConfigurationThatTheDocumentsShowIsValid has berthd read each part of config.toml that a document shows, and
// the device plugin each part of its file. An unknown key, or a value that cannot be, is refused by both.
func TestTheConfigurationThatTheDocumentsShowIsValid(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(2*time.Minute))
	defer cancel()
	root, err := node.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	binaries, err := node.Binaries(ctx)
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, name := range names {
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, fragment := range fragments(string(page)) {
			shown++
			if err := valid(ctx, t, binaries, fragment); err != nil {
				t.Errorf("%s shows a configuration that is refused: %v\n%s", filepath.Base(name), err, fragment)
			}
		}
	}
	if shown < 5 {
		t.Errorf("only %d parts of configuration files are found in the documents", shown)
	}
}

// valid says why a part of a configuration file is refused by the program that reads it.
func valid(ctx context.Context, t *testing.T, binaries, fragment string) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(file, []byte(fragment), 0o600); err != nil {
		t.Fatal(err)
	}
	if strings.HasPrefix(fragment, "[[resource]]") {
		_, err := plugin.Load(file)
		return err
	}
	dump := exec.CommandContext(ctx, filepath.Join(binaries, "berthd"), "config", "dump", "--config", file)
	out, err := dump.CombinedOutput()
	if err != nil {
		return fmt.Errorf("berthd config dump: %w: %s", err, out)
	}
	return nil
}
