package cli

import (
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"
)

// TestASignalThatIsIgnoredEndsNoCommand: nohup, and a shell that runs a command in the background, start it with a
// signal ignored. Other signals end it. Seen to fail where all signals are asked for.
func TestASignalThatIsIgnoredEndsNoCommand(t *testing.T) {
	// ends says whether a signal ends a command that is started now.
	ends := func(sig syscall.Signal) bool {
		ctx, stop := signal.NotifyContext(t.Context(), interrupts()...)
		defer stop()
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			return true
		case <-time.After(time.Second):
			return false
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(sig) && !ends(sig) { // who runs the tests may ignore it
			t.Errorf("%v does not end a command", sig)
		}
		signal.Ignore(sig)
		if ends(sig) {
			t.Errorf("%v ends a command that was started with the signal ignored", sig)
		}
		signal.Reset(sig)
	}
	if !ends(syscall.SIGTERM) {
		t.Error("SIGTERM does not end a command")
	}
}
