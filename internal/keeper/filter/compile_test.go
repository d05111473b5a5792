//go:build seccomp

package filter

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
)

// noMemory is a variable with which the compiler is killed, as the kernel does for want of memory.
const noMemory = "BERTH_TEST_NO_MEMORY"

// TestMain: Compile executes the program that it is in.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Argument {
		if os.Getenv(noMemory) != "" {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		Main()
	}
	os.Exit(m.Run())
}

// TestTheCompilerIsInterrupted: Go's runtime sends SIGURG to threads of its own that work for long. A system call that
// waits for an answer then begins anew. Seen to fail where a notification that is gone (ENOENT) ends the compiler.
func TestTheCompilerIsInterrupted(t *testing.T) {
	profile := &configs.Seccomp{DefaultAction: configs.Errno, Syscalls: []*configs.Syscall{
		{Name: "read", Action: configs.Allow}, {Name: "write", Action: configs.Allow},
	}}
	in, err := json.Marshal(profile)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		cmd := exec.Command("/proc/self/exe", Argument)
		var out, complaints bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &complaints
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		for {
			select {
			case err = <-ended:
			default:
				_ = cmd.Process.Signal(syscall.SIGURG)
				continue
			}
			break
		}
		if err != nil {
			t.Fatalf("%v: %s", err, complaints.String())
		}
		if _, err := Parse(out.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
}
