package daemon

import (
	"fmt"
	"testing"
	"time"

	"berth/internal/keeper/record"
)

// The end of an exec that nobody has asked for yet is kept while there are others to forget. Seen to fail where any
// that has ended is dropped: 2 of 10,000 execs under load were told that they are not found.
func TestEndsThatNobodyHasAskedForAreForgottenLast(t *testing.T) {
	c := &container{execs: map[string]*process{}}
	add := func(id string, ended time.Time) {
		p := newExec(c, record.Exec{ExecID: id})
		p.endedAt = ended
		close(p.done)
		c.execs[id] = p
	}
	now := time.Now()
	for i := range maxExecRecords {
		add(fmt.Sprint("taken", i), now.Add(execTaken-execKnown))
	}
	add("waited for", now)
	c.execs["runs"] = newExec(c, record.Exec{ExecID: "runs"})
	gone := c.forgetExecs()
	if len(gone) < maxExecRecords/4 || len(c.execs)+len(gone) != maxExecRecords+2 {
		t.Errorf("of %d, %d are forgotten and %d kept", maxExecRecords+2, len(gone), len(c.execs))
	}
	for _, id := range []string{"waited for", "runs"} {
		if c.execs[id] == nil {
			t.Errorf("the exec that is %s is forgotten", id)
		}
	}
}
