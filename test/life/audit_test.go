package life

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/test/node"
	"berth/test/node/nodetest"
)

// auditLine is a line of the audit's file.
type auditLine struct {
	Event, Operation, Namespace, Pod, Container, User, Error string
	Command                                                  []string
	Stdin                                                    bool
	Port                                                     int
	ExitCode                                                 *int   `json:"exit_code"`
	OperationID                                              string `json:"operation_id"`
	Peer                                                     struct {
		PID, UID        int
		Program, Client string
	}
}

func auditLines(t *testing.T, path string) []auditLine {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []auditLine
	for text := range strings.Lines(string(data)) {
		var one auditLine
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		all = append(all, one)
	}
	return all
}

func TestTheAuditTellsWhoRanWhatInWhichContainer(t *testing.T) {
	nodetest.BerthOnly(t, "containerd has none")
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	n := nodetest.Start(t, node.Options{Config: `shutdown_timeout = "5m"`,
		Tables: fmt.Sprintf("[audit]\nfile = %q\n", path)})
	p := nodetest.RunPod(t, n, func(config *cri.PodSandboxConfig) {
		config.Labels = map[string]string{"app": "audited"}
	})
	c := p.Run(nodetest.Sh("echo ready; exec httpd -f -p 8080 -h /etc"))
	c.WaitLog("ready")
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if r, err := c.Exec(60, "sh", "-c", "exit 4"); err != nil || r.ExitCode != 4 {
		t.Fatalf("%v, %v", r, err)
	}
	if code, _, complaints := typed(t, n, "exec", "-u", "1000", c.ID, "no-such-command"); code != 127 {
		t.Fatalf("exit code %d: %s", code, complaints)
	}
	if code, out, complaints := typed(t, n, "exec", c.ID, "echo", "two words"); code != 0 || out != "two words\n" {
		t.Fatalf("exit code %d: %s%s", code, out, complaints)
	}
	if _, err := c.Pod.Node.Runtime.ExecSync(nodetest.Context(t), &cri.ExecSyncRequest{
		ContainerId: strings.Repeat("0", 64), Cmd: []string{"true"},
	}); err == nil {
		t.Error("an exec in a container that is not there")
	}
	var begins, ends []auditLine
	for _, l := range auditLines(t, path) {
		switch l.Event {
		case "begin":
			begins = append(begins, l)
		case "end":
			ends = append(ends, l)
		}
	}
	if len(begins) != 3 || len(ends) != 3 {
		t.Fatalf("the file has %+v and %+v", begins, ends)
	}
	name := p.Config.Metadata
	for i, want := range []struct {
		operation, command, user, program string
		code                              int
	}{
		{"exec_sync", "sh -c exit 4", "", own, 4}, {"exec", "no-such-command", "1000", "/berth", -1},
		{"exec", "echo two words", "", "/berth", 0},
	} {
		b, e := begins[i], ends[i]
		if b.Operation != want.operation || strings.Join(b.Command, " ") != want.command || b.User != want.user ||
			b.Pod != name.Name || b.Namespace != name.Namespace || b.Container == "" || b.OperationID != e.OperationID {
			t.Errorf("%s: the begin is %+v", want.command, b)
		}
		if b.Peer.UID != 0 || b.Peer.PID == 0 || !strings.HasSuffix(b.Peer.Program, want.program) ||
			(b.Peer.Client == "") != (want.operation == "exec_sync") {
			t.Errorf("%s: the peer is %+v, want %s", want.command, b.Peer, want.program)
		}
		switch {
		case want.code < 0:
			if e.Error == "" || e.ExitCode != nil {
				t.Errorf("%s: the end is %+v", want.command, e)
			}
		case e.ExitCode == nil || *e.ExitCode != want.code || e.Error != "":
			t.Errorf("%s: the end is %+v", want.command, e)
		}
	}
	if begins[0].Peer.PID != os.Getpid() {
		t.Errorf("the peer is process %d, want %d", begins[0].Peer.PID, os.Getpid())
	}

	follower, followed := followAudit(t, n, "-l", "app=audited")
	_, others := followAudit(t, n, "-l", "app!=audited")
	_, all := followAudit(t, n, "-n", c.Pod.Config.Metadata.Namespace)
	nodetest.Eventually(t, time.Minute, "clients follow the audit", func() error {
		c.Sh("true")
		for _, client := range []*nodetest.Buffer{followed, all} {
			if text := client.String(); !strings.Contains(text, `"operation":"exec_sync"`) {
				return fmt.Errorf("a client has %q", text)
			}
		}
		return nil
	})
	if text := others.String(); text != "" {
		t.Errorf("a client that has chosen other labels has %q", text)
	}

	// One that is cut off by a kill has no end, and the next daemon says that it has begun.
	go func() { _, _ = c.Exec(60, "sleep", "1000") }()
	nodetest.Eventually(t, time.Minute, "the exec is written down", func() error {
		all := auditLines(t, path)
		if last := all[len(all)-1]; strings.Join(last.Command, " ") != "sleep 1000" {
			return fmt.Errorf("the last line is %+v", last)
		}
		return nil
	})
	if err := n.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Restart(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := follower.Wait(); err == nil || !strings.Contains(followed.String(), "was stopped or restarted") {
		t.Errorf("the client has ended with %v: %s", err, followed.String())
	}
	lines := auditLines(t, path)
	if last := lines[len(lines)-2:]; last[0].Event != "begin" || last[1].Event != "daemon" {
		t.Errorf("after a kill the file ends with %+v", last)
	}

	// Rotated, as logrotate does it.
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	signalled(t, n, syscall.SIGHUP, reloaded)
	c.Sh("true")
	if all := auditLines(t, path); len(all) != 2 || all[0].Operation != "exec_sync" {
		t.Errorf("after a rotation the file has %+v", all)
	}

	// A client that follows does not keep the daemon from ending.
	follower, followed = followAudit(t, n)
	nodetest.Eventually(t, time.Minute, "a client follows the audit", func() error {
		c.Sh("true")
		if followed.String() == "" {
			return errors.New("the client has nothing")
		}
		return nil
	})
	if err := n.Terminate(); err != nil {
		t.Error(err)
	}
	if err := follower.Wait(); err == nil {
		t.Error("the client has ended as if it had been told to")
	}
}

// followAudit starts a command that shows the audit.
func followAudit(t *testing.T, n *node.Node, flags ...string) (*exec.Cmd, *nodetest.Buffer) {
	t.Helper()
	binaries, err := node.Binaries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := &nodetest.Buffer{}
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries, "berth"),
		append([]string{"--address", n.Address, "events", "--audit", "-o", "json"}, flags...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // the test's context has ended
	return cmd, out
}

func TestAnAuditThatIsOffCannotBeFollowed(t *testing.T) {
	nodetest.BerthOnly(t, "containerd has none")
	n := nodetest.Start(t, node.Options{})
	code, _, complaints := typed(t, n, "events", "--audit")
	if code != 1 || !strings.Contains(complaints, "audit.file is empty") {
		t.Errorf("exit code %d: %s", code, complaints)
	}
}
