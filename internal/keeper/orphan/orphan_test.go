package orphan

import (
	"log/slog"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/keeper/pidfd"
	"berth/internal/keeper/procfs"
)

// owners owns the processes in it.
type owners map[int]bool

func (o owners) Owned() map[int]bool { return o }
func (o owners) Owns(pid int) bool   { return o[pid] }

func noHooks(map[int]bool) map[string]uint64 { return nil }

// ended starts a process that ends at once, and waits until it is a zombie.
func ended(t *testing.T) int {
	t.Helper()
	p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	pid := p.Pid
	t.Cleanup(func() { _, _ = unix.Wait4(pid, nil, 0, nil) })
	for deadline := time.Now().Add(10 * time.Second); !isZombie(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("process %d does not end", pid)
		}
	}
	return pid
}

func isZombie(pid int) bool {
	f := procfs.Status(pid)
	return len(f) > 0 && f[0] == "Z"
}

// TestOnlyWhatHasNoOwnerIsReaped, and only at the second look, when no start is under way that may wait for it. It was
// seen to fail where owned ones are looked at, and without the wait for starts.
func TestOnlyWhatHasNoOwnerIsReaped(t *testing.T) {
	own := owners{}
	r := New(own, noHooks, slog.New(slog.DiscardHandler))
	owned := ended(t)
	own[owned] = true
	if r.look() {
		t.Error("another look is wanted for what somebody waits for")
	}
	end := r.Begin()
	orphan, late := ended(t), ended(t)
	for range 3 {
		if !r.look() {
			t.Error("no other look is wanted during a start")
		}
	}
	own[late] = true // the start has put it into its record
	end()
	if !isZombie(orphan) {
		t.Error("a process was reaped during a start that it may belong to")
	}
	r.look()
	if isZombie(orphan) {
		t.Error("an orphan is not reaped")
	}
	next := ended(t)
	r.look()
	if !isZombie(next) {
		t.Error("an orphan was reaped at the first look")
	}
	r.look()
	if isZombie(next) {
		t.Error("an orphan is not reaped at the second look")
	}
	for _, pid := range []int{owned, late} {
		if !isZombie(pid) {
			t.Errorf("process %d was taken from who waits for it", pid)
		}
	}
}

// TestAHookThatHangsKeepsOnlyWhatTheStartMayHaveMade: while a container's hook runs, its start makes no processes. What
// is older than the hook may be the start's, and what else is under way may make processes at any time. Seen to fail
// where all starts keep all zombies, and, without the comparison of times, with a process of the start that was reaped.
func TestAHookThatHangsKeepsOnlyWhatTheStartMayHaveMade(t *testing.T) {
	own, hooks := owners{}, map[string]uint64{}
	r := New(own, func(map[int]bool) map[string]uint64 { return hooks }, slog.New(slog.DiscardHandler))
	looks := func() {
		for range 3 {
			r.look()
		}
	}
	end := r.BeginFor("c")
	defer end()
	r.underway[r.last] = operation{container: "c", began: time.Now().Add(time.Hour)}
	its := ended(t) // of the start
	hook, err := pidfd.StartTime(its)
	if err != nil {
		t.Fatal(err)
	}
	hooks["c"] = hook                 // in the same tick of the clock
	time.Sleep(2 * time.Second / 100) // two ticks
	young := ended(t)
	looks()
	if !isZombie(young) {
		t.Error("an orphan was reaped during a start that is young, before its hooks were looked for")
	}
	r.underway[r.last] = operation{container: "c", began: time.Now().Add(-slow)}
	endOther := r.Begin()
	looks()
	if isZombie(young) {
		t.Error("an orphan that is younger than the hook is not reaped")
	}
	next := ended(t)
	looks()
	if !isZombie(next) {
		t.Error("an orphan was reaped that may be of something else under way")
	}
	endOther()
	looks()
	if isZombie(next) {
		t.Error("an orphan is not reaped once that has ended")
	}
	delete(hooks, "c")
	last := ended(t)
	looks()
	if !isZombie(last) {
		t.Error("an orphan was reaped when the hook had ended, and the start goes on")
	}
	if !isZombie(its) {
		t.Error("a process of the start was taken from it")
	}
}

// TestAStartThatHangsKeepsNothingThatIsOlder: it has made no process before it began, whatever it makes later.
func TestAStartThatHangsKeepsNothingThatIsOlder(t *testing.T) {
	r := New(owners{}, noHooks, slog.New(slog.DiscardHandler))
	old := ended(t)                   // a daemon of another pod, which ends only now
	time.Sleep(2 * time.Second / 100) // two ticks
	_, end := r.BeginStart("c")
	defer end()
	its := ended(t)
	op := r.underway[r.last]
	op.began = op.began.Add(-slow)
	r.underway[r.last] = op
	for range 3 {
		r.look()
	}
	if isZombie(old) {
		t.Error("an orphan that is older than the start is not reaped")
	}
	if !isZombie(its) {
		t.Error("a process of the start was taken from it")
	}
}

// TestAStartThatIsSettledKeepsOnlyWhatItMayHaveMade: a container may stop the process of an exec before its program
// begins, and that of a container may wait for a volume. The start has made all its processes by then. Seen to fail
// where an exec kept all zombies until its start was over, and, without the comparison of times, with a process of the
// start that was reaped.
func TestAStartThatIsSettledKeepsOnlyWhatItMayHaveMade(t *testing.T) {
	r := New(owners{}, noHooks, slog.New(slog.DiscardHandler))
	looks := func() {
		for range 3 {
			r.look()
		}
	}
	settle, end := r.BeginStart("")
	its := ended(t)
	op := r.underway[r.last]
	op.began = op.began.Add(-slow)
	r.underway[r.last] = op
	looks()
	if !isZombie(its) {
		t.Fatal("a process of the start was taken from it")
	}
	settle()
	time.Sleep(2 * time.Second / 100) // two ticks
	young := ended(t)
	looks()
	if isZombie(young) {
		t.Error("an orphan that is younger than the exec's process is not reaped")
	}
	if !isZombie(its) {
		t.Error("a process of the start was taken from it when it was settled")
	}
	end()
	looks()
	if isZombie(its) {
		t.Error("an orphan is not reaped once the start is over")
	}
	settle() // it comes too late, and changes nothing
	if len(r.underway) != 0 {
		t.Errorf("under way: %v", r.underway)
	}
}

// BenchmarkLook is a look beside a thousand children that have owners, one of which has ended.
func BenchmarkLook(b *testing.B) {
	own := owners{}
	r := New(own, noHooks, slog.New(slog.DiscardHandler))
	for i := range 1000 {
		name := "/bin/sleep"
		if i == 0 {
			name = "/bin/true"
		}
		p, err := os.StartProcess(name, []string{name, "1000"}, &os.ProcAttr{})
		if err != nil {
			b.Fatal(err)
		}
		own[p.Pid] = true
		b.Cleanup(func() {
			_ = p.Kill()
			_, _ = p.Wait()
		})
	}
	for b.Loop() {
		r.look()
	}
}
