package doctor

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
)

func TestASnapshotterThatIsAwayIsFound(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	look := func(d *Daemon, level Level, detail string) {
		t.Helper()
		if f := checkSnapshotter(t.Context(), Config{Daemon: d}); f.Level != level || !strings.Contains(f.Detail, detail) {
			t.Errorf("%+v", f)
		}
	}
	look(nil, Good, "not checked")
	look(&Daemon{}, Good, "none: snapshotter.name")
	configured := &Daemon{Snapshotter: &Snapshotter{Name: "stargz", Address: socket}}
	look(configured, Good, "stargz listens at "+socket)
	l.Close()
	look(configured, Poor, "stargz cannot be reached")
}
