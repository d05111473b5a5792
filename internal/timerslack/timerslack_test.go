package timerslack

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// The tests' own program has the package, so what its init does has been done to this process. Seen to fail: the first
// two tests without the init, and the third where the marker stays in the environment.

func TestThreadsHaveTheSlack(t *testing.T) {
	// On threads that Go's runtime has made before, and since.
	for range 8 {
		done := make(chan uintptr)
		go func() {
			now, _ := prctl(syscall.PR_GET_TIMERSLACK, 0)
			done <- now
		}()
		if now := <-done; now < slack {
			t.Fatalf("a thread has a slack of %d ns, want %d", now, slack)
		}
	}
}

func TestTheMonitorHasTheSlack(t *testing.T) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil || len(threads) < 2 {
		t.Fatal(threads, err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile("/proc/" + thread.Name() + "/timerslack_ns")
		if os.IsPermission(err) {
			t.Skip("needs CAP_SYS_NICE")
		}
		if os.IsNotExist(err) {
			continue // it has ended
		}
		if now := strings.TrimSpace(string(text)); err != nil || now != "500000" {
			t.Errorf("thread %s has a slack of %q ns, %v", thread.Name(), now, err)
		}
	}
}

func TestNothingElseIsChanged(t *testing.T) {
	if value, ok := os.LookupEnv(again); ok {
		t.Errorf("%s=%s is left in the environment", again, value)
	}
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil || !strings.HasPrefix(string(name), "timerslack") {
		t.Errorf("the process is called %q, %v", name, err)
	}
}
