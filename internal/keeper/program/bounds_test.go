package program

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// TestWritesBeyondTheirBoundsEndTheProgram: as _FORTIFY_SOURCE has it with glibc. Without the header none of them ends
// by it.
func TestWritesBeyondTheirBoundsEndTheProgram(t *testing.T) {
	bounds := filepath.Join(t.TempDir(), "bounds")
	out, err := exec.Command(cmp.Or(os.Getenv("MUSL_GCC"), "musl-gcc"),
		"-O2", "-fno-stack-protector", "-w", "-static", "-o", bounds, "testdata/bounds.c").CombinedOutput()
	if err != nil {
		t.Fatal(err, string(out))
	}
	for _, call := range []string{"memcpy", "memmove", "memset", "strcpy", "snprintf", "read", "readlinkat"} {
		t.Run(call, func(t *testing.T) {
			if out, err := exec.Command(bounds, call, "8").CombinedOutput(); err != nil {
				t.Errorf("with as much as there is room for: %v: %s", err, out)
			}
			for _, length := range []int{9, 12} {
				err := exec.Command(bounds, call, strconv.Itoa(length)).Run()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGILL {
					t.Errorf("%d bytes where there is room for 8: %v, want SIGILL", length, err)
				}
			}
		})
	}
}
