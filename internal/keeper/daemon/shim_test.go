package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/protocol"
	"berth/internal/keeper/record"
)

// TestAShimTellsThatMemoryWasShort: as that of a virtual machine does, whose kernel alone knows. The proxy of the pod's
// init makes a file then. Seen to fail where the end of a container does not look for it, or counts it only with 137.
func TestAShimTellsThatMemoryWasShort(t *testing.T) {
	n := start(t)
	s := n.server
	for id, tc := range map[string]struct {
		exit       int
		seen, want bool
	}{
		"killed":        {137, true, true},
		"not-so":        {137, false, false},
		"ended-by-self": {1, true, true}, // a wrapper whose child was killed
		"ended-well":    {0, true, false},
	} {
		c := s.newContainer(record.Container{ID: id, State: protocol.StateRunning, Shim: &record.Shim{}})
		close(c.started)
		s.containers.add(c)
		if tc.seen {
			path := filepath.Join(s.dir().Bundle(id), "oom")
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c.ended(pidfd.Exit{Code: tc.exit, Known: true})
		if got := c.status().OOMKilled; got != tc.want {
			t.Errorf("%s: OOMKilled is %v", id, got)
		}
	}
}
