package main

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"berth/test/node"
)

var record = flag.Bool("record", false, "write what the commands of README.md's recording show into README.md")

// prompt is how a recording marks what was typed.
const prompt = "$ "

// console is the recording of README.md: lines that begin with a prompt were typed, the others were shown.
var console = regexp.MustCompile("(?s)```console\n(.*?)```")

// TestTheRecordingOfTheFirstMinutes types the commands of README.md's recording on a private node and compares what
// they show, but for IDs, addresses, times and what is drawn.
func TestTheRecordingOfTheFirstMinutes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a container runtime needs root")
	}
	ctx, cancel := context.WithTimeout(context.Background(), node.Patience(3*time.Minute))
	defer cancel()
	root, err := node.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	readme := filepath.Join(root, "README.md")
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	block := console.FindSubmatchIndex(text)
	if block == nil {
		t.Fatal("README.md has no recording")
	}
	recorded := string(text[block[2]:block[3]])
	d := exampleNode(ctx, t)
	p := newTypist(ctx, t, d, root)
	d.must(ctx, t, nil, "rmi", "--unused", "-f") // the image with all of its names
	shown := p.retype(t, recorded)
	d.must(ctx, t, nil, "rm", "--all", "--force")
	if *record {
		made := string(text[:block[2]]) + shown + string(text[block[3]:])
		if err := os.WriteFile(readme, []byte(made), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, want := lasting(shown), lasting(recorded); got != want {
		t.Errorf("README.md shows, without what changes each time,\n%s\nand it is\n%s\nTo record it anew: "+
			"go test ./test/demo -run Recording -record\n%s", want, got, shown)
	}
}

// retype types the commands of a recording, and returns it with what they show now.
func (p *typist) retype(t *testing.T, recorded string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(recorded) {
		typed, ok := strings.CutPrefix(line, prompt)
		if !ok {
			continue
		}
		cmd := exec.CommandContext(p.ctx, "sh", "-c", strings.ReplaceAll(p.places.Replace(typed), "sudo ", ""))
		cmd.Dir, cmd.Env, cmd.WaitDelay = p.dir, p.environment(), 30*time.Second
		shown, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v", typed, err)
		}
		out.WriteString(line)
		for one := range strings.Lines(string(shown)) {
			out.WriteString(strings.TrimRight(one, " \n") + "\n")
		}
	}
	return out.String()
}

// changing are the parts of what commands show that are others each time, with what stands for them. How often the
// progress of a layer is shown depends on how long it takes.
var changing = []struct {
	text *regexp.Regexp
	is   string
}{
	{regexp.MustCompile(`(?m)^  layer .*\n`), ""},
	// Some steps may take too little time to be drawn.
	{regexp.MustCompile(`(?m)^(pod|web|   ) .*\d+\.\d ms[ ▏▎▍▌▋▊▉█]*\n`), "STEP\n"},
	{regexp.MustCompile(`(STEP\n)+`), "STEP\n"},
	{regexp.MustCompile(`[0-9a-f]{12,64}`), "ID"},
	{regexp.MustCompile(`\d+\.\d+\.\d+\.\d+(\]?:\d+)?`), "ADDRESS"},
	{regexp.MustCompile(`\d+(\.\d+)? ?(µs|ms|s|m|h)\b`), "TIME"},
	{regexp.MustCompile(`\d+(\.\d+)?[KMG]iB`), "SIZE"},
	{regexp.MustCompile(`[ \t]+`), " "},
	{regexp.MustCompile(` ?\n`), "\n"},
}

// lasting is a recording without what changes.
func lasting(recorded string) string {
	for _, c := range changing {
		recorded = c.text.ReplaceAllString(recorded, c.is)
	}
	return recorded
}
