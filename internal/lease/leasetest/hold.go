// Package leasetest has a file's lease held for tests by another process.
package leasetest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// variable is set in the process that Hold starts, which is the test's program again.
const variable = "BERTH_TEST_LEASE"

// In that process, init takes the lease, keeps it whatever the kernel asks for, and ends with its parent.
func init() {
	if os.Getenv(variable) == "" {
		return
	}
	_, err := unix.FcntlInt(3, unix.F_SETLEASE, unix.F_WRLCK)
	fmt.Println("held", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// Hold gives a file to a user who is not root, and has a process of this user hold a lease of it until the test ends or
// end is called.
func Hold(t *testing.T, path string) (end func()) {
	t.Helper()
	const owner = 65534
	if os.Geteuid() != 0 {
		t.Skip("another user's process needs root")
	}
	if err := os.Chown(path, owner, owner); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), variable+"=yes")
	cmd.ExtraFiles = []*os.File{file}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner, Gid: owner}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end = func() {
		if !ended {
			ended = true
			in.Close()
			_ = cmd.Wait()
		}
	}
	t.Cleanup(end)
	answer, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(answer) != "held <nil>" {
		t.Fatalf("the process that is to hold a lease says %s, %v", strconv.Quote(answer), err)
	}
	return end
}
