package life

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"berth/internal/asroot"
	"berth/test/node"
	"berth/test/node/nodetest"
)

// systemd answers each question on a socket of systemd's own with the state of the system.
type systemd struct {
	socket string
	state  atomic.Value // string
}

func newSystemd(t *testing.T, state string) *systemd {
	t.Helper()
	s := &systemd{socket: filepath.Join(t.TempDir(), "private")}
	s.state.Store(state)
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if err := s.serve(conn); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("systemd's socket: %v", err)
				}
			}()
		}
	}()
	return s
}

// serve speaks the protocol of D-Bus: the lines of the authentication, and then messages.
func (s *systemd) serve(conn net.Conn) error {
	in := bufio.NewReader(conn)
	for begun := false; !begun; {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		answer := ""
		switch line = strings.Trim(line, "\x00\r\n"); {
		case line == "AUTH":
			answer = "REJECTED EXTERNAL"
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			answer = "OK 0123456789abcdef0123456789abcdef"
		case line == "NEGOTIATE_UNIX_FD":
			answer = "AGREE_UNIX_FD"
		case line == "BEGIN":
			begun = true
			continue
		default:
			return fmt.Errorf("the client says %q", line)
		}
		if _, err := io.WriteString(conn, answer+"\r\n"); err != nil {
			return err
		}
	}
	for {
		head := make([]byte, 16)
		if _, err := io.ReadFull(in, head); err != nil {
			return err
		}
		if head[0] != 'l' {
			return fmt.Errorf("a message in the byte order %q", head[0])
		}
		body, serial, fields := binary.LittleEndian.Uint32(head[4:]), head[8:12], binary.LittleEndian.Uint32(head[12:])
		rest := make([]byte, (fields+7)/8*8+body)
		if _, err := io.ReadFull(in, rest); err != nil {
			return err
		}
		// The body of the reply is a variant with a string. The library asks for signals as well, and waits for the reply.
		var value []byte
		if strings.Contains(string(rest), "SystemState") {
			state := s.state.Load().(string)
			value = binary.LittleEndian.AppendUint32([]byte{1, 's', 0, 0}, uint32(len(state)))
			value = append(append(value, state...), 0)
		}
		reply := binary.LittleEndian.AppendUint32([]byte{'l', 2, 1, 1}, uint32(len(value)))
		if value == nil {
			reply = append(reply, 1, 0, 0, 0, 8, 0, 0, 0) // its serial, and the length of the fields
			reply = append(append(reply, 5, 1, 'u', 0), serial...)
		} else {
			reply = append(reply, 1, 0, 0, 0, 15, 0, 0, 0)
			reply = append(append(reply, 5, 1, 'u', 0), serial...)
			reply = append(reply, 8, 1, 'g', 0, 1, 'v', 0, 0)
		}
		if _, err := conn.Write(append(reply, value...)); err != nil {
			return err
		}
	}
}

// applyBelow begins to keep the directory, in a mount namespace where a socket is that of systemd.
func (m *manifests) applyBelow(s *systemd) *playing {
	m.t.Helper()
	binaries, err := node.Binaries(nodetest.Context(m.t))
	if err != nil {
		m.t.Fatal(err)
	}
	p := &playing{t: m.t, n: m.n, data: m.data, ended: make(chan error, 1)}
	p.cmd = exec.CommandContext(context.WithoutCancel(nodetest.Context(m.t)), "sh", "-ec",
		`mount -t tmpfs none /run; mkdir /run/systemd; ln -s "$0" /run/systemd/private; exec "$@"`, s.socket,
		filepath.Join(binaries, "berth"), "--address", m.n.Address, "--data-dir", m.data, "apply", m.dir)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if err := p.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() { p.ended <- p.cmd.Wait() }()
	m.t.Cleanup(func() { p.interrupt() })
	return p
}

// TestAShutdownStopsThePodsOfApply with their hooks, their signals and their grace periods, those of a StatefulSet one
// after another, and those of others not at all. What handles SIGTERM and ends well has not done its work: it comes
// again after the boot, and a Job is not complete. An end of the command without a shutdown stops nothing. Seen to fail
// without the question to systemd, without the order of a StatefulSet, and without the note of what was interrupted.
func TestAShutdownStopsThePodsOfApply(t *testing.T) {
	asroot.Need(t, "a mount namespace")
	t.Parallel()
	nodetest.BerthOnly(t, "the command is Berth's")
	n := nodetest.Start(t, node.Options{}) // not the shared one: it counts all containers
	m := newManifests(t, n)
	out := t.TempDir()
	// Each container writes when it begins and ends. It handles SIGTERM, as a shell that is the first process does not.
	spec := func(indent, policy, hook string) string {
		text := strings.NewReplacer("POLICY", policy, "HOOK", hook, "OUT", out).Replace(`
restartPolicy: POLICY
terminationGracePeriodSeconds: 20
volumes: [{name: out, hostPath: {path: OUT}}]
containers:
- name: c
  image: IMAGE
  volumeMounts: [{name: out, mountPath: /out}]
  env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  command:
  - sh
  - -c
  - |
    trap 'echo term $POD >>/out/log; sleep 0.5; echo end $POD >>/out/log; exit 0' TERM
    echo begin $POD >>/out/log
    while sleep 0.1; do :; done
  lifecycle: {HOOK}
`)
		return strings.ReplaceAll(text, "\n", "\n"+indent)
	}
	m.write("a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: hooked}\nspec:"+
		spec("  ", "OnFailure", `preStop: {exec: {command: [sh, -c, "echo hook >>/out/log"]}}`))
	m.write("b.yaml", "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: set}\nspec:\n  replicas: 2\n"+
		"  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec:"+
		spec("      ", "Always", ""))
	m.write("c.yaml", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: work}\nspec:\n  template:\n    spec:"+
		spec("      ", "OnFailure", ""))
	if code, _, complaints := m.berth("run", "-d", "--name", "other", node.Busybox, "sleep", "600"); code != 0 {
		t.Fatal(complaints)
	}
	t.Cleanup(func() { m.berth("rm", "-f", "other") })
	s := newSystemd(t, "running")
	p := m.applyBelow(s)
	began := func(times int) {
		t.Helper()
		nodetest.Eventually(t, time.Minute, "all pods have begun", func() error {
			if shown := p.shown(); strings.Contains(shown, "complete") || strings.Contains(shown, "has ended") {
				t.Fatalf("a pod is taken for one that has ended: %s", shown)
			}
			if log := readLog(t, out); strings.Count(log, "begin ") != times {
				return fmt.Errorf("the log: %q", log)
			}
			return nil
		})
	}
	began(4)
	before := m.running()
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.shown())
	}
	if now := m.running(); !slices.Equal(now, before) || strings.Contains(readLog(t, out), "term") {
		t.Errorf("without a shutdown, %v run, and %v before: %s", now, before, readLog(t, out))
	}
	p = m.applyBelow(s)
	p.waitFor("was there", 4)
	s.state.Store("stopping")
	if code := p.end(syscall.SIGTERM); code != 0 {
		t.Fatalf("exit code %d: %s", code, p.shown())
	}
	log := readLog(t, out)
	hook, end := strings.Index(log, "hook\n"), strings.Index(log, "end hooked\n")
	first, second := strings.Index(log, "term set-0\n"), strings.Index(log, "end set-1\n")
	ends := strings.Count(log, "end set-0\n") + strings.Count(log, "end work-")
	if hook < 0 || end < hook || second < 0 || first < second || ends != 2 {
		t.Errorf("the log: %s\n%s", log, p.shown())
	}
	if now := m.running(); len(now) != len(before)-4 {
		t.Errorf("after the shutdown %v run, of %v", now, before)
	}
	if err := n.Reboot(); err != nil {
		t.Fatal(err)
	}
	s.state.Store("running")
	p = m.applyBelow(s)
	if err := n.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := n.WaitReady(nodetest.Context(t)); err != nil {
		t.Fatal(err)
	}
	began(8)
}

func readLog(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "log"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}
