package stage

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAReportThatIsTooLongIsNoReport: the kernel cuts a message to the room that there is for it. Its beginning was
// taken for a report.
func TestAReportThatIsTooLongIsNoReport(t *testing.T) {
	ours, theirs, err := newLink()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	for _, size := range []int{reportSize - 4, reportSize, reportSize + 4} {
		if err := unix.Send(int(theirs.Fd()), make([]byte, size), 0); err != nil {
			t.Fatal(err)
		}
		sender, r, err := ours.receiveNow()
		switch {
		case size == reportSize && (err != nil || sender != unix.Getpid() || r != report{}):
			t.Errorf("a report: %d, %v, %v", sender, r, err)
		case size != reportSize && (err == nil || !strings.Contains(err.Error(), "bytes")):
			t.Errorf("%d bytes: %d, %v, %v", size, sender, r, err)
		}
	}
}

// TestACopyOfALastStagesPipeHoldsUpNoStart: a container may have taken one, so that its end never comes. The keeper
// waited for that as long as the container had it.
func TestACopyOfALastStagesPipeHoldsUpNoStart(t *testing.T) {
	status, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	taken, err := unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(taken)
	l := &Last{status: status, theirs: theirs}
	defer status.Close()
	waited := make(chan error, 1)
	go func() { waited <- l.Wait(os.Getppid()) }() // a process that has no copy, as after the program's begin
	select {
	case err := <-waited:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("it waits")
	}
}
