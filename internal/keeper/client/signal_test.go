package client_test

import (
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// signal32 is kept by glibc for itself, which ignores it in whatever posix_spawn starts; make, for one, starts all so.
// Go gives most others their default action back by itself.
const signal32 = 32

// setAction is rt_sigaction(2), since libraries refuse signal32.
func setAction(t *testing.T, handler uintptr) {
	t.Helper()
	action := struct{ handler, flags, restorer, mask uintptr }{handler: handler}
	_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, signal32, uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
}

// Not parallel: what a process ignores holds for all of it.
func TestWhatTheKeepersParentIgnoresContainersDoNot(t *testing.T) {
	setAction(t, 1) // SIG_IGN
	defer setAction(t, 0)
	n := start(t)
	n.run(n.request("a", "sleep", "1000"))
	out, _ := n.exec("a", 0, "grep", "SigIgn", "/proc/self/status")
	if f := strings.Fields(out); len(f) != 2 || strings.Trim(f[1], "0") != "" {
		t.Errorf("a container ignores signals: %q", out)
	}
}
