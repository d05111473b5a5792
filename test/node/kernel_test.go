package node

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOrphansTellFromLinux615On(t *testing.T) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(name.Release[:])
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if want := major > 6 || major == 6 && minor >= 15; OrphansTell() != want {
		t.Errorf("on Linux %s an orphan's exit code is known: %v", release, !want)
	}
}
