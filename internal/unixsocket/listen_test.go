package unixsocket

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
)

// envListen has the path of a socket for a process of its own that listens on it.
const envListen = "BERTH_TEST_LISTEN"

func TestMain(m *testing.M) {
	if path := os.Getenv(envListen); path != "" {
		listen(path)
	}
	os.Exit(m.Run())
}

// listen opens a socket, and starts a child that has it too. It prints the child's process ID and waits.
func listen(path string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		panic(err)
	}
	f, err := l.File()
	if err != nil {
		panic(err)
	}
	child := exec.Command("sleep", "1000")
	child.ExtraFiles = []*os.File{f}
	if err := child.Start(); err != nil {
		panic(err)
	}
	fmt.Println(child.Process.Pid)
	select {}
}

// TestTheSocketOfAKilledProcessIsFree also while a child has it that was forked as the process was killed, and whether
// the process is reaped or not. Seen to fail without ofTheDead: somebody answers on it already.
func TestTheSocketOfAKilledProcessIsFree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envListen+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 32)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(child, syscall.SIGKILL)
	if err := CheckStale(path); !errdefs.IsAlreadyExists(err) {
		t.Errorf("while it lives: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for { // it is a zombie, which Wait has not reaped
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(stat), ") Z ") {
			break
		}
	}
	if err := CheckStale(path); err != nil {
		t.Errorf("before it is reaped: %v", err)
	}
	_ = cmd.Wait()
	if conn, err := net.Dial("unix", path); err != nil {
		t.Errorf("the child has no socket, so this is no test: %v", err)
	} else {
		conn.Close()
	}
	if err := CheckStale(path); err != nil {
		t.Errorf("after it: %v", err)
	}
	l, err := Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
