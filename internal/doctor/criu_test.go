package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCRIUIsTried: the program that the daemon is configured with is run, and one that is not there is named. Seen to
// fail where the configuration is not looked at, and where the program is not run.
func TestCRIUIsTried(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir+":/bin:/usr/bin:/sbin") // of the script's own interpreter, too
	script := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
		return path
	}
	broken := script("broken", "echo 'Error: no timers' >&2; echo more >&2; exit 1")
	works := script("works", `[ "$*" = check ]`)
	script("criu", `[ "$*" = check ]`)
	for name, c := range map[string]struct {
		daemon *Daemon
		level  Level
		detail string
	}{
		"no daemon":     {nil, Good, filepath.Join(dir, "criu")},
		"that of PATH":  {&Daemon{}, Good, filepath.Join(dir, "criu")},
		"its own":       {&Daemon{CRIU: works}, Good, works},
		"a broken one":  {&Daemon{CRIU: broken}, Poor, "Error: no timers"},
		"one not there": {&Daemon{CRIU: dir + "/none"}, Poor, dir + "/none"},
	} {
		if name == "a broken one" && !isRoot() {
			continue // it is not tried
		}
		f := checkCRIU(t.Context(), Config{Daemon: c.daemon})
		if f.Level != c.level || !strings.Contains(f.Detail, c.detail) || (f.Advice == "") != (c.level == Good) {
			t.Errorf("%s: %+v", name, f)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if f := checkCRIU(t.Context(), Config{}); f.Level != Good || !strings.Contains(f.Detail, "apt-get install criu") {
		t.Errorf("without one: %+v", f)
	}
}
