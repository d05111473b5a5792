// Package asroot marks tests that need root, because they mount, change owners, or make devices and cgroups.
//
// `make unit` runs as an ordinary user and skips these tests. `make test` runs as root and skips none of them.
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
