package nodetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// envCRIU names the criu to test with.
const envCRIU = "BERTH_CRIU"

// CRIU is a criu that works here: the one that BERTH_CRIU names, as make sets it, or the one in PATH. A test that has
// none is skipped.
func CRIU(t testing.TB) (path string) {
	t.Helper()
	path, err := TryCRIU()
	if err != nil {
		t.Skip(err)
	}
	return path
}

// TryCRIU is CRIU for those who do without. It has written a process down to see whether criu works: there are virtual
// machines on which `criu check` finds everything, and a process that criu works in does not come back.
var TryCRIU = sync.OnceValues(func() (path string, err error) {
	if path = os.Getenv(envCRIU); path == "" {
		path, _ = exec.LookPath("criu")
	}
	if path == "" {
		return "", errors.New("there is no criu: packaging/criu.sh gets one")
	}
	if out, err := exec.Command(path, "check").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s does not work on this kernel (packaging/criu.sh gets one that does): %w: %s",
			path, err, out)
	}
	dir, err := os.MkdirTemp("", "criu")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	sleep := exec.Command("sleep", "1000")
	sleep.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // of the session that a process is in, all are written down
	if err := sleep.Start(); err != nil {
		return "", err
	}
	defer func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err = exec.CommandContext(ctx, path, "dump", "-t", strconv.Itoa(sleep.Process.Pid), "-D", dir).Run()
	if ctx.Err() != nil {
		return "", fmt.Errorf("%s hangs on this machine when it writes a sleep down: %w", path, err)
	}
	return path, nil // what else is wrong is told by the test that it is wrong for
})
