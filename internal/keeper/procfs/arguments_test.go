package procfs

import (
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// TestArgumentsFillNoMemory: a process says how long its arguments are, and without any privilege that may be
// gigabytes. Seen to fail where the whole file was read and then cut.
func TestArgumentsFillNoMemory(t *testing.T) {
	long := slices.Repeat([]string{strings.Repeat("x", 100_000)}, 10)
	cmd := exec.Command("sh", append([]string{"-c", "echo; read end"}, long...)...)
	cmd.Env = append(os.Environ(), long...)
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	runs, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { end.Close(); _ = cmd.Wait() }()
	// Start returns when execve closes descriptors, and execve sets the arguments and the environment after that.
	if _, err := runs.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	for what, read := range map[string]func() string{
		"command line": func() string { return CommandLine(pid) },
		"arguments":    func() string { return Arguments(pid, maxCommandLine) },
		"environment":  func() string { return Environment(pid, maxCommandLine) },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got := read()
		runtime.ReadMemStats(&after)
		if len(got) != maxCommandLine {
			t.Errorf("%s: %d bytes", what, len(got))
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<10 {
			t.Errorf("%s: it took %d bytes of memory", what, took)
		}
	}
	if got := CommandLine(os.Getpid()); !strings.HasPrefix(got, os.Args[0]+"\x00") {
		t.Errorf("its own is %q", got)
	}
}
