package daemon

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// TestTheProgramOfInitsCanBeExecutedAtOnce, though the keeper forks while the program's file is written: what is forked
// has the file open until it executes its own program. Seen to fail where forks do not wait: "text file busy".
func TestTheProgramOfInitsCanBeExecutedAtOnce(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip(err)
	}
	stop := make(chan struct{})
	var forks sync.WaitGroup
	defer forks.Wait()
	defer close(stop)
	for range 4 {
		forks.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_ = exec.Command("/bin/true").Run()
				}
			}
		})
	}
	// Another process executes the copies: here it would wait for forks.
	shell := exec.Command("sh", "-c", `while read path; do "$path" 2>&1; echo end; done`)
	in, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = shell.Wait() }()
	lines := bufio.NewScanner(out)
	dir := t.TempDir()
	for i := range 200 {
		path, err := (&podInits{dir: dir, binary: busybox}).initCopy("")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintln(in, path); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() && lines.Text() != "end" {
			if strings.Contains(lines.Text(), "busy") && !strings.Contains(lines.Text(), "BusyBox") {
				t.Fatalf("copy %d: %s", i, lines.Text())
			}
		}
	}
}
