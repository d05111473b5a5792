// Package asroot is for tests that need root: to mount, to change owners, to make devices and cgroups.
//
// `make unit` runs as an ordinary user, and leaves these tests out. `make test` runs as root, and leaves none
// of them out.
package asroot

import (
	"os"
	"testing"
)

// Need skips a test, or a fuzzer, that an ordinary user runs. As root it does nothing. what says for what root
// is needed, such as "chown".
func Need(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root (" + what + "): sudo make test")
	}
}
