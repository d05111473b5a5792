package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAUnitRestartsWithItsCommand starts a unit as the suite does, kills it, and starts it again.
func TestAUnitRestartsWithItsCommand(t *testing.T) {
	was := unitsDir
	unitsDir = t.TempDir()
	t.Cleanup(func() { unitsDir = was }) // after the unit is stopped, whose file is there
	log := filepath.Join(t.TempDir(), "log")
	t.Chdir(t.TempDir())
	err := systemdRun([]string{"-p", "Delegate=true", "-p", "StandardError=append:" + log, "--unit=kubelet-1.service",
		"--slice=runtime.slice", "--remain-after-exit", "sh", "-c", `echo "100%%"; exec sleep 1000`})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(unitsDir, "kubelet-1.service")
	first := waitForUnit(t, file, true)
	t.Cleanup(func() { _ = systemctl([]string{"stop", "kubelet-1.service"}) })
	waitForLines(t, log, 1)
	if err := systemctl([]string{"kill", "kubelet-1"}); err != nil {
		t.Fatal(err)
	}
	waitForUnit(t, file, false)
	if err := systemctl([]string{"restart", "kubelet-1.service"}); err != nil {
		t.Fatal(err)
	}
	if second := waitForUnit(t, file, true); second.PID == first.PID {
		t.Errorf("the same process, %d", first.PID)
	}
	waitForLines(t, log, 2)
	if err := systemctl([]string{"restart", "kubelet-2.service"}); err == nil {
		t.Error("a unit that does not exist restarts")
	}
	if err := systemdRun([]string{"--scope", "true"}); err == nil {
		t.Error("an unknown flag is ignored")
	}
}

func waitForUnit(t *testing.T, file string, running bool) unit {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		u, err := readUnit(file)
		if err != nil {
			t.Fatal(err)
		}
		if u.running() == running {
			return u
		}
		if time.Now().After(deadline) {
			t.Fatalf("the unit runs: %t", !running)
		}
	}
}

func waitForLines(t *testing.T, log string, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		data, err := os.ReadFile(log)
		if err == nil && strings.Count(string(data), "100%\n") == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the log is %q (%v)", data, err)
		}
	}
}
