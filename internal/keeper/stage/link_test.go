package stage

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAReportThatIsTooLongIsNoReport: the kernel cuts a message to the room that there is for it. Its beginning was taken
// for a report.
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
