package testindex

import (
	"os/exec"
	"strings"
	"testing"
)

// TestNothingOfAPatchIsCommitted: beside the files that they change, patch(1) and merges leave those files as they were
// (.orig), and what did not fit (.rej). Seen to fail with two such files in internal/stats.
func TestNothingOfAPatchIsCommitted(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "--", "*.orig", "*.rej")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("the sources are no repository of git, or there is no git: %v", err)
	}
	for name := range strings.Lines(string(out)) {
		t.Errorf("git knows %s", strings.TrimSpace(name))
	}
}
