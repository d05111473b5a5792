package node

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestHalt: a process that never sleeps has stopped when Halt returns. Seen to fail without the wait.
func TestHalt(t *testing.T) {
	for range 50 {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		err := Halt(cmd.Process.Pid, 10*time.Second)
		p, readErr := readProcess(cmd.Process.Pid)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err != nil || readErr != nil || p.State != 'T' {
			t.Fatalf("%v is not stopped: %v, %v", p, err, readErr)
		}
	}
	if err := Halt(1<<22+1, time.Second); err == nil {
		t.Error("a process that does not exist was stopped")
	}
}

// TestTheTimeOfThreadsThatHaveEndedCounts: a process whose busy threads have ended has used as much as before. Seen
// to fail where the times of the threads that there are were added up.
func TestTheTimeOfThreadsThatHaveEndedCounts(t *testing.T) {
	const busy = 20 * time.Millisecond
	before, err := CPUTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan int)
	var work func()
	work = func() {
		runtime.LockOSThread() // it ends with the goroutine
		if unix.Gettid() == os.Getpid() {
			go work() // but the first thread of a process stays
			<-t.Context().Done()
			return
		}
		for began := threadTime(t); threadTime(t)-began < busy; { // it may have worked before
		}
		ended <- unix.Gettid()
	}
	go work()
	task := fmt.Sprintf("/proc/self/task/%d", <-ended)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(task); os.IsNotExist(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s is still there", task)
		}
	}
	if after, err := CPUTime(os.Getpid()); err != nil || after-before < busy {
		t.Errorf("%v, %v", after-before, err)
	}
	if _, err := CPUTime(1<<22 + 1); err == nil {
		t.Error("a process that does not exist has a time")
	}
}

// threadTime is the processor time of the calling thread.
func threadTime(t *testing.T) time.Duration {
	var spent unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &spent); err != nil {
		t.Error(err)
	}
	return time.Duration(spent.Nano())
}
