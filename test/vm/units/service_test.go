package units

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// write puts a file in place for the test.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	})
}

// journal is what berthd's unit has said since a time.
func journal(t *testing.T, since time.Time) string {
	t.Helper()
	return must(t, "journalctl", "--no-pager", "-o", "cat", "-u", "berthd", "--since", fmt.Sprintf("@%d", since.Unix()))
}

// TestSystemctlReloads: a configuration that is wrong has the reload fail with what is wrong, and berthd goes on with
// the one that it has; one that is right is taken by the same process.
func TestSystemctlReloads(t *testing.T) {
	n := installed(t)
	pid := property(t, "berthd", "MainPID")
	const file = "/etc/berth/config.d/90-test.toml"
	began := time.Now()
	write(t, file, "[runtimes.gone]\ntype = \"nothing\"\n")
	if out, err := exec.Command("systemctl", "reload", "berthd").CombinedOutput(); err == nil {
		t.Errorf("a wrong configuration was reloaded: %s", out)
	}
	if said := journal(t, began); !strings.Contains(said, "90-test.toml") || !strings.Contains(said, "nothing") {
		t.Errorf("the journal does not say what is wrong: %s", said)
	}
	if err := os.WriteFile(file, []byte("[runtimes.reloaded]\ntype = \"builtin\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	must(t, "systemctl", "reload", "berthd")
	nodetest.Eventually(t, 30*time.Second, "the handler is there", func() error {
		status, err := n.Runtime.Status(nodetest.Context(t), &cri.StatusRequest{})
		if err != nil {
			return err
		}
		for _, h := range status.GetRuntimeHandlers() {
			if h.GetName() == "reloaded" {
				return nil
			}
		}
		return fmt.Errorf("the handlers are %v", status.GetRuntimeHandlers())
	})
	if got := property(t, "berthd", "MainPID"); got != pid {
		t.Errorf("berthd is process %s, and was %s", got, pid)
	}
}

// TestTheWatchdogEndsADaemonThatHangs: the keeper does not answer, so that berthd does not say that it is well. systemd
// ends it with SIGABRT, which writes the goroutines down, and starts it again. The pod runs on.
func TestTheWatchdogEndsADaemonThatHangs(t *testing.T) {
	n := installed(t)
	// Shorter than the unit's own, and long enough for a machine that is emulated.
	write(t, "/run/systemd/system/berthd.service.d/50-test.conf", "[Service]\nWatchdogSec=20\n")
	must(t, "systemctl", "daemon-reload")
	t.Cleanup(func() { must(t, "systemctl", "daemon-reload") })
	before := property(t, "berthd", "MainPID")
	must(t, "systemctl", "restart", "berthd")
	changed(t, n, "berthd", before)
	p := nodetest.RunPod(t, n)
	c, pid := counting(t, p)
	started := c.Status().StartedAt
	began, watched := time.Now(), property(t, "berthd", "MainPID")
	time.Sleep(30 * time.Second)
	if got := property(t, "berthd", "MainPID"); got != watched {
		t.Fatalf("berthd is well and was ended: it is process %s, and was %s\n%s", got, watched, journal(t, began))
	}
	keeper, err := strconv.Atoi(property(t, "berth-keeper", "MainPID"))
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Halt(keeper, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	resume := func() { _ = syscall.Kill(keeper, syscall.SIGCONT) }
	defer resume()
	nodetest.Eventually(t, 90*time.Second, "systemd ends berthd", func() error {
		if got := property(t, "berthd", "MainPID"); got == watched {
			return fmt.Errorf("it is still process %s", got)
		}
		return nil
	})
	resume()
	changed(t, n, "berthd", watched)
	said := journal(t, began)
	for _, want := range []string{"Watchdog timeout", "SIGABRT", "goroutine ", `"check":"keeper"`} {
		if !strings.Contains(said, want) {
			t.Errorf("the journal has no %q:\n%.4000s", want, said)
		}
	}
	lives(t, c, started, pid)
	p.Remove()
	nothingLeft(t)
}

// TestTheSocketUnitHoldsConnections: with berthd.socket, a client that connects while berthd is restarted, or stopped,
// is answered by the berthd that comes, and none is refused. `berth doctor` finds the process of berthd, though systemd
// listens for it. Without the unit, berthd makes its socket again.
func TestTheSocketUnitHoldsConnections(t *testing.T) {
	n := installed(t)
	p := nodetest.RunPod(t, n)
	c, pid := counting(t, p)
	started := c.Status().StartedAt
	must(t, "systemctl", "stop", "berthd")
	must(t, "systemctl", "enable", "--now", "berthd.socket")
	t.Cleanup(func() {
		must(t, "systemctl", "disable", "--now", "berthd.socket")
		must(t, "systemctl", "restart", "berthd")
		answers(t, n)
		p.Remove()
		nothingLeft(t)
	})
	// The first call that fails is the last: a client that may not wait for another connection.
	version := func() error {
		conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(nodetest.Context(t), 60*time.Second)
		defer cancel()
		_, err = cri.NewRuntimeServiceClient(conn).Version(ctx, &cri.VersionRequest{})
		return err
	}
	if err := version(); err != nil {
		t.Fatalf("a connection does not start berthd: %v", err)
	}
	for range 3 {
		before := property(t, "berthd", "MainPID")
		restart := exec.Command("systemctl", "restart", "berthd")
		if err := restart.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- restart.Wait() }()
		for done := false; !done; {
			select {
			case err := <-ended:
				if err != nil {
					t.Fatal(err)
				}
				done = true
			default:
				conn, err := net.Dial("unix", socket)
				if err != nil {
					t.Fatalf("while berthd is restarted: %v", err)
				}
				conn.Close()
				time.Sleep(time.Millisecond)
			}
		}
		changed(t, n, "berthd", before)
	}
	must(t, "systemctl", "kill", "--kill-whom=main", "--signal=KILL", "berthd")
	if err := version(); err != nil {
		t.Errorf("after berthd was killed: %v", err)
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket is %v, %v", info, err)
	}
	out, err := exec.Command("berth", "doctor", "-o", "json").Output() // its exit code is about the machine
	var found []struct{ Subject, Level, Detail string }
	if json.Unmarshal(out, &found) != nil {
		t.Fatalf("berth doctor: %v: %s", err, out)
	}
	for _, f := range found {
		if f.Subject == "configuration" && strings.HasPrefix(f.Detail, "not checked: ") {
			t.Errorf("doctor does not find berthd: %s", f.Detail)
		}
	}
	lives(t, c, started, pid)
}
