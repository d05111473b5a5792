package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestARuntimeThatHangsDelaysNoStart: a runtime may be a script, and what it has started holds its output when it is
// killed. Seen to fail without firstbytes.Group, where the call took the two minutes of the sleep.
func TestARuntimeThatHangsDelaysNoStart(t *testing.T) {
	for what, c := range map[string]struct {
		script string
		maps   bool
	}{
		"it hangs":                    {script: "sleep 120; :"},
		"it prints without end":       {script: "while :; do echo 12345678901234567890; done"},
		"it has left a child behind":  {script: "sleep 120 & echo $! >$0.pid; echo '" + mapsIDs + "'", maps: true},
		"it answers":                  {script: "echo '" + mapsIDs + "'", maps: true},
		"it answers, with complaints": {script: "echo hm >&2; echo '" + mapsIDs + "'", maps: true},
	} {
		t.Run(what, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "runtime")
			if err := os.WriteFile(path, []byte("#!/bin/sh\n"+c.script+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if pid, err := os.ReadFile(path + ".pid"); err == nil {
					_ = exec.Command("kill", strings.TrimSpace(string(pid))).Run()
				}
			}()
			begin := time.Now()
			if maps, _ := runtimeFeatures(path, 5*time.Second); maps != c.maps {
				t.Errorf("it maps IDs: %v", maps)
			}
			if took := time.Since(begin); took > time.Minute {
				t.Errorf("took %v", took)
			}
		})
	}
}

const mapsIDs = `{"linux":{"mountExtensions":{"idmap":{"enabled":true}}}}`
